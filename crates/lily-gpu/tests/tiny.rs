//! The whole model on a GPU (`common::cuda`), tiny checkpoints in both layouts, against transformers and mlx-lm
//! (`tests/fixtures/tiny`).
#![cfg(feature = "emulated")]

mod common;
#[path = "../../lily-cpu/tests/common/mod.rs"]
mod golden;

use common::{bodies, cuda, shipped};
use golden::{Golden, argmax, close, open};
use lily_checkpoint::Checkpoint;
use lily_cpu::{Local, Oracle};
use lily_gpu::device::emulated::Emulated;
use lily_gpu::kernels::{Body, Element};
use lily_gpu::{GpuModel, Options};
use lily_model::{KvType, Model, Part, Rows, SeqId};

const MLX4: &str = "tests/fixtures/tiny/mlx-4bit";

fn model(checkpoint: &Checkpoint, element: Element, body: Body) -> Box<dyn Model> {
    common::model(checkpoint.shape(), checkpoint.weights(), element, body, 7)
}

/// With keys and values in 8 bits.
fn eight_bits(checkpoint: &Checkpoint, element: Element, body: Body) -> Box<dyn Model> {
    let options = Options { element, body, q8: true, ..Options::default() };
    common::model_with(checkpoint.shape(), checkpoint.weights(), options, 7)
}

/// For what only the emulator counts.
fn emulated(checkpoint: &Checkpoint) -> GpuModel<Emulated> {
    let gpu = Emulated::new(2, 7).expect("tests run where the emulator does");
    GpuModel::new(gpu, checkpoint.shape(), checkpoint.weights(), Options::default()).expect("the model")
}

/// F32 and BF16; on a real GPU, where it costs nothing, BF16 in each body.
fn variants() -> Vec<(Element, Body)> {
    let bf16 = bodies().into_iter().take(if cuda() { 2 } else { 1 }).map(|body| (Element::Bf16, body));
    [(Element::F32, Body::Simdgroup)].into_iter().chain(bf16).collect()
}

/// With F32 tiles and cache: the oracle's bounds, and all greedy tokens.
fn check_f32(dir: &str, golden: &str) {
    let (checkpoint, golden) = (open(dir), Golden::open(golden));
    let mut model = model(&checkpoint, Element::F32, Body::Simdgroup);
    let (ids, tokens) = (golden.ids("prompt_ids"), golden.ids("decode_tokens"));
    let seq = model.begin(ids.len() + tokens.len()).expect("room");
    let logits = model.prefill(seq, &ids, Rows::All).expect("prefill");
    close("logits", &logits.data, &golden.f32("logits"), 2e-4);
    let mut next = argmax(logits.row(ids.len() - 1));
    let mut decoded = Vec::new();
    for &expected in &tokens {
        assert_eq!(next, expected);
        let row = model.decode(&[(seq, next)]).expect("decode").data;
        next = argmax(&row);
        decoded.extend(row);
    }
    close("decode logits", &decoded, &golden.f32("decode_logits"), 2e-4);
}

#[test]
fn f32_tiles_equal_mlx_lm_on_the_4_bit_checkpoint() {
    check_f32(MLX4, "tests/fixtures/tiny/golden_mlx4.safetensors");
}

#[test]
fn f32_tiles_equal_transformers_on_the_bf16_checkpoint() {
    check_f32("tests/fixtures/tiny/hf", "tests/fixtures/tiny/golden_hf.safetensors");
}

/// With F32 tiles: the logits of the oracle that rounds keys and values likewise, in prefill and in decode. A key whose last bits
/// differ may fall to the next code.
#[test]
fn an_eight_bit_cache_equals_the_oracle_with_one() {
    let (checkpoint, golden) = (open(MLX4), Golden::open("tests/fixtures/tiny/golden_mlx4.safetensors"));
    let mut gpu = eight_bits(&checkpoint, Element::F32, Body::Simdgroup);
    assert_eq!(gpu.kv_type(), KvType::Q8);
    let oracle = |kv| Local::new(Oracle::with_kv(checkpoint.shape(), checkpoint.weights(), kv));
    let (ids, tokens) = (golden.ids("prompt_ids"), golden.ids("decode_tokens"));
    let logits = |model: &mut dyn Model| {
        let seq = model.begin(ids.len() + tokens.len()).expect("room");
        let mut all = model.prefill(seq, &ids, Rows::All).expect("prefill").data;
        for &token in &tokens {
            all.extend(model.decode(&[(seq, token)]).expect("decode").data);
        }
        all
    };
    let got = logits(gpu.as_mut());
    close("rounded alike", &got, &logits(&mut oracle(KvType::Q8)), 2e-3);
    close("F32", &got, &logits(&mut oracle(KvType::F32)), 0.1);
}

