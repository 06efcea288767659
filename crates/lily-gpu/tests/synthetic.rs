//! Random weights, more layers than any golden file has: with F32 tiles the GPU's logits are the oracle's, and what ships is
//! close. With `LILY_TEST_DEVICE=cuda` the dimensions are those of the 35B model, with `LILY_TEST_LAYERS` layers (4). The oracle
//! takes minutes for 40 of them, so `LILY_TEST_ORACLE=FILE` keeps its logits, or takes them from there.
#![cfg(feature = "emulated")]

mod common;
#[path = "../../lily-cpu/tests/common/mod.rs"]
mod golden;

use common::{bodies, cuda, model};
use golden::open;
use lily_checkpoint::synthetic::{SeededWeights, full_shape};
use lily_cpu::{Local, Oracle};
use lily_gpu::kernels::{Body, Element};
use lily_model::{LayerKind, Model, Rows, Shape};

/// Tokens decoded after a prompt.
const DECODED: usize = 1;

fn shape() -> Shape {
    if cuda() {
        let layers = std::env::var("LILY_TEST_LAYERS").map_or(4, |n| n.parse().expect("a number of layers"));
        return full_shape(layers);
    }
    let kind = |i| if i % 4 == 3 { LayerKind::Full } else { LayerKind::Linear };
    let tiny = open("tests/fixtures/tiny/mlx-4bit");
    Shape { layers: (0..12).map(kind).collect(), ..tiny.shape().clone() }
}

/// Rows of a prompt and of what is decoded after it.
fn rows(model: &mut dyn Model, ids: &[u32]) -> Vec<f32> {
    let seq = model.begin(ids.len()).expect("room");
    let (prompt, decoded) = ids.split_at(ids.len() - DECODED);
    let mut out = model.prefill(seq, prompt, Rows::All).expect("prefill").data;
    for &id in decoded {
        out.extend(model.decode(&[(seq, id)]).expect("decode").data);
    }
    model.end(seq);
    out
}

/// The oracle's rows, kept in the file that `LILY_TEST_ORACLE` names.
fn oracle(shape: &Shape, seeded: &SeededWeights, ids: &[u32]) -> Vec<f32> {
    let file = std::env::var_os("LILY_TEST_ORACLE");
    if let Some(bytes) = file.as_ref().and_then(|f| std::fs::read(f).ok()) {
        return bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    }
    let logits = rows(&mut Local::new(Oracle::new(shape, &seeded.weights)), ids);
    if let Some(file) = file {
        std::fs::write(file, logits.iter().flat_map(|l| l.to_le_bytes()).collect::<Vec<u8>>()).expect("a file");
    }
    logits
}

/// Distances of rows from what they should be, over the length of the latter, sorted.
fn distances(what: &str, vocab: usize, got: &[f32], want: &[f32]) -> Vec<f64> {
    assert_eq!(got.len(), want.len(), "{what}: values");
    let apart = |(got, want): (&[f32], &[f32])| {
        let (mut difference, mut length) = (0.0, 0.0);
        for (g, w) in got.iter().zip(want) {
            difference += f64::from(g - w).powi(2);
            length += f64::from(*w).powi(2);
        }
        (difference / length).sqrt()
    };
    let mut all: Vec<f64> = got.chunks_exact(vocab).zip(want.chunks_exact(vocab)).map(apart).collect();
    assert!(all.iter().all(|d| d.is_finite()), "{what}: logits are not numbers");
    all.sort_by(f64::total_cmp);
    println!(
        "{what}: {} rows, {:.1e} apart in the median, {:.1e} at most",
        all.len(),
        all[all.len() / 2],
        all[all.len() - 1]
    );
    all
}

#[test]
fn logits_are_those_of_the_oracle() {
    let shape = shape();
    let seeded = SeededWeights::new(&shape, 1);
    let layers = shape.layers.len();
    let ids = |count: usize| -> Vec<u32> { (0..count as u32).map(|i| (i + 1) * 7_919 % shape.vocab as u32).collect() };
    let [short, long] = if cuda() { [2, 200] } else { [6, 70] }.map(|prompt| ids(prompt + DECODED));

    // The device first: it makes the weights itself where it can, and the oracle's reading makes them on the host. Bounds are
    // looked at when all figures are printed.
    let mut exact = model(&shape, &seeded.weights, Element::F32, Body::Simdgroup, 5);
    let [exact_short, exact_long] = [&short, &long].map(|ids| rows(exact.as_mut(), ids));
    drop(exact);
    let against_tiles = bodies().map(|body| {
        let got = rows(model(&shape, &seeded.weights, Element::Bf16, body, 5).as_mut(), &long);
        let what = format!("{layers} layers, BF16 in {body:?} against F32 tiles");
        distances(&what, shape.vocab, &got, &exact_long)
    });
    let want = oracle(&shape, &seeded, &short);
    let exact = distances(&format!("{layers} layers, F32 tiles against the oracle"), shape.vocab, &exact_short, &want);
    assert!(exact[exact.len() - 1] < 1e-3);
    // What ships, on a longer prompt against F32 tiles. In a random model a rounding may choose another expert, in each layer anew.
    for d in against_tiles {
        assert!(d[d.len() / 2] < 0.01 * layers as f64, "half of the rows are further apart");
    }
}
