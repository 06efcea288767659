//! The command as a person types it.

use crate::common::{copy_without, finish, lily, repo, run};

const TINY: &str = "tests/fixtures/tiny/mlx-4bit";

fn path(path: &str) -> String {
    repo(path).to_str().unwrap().to_owned()
}

#[track_caller]
fn has(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in:\n{text}");
}

#[test]
fn beyond_loopback_a_key_is_needed() {
    for host in ["0.0.0.0", "::", "192.0.2.1"] {
        let refused = run(&["serve", "--host", host, "--port", "0"]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        has(&refused.err, "LILY_API_KEY");
        has(&refused.err, host);
    }
    // A key that no header can carry is not shown.
    let mut command = lily(&["serve", "--port", "0"]);
    command.env("LILY_API_KEY", "good,s3cret key");
    let refused = finish(command, "");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    has(&refused.err, "LILY_API_KEY");
    assert!(!refused.err.contains("s3cret"), "{}", refused.err);
    has(&run(&["serve", "--cors-origin", "example.org"]).err, "https://example.org");
}

#[test]
fn help_explains_every_command() {
    let help = run(&["--help"]);
    assert_eq!(help.code, Some(0));
    for word in ["serve", "chat", "run", "inspect", "bench", "eval", "Examples:", "demo model"] {
        has(&help.out, word);
    }
    for (command, flags) in [
        (
            "serve",
            &[
                "--host",
                "--port",
                "--ctx",
                "--model",
                "--alias",
                "--max-queue",
                "--parallel",
                "--script",
                "--cache-dir",
                "--cache-dir-bytes",
                "--threads",
                "--reattach-reasoning",
                "--strip-agent-header",
            ][..],
        ),
        ("chat", &["--system", "--no-thinking", "--temperature", "--model"]),
        ("run", &["--top-p", "--top-k", "--min-p", "--seed", "--max-tokens", "--greedy", "<PROMPT>"]),
        ("inspect", &["LILY_MODEL"]),
        ("bench", &["--synthetic", "--chat", "--layers", "--contexts", "--prompt-tokens", "--decode-tokens", "--json"]),
        ("eval", &["--golden", "--text", "--engine"]),
    ] {
        let help = run(&[command, "--help"]);
        assert_eq!(help.code, Some(0));
        for flag in flags {
            has(&help.out, flag);
        }
    }
    has(&run(&["serve", "--help"]).out, "LILY_PORT");
}

#[test]
fn wrong_usage_is_status_2() {
    for args in [
        &[][..],
        &["fly"],
        &["run"],
        &["run", "x", "--temperature", "NaN"],
        &["serve", "--port", "70000"],
        &["serve", "--reattach-reasoning", "maybe"],
    ] {
        let done = run(args);
        assert_eq!(done.code, Some(2), "{args:?}: {done:?}");
    }
}

#[test]
fn a_bad_pattern_is_refused_before_anything_starts() {
    let done = run(&["serve", "--strip-agent-header", "x-agent: ("]);
    assert_eq!(done.code, Some(2), "{done:?}");
    has(&done.err, "--strip-agent-header");
    has(&done.err, "unclosed group");
}

#[test]
fn a_bad_cache_directory_is_refused_before_anything_starts() {
    let file = path("Cargo.toml");
    for (flags, what) in [
        (&["--cache-dir", file.as_str()][..], "Cargo.toml is no directory"),
        (&["--cache-dir", "x", "--cache-bytes", "0"], "--cache-bytes 0 keeps nothing"),
        (&["--cache-dir", "x", "--cache-dir-bytes", "0"], "--cache-dir-bytes 0 leaves no room"),
        (&["--cache-dir", "x", "--script", file.as_str()], "--script has no states to keep"),
    ] {
        let done = run(&[&["serve", "--port", "0"], flags].concat());
        assert_eq!(done.code, Some(1), "{done:?}");
        has(&done.err, what);
    }
}

#[test]
fn inspect_prints_what_is_there() {
    let done = run(&["inspect", &path(TINY)]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    has(&done.out, "4: 3 linear attention, 1 full attention");
    has(&done.out, "a chat also needs chat_template.jinja");
    let official = run(&["inspect", &path("tests/fixtures/tiny/hf")]);
    assert_eq!(official.code, Some(0), "{}", official.err);
    has(&official.out, "BF16");
}

#[test]
fn inspect_of_a_broken_checkpoint_reports_and_fails() {
    let copy = copy_without(TINY, &[]);
    let shard = copy.path().join("model.safetensors");
    let whole = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &whole[..whole.len() - 1000]).unwrap();
    let done = run(&["inspect", copy.path().to_str().unwrap()]);
    assert_eq!(done.code, Some(1));
    has(&done.err, "1000 bytes are missing");
    has(&done.out, "4: 3 linear attention, 1 full attention");
}

#[test]
fn a_model_that_is_nowhere_gets_advice() {
    let cache = tempfile::tempdir().unwrap();
    let mut command = lily(&["run", "Hello!", "--model", "mlx-community/Qwen3.6-35B-A3B-4bit"]);
    command.env("HF_HUB_CACHE", cache.path());
    let done = finish(command, "");
    assert_eq!(done.code, Some(1));
    has(&done.err, "hf download mlx-community/Qwen3.6-35B-A3B-4bit");
    assert!(!done.err.contains("backtrace"), "{}", done.err);
}

#[test]
fn a_checkpoint_without_its_chat_files_cannot_chat() {
    for missing in ["chat_template.jinja", "tokenizer.json"] {
        let copy = copy_without("demo/4bit", &[missing]);
        let mut command = lily(&["run", "Hello!"]);
        command.env("LILY_MODEL", copy.path());
        let done = finish(command, "");
        assert_eq!(done.code, Some(1));
        has(&done.err, &format!("has no {missing}"));
    }
}

#[test]
fn benchmark_measures_and_writes_json() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("bench.json");
    let (tiny, report_arg) = (path(TINY), report.to_str().unwrap());
    let sizes = ["--contexts", "65,100", "--decode-tokens", "4", "--rounds", "2", "--peak", "10,0.1"];
    let done = run(&[&["bench", "--model", &tiny, "--device", "cpu", "--json", report_arg], &sizes[..]].concat());
    assert_eq!(done.code, Some(0), "{}", done.err);
    for word in ["prefill/s", "dec./s", "GB/s", "peak GB", "given by --peak"] {
        has(&done.out, word);
    }
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(json["engine"], "lily");
    assert_eq!(json["rows"].as_array().unwrap().len(), 2);
    for row in json["rows"].as_array().unwrap() {
        for [low, mid, high] in
            [["prefill_min", "prefill_tok_s", "prefill_max"], ["decode_min", "decode_tok_s", "decode_max"]]
        {
            let [low, mid, high] = [low, mid, high].map(|key| row[key].as_f64().unwrap());
            assert!(0.0 < low && low <= mid && mid <= high, "{json}");
        }
        assert!(row["peak_bytes"].as_u64().is_none_or(|bytes| bytes > 1_000_000), "{json}");
        assert!(row["decode_roofline"].as_f64().unwrap() > 0.0, "{json}");
        has(&done.out, row["digest"].as_str().unwrap());
    }

    // The same run beside itself, with nothing measured.
    let plot = folder.path().join("plot.svg");
    let done = run(&["bench", "--from", report_arg, "--compare", report_arg, "--plot", plot.to_str().unwrap()]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(done.out.matches("1.00×").count(), 4, "{}", done.out);
    has(&std::fs::read_to_string(plot).unwrap(), "lily (bench)");
}

/// A turn reads what is new, and at most a block beside it. Twenty turns by hand: docs/performance.md.
#[test]
fn a_benched_chat_reads_what_is_new() {
    let folder = tempfile::tempdir().unwrap();
    let [json, plot] = ["chat.json", "chat.svg"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let sizes = ["--rounds", "1", "--decode-tokens", "12", "--turns", "6"];
    let done = run(&[&["bench", "--chat", "--device", "cpu", "--json", &json, "--plot", &plot], &sizes[..]].concat());
    assert_eq!(done.code, Some(0), "{}", done.err);
    has(&done.out, "at most a block of 64");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = |run: usize| report["runs"][run]["rows"].as_array().unwrap();
    assert_eq!((rows(0).len(), rows(1).len()), (6, 6));
    for (warm, cold) in rows(0).iter().zip(rows(1)) {
        let count = |row: &serde_json::Value, name: &str| row[name].as_u64().unwrap_or_else(|| panic!("{row}"));
        assert_eq!(warm["prompt_tokens"], cold["prompt_tokens"]);
        assert!(count(warm, "prefilled_tokens") <= count(warm, "new_tokens") + 64, "{warm}");
        assert_eq!(count(warm, "prefilled_tokens") + count(warm, "cached_tokens"), count(warm, "prompt_tokens"));
        assert_eq!((count(cold, "cached_tokens"), &cold["prefilled_tokens"]), (0, &cold["prompt_tokens"]));
    }
    let done = run(&["bench", "--chat", "--from", &json, "--compare", &json, "--plot", &plot]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    has(&std::fs::read_to_string(plot).unwrap(), "lily, with its cache");
    let done = run(&["bench", "--chat", "--synthetic"]);
    assert_eq!(done.code, Some(2), "{done:?}");
}

#[test]
fn benchmark_refuses_files_without_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.json");
    std::fs::write(&file, r#"{"engine": "other", "rows": []}"#).unwrap();
    let done = run(&["bench", "--device", "cpu", "--compare", file.to_str().unwrap()]);
    assert_eq!(done.code, Some(1));
    has(&done.err, "empty.json has no rows");
}

#[test]
fn benchmark_refuses_prompts_that_are_too_long() {
    let done = run(&["bench", "--model", &path(TINY), "--device", "cpu", "--contexts", "1M"]);
    assert_eq!(done.code, Some(2));
    let done = run(&["bench", "--model", &path(TINY), "--device", "cpu", "--contexts", "64,1024K"]);
    assert_eq!(done.code, Some(1));
    has(&done.err, "this model was made for");
}

#[test]
fn ablations_are_of_a_gpu() {
    let done = run(&["bench", "--ablate", "--device", "cpu"]);
    assert_eq!(done.code, Some(1));
    has(&done.err, "--device cuda");
}

#[test]
fn synthetic_layers_come_in_fours() {
    let done = run(&["bench", "--synthetic", "--layers", "6"]);
    assert_eq!(done.code, Some(1));
    has(&done.err, "multiple of 4");
}

#[test]
fn a_port_in_use_is_known_before_the_model_is_loaded() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let done = run(&["serve", "--port", &port]);
    assert_eq!(done.code, Some(1));
    has(&done.err, "--port chooses another port");
}

#[test]
fn a_broken_script_names_line_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.jsonl");
    std::fs::write(&script, "{\"pieces\": [\"a\"]}\n{\"pieces\": [7]}\n").unwrap();
    let done = run(&["serve", "--port", "0", "--script", script.to_str().unwrap()]);
    assert_eq!(done.code, Some(1));
    has(&done.err, "line 2: pieces[0]");
}

#[cfg(feature = "demo")]
mod demo {
    use super::*;
    use crate::common::Done;

    /// The first golden completion of `demo/eval/greedy_4bit_fp32.json`.
    const ANSWER: &str = "Hello! How can I help you today?\n";

    fn greedy(args: &[&str], input: &str) -> Done {
        finish(lily(&[&["run", "--greedy"], args].concat()), input)
    }

    #[test]
    fn one_answer_equals_the_golden_one() {
        let done = greedy(&["Hello!", "--no-thinking"], "");
        assert_eq!((done.code, done.out.as_str()), (Some(0), ANSWER), "{}", done.err);
        has(&done.err, "built-in demo model");
        assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    }

    #[test]
    fn a_folder_answers_as_the_embedded_model_does() {
        let done = greedy(&["Hello!", "--no-thinking", "--model", &path("demo/4bit")], "");
        assert_eq!((done.code, done.out.as_str()), (Some(0), ANSWER), "{}", done.err);
        assert_eq!(done.err, "");
    }

    #[test]
    fn the_prompt_comes_from_standard_input() {
        let done = greedy(&["-", "--no-thinking"], "Hello!\n");
        assert_eq!((done.code, done.out.as_str()), (Some(0), ANSWER), "{}", done.err);
        assert_eq!(greedy(&["-"], " \n").code, Some(1));
    }

    #[test]
    fn reasoning_stays_out_of_the_answer() {
        let done = greedy(&["Who are you?"], "");
        assert_eq!(done.code, Some(0), "{}", done.err);
        assert!(!done.out.trim().is_empty() && !done.out.contains("think>"), "{}", done.out);
        assert!(done.err.lines().count() > 1, "the reasoning goes to standard error: {}", done.err);
        assert!(!done.out.contains('\x1b') && !done.err.contains('\x1b'), "{done:?}");
    }

    #[test]
    fn a_seed_repeats_and_max_tokens_cuts() {
        let sampled = |seed: &str| {
            let args = ["run", "Tell me a short story.", "--temperature", "2", "--top-k", "0", "--top-p", "1"];
            run(&[&args[..], &["--max-tokens", "20", "--no-thinking", "--seed", seed]].concat()).out
        };
        assert_eq!(sampled("1"), sampled("1"));
        assert_ne!(sampled("1"), sampled("2"));
        assert!(sampled("1").len() < 400);
    }

    #[test]
    fn a_prompt_beyond_the_context_is_refused() {
        let done = greedy(&[&"sea ".repeat(200), "--ctx", "100"], "");
        assert_eq!(done.code, Some(1));
        has(&done.err, "100 are the limit");
        let done = greedy(&["Hello!", "--ctx", "9000"], "");
        assert_eq!(done.code, Some(1));
        has(&done.err, "8192");
    }

    #[test]
    fn a_piped_chat_keeps_its_history() {
        let (told, asked) = ("My name is Ruby and I live in Lisbon.", "Where do I live?");
        let input = format!("/think off\n{told}\n{asked}\n/clear\n{asked}\n/fly\n/quit\nnever read");
        let done = finish(lily(&["chat", "--greedy"]), &input);
        assert_eq!(done.code, Some(0), "{}", done.err);
        has(&done.out, "Thinking is off.");
        let (before, after) = done.out.split_once("The conversation is forgotten.").unwrap();
        has(before, "Lisbon");
        assert!(!after.contains("Lisbon"), "{after}");
        has(after, "No such command: /fly");
        assert!(!done.out.contains('\x1b'), "{}", done.out);
    }

    #[test]
    fn a_chat_that_is_full_goes_on_after_clear() {
        let long = format!("{}\n/clear\nHello!\n", "sea ".repeat(200));
        let done = finish(lily(&["chat", "--greedy", "--no-thinking", "--ctx", "100"]), &long);
        assert_eq!(done.code, Some(0), "{}", done.err);
        has(&done.err, "/clear begins a new conversation");
        has(&done.out, ANSWER.trim_end());
    }

    #[test]
    fn evaluation_agrees_with_the_golden_values() {
        let golden = path("demo/eval/golden_4bit_fp32_192.json");
        let done = run(&["eval", "--golden", &golden]);
        assert_eq!(done.code, Some(0), "{}", done.err);
        has(&done.out, "positions    192");
        let same = done.out.lines().find(|l| l.contains("the same at")).unwrap();
        let same: u32 = same.split_whitespace().nth(4).unwrap().parse().unwrap();
        assert!(same >= 190, "{}", done.out);

        let text = run(&["eval", "--text", &path("demo/eval/heldout.txt"), "--positions", "192"]);
        let perplexity = |out: &str| out.lines().find(|l| l.starts_with("perplexity")).unwrap().to_owned();
        assert_eq!(perplexity(&text.out), perplexity(&done.out), "text and golden ids are the same tokens");
    }
}
