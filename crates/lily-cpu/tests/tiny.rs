//! The tiny checkpoints in both layouts against transformers and mlx-lm (`tests/fixtures/tiny`).

mod common;

use common::{Golden, argmax, close, open};
use lily_checkpoint::Checkpoint;
use lily_cpu::oracle::{LayerState, Oracle, State};
use lily_cpu::{Bf16, Fast, Forward, Isa, KvElement, Local, Q8};
use lily_model::{Model, Part, Rows};

/// Feeds the prompt in pieces of `piece`; all the logits.
fn prompt(oracle: &mut Oracle, state: &mut State, ids: &[u32], piece: usize) -> Vec<f32> {
    ids.chunks(piece).flat_map(|part| oracle.forward(state, part, Rows::All).data).collect()
}

fn check_oracle(checkpoint: &Checkpoint, golden: &Golden) {
    let vocab = checkpoint.shape().vocab;
    let mut oracle = Oracle::new(checkpoint.shape(), checkpoint.weights());
    let ids = golden.ids("prompt_ids");
    let mut state = oracle.start();
    let (hidden, trace) = oracle.hidden(&mut state, &ids);
    close("embed", &trace.embed, &golden.f32("embed"), 1e-6);
    for (i, layer) in trace.layers.iter().enumerate() {
        close(&format!("layer {i}"), &layer.output, &golden.f32(&format!("layer.{i}.output")), 1e-4);
    }
    let logits = oracle.head(&hidden);
    close("logits", &logits, &golden.f32("logits"), 2e-4);

    let tokens = golden.ids("decode_tokens");
    let mut next = argmax(&logits[logits.len() - vocab..]);
    let mut decoded = Vec::new();
    for &expected in &tokens {
        assert_eq!(next, expected);
        let row = oracle.forward(&mut state, &[next], Rows::Last).data;
        next = argmax(&row);
        decoded.extend(row);
    }
    close("decode logits", &decoded, &golden.f32("decode_logits"), 2e-4);

    // However the prompt is cut, the oracle's bits are the same: its arithmetic is recurrent.
    for piece in [1, 7, 64, 65] {
        let mut state = oracle.start();
        assert_eq!(prompt(&mut oracle, &mut state, &ids, piece), logits, "pieces of {piece}");
    }
}

#[test]
fn oracle_equals_mlx_lm_on_the_4_bit_checkpoint() {
    check_oracle(&open("tests/fixtures/tiny/mlx-4bit"), &Golden::open("tests/fixtures/tiny/golden_mlx4.safetensors"));
}

#[test]
fn oracle_equals_transformers_on_the_bf16_checkpoint() {
    let checkpoint = open("tests/fixtures/tiny/hf");
    let golden = Golden::open("tests/fixtures/tiny/golden_hf.safetensors");
    check_oracle(&checkpoint, &golden);

    let oracle = Oracle::new(checkpoint.shape(), checkpoint.weights());
    let mut state = oracle.start();
    let (_, trace) = oracle.hidden(&mut state, &golden.ids("prompt_ids"));
    close("final norm", &trace.final_norm, &golden.f32("final_norm"), 1e-4);
    for (i, layer) in trace.layers.iter().enumerate() {
        close(&format!("mixer {i}"), &layer.mixer, &golden.f32(&format!("layer.{i}.mixer_output")), 1e-4);
        let experts: Vec<u32> = layer.experts.iter().map(|&e| e as u32).collect();
        assert_eq!(experts, golden.ids(&format!("layer.{i}.router_indices")), "experts of layer {i}");
        close(&format!("router {i}"), &layer.expert_weights, &golden.f32(&format!("layer.{i}.router_weights")), 1e-5);
    }
    let LayerState::Full(cache) = &state.layers[3] else { panic!("layer 3 is full attention") };
    let rows =
        |x: &[f32]| [0, 1, 63, 64, 95].iter().flat_map(|p| x[p * 512..(p + 1) * 512].to_vec()).collect::<Vec<_>>();
    close("keys", &rows(&cache.k), &golden.f32("state.3.k_after_prompt_rows"), 1e-4);
    close("values", &rows(&cache.v), &golden.f32("state.3.v_after_prompt_rows"), 1e-4);

    oracle.hidden(&mut state, &golden.ids("decode_tokens"));
    let LayerState::Linear(delta) = &state.layers[0] else { panic!("layer 0 is linear") };
    let head = |h: usize| &delta.recurrent[h * 128 * 128..(h + 1) * 128 * 128];
    close("S", &[head(1), head(3)].concat(), &golden.f32("state.0.recurrent_after_decode"), 1e-4);
    close("convolution", &delta.conv, &golden.f32("state.0.conv_after_decode"), 1e-4);
}