/// In 8 bits: bits do not depend on cuts at multiples of 64, and a copy goes on as the sequence did.
#[test]
fn cuts_and_copies_of_an_eight_bit_cache_give_the_same_bits() {
    let (checkpoint, golden) = (open(MLX4), Golden::open("tests/fixtures/tiny/golden_mlx4.safetensors"));
    let ids: Vec<u32> = golden.ids("prompt_ids").into_iter().cycle().take(150).collect();
    let mut model = eight_bits(&checkpoint, Element::Bf16, shipped());
    let whole = logits_of(model.as_mut(), &ids, &[150]);
    for cuts in [&[64, 86][..], &[128, 22]] {
        assert_eq!(logits_of(model.as_mut(), &ids, cuts), whole, "cut into {cuts:?}");
    }
    let seq = model.begin(150).expect("room");
    model.prefill(seq, &ids[..64], Rows::None).expect("prefill");
    let snapshot = model.snapshot(seq).expect("snapshot");
    let bytes: u64 = snapshot.shared.iter().map(|s| s.bytes).sum();
    assert_eq!(bytes, 64 * checkpoint.shape().kv_bytes_per_token(KvType::Q8));
    model.end(seq);
    let warm = model.restore(&snapshot, 151).expect("restore");
    assert_eq!(model.prefill(warm, &ids[64..], Rows::All).expect("prefill").data, whole[64 * 512..]);
    let last = model.decode(&[(warm, 7)]).expect("decode");
    let cold = model.begin(151).expect("room");
    model.prefill(cold, &ids, Rows::None).expect("prefill");
    assert_eq!(model.decode(&[(cold, 7)]).expect("decode"), last);
}

fn greedy(model: &mut dyn Model, seq: SeqId, first: u32, count: usize) -> Vec<u32> {
    let mut out = vec![first];
    while out.len() < count {
        let last = out[out.len() - 1];
        let chosen = model.decode_greedy(&[(seq, last)], 512).expect("decode").expect("a GPU chooses");
        out.push(chosen[0]);
    }
    out
}

#[test]
fn tokens_that_stay_on_the_device_are_those_that_the_host_would_choose() {
    let (checkpoint, golden) = (open(MLX4), Golden::open("tests/fixtures/tiny/golden_mlx4.safetensors"));
    let ids = golden.ids("prompt_ids");
    for (element, body) in variants() {
        let mut model = model(&checkpoint, element, body);
        let seq = model.begin(200).expect("room");
        let first = argmax(model.prefill(seq, &ids, Rows::Last).expect("prefill").row(0));
        let snapshot = model.snapshot(seq).expect("snapshot");
        let ours = greedy(model.as_mut(), seq, first, 10);
        assert_eq!(model.len(seq), ids.len() + 9, "a step ahead does not count");

        // The same by the host's choice, from a copy of the state.
        let again = model.restore(&snapshot, 200).expect("restore");
        let mut host = vec![first];
        while host.len() < 10 {
            host.push(argmax(model.decode(&[(again, host[host.len() - 1])]).expect("decode").row(0)));
        }
        assert_eq!(ours, host);

        // The largest logits are those of the whole row.
        let (one, two) =
            (model.restore(&snapshot, 200).expect("restore"), model.restore(&snapshot, 200).expect("restore"));
        let top = model.decode_top(&[(one, 7), (two, 8)], 20, 410).expect("decode").expect("a GPU picks");
        let rows = [7, 8].map(|token| {
            let seq = model.restore(&snapshot, 200).expect("restore");
            model.decode(&[(seq, token)]).expect("decode")
        });
        for (top, row) in top.iter().zip(&rows) {
            let mut want: Vec<(u32, f32)> = (0..410).map(|i| (i, row.row(0)[i as usize])).collect();
            want.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            assert_eq!(*top, want[..20]);
        }
        assert!(model.decode_top(&[(one, 7)], 65, 410).expect("decode").is_none());

        // Another token than the one that the device went on with: what it began is dropped.
        let last = model.decode(&[(seq, 7)]).expect("decode");
        model.decode(&[(again, host[9])]).expect("decode");
        let other = model.restore(&snapshot, 200).expect("restore");
        let mut want = lily_model::Logits::default();
        for &t in ours[..9].iter().chain(&[7]) {
            want = model.decode(&[(other, t)]).expect("decode");
        }
        assert_eq!(last, want);
    }
}

/// What the host says of logits that it chooses from itself.
#[test]
fn logits_that_are_no_numbers_are_an_error() {
    let checkpoint = open(MLX4);
    let mut weights = checkpoint.weights().clone();
    weights.norm[3] = f32::NAN;
    let gpu = Emulated::new(2, 7).expect("tests run where the emulator does");
    let mut model = GpuModel::new(gpu, checkpoint.shape(), &weights, Options::default()).expect("the model");
    let seq = model.begin(20).expect("room");
    model.prefill(seq, &[1, 2, 3], Rows::None).expect("prefill");
    for _ in 0..2 {
        let error = model.decode_greedy(&[(seq, 4)], 512).expect_err("no largest logit");
        assert!(error.to_string().contains("the model gave NaN as logit of token 0"), "{error}");
        assert_eq!(model.len(seq), 3);
    }
}

