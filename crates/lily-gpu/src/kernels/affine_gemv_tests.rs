use lily_checkpoint::{Affine, quant::dequantize};
use proptest::prelude::*;

use super::*;
use crate::gpu::Contents;
use crate::testing::{Random, assert_close, device, floats, output, read_f32, run, share};

/// Rows of all matrices, in f64.
fn reference(matrices: &[Affine], x: &[f32], batch: usize) -> Vec<f32> {
    let cols = matrices[0].cols;
    let dense: Vec<Vec<f32>> = matrices.iter().map(dequantize).collect();
    let mut y = Vec::new();
    for x in x.chunks_exact(cols).take(batch) {
        for row in dense.iter().flat_map(|w| w.chunks_exact(cols)) {
            y.push(row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32);
        }
    }
    y
}

/// `shapes`: rows and bits.
fn check(cols: usize, shapes: &[(usize, usize)], batch: usize, seed: u32) {
    let mut random = Random(u64::from(seed));
    let matrices: Vec<Affine> = shapes.iter().map(|&(rows, bits)| random.affine(rows, cols, bits)).collect();
    let x = random.values(batch * cols, 1.0);
    let rows: usize = shapes.iter().map(|s| s.0).sum();
    let mut gpu = device(seed);
    let shared: Vec<_> = matrices.iter().map(|m| share(&gpu, m)).collect();
    let (x_buffer, y) = (floats(&gpu, &x, Contents::Activations), output(&gpu, batch * rows));
    affine_gemv(
        &mut gpu,
        &shared.iter().collect::<Vec<_>>(),
        View::of(&x_buffer),
        View::of(&y),
        batch as u32,
        rows as u32,
    )
    .unwrap();
    let done = run(&mut gpu).unwrap();
    assert_close(&read_f32(&gpu, &y), &reference(&matrices, &x, batch), 2e-6);

    // Each byte of the matrices is loaded once, whatever the batch.
    let loaded: u64 = done.dispatches[0].traffic[..12].iter().map(|t| t.bytes()).sum();
    let least: usize = matrices.iter().map(|m| m.codes.len() + m.scales.len() + m.biases.len()).sum();
    assert_eq!(loaded, least as u64);
}

#[test]
fn the_real_shapes_in_part() {
    // Linear layer: in_proj_qkv | z | a | b, the large ones cut to a few rows.
    check(2048, &[(200, 4), (96, 4), (32, 4), (32, 4)], 1, 1);
    // Router and the shared expert's gate (8 bit) with the shared expert's projections.
    check(2048, &[(256, 8), (1, 8), (64, 4), (64, 4)], 1, 2);
    // out_proj, and an expert's down_proj.
    check(4096, &[(50, 4)], 1, 3);
    check(512, &[(130, 4)], 1, 4);
}

#[test]
fn every_batch_on_both_sides_of_each_kernel() {
    for batch in 1..=8 {
        check(256, &[(21, 4), (5, 8)], batch, 10 + batch as u32);
    }
}

#[test]
#[should_panic(expected = "more than 8 rows are prefill")]
fn nine_rows_are_refused() {
    check(64, &[(4, 4)], 9, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_shape(groups in 1usize..40, shapes in prop::collection::vec((1usize..70, prop::bool::ANY), 1..5),
                 batch in 1usize..9, seed in 1u32..) {
        let shapes: Vec<_> = shapes.into_iter().map(|(rows, eight)| (rows, if eight { 8 } else { 4 })).collect();
        check(groups * 64, &shapes, batch, seed);
    }
}