/// The fast path computes the oracle's numbers but for the rounding of activations to 16 bits.
fn check_fast<K: KvElement>(dir: &str, golden: &str, bound: f32, all_tokens: bool) {
    let checkpoint = open(dir);
    let golden = Golden::open(golden);
    let ids = golden.ids("prompt_ids");
    for isa in Isa::available() {
        for threads in [1, 2] {
            let fast = Fast::<K>::with_isa(checkpoint.shape(), checkpoint.weights(), threads, isa);
            let mut model = Local::new(fast);
            let seq = model.begin(200).expect("room");
            let logits = model.prefill(seq, &ids, Rows::All).expect("prefill");
            close(&format!("{dir} {isa:?} {threads}"), &logits.data, &golden.f32("logits"), bound);
            let mut next = argmax(logits.row(ids.len() - 1));
            if all_tokens {
                for &expected in &golden.ids("decode_tokens") {
                    assert_eq!(next, expected);
                    next = argmax(model.decode(&[(seq, next)]).expect("decode").row(0));
                }
            }
        }
    }
}

#[test]
fn fast_path_with_f32_cache_equals_the_references() {
    check_fast::<f32>("tests/fixtures/tiny/mlx-4bit", "tests/fixtures/tiny/golden_mlx4.safetensors", 2e-3, true);
    check_fast::<f32>("tests/fixtures/tiny/hf", "tests/fixtures/tiny/golden_hf.safetensors", 2e-4, true);
}

fn same_bits<K: KvElement>(pieces: &[usize]) {
    let checkpoint = open("tests/fixtures/tiny/mlx-4bit");
    let golden = Golden::open("tests/fixtures/tiny/golden_mlx4.safetensors");
    let ids = [golden.ids("prompt_ids"), golden.ids("decode_tokens")].concat();
    let mut expected: Option<Vec<f32>> = None;
    for (isa, threads) in [(Isa::Portable, 1), (Isa::detect(), 1), (Isa::detect(), 2), (Isa::detect(), 3)] {
        for piece in pieces.iter().copied().chain([ids.len()]) {
            let fast = Fast::<K>::with_isa(checkpoint.shape(), checkpoint.weights(), threads, isa);
            let mut model = Local::new(fast);
            let seq = model.begin(ids.len()).expect("room");
            let mut logits = Vec::new();
            for part in ids.chunks(piece) {
                logits.extend(model.prefill(seq, part, Rows::All).expect("prefill").data);
            }
            assert!(
                *expected.get_or_insert_with(|| logits.clone()) == logits,
                "{} {isa:?}, {threads} threads, pieces of {piece}",
                K::TYPE.name()
            );
        }
    }
}

#[test]
fn fast_path_gives_the_same_bits_for_every_cut_thread_count_and_instruction_set() {
    same_bits::<Bf16>(&[1, 2, 3, 4, 5, 7, 8, 64, 65]);
    same_bits::<Q8>(&[1, 7, 64, 65]);
}

/// Restored in the middle of a block and at its end, in 8 bits: the bits of one that was never left.
#[test]
fn a_snapshot_of_an_eight_bit_cache_goes_on_with_the_same_bits() {
    let checkpoint = open("tests/fixtures/tiny/mlx-4bit");
    let ids = Golden::open("tests/fixtures/tiny/golden_mlx4.safetensors").ids("prompt_ids");
    let mut model = Local::new(Fast::<Q8>::new(checkpoint.shape(), checkpoint.weights(), 2));
    let cold = model.begin(ids.len()).expect("room");
    let want = model.prefill(cold, &ids, Rows::Last).expect("prefill");
    for cut in [1, 63, 64, 65, 90] {
        let seq = model.begin(ids.len()).expect("room");
        model.prefill(seq, &ids[..cut], Rows::None).expect("prefill");
        let snapshot = model.snapshot(seq).expect("snapshot");
        // The tiny model has one full layer with 2 heads.
        let kv: u64 = snapshot.shared.iter().map(|s| s.bytes).sum();
        assert_eq!(kv, cut.div_ceil(64) as u64 * 64 * checkpoint.shape().kv_bytes_per_token(model.kv_type()));
        model.prefill(seq, &[7; 5], Rows::None).expect("prefill");
        model.end(seq);
        let warm = model.restore(&snapshot, ids.len()).expect("restore");
        assert_eq!(model.prefill(warm, &ids[cut..], Rows::Last).expect("prefill"), want, "cut at {cut}");
    }
}