#[test]
fn cuts_at_multiples_of_64_give_the_same_bits() {
    let (checkpoint, golden) = (open(MLX4), Golden::open("tests/fixtures/tiny/golden_mlx4.safetensors"));
    let ids: Vec<u32> = golden.ids("prompt_ids").into_iter().cycle().take(200).collect();
    for (element, body) in variants() {
        let mut model = model(&checkpoint, element, body);
        let whole = logits_of(model.as_mut(), &ids, &[200]);
        for cuts in [&[64, 136][..], &[64, 64, 72], &[192, 8]] {
            assert_eq!(logits_of(model.as_mut(), &ids, cuts), whole, "{element:?} {body:?}, cut into {cuts:?}");
        }
        // Elsewhere the delta rule's blocks are cut, and the numbers are the same but for rounding. With BF16 operands a
        // rounding can choose another expert in this random model, so only F32 has a bound.
        if element == Element::F32 {
            for cuts in [&[1, 199][..], &[7, 58, 135]] {
                close(&format!("cut into {cuts:?}"), &logits_of(model.as_mut(), &ids, cuts), &whole, 2e-4);
            }
        }
    }
}

fn logits_of(model: &mut dyn Model, ids: &[u32], cuts: &[usize]) -> Vec<f32> {
    let seq = model.begin(ids.len()).expect("room");
    let (mut all, mut from) = (Vec::new(), 0);
    for &cut in cuts {
        all.extend(model.prefill(seq, &ids[from..from + cut], Rows::All).expect("prefill").data);
        from += cut;
    }
    model.end(seq);
    all
}

#[test]
fn a_batch_gives_the_tokens_of_its_sequences_alone() {
    let (checkpoint, golden) = (open(MLX4), Golden::open("tests/fixtures/tiny/golden_mlx4.safetensors"));
    let ids = golden.ids("prompt_ids");
    let mut model = model(&checkpoint, Element::Bf16, shipped());
    let prompts: Vec<&[u32]> = vec![&ids[..96], &ids[..3], &ids[10..80], &ids[5..69], &ids[1..2]];
    let mut alone = Vec::new();
    for prompt in &prompts {
        let seq = model.begin(200).expect("room");
        let first = argmax(model.prefill(seq, prompt, Rows::Last).expect("prefill").row(0));
        alone.push(greedy(model.as_mut(), seq, first, 8));
        model.end(seq);
    }
    // Each begins two steps after the one before it.
    let mut running: Vec<(SeqId, Vec<u32>)> = Vec::new();
    for step in 0..24 {
        if step % 2 == 0 && step / 2 < prompts.len() {
            let seq = model.begin(200).expect("room");
            let logits = model.prefill(seq, prompts[step / 2], Rows::Last).expect("prefill");
            running.push((seq, vec![argmax(logits.row(0))]));
        }
        let batch: Vec<(SeqId, u32)> =
            running.iter().filter(|r| r.1.len() < 8).map(|(seq, out)| (*seq, out[out.len() - 1])).collect();
        if batch.is_empty() {
            break;
        }
        let chosen = model.decode_greedy(&batch, 512).expect("decode").expect("a GPU chooses");
        for ((_, out), token) in running.iter_mut().filter(|r| r.1.len() < 8).zip(chosen) {
            out.push(token);
        }
    }
    assert_eq!(running.into_iter().map(|r| r.1).collect::<Vec<_>>(), alone);
}

