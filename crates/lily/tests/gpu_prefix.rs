//! The prefix cache on a GPU, the emulator's or with `LILY_TEST_DEVICE=cuda` an NVIDIA one: with `exact`, a request that restarts from a kept state has the bits of a cold
//! run. Without it, the state that decoding left is used too, and the bits may differ in the last ones.
#![cfg(feature = "emulated")]

#[path = "../../lily-gpu/tests/common/mod.rs"]
mod common;
#[path = "../../lily-engine/tests/warm/mod.rs"]
mod warm;

use std::path::{Path, PathBuf};

use lily_chat::Tokenizer;
use lily_checkpoint::Checkpoint;
use lily_engine::{DiskOptions, PrefixOptions};
use lily_gpu::kernels::Element;
use lily_model::Rows;
use warm::{Dice, Setup, Talks, borders, walk};

const MLX4: &str = "tests/fixtures/tiny/mlx-4bit";

fn repo(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// `states`: of one block, that the cache has room for. `None`: for all.
fn talks(states: Option<u64>, disk: Option<DiskOptions>) -> Talks {
    let read = |name: &str| std::fs::read(repo(MLX4).join(name)).expect(name);
    let tokenizer = Tokenizer::from_json(&read("tokenizer.json"), Some(&read("tokenizer_config.json")));
    let checkpoint = Checkpoint::open(&repo(MLX4)).expect(MLX4);
    let model = move || common::model(checkpoint.shape(), checkpoint.weights(), Element::Bf16, common::shipped(), 7);
    let mut one = model();
    let seq = one.begin(64).expect("room");
    one.prefill(seq, &[3; 64], Rows::None).expect("prefill");
    let state = one.snapshot(seq).expect("snapshot").bytes;
    let bytes = states.map_or(1 << 30, |states| states * state);
    Talks::new(Setup {
        model: Box::new(model),
        tokenizer: tokenizer.expect("a tokenizer"),
        context: 2048,
        chunk: 64,
        answers: number("LILY_WARM_ANSWERS", 2),
        prefix: PrefixOptions { bytes, exact: true },
        parallel: 1,
        ample: states.is_none() && disk.is_none(),
        disk,
    })
}

/// A number from the environment, for long runs.
fn number(name: &str, or: usize) -> usize {
    std::env::var(name).map_or(or, |n| n.parse().unwrap_or_else(|e| panic!("{name}={n}: {e}")))
}

#[test]
fn lengths_around_the_borders_of_a_block_and_a_message_have_the_bits_of_a_cold_run() {
    let mut talks = talks(None, None);
    borders(&mut talks, number("LILY_WARM_BASE", 68), &[0], 3);
    println!("{:?}", talks.counts);
    assert!(talks.counts.hits > 2, "{:?}", talks.counts);
}

/// With room for a few states, so that some are dropped and made again.
#[test]
fn conversations_in_any_order_have_the_bits_of_cold_runs() {
    let mut talks = talks(Some(4), None);
    walk(
        &mut talks,
        number("LILY_WARM_STEPS", 5),
        number("LILY_WARM_LONGEST", 200),
        number("LILY_WARM_SEED", 5) as u64,
    );
    println!("{:?}", talks.counts);
    assert!(talks.counts.hits > 1, "{:?}", talks.counts);
}

/// What one process kept on disk has the bits of a cold run in the next.
#[test]
fn conversations_taken_up_after_a_restart_have_the_bits_of_cold_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = DiskOptions { dir: dir.path().into(), bytes: 1 << 30, identity: "a test".into() };
    let mut talks = talks(None, Some(disk));
    let prompt = Dice::new(4).tokens(70, talks.vocab());
    for len in [66, 70] {
        talks.ask(&prompt[..len], &[0], 2);
        talks.restart();
    }
    println!("{:?}", talks.counts);
    assert!(talks.counts.survived > 0, "{:?}", talks.counts);
}
