//! Scripts through the real engine, detokenizer and output machine.

use lily_chat::OutputEvent;

use super::{Told, drain, output, tokenizer, wait};
use crate::{Adjust, Engine, EngineOptions, FinishReason, Load, PrefixOptions, Request, SamplingParams, Script};

fn engine(script: &str) -> (Engine, Vec<u32>) {
    let (model, tokenizer) = Script::parse(script).unwrap().model(&tokenizer(), super::fake::EOS, 4096).unwrap();
    let prompt = tokenizer.encode_text("Say something.");
    (
        Engine::start(
            Box::new(model),
            EngineOptions {
                tokenizer,
                context: 4096,
                max_queue: 8,
                prefix: PrefixOptions::default(),
                parallel: 1,
                memory: None,
                disk: None,
            },
        )
        .unwrap(),
        prompt,
    )
}

fn request(prompt: &[u32]) -> Request {
    Request {
        prompt: prompt.to_vec(),
        boundaries: Vec::new(),
        sampling: SamplingParams::GREEDY,
        adjust: Adjust::default(),
        max_tokens: Some(100),
        output: output(),
        progress: false,
    }
}

fn run(engine: &Engine, request: Request) -> Told {
    drain(&mut engine.submit(request).unwrap())
}

#[test]
fn line_k_answers_request_k_and_the_last_repeats() {
    let (engine, prompt) =
        engine("{\"pieces\": [\"one\"]}\n{\"pieces\": [\"two \", \"and\"]}\n{\"pieces\": [\"three\"]}");
    let texts: Vec<String> = (0..5).map(|_| run(&engine, request(&prompt)).text).collect();
    assert_eq!(texts, ["one", "two and", "three", "three", "three"]);
}

#[test]
fn a_line_is_used_up_only_by_generating() {
    let (engine, prompt) = engine("{\"pieces\": [\"one\"], \"prefill_ms\": 5}\n{\"pieces\": [\"two\"]}");
    assert!(engine.submit(request(&vec![300; 4096])).is_err());
    let in_prefill = engine.submit(request(&vec![300; 4000])).unwrap();
    wait("prefill", || engine.load().running == 1);
    drop(in_prefill);
    wait("an idle engine", || engine.load() == Load::default());
    assert_eq!(run(&engine, request(&prompt)).text, "one");
    assert_eq!(run(&engine, request(&prompt)).text, "two");
}

#[test]
fn pieces_are_tokens_with_exactly_their_bytes() {
    let script = r#"{"pieces": ["a ", {"bytes": [240, 159]}, {"bytes": [152]}, {"bytes": [128]}, "", "x"]}"#;
    assert!(Script::parse(script).is_err());
    let (engine, prompt) = engine(&script.replace(r#""", "#, ""));
    let told = run(&engine, request(&prompt));
    assert_eq!(told.text, "a 😀x");
    let finished = told.end.unwrap();
    assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::Stop, 6));
}

#[test]
fn length_repeats_the_pieces() {
    let (engine, prompt) = engine(r#"{"pieces": ["ab", "c"], "end": "length"}"#);
    let told = run(&engine, Request { max_tokens: Some(5), ..request(&prompt) });
    assert_eq!(told.text, "abcabcab");
    assert_eq!(told.end.unwrap().reason, FinishReason::Length);
}

#[test]
fn the_script_fails_where_it_says() {
    for (n, text) in [(0, ""), (1, "a"), (3, "abc")] {
        let script = format!("{{\"pieces\": [\"a\", \"b\", \"c\"], \"fail_after\": {n}}}\n{{\"pieces\": [\"good\"]}}");
        let (engine, prompt) = engine(&script);
        let told = run(&engine, request(&prompt));
        assert_eq!(told.text, text);
        assert_eq!(told.end.unwrap_err().to_string(), format!("device: the script fails after {n} pieces"));
        assert_eq!(run(&engine, request(&prompt)).text, "good");
    }
}

#[test]
fn a_stop_string_over_pieces_ends_at_its_token() {
    let (engine, prompt) = engine(r#"{"pieces": ["one", " tw", "o th", "ree", " four"]}"#);
    let mut request = request(&prompt);
    request.output.stop = vec!["two".into()];
    let told = run(&engine, request);
    assert_eq!(told.text, "one ");
    let finished = told.end.unwrap();
    assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::Stop, 3));
}

#[test]
fn only_whole_calls_end_in_tool_calls() {
    let call = r#"{"token": "<tool_call>"}, "\n<function=now>\n""#;
    let whole = format!(r#"{{"pieces": [{call}, "</function>\n", {{"token": "</tool_call>"}}]}}"#);
    for (script, reason) in [
        (whole, FinishReason::ToolCalls),
        (format!(r#"{{"pieces": [{call}, "<parameter=a>\\nx"]}}"#), FinishReason::Stop),
    ] {
        let (engine, prompt) = engine(&script);
        let mut request = request(&prompt);
        request.output.tools = vec![serde_json::json!({"type": "function", "function": {"name": "now"}})];
        let told = run(&engine, request);
        assert!(told.events.iter().any(|e| matches!(e, OutputEvent::ToolCallBegin { .. })), "{script}");
        assert_eq!(told.end.unwrap().reason, reason, "{script}");
    }
}

#[test]
fn thinking_is_split_and_counted() {
    let (engine, prompt) = engine(r#"{"pieces": ["let me", " see", {"token": "</think>"}, "\n\n", "done"]}"#);
    let mut request = request(&prompt);
    request.output.thinking = true;
    let told = run(&engine, request);
    let reasoning: String = told
        .events
        .iter()
        .filter_map(|e| if let OutputEvent::Reasoning(t) = e { Some(t.as_str()) } else { None })
        .collect();
    assert_eq!((reasoning.as_str(), told.text.as_str()), ("let me see", "done"));
    let usage = told.end.unwrap().usage;
    assert_eq!(usage.completion_tokens, 6);
    assert!((2..=3).contains(&usage.reasoning_tokens), "{usage:?}");
}

#[test]
fn a_script_names_tokens_that_do_not_exist() {
    let script = Script::parse("{\"pieces\": []}\n{\"pieces\": [\"a\", {\"token\": \"<nope>\"}]}").unwrap();
    let error = script.model(&tokenizer(), super::fake::EOS, 64).err().unwrap();
    assert_eq!(error.to_string(), "script line 2: pieces[1]: \"<nope>\" is no added token of this tokenizer");
}

#[test]
fn sampling_follows_the_script_too() {
    let (engine, prompt) = engine(r#"{"pieces": ["a", "b", "c", "d"], "end": "length"}"#);
    let sampling = SamplingParams { temperature: 2.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: Some(1) };
    let told = run(&engine, Request { sampling, max_tokens: Some(64), ..request(&prompt) });
    assert_eq!(told.text, "abcd".repeat(16));
}