#[test]
fn a_model_refuses_before_anything_changes_and_snapshots_are_copies() {
    let checkpoint = open("tests/fixtures/tiny/mlx-4bit");
    let mut model = Local::new(Fast::<Bf16>::new(checkpoint.shape(), checkpoint.weights(), 1));
    let seq = model.begin(10).expect("room");
    model.prefill(seq, &[1, 2, 3], Rows::None).expect("prefill");
    let snapshot = model.snapshot(seq).expect("snapshot");
    let expected = model.decode(&[(seq, 4)]).expect("decode");

    let error = model.prefill(seq, &[5; 7], Rows::Last).expect_err("too many tokens");
    assert_eq!(error.to_string(), "the sequence would have 11 tokens, but its room is 10");
    let error = model.prefill(seq, &[5, 512], Rows::Last).expect_err("no such token");
    assert_eq!(error.to_string(), "token id 512 is outside the vocabulary of 512");
    assert!(model.decode(&[(seq, 1), (seq, 2)]).is_err());
    assert_eq!(model.len(seq), 4);

    for _ in 0..2 {
        let again = model.restore(&snapshot, 10).expect("restore");
        assert_eq!(model.len(again), 3);
        assert_eq!(model.decode(&[(again, 4)]).expect("decode"), expected);
    }
    assert!(model.state_bytes() > 0);
    let mut other = Local::new(Oracle::new(checkpoint.shape(), checkpoint.weights()));
    assert!(other.restore(&snapshot, 10).is_err());
    model.end(seq);
    assert!(model.decode(&[(seq, 1)]).is_err());
}

/// A snapshot that was bytes for a while, possibly in another process.
fn saved_and_loaded(mut model: impl Model, mut other: impl Model) {
    assert_eq!(model.state_format(), other.state_format());
    for len in [1, 64, 66] {
        let seq = model.begin(200).expect("room");
        let tokens: Vec<u32> = (0..len as u32).map(|i| 5 + i * 7 % 400).collect();
        model.prefill(seq, &tokens, Rows::None).expect("prefill");
        let snapshot = model.snapshot(seq).expect("snapshot");
        let mut parts = vec![model.save(&snapshot, Part::Own).expect("own part")];
        parts.extend((0..snapshot.shared.len()).map(|i| model.save(&snapshot, Part::Shared(i)).expect("a block")));
        assert!(model.save(&snapshot, Part::Shared(snapshot.shared.len())).is_err());
        assert_eq!(parts.iter().map(|p| p.len() as u64).sum::<u64>(), snapshot.bytes);
        for (part, shared) in parts[1..].iter().zip(&snapshot.shared) {
            assert_eq!(part.len() as u64, shared.bytes);
        }

        let loaded = other.load(len, &mut parts.clone().into_iter()).expect("load");
        assert_eq!((loaded.len, loaded.bytes), (len, snapshot.bytes));
        let warm = other.restore(&loaded, 200).expect("restore");
        for token in 0..3 {
            assert_eq!(other.decode(&[(warm, token)]).expect("decode"), model.decode(&[(seq, token)]).expect("decode"));
        }

        let mut refused = |len, parts: Vec<Vec<u8>>| assert!(other.load(len, &mut parts.into_iter()).is_err());
        refused(len + 64, parts.clone());
        refused(usize::MAX, parts.clone());
        refused(len, [parts.clone(), vec![vec![0]]].concat());
        refused(len, parts[..parts.len() - 1].to_vec());
        refused(len, parts.iter().map(|p| p[1..].to_vec()).collect());
    }
}

#[test]
fn states_come_back_from_their_bytes() {
    let checkpoint = open("tests/fixtures/tiny/mlx-4bit");
    let (shape, weights) = (checkpoint.shape(), checkpoint.weights());
    let oracle = || Local::new(Oracle::new(shape, weights));
    saved_and_loaded(oracle(), oracle());
    saved_and_loaded(
        Local::new(Fast::<Bf16>::new(shape, weights, 1)),
        Local::new(Fast::<Bf16>::new(shape, weights, 2)),
    );
    saved_and_loaded(Local::new(Fast::<f32>::new(shape, weights, 1)), Local::new(Fast::<f32>::new(shape, weights, 1)));
    saved_and_loaded(Local::new(Fast::<Q8>::new(shape, weights, 1)), Local::new(Fast::<Q8>::new(shape, weights, 1)));
}