#[test]
fn a_model_refuses_before_anything_changes_and_snapshots_are_copies() {
    let checkpoint = open(MLX4);
    let mut model = emulated(&checkpoint);
    let seq = model.begin(70).expect("room");
    model.prefill(seq, &[1; 66], Rows::None).expect("prefill");
    let snapshot = model.snapshot(seq).expect("snapshot");
    let expected = model.decode(&[(seq, 4)]).expect("decode");

    let error = model.prefill(seq, &[5; 4], Rows::Last).expect_err("too many tokens");
    assert_eq!(error.to_string(), "the sequence would have 71 tokens, but its room is 70");
    let error = model.prefill(seq, &[5, 512], Rows::Last).expect_err("no such token");
    assert_eq!(error.to_string(), "token id 512 is outside the vocabulary of 512");
    assert!(model.decode(&[(seq, 1), (seq, 2)]).is_err());
    assert_eq!(model.len(seq), 67);

    // The page that both write is copied: neither sees the other's keys.
    let again = model.restore(&snapshot, 70).expect("restore");
    assert_eq!(model.len(again), 66);
    model.decode(&[(again, 9)]).expect("decode");
    let third = model.restore(&snapshot, 70).expect("restore");
    assert_eq!(model.decode(&[(third, 4)]).expect("decode"), expected);
    let next = model.decode(&[(seq, 5)]).expect("decode");
    assert_eq!(model.decode(&[(third, 5)]).expect("decode"), next);
    // A snapshot that was bytes for a while.
    let mut parts: Vec<_> = vec![model.save(&snapshot, Part::Own).expect("own part")];
    parts.extend((0..snapshot.shared.len()).map(|i| model.save(&snapshot, Part::Shared(i)).expect("a page")));
    assert!(model.save(&snapshot, Part::Shared(2)).is_err());
    let loaded = model.load(66, &mut parts.clone().into_iter()).expect("load");
    assert_eq!((loaded.len, loaded.bytes), (66, snapshot.bytes));
    let fourth = model.restore(&loaded, 70).expect("restore");
    assert_eq!(model.decode(&[(fourth, 4)]).expect("decode"), expected);
    for len in [64, 129] {
        assert!(model.load(len, &mut parts.clone().into_iter()).is_err(), "{len}");
    }
    assert!(model.load(66, &mut parts.iter().map(|p| p[1..].to_vec())).is_err());
    drop(loaded);
    for seq in [seq, again, third, fourth] {
        model.end(seq);
    }
    assert!(model.decode(&[(seq, 1)]).is_err());
    drop(snapshot);

    // What is free is used again.
    let bytes = model.state_bytes();
    for _ in 0..3 {
        let seq = model.begin(70).expect("room");
        model.prefill(seq, &[1; 66], Rows::None).expect("prefill");
        model.end(seq);
    }
    assert_eq!(model.state_bytes(), bytes);
}

#[test]
fn the_cache_grows_with_its_sequences_up_to_what_they_are_admitted_for() {
    let checkpoint = open(MLX4);
    let mut model = emulated(&checkpoint);
    let sizes = model.program().state_sizes();
    let pages = |model: &GpuModel<Emulated>| (model.state_bytes() - 2 * sizes.slot()) / sizes.page;
    let seq = model.begin(64 * 9 + 1).expect("room");
    let mut seen = Vec::new();
    for _ in 0..9 {
        model.prefill(seq, &[3; 64], Rows::None).expect("prefill");
        seen.push(pages(&model));
    }
    // Ten pages of room, and one that may be copied.
    assert_eq!(seen, [1, 2, 4, 4, 8, 8, 8, 8, 11]);
    model.prefill(seq, &[3], Rows::None).expect("prefill");
    assert_eq!(pages(&model), 11);
}

#[test]
fn a_prompt_that_no_block_divides_is_one_pass_over_the_experts() {
    let checkpoint = open(MLX4);
    let mut model = emulated(&checkpoint);
    let seq = model.begin(100).expect("room");
    model.program_mut().count();
    model.prefill(seq, &[3; 100], Rows::Last).expect("prefill");
    let counted = model.program_mut().counted();
    let times = |kernel: &str| counted.iter().filter(|(_, d)| d.kernel.starts_with(kernel)).count();
    assert_eq!(times("grouped_gate_up"), checkpoint.shape().layers.len());
    assert_eq!(times("embed_gather"), 1);
}

#[test]
fn what_is_provided_does_not_grow() {
    let checkpoint = open(MLX4);
    let mut model = emulated(&checkpoint);
    let sizes = model.program().state_sizes();
    let want = 2 * model.sequence_bytes().of(70);
    assert_eq!(want, 2 * (2 * sizes.slot() + 3 * sizes.page));
    model.provide(70, 2).expect("memory");
    assert_eq!(model.state_bytes(), want);
    let ids: Vec<u32> = (0..69).map(|i| i * 37 % checkpoint.shape().vocab as u32).collect();
    let full = |model: &mut GpuModel<Emulated>| {
        let seq = model.begin(70).expect("room");
        let logits = model.prefill(seq, &ids, Rows::Last).expect("prefill").data;
        (seq, [logits, model.decode(&[(seq, 3)]).expect("decode").data])
    };
    let (first, of_first) = full(&mut model);
    // Not while somebody has some of it.
    model.provide(2000, 8).expect("nothing to do");
    let (second, of_second) = full(&mut model);
    assert_eq!((model.state_bytes(), &of_second), (want, &of_first));
    model.end(first);
    model.end(second);
    model.provide(60, 1).expect("there is more than that");
    assert_eq!(model.state_bytes(), want);
    model.provide(70, 3).expect("memory");
    assert_eq!(model.state_bytes(), want / 2 * 3);
    assert_eq!(full(&mut model).1, of_first);
}
