//! The demo checkpoint against transformers (`demo/eval/README.md`).

mod common;

use common::demo::{Scores, greedy, ids, json};
use common::{argmax, open};
use lily_checkpoint::Checkpoint;
use lily_cpu::{Bf16, Fast, Local, Oracle, Q8};
use lily_model::{KvType, Model, Rows};

/// Every position's loss within 1e-3 nats but for `ties` of them, every top id the same.
///
/// On the BF16 weights position 722 of 2,048 is a tie: in layer 6 the 8th and 9th router logits differ by 2.4e-7, one
/// step of F32, and transformers took the other expert. That moves two positions by up to 4.4e-3 nats.
fn equal_to_golden(checkpoint: &Checkpoint, golden: &str, ties: usize) -> Scores {
    let golden = json(golden);
    let mut oracle = Local::new(Oracle::new(checkpoint.shape(), checkpoint.weights()));
    let scores = Scores::of(&mut oracle, &ids(&golden["input_ids"]));
    let want = Scores::golden(&golden);
    println!(
        "{} positions: largest difference {:.2e} nats, perplexity {:.6} (golden {:.6}), same top id {:.4}",
        want.nll.len(),
        scores.worst(&want),
        scores.perplexity(),
        want.perplexity(),
        scores.same_top(&want)
    );
    assert_eq!(scores.nll.len(), want.nll.len());
    let off = scores.nll.iter().zip(&want.nll).filter(|(a, b)| (*a - *b).abs() >= 1e-3).count();
    assert!(off <= ties && scores.worst(&want) < 1e-2, "{off} positions are off by 1e-3 nats or more");
    assert!((scores.perplexity() / want.perplexity() - 1.0).abs() < 1e-5);
    assert_eq!(scores.top, want.top);
    scores
}

/// Held to the oracle: perplexity within 0.04 %, the same top id in at least 99 % of positions.
fn fast_path_is_close(checkpoint: &Checkpoint, golden: &str, oracle: &Scores) {
    let input = ids(&json(golden)["input_ids"]);
    let mut fast = Local::new(Fast::<Bf16>::new(checkpoint.shape(), checkpoint.weights(), 0));
    let scores = Scores::of(&mut fast, &input);
    let drift = (scores.perplexity() / oracle.perplexity() - 1.0).abs();
    println!(
        "{}: {} positions: perplexity {:.6} ({:+.5} %), same top id {:.4}, largest difference {:.2e} nats",
        fast.device(),
        oracle.nll.len(),
        scores.perplexity(),
        100.0 * drift,
        scores.same_top(oracle),
        scores.worst(oracle)
    );
    assert!(drift < 4e-4, "perplexity is off by {drift}");
    assert!(scores.same_top(oracle) >= 0.99);
}

#[test]
fn oracle_and_fast_path_on_192_and_2048_positions() {
    let checkpoint = open("demo/4bit");
    for golden in ["demo/eval/golden_4bit_fp32_192.json", "demo/eval/golden_4bit_fp32_2048.json"] {
        let oracle = equal_to_golden(&checkpoint, golden, 0);
        fast_path_is_close(&checkpoint, golden, &oracle);
    }
}

/// Eight-bit keys and values: close to the oracle that rounds them likewise, and what they cost against F32 ones.
#[test]
fn eight_bit_keys_and_values_cost_little() {
    let checkpoint = open("demo/4bit");
    let golden = json("demo/eval/golden_4bit_fp32_192.json");
    let (input, exact) = (ids(&golden["input_ids"]), Scores::golden(&golden));
    let mut oracle = Local::new(Oracle::with_kv(checkpoint.shape(), checkpoint.weights(), KvType::Q8));
    let mut fast = Local::new(Fast::<Q8>::new(checkpoint.shape(), checkpoint.weights(), 0));
    let (oracle, fast) = (Scores::of(&mut oracle, &input), Scores::of(&mut fast, &input));
    for (name, scores, reference) in [
        ("fast, oracle in 8 bits", &fast, &oracle),
        ("oracle in 8 bits, F32", &oracle, &exact),
        ("fast, F32", &fast, &exact),
    ] {
        let drift = (scores.perplexity() / reference.perplexity() - 1.0).abs();
        println!(
            "{name}: perplexity off by {:.4} %, same top id {:.4}, largest difference {:.1e} nats",
            100.0 * drift,
            scores.same_top(reference),
            scores.worst(reference)
        );
        assert!(drift < 1e-3 && scores.same_top(reference) >= 0.98, "{name}");
    }
}

#[test]
fn greedy_completions_token_for_token() {
    let checkpoint = open("demo/4bit");
    let mut oracle = Local::new(Oracle::new(checkpoint.shape(), checkpoint.weights()));
    let mut fast = Local::new(Fast::<Bf16>::new(checkpoint.shape(), checkpoint.weights(), 0));
    let golden = json("demo/eval/greedy_4bit_fp32.json");
    let completions = golden["completions"].as_array().expect("a list");
    assert_eq!(completions.len(), 20);
    let mut same = 0;
    for c in completions {
        let (prompt, expected) = (ids(&c["prompt_ids"]), ids(&c["output_ids"]));
        assert_eq!(greedy(&mut oracle, &prompt, &expected), expected, "{}", c["prompt"]);
        let got = greedy(&mut fast, &prompt, &expected);
        same += usize::from(got == expected);
        if got != expected {
            println!("the fast path answers {} in other words", c["prompt"]);
        }
    }
    println!("fast path: {same} of 20 completions equal");
    assert!(same >= 18);
}

#[test]
fn prompts_cut_anywhere_lead_to_the_same_tokens_and_at_multiples_of_64_to_the_same_bits() {
    let checkpoint = open("demo/4bit");
    let prompt = &ids(&json("demo/eval/golden_4bit_fp32_192.json")["input_ids"])[..150];
    let mut fast = Local::new(Fast::<Bf16>::new(checkpoint.shape(), checkpoint.weights(), 0));
    let mut oracle = Local::new(Oracle::new(checkpoint.shape(), checkpoint.weights()));
    for model in [&mut fast as &mut dyn Model, &mut oracle] {
        let mut first = None;
        for piece in [prompt.len(), 1, 7, 64, 65, 128] {
            let seq = model.begin(200).expect("room");
            let mut last = Vec::new();
            for part in prompt.chunks(piece) {
                last = model.prefill(seq, part, Rows::Last).expect("prefill").data;
            }
            let mut out = (last.clone(), vec![argmax(&last)]);
            for _ in 0..24 {
                let token = out.1[out.1.len() - 1];
                out.1.push(argmax(model.decode(&[(seq, token)]).expect("decode").row(0)));
            }
            model.end(seq);
            // Stronger than asked: on the CPU every cut gives the same bits.
            assert!(*first.get_or_insert_with(|| out.clone()) == out, "{}: pieces of {piece}", model.device());
        }
    }
}

#[test]
fn bf16_checkpoint_where_it_is_at_hand() {
    let Ok(dir) = std::env::var("LILY_DEMO_BF16") else {
        println!(
            "skipped: LILY_DEMO_BF16 names no unpacked BF16 demo checkpoint (demo/README.md says how to make one)"
        );
        return;
    };
    let checkpoint = Checkpoint::open(dir.as_ref()).expect("the BF16 demo checkpoint");
    for (golden, ties) in [("demo/eval/golden_bf16_192.json", 0), ("demo/eval/golden_bf16_2048.json", 2)] {
        let oracle = equal_to_golden(&checkpoint, golden, ties);
        fast_path_is_close(&checkpoint, golden, &oracle);
    }
}
