//! The whole model on a GPU (`common::cuda`), demo checkpoint, against the golden values (`demo/eval/README.md`).
#![cfg(feature = "emulated")]

mod common;
#[path = "../../lily-cpu/tests/common/mod.rs"]
mod golden;

use common::{bodies, cuda, shipped};
use golden::demo::{Scores, greedy, ids, json};
use golden::{argmax, open};
use lily_checkpoint::Checkpoint;
use lily_cpu::{Local, Oracle};
use lily_gpu::Options;
use lily_gpu::kernels::{Body, Element};
use lily_model::{Model, Rows};

fn model(checkpoint: &Checkpoint, element: Element, body: Body) -> Box<dyn Model> {
    common::model(checkpoint.shape(), checkpoint.weights(), element, body, 3)
}

/// As shipped, with BF16.
fn shipped_is_close(golden: &str, body: Body) {
    let checkpoint = open("demo/4bit");
    is_close(&format!("{body:?}"), model(&checkpoint, Element::Bf16, body).as_mut(), golden);
}

/// Perplexity within 0.04 % of the F32 golden values, the same top id in at least 96.35 % of positions.
fn is_close(name: &str, model: &mut dyn Model, golden: &str) {
    let golden = json(golden);
    let want = Scores::golden(&golden);
    let got = Scores::of(model, &ids(&golden["input_ids"]));
    let drift = got.perplexity() / want.perplexity() - 1.0;
    println!(
        "{name}, {} positions: perplexity {:.6} ({:+.5} %), same top id {:.4}, largest difference {:.2e} nats",
        want.nll.len(),
        got.perplexity(),
        100.0 * drift,
        got.same_top(&want),
        got.worst(&want)
    );
    assert!(drift.abs() < 4e-4, "perplexity is off by {drift}");
    assert!(got.same_top(&want) >= 0.9635);
}

#[test]
fn bf16_on_192_positions() {
    for body in bodies() {
        shipped_is_close("demo/eval/golden_4bit_fp32_192.json", body);
    }
}

/// As shipped but with keys and values in 8 bits.
#[test]
#[ignore = "takes minutes; tests/run.sh runs it"]
fn eight_bits_on_192_positions() {
    let checkpoint = open("demo/4bit");
    let options = Options { body: shipped(), q8: true, ..Options::default() };
    let mut model = common::model_with(checkpoint.shape(), checkpoint.weights(), options, 3);
    is_close("Q8", model.as_mut(), "demo/eval/golden_4bit_fp32_192.json");
}

#[test]
#[ignore = "takes minutes; tests/run.sh runs it"]
fn bf16_on_2048_positions() {
    shipped_is_close("demo/eval/golden_4bit_fp32_2048.json", shipped());
}

#[test]
fn f32_tiles_on_192_positions() {
    let checkpoint = open("demo/4bit");
    let golden = json("demo/eval/golden_4bit_fp32_192.json");
    let want = Scores::golden(&golden);
    let got = Scores::of(model(&checkpoint, Element::F32, Body::Simdgroup).as_mut(), &ids(&golden["input_ids"]));
    println!("largest difference {:.2e} nats", got.worst(&want));
    assert!(got.worst(&want) < 1e-3);
    assert_eq!(got.top, want.top);
}

/// Tokens of a text that are compared; all of them on a real GPU, and where `LILY_LONG` is set, which takes many minutes.
fn compared(text: &[u32]) -> &[u32] {
    if cuda() || std::env::var_os("LILY_LONG").is_some() { text } else { &text[..text.len().min(12)] }
}

/// With F32 tiles all greedy texts are the oracle's. With BF16 a text may leave it only where the oracle's two best logits
/// are closer than the largest error of a logit that was measured in all the texts.
#[test]
#[ignore = "takes minutes; tests/run.sh runs it"]
fn greedy_completions() {
    let checkpoint = open("demo/4bit");
    let golden = json("demo/eval/greedy_4bit_fp32.json");
    let mut exact = model(&checkpoint, Element::F32, Body::Simdgroup);
    let mut shipped = model(&checkpoint, Element::Bf16, shipped());
    let mut oracle = Local::new(Oracle::new(checkpoint.shape(), checkpoint.weights()));
    let completions = golden["completions"].as_array().expect("a list");
    let (mut left, mut error) = (Vec::new(), 0.0f32);
    for c in completions {
        let (prompt, output) = (ids(&c["prompt_ids"]), ids(&c["output_ids"]));
        let expected = compared(&output);
        assert_eq!(greedy(exact.as_mut(), &prompt, expected), expected, "{}", c["prompt"]);

        let mut model = [shipped.as_mut(), &mut oracle as &mut dyn Model].map(|model| {
            let seq = model.begin(prompt.len() + expected.len()).expect("room");
            let logits = model.prefill(seq, &prompt, Rows::Last).expect("prefill");
            (model, seq, logits)
        });
        for &token in expected {
            let [got, want] = [0, 1].map(|i| model[i].2.row(0).to_vec());
            error = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(error, f32::max);
            assert_eq!(argmax(&want), token);
            if argmax(&got) != token {
                let gap = want[token as usize] - want[argmax(&got) as usize];
                println!("{}: left where the oracle's best logits are {gap:.3} apart", c["prompt"]);
                left.push(gap);
                break;
            }
            for (model, seq, logits) in &mut model {
                *logits = model.decode(&[(*seq, token)]).expect("decode");
            }
        }
        for (model, seq, _) in model {
            model.end(seq);
        }
    }
    println!(
        "BF16: {} of {} texts left the oracle's; largest error of a logit {error:.3}",
        left.len(),
        completions.len()
    );
    assert!(left.iter().all(|gap| *gap < error));
}
