//! Random weights, more layers than any golden file has: with F32 tiles the GPU's logits are the oracle's, and what ships is
//! close. With `LILY_TEST_DEVICE=cuda` the dimensions are those of the 35B model, with `LILY_TEST_LAYERS` layers (4); 40 of them
//! take 40 GB of memory and minutes.
#![cfg(feature = "emulated")]

mod common;
#[path = "../../lily-cpu/tests/common/mod.rs"]
mod golden;

use common::{bodies, cuda, model};
use golden::open;
use lily_checkpoint::synthetic::{full_shape, mlx4_in_memory};
use lily_cpu::{Local, Oracle};
use lily_gpu::kernels::{Body, Element};
use lily_model::{LayerKind, Model, Rows, Shape};

const PROMPT: usize = 6;
const DECODED: usize = 2;

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
fn rows(model: &mut dyn Model, ids: &[u32]) -> Vec<Vec<f32>> {
    let seq = model.begin(ids.len()).expect("room");
    let (prompt, decoded) = ids.split_at(ids.len() - DECODED);
    let logits = model.prefill(seq, prompt, Rows::All).expect("prefill");
    let mut out: Vec<Vec<f32>> = (0..prompt.len()).map(|i| logits.row(i).to_vec()).collect();
    for &id in decoded {
        out.push(model.decode(&[(seq, id)]).expect("decode").row(0).to_vec());
    }
    model.end(seq);
    out
}

/// Distance of a row from what it should be, over the length of the latter.
fn apart(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let (mut difference, mut length) = (0.0, 0.0);
    for (g, w) in got.iter().zip(want) {
        difference += square(f64::from(g - w));
        length += square(f64::from(*w));
    }
    (difference / length).sqrt()
}

/// Sorted distances.
fn distances(what: &str, got: &[Vec<f32>], want: &[Vec<f32>]) -> Vec<f64> {
    let mut all: Vec<f64> = got.iter().zip(want).map(|(g, w)| apart(g, w)).collect();
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
    let checkpoint = mlx4_in_memory(&shape, 1).expect("a checkpoint");
    let weights = checkpoint.weights();
    let vocab = shape.vocab as u32;
    let ids = |count: usize| -> Vec<u32> { (0..count as u32).map(|i| (i + 1) * 7_919 % vocab).collect() };

    let want = rows(&mut Local::new(Oracle::new(&shape, weights)), &ids(PROMPT + DECODED));
    let mut exact = model(&shape, weights, Element::F32, Body::Simdgroup, 5);
    let exact_short = rows(exact.as_mut(), &ids(PROMPT + DECODED));
    let layers = shape.layers.len();
    let d = distances(&format!("{layers} layers, F32 tiles against the oracle"), &exact_short, &want);
    assert!(d[d.len() - 1] < 1e-3);

    // A longer prompt against F32 tiles, which have just been checked.
    let long = ids(if cuda() { 200 } else { 70 } + DECODED);
    let exact_long = rows(exact.as_mut(), &long);
    drop(exact);
    for body in bodies() {
        let got = rows(model(&shape, weights, Element::Bf16, body, 5).as_mut(), &long);
        let d = distances(&format!("{layers} layers, BF16 in {body:?} against F32 tiles"), &got, &exact_long);
        assert!(d[d.len() / 2] < 0.1, "half of the rows are further apart");
    }
}
