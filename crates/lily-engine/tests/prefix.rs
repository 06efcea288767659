//! The prefix cache on the CPU, where decoding has the arithmetic of prefill.

mod warm;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lily_chat::Tokenizer;
use lily_checkpoint::Checkpoint;
use lily_checkpoint::synthetic::{SeededWeights, full_shape};
use lily_cpu::{Bf16, Fast, Local};
use lily_engine::{DiskOptions, PrefixOptions};
use lily_model::{Model, Rows};

use warm::{Dice, Setup, Talks, borders, walk};

const TINY: &str = "tests/fixtures/tiny/mlx-4bit";
const DEMO: &str = "demo/4bit";

fn repo(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn model(checkpoint: &str) -> Box<dyn Model> {
    let checkpoint = Checkpoint::open(&repo(checkpoint)).unwrap();
    Box::new(Local::new(Fast::<Bf16>::new(checkpoint.shape(), checkpoint.weights(), 1)))
}

fn setup(checkpoint: &'static str, prefix: PrefixOptions, ample: bool) -> Setup {
    let read = |name: &str| std::fs::read(repo(checkpoint).join(name)).unwrap();
    let tokenizer = Tokenizer::from_json(&read("tokenizer.json"), Some(&read("tokenizer_config.json"))).unwrap();
    Setup {
        model: Box::new(|| model(checkpoint)),
        tokenizer,
        context: 4096,
        chunk: 128,
        answers: 20,
        prefix,
        parallel: 1,
        ample,
        disk: None,
    }
}

const AMPLE: PrefixOptions = PrefixOptions { bytes: 1 << 30, exact: false };

/// Bytes of a state of one block.
fn state_bytes(checkpoint: &str) -> u64 {
    let mut model = model(checkpoint);
    let seq = model.begin(64).unwrap();
    model.prefill(seq, &[300; 64], Rows::None).unwrap();
    model.snapshot(seq).unwrap().bytes
}

/// A number from the environment, for long runs.
fn number(name: &str, or: usize) -> usize {
    std::env::var(name).map_or(or, |n| n.parse().unwrap_or_else(|e| panic!("{name}={n}: {e}")))
}

#[test]
fn b109_vllm_mlx_311_lengths_around_the_borders_of_blocks_passes_and_messages() {
    for exact in [false, true] {
        let mut talks = Talks::new(setup(TINY, PrefixOptions { exact, ..AMPLE }, true));
        borders(&mut talks, 200, &[0, 70, 127], 11);
        let counts = talks.counts;
        println!("exact: {exact}: {counts:?}");
        assert!(counts.hits * 2 > counts.requests, "{counts:?}");
    }
}

#[test]
fn b114_rapid_mlx_1103_eight_conversations_in_any_order() {
    // Room for all, and for a few: then states are dropped all the time.
    let few = 7 * state_bytes(TINY);
    for (bytes, exact, parallel) in [(1 << 30, false, 1), (1 << 30, true, 3), (few, false, 2)] {
        let ample = bytes != few;
        let setup = Setup { chunk: 64, parallel, ..setup(TINY, PrefixOptions { bytes, exact }, ample) };
        let mut talks = Talks::new(setup);
        walk(
            &mut talks,
            number("LILY_WARM_STEPS", 20),
            number("LILY_WARM_LONGEST", 300),
            number("LILY_WARM_SEED", 5) as u64,
        );
        let counts = talks.counts;
        println!("{bytes} bytes, exact: {exact}, {parallel} at once: {counts:?}");
        assert!(counts.hits * 4 > counts.requests && (counts.cancelled > 0 || !ample), "{counts:?}");
        assert!(ample || counts.dropped > 0, "{counts:?}");
    }
}

/// What one process kept on disk serves the next, where decoding took part too unless bits must equal on every device.
#[test]
fn conversations_taken_up_after_restarts() {
    for exact in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskOptions { dir: dir.path().into(), bytes: 1 << 30, identity: "a test".into() };
        let setup = setup(TINY, PrefixOptions { exact, ..AMPLE }, false);
        let mut talks = Talks::new(Setup { disk: Some(disk), ..setup });
        for _ in 0..3 {
            walk(&mut talks, number("LILY_WARM_STEPS", 5), number("LILY_WARM_LONGEST", 300), 8);
            talks.restart();
        }
        let counts = talks.counts;
        println!("exact: {exact}: {counts:?}");
        assert!(counts.survived > 5, "{counts:?}");
    }
}

#[test]
fn the_demo_model() {
    let mut talks = Talks::new(setup(DEMO, AMPLE, true));
    walk(&mut talks, number("LILY_WARM_STEPS", 6), 300, 2);
    assert!(talks.counts.hits > 1, "{:?}", talks.counts);
}

/// A chat of twenty turns: each reads what is new, and at most one block of what is not. With `exact` the last answer is read
/// again, whose state decoding left.
#[test]
fn b112_llama_cpp_20225_a_chat_reads_its_new_tokens_and_at_most_a_block_more() {
    for exact in [false, true] {
        let setup = setup(DEMO, PrefixOptions { exact, ..AMPLE }, true);
        let tokenizer = setup.tokenizer.clone();
        let mut talks = Talks::new(setup);
        talks.compare = false;
        let (mut prompt, mut starts, mut said) = (Vec::new(), Vec::new(), Vec::new());
        let mut total = 0;
        for turn in 0..if exact { 6 } else { 20 } {
            let topic = ["the sea", "old trees", "a long winter, and what came after it", "tea"][turn % 4];
            let end = if turn == 0 { "" } else { "<|im_end|>\n" };
            let question = format!("Question {turn}: what is there to say of {topic}?");
            let text = format!("{end}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
            let new = tokenizer.encode_with_added(&text);
            // What may have to be read again, with its last token, which was chosen and not read.
            let again = if exact { said.len() } else { said.len().min(1) };
            prompt.extend(&said);
            starts.push(prompt.len());
            prompt.extend(&new);
            said = talks.ask(&prompt, &starts, 3 + turn % 9);
            assert!(
                talks.read <= new.len() + if exact { again + 64 } else { again },
                "turn {turn}: {} tokens read for {}",
                talks.read,
                new.len()
            );
            total += talks.read;
        }
        println!("exact: {exact}: {total} tokens read, {} in the last prompt", prompt.len());
    }
}

/// What was said, and seconds (of four tokens too) and tokens of prompt read for it.
fn timed(talks: &mut Talks, prompt: &[u32], starts: &[usize]) -> (Vec<u32>, (Duration, usize)) {
    let began = Instant::now();
    let said = talks.ask(prompt, starts, 4);
    (said, (began.elapsed(), talks.read))
}

/// A long conversation goes on: with `LILY_LONG=32768 LILY_LONG_LAYERS=4` at the dimensions of the 35B model.
#[test]
fn b112_llama_cpp_20225_the_next_turn_of_a_long_conversation_reads_a_fiftieth_at_most() {
    let long = number("LILY_LONG", 1600);
    let mut setup = setup(TINY, PrefixOptions { bytes: 8 << 30, exact: false }, true);
    if let Ok(layers) = std::env::var("LILY_LONG_LAYERS") {
        let shape = full_shape(layers.parse().unwrap());
        let weights = Arc::new(SeededWeights::new(&shape, 1));
        setup.model = Box::new(move || Box::new(Local::new(Fast::<Bf16>::new(&shape, &weights.weights, 2))));
        setup.chunk = 512;
    }
    setup.context = long + 1000;
    let mut talks = Talks::new(setup);
    talks.compare = false;
    let dice = Dice::new(9);
    let vocab = talks.vocab();
    let mut prompt = dice.tokens(long, vocab);
    let starts: Vec<usize> = (0..long).step_by(long / 3).collect();
    let (said, cold) = timed(&mut talks, &prompt, &starts);
    prompt.extend(&said);
    prompt.extend(dice.tokens(25, vocab));
    let (_, warm) = timed(&mut talks, &prompt, &starts);
    println!("{long} tokens: cold {:?} for {} tokens, then {:?} for {}", cold.0, cold.1, warm.0, warm.1);
    assert!(warm.1 * 50 <= prompt.len(), "{} of {}", warm.1, prompt.len());
    // The second message edited: what lies before it is kept.
    let mut edited = prompt[..long / 3].to_vec();
    edited.extend(dice.tokens(20, vocab));
    talks.ask(&edited, &starts, 1);
    assert!(talks.read <= 20 + 64, "{}", talks.read);
}
