use proptest::prelude::*;

use super::*;
use crate::gpu::Contents;
use crate::testing::{
    Random, assert_close, counts, dense, device, floats, output, read_f32, run, share, share_matrix, step_bodies,
};

#[derive(Clone, Copy)]
struct Case {
    cols: usize,
    batch: usize,
    /// With the norm before it: how many sums of squares.
    norm: Option<usize>,
    residual: bool,
    seed: u32,
}

impl Case {
    fn plain(cols: usize, batch: usize, seed: u32) -> Self {
        Self { cols, batch, norm: None, residual: false, seed }
    }

    /// `shapes`: rows and bits.
    fn check(self, shapes: &[(usize, usize)]) {
        step_bodies().into_iter().for_each(|body| self.check_on(body, shapes));
    }

    fn check_on(self, body: Body, shapes: &[(usize, usize)]) {
        let Self { cols, batch, norm, residual, seed } = self;
        let mut random = Random(u64::from(seed));
        let matrices: Vec<_> = shapes.iter().map(|&(rows, bits)| random.matrix(rows, cols, bits)).collect();
        let rows: usize = shapes.iter().map(|s| s.0).sum();
        let (x, weight) = (random.values(batch * cols, 1.0), random.values(cols, 2.0));
        let before = random.values(batch * rows, 3.0);
        let eps = 1e-3;

        // Rows of all matrices, in f64.
        let rows_of: Vec<Vec<f32>> =
            matrices.iter().flat_map(|w| dense(w).chunks(cols).map(<[f32]>::to_vec).collect::<Vec<_>>()).collect();
        let mut want = Vec::new();
        for x in x.chunks(cols) {
            let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / cols as f64;
            let scale = if norm.is_some() { 1.0 / (mean + eps).sqrt() } else { 1.0 };
            let w = |i: usize| if norm.is_some() { f64::from(weight[i]) } else { 1.0 };
            let x: Vec<f64> = x.iter().enumerate().map(|(i, v)| f64::from(*v) * scale * w(i)).collect();
            want.extend(
                rows_of.iter().map(|row| row.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() as f32),
            );
        }

        let mut gpu = device(seed);
        let shared: Vec<_> = matrices.iter().map(|m| share_matrix(&gpu, m)).collect();
        let x_buffer = floats(&gpu, &x, Contents::Activations);
        let weight_buffer = floats(&gpu, &weight, Contents::Activations);
        let count = norm.unwrap_or(1);
        // Each row's squares in `count` parts.
        let mut partials = vec![0.0; batch * count];
        for (b, x) in x.chunks(cols).enumerate() {
            for (i, v) in x.iter().enumerate() {
                partials[b * count + i % count] += v * v;
            }
        }
        let partials_buffer = floats(&gpu, &partials, Contents::Activations);
        let step = StepNorm {
            weight: View::of(&weight_buffer),
            partials: View::of(&partials_buffer),
            count: count as u32,
            eps: eps as f32,
        };
        let x_view = View::of(&x_buffer);
        let input = match norm {
            None => GemvInput::Rows { x: x_view, stride: cols as u32 },
            Some(_) => GemvInput::Normed { x: x_view, norm: step },
        };
        let y = floats(&gpu, &before, Contents::Activations);
        let parts = gemv_partials(body, &shared[0]) as usize;
        let sums = output(&gpu, batch * parts);
        let to = match residual {
            false => GemvOutput::Rows { y: View::of(&y), stride: rows as u32 },
            true => GemvOutput::Residual { x: View::of(&y), partials: View::of(&sums) },
        };
        affine_gemv(&mut gpu, body, &shared.iter().collect::<Vec<_>>(), &input, &to, batch as u32).unwrap();
        let done = run(&mut gpu).unwrap();
        let got = read_f32(&gpu, &y);
        if residual {
            want.iter_mut().zip(&before).for_each(|(w, b)| *w += b);
            let exact = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() as f32;
            let squares = |row: &[f32]| exact(&mut row.iter().map(|v| f64::from(*v).powi(2)));
            let summed = |p: &[f32]| exact(&mut p.iter().map(|v| f64::from(*v)));
            let summed: Vec<f32> = read_f32(&gpu, &sums).chunks(parts).map(summed).collect();
            assert_close(&summed, &got.chunks(rows).map(squares).collect::<Vec<_>>(), 1e-6);
        }
        assert_close(&got, &want, 3e-6);

        // Each byte of the matrices is loaded once, whatever the batch.
        if !counts() {
            return;
        }
        let loaded: u64 = done.dispatches[0].traffic[..12].iter().map(|t| t.bytes()).sum();
        assert_eq!(loaded, matrices.iter().map(|m| m.bytes()).sum::<u64>());
    }
}

#[test]
fn the_real_shapes_in_part() {
    // Linear layer: in_proj_qkv | z | a | b, the large ones cut to a few rows.
    let normed = Case { norm: Some(256), ..Case::plain(2048, 1, 1) };
    normed.check(&[(200, 4), (96, 4), (32, 4), (32, 4)]);
    // Router and the shared expert's gate (8 bit).
    normed.check(&[(256, 8), (1, 8)]);
    // out_proj, and an expert's down_proj.
    Case { residual: true, ..Case::plain(4096, 1, 3) }.check(&[(50, 4)]);
    Case { residual: true, ..Case::plain(512, 1, 4) }.check(&[(130, 4)]);
}

/// All that a dispatch moves, beside the bytes that it must: the matrix, its input and its output.
#[test]
fn bytes_of_a_whole_projection() {
    let (rows, cols) = (2048, 2048);
    let w = Random(1).affine(rows, cols, 4);
    let mut gpu = device(1);
    let m = share(&gpu, &w);
    let x = floats(&gpu, &vec![1.0; cols], Contents::Activations);
    let (y, sums) = (floats(&gpu, &vec![1.0; rows], Contents::Activations), output(&gpu, 256));
    let norm = StepNorm { weight: View::of(&x), partials: View::of(&x), count: 256, eps: 0.0 };
    let input = GemvInput::Normed { x: View::of(&x), norm };
    let to = GemvOutput::Residual { x: View::of(&y), partials: View::of(&sums) };
    affine_gemv(&mut gpu, Body::Simdgroup, &[&m], &input, &to, 1).unwrap();
    let done = run(&mut gpu).unwrap();
    if !counts() {
        return;
    }
    let moved: u64 = done.dispatches[0].traffic.iter().map(|t| t.bytes()).sum();
    let least = (w.codes.len() + w.scales.len() + w.biases.len()) as u64 + 4 * (cols + 2 * rows) as u64;
    let ratio = moved as f64 / least as f64;
    assert!((1.0..1.03).contains(&ratio), "{ratio}");
}

#[test]
fn b134_mlx_lm_844_every_batch_on_both_sides_of_each_kernel() {
    for batch in 1..=8 {
        for (norm, residual) in [(None, false), (Some(1), false), (None, true), (Some(33), true)] {
            let shapes: &[_] = if residual { &[(21, 4)] } else { &[(21, 4), (5, 8), (7, 16)] };
            Case { norm, residual, ..Case::plain(256, batch, 10 + batch as u32) }.check(shapes);
        }
    }
}

#[test]
#[should_panic(expected = "more than 8 rows are prefill")]
fn nine_rows_are_refused() {
    Case::plain(64, 9, 1).check(&[(4, 4)]);
}

#[test]
#[should_panic(expected = "one matrix is added")]
fn two_matrices_are_not_added() {
    Case { residual: true, ..Case::plain(64, 1, 1) }.check(&[(4, 4), (4, 4)]);
}

/// A row's bits do not depend on the rows beside it.
#[test]
fn a_row_alone_has_the_same_bits() {
    for (body, cols, bits) in
        step_bodies().into_iter().flat_map(|b| [(b, 320, 4), (b, 512, 4), (b, 4096, 4), (b, 768, 8)])
    {
        let rows = 40;
        let mut random = Random(3);
        let (w, x) = (random.matrix(rows, cols, bits), random.values(8 * cols, 1.0));
        let product = |x: &[f32]| {
            let batch = x.len() / cols;
            let mut gpu = device(1);
            let m = share_matrix(&gpu, &w);
            let (x, y) = (floats(&gpu, x, Contents::Activations), output(&gpu, batch * rows));
            let input = GemvInput::Rows { x: View::of(&x), stride: cols as u32 };
            let to = GemvOutput::Rows { y: View::of(&y), stride: rows as u32 };
            affine_gemv(&mut gpu, body, &[&m], &input, &to, batch as u32).unwrap();
            run(&mut gpu).unwrap();
            read_f32(&gpu, &y)
        };
        let all = product(&x);
        for b in 0..8 {
            assert_eq!(product(&x[b * cols..(b + 1) * cols]), all[b * rows..(b + 1) * rows]);
        }
    }
}

/// Pieces of 256 columns, on both sides of each number that has a kernel, and rows on both sides of a tile and of what the
/// threadgroups take at once.
#[test]
fn whole_pieces_of_columns() {
    for (i, pieces) in [1, 2, 7, 8, 9, 16, 17].into_iter().enumerate() {
        for bits in [4, 8] {
            Case { norm: Some(3), ..Case::plain(pieces * 256, 1 + i % 3, 31) }.check(&[
                (15, bits),
                (1, bits),
                (33, bits),
            ]);
        }
    }
    Case { norm: Some(128), ..Case::plain(512, 2, 32) }.check(&[(4300, 4), (9000, 4), (16, 4), (17, 4)]);
    Case { residual: true, ..Case::plain(256, 3, 33) }.check(&[(9001, 4)]);
}

/// Values whose three parts matter: sums that cancel but for the last of 24 bits.
#[test]
fn inputs_of_full_precision() {
    for body in step_bodies() {
        let cols = 256;
        let mut codes = vec![0x11u8; 16 * cols / 2];
        codes[0] = 0x12; // row 0: codes 2, 1, 1, …
        let one = crate::testing::to_bf16(&vec![1.0; 16 * cols / 64]);
        let zero = crate::testing::to_bf16(&vec![0.0; 16 * cols / 64]);
        let bytes = lily_checkpoint::Bytes::new;
        let w = lily_checkpoint::Affine {
            rows: 16,
            cols,
            bits: 4,
            codes: bytes(codes),
            scales: bytes(one),
            biases: bytes(zero),
        };
        let mut x = vec![0.0; cols];
        (x[0], x[1]) = (1.0 + f32::EPSILON * 5.0, -1.0);
        let mut gpu = device(1);
        let m = share(&gpu, &w);
        let (x, y) = (floats(&gpu, &x, Contents::Activations), output(&gpu, 16));
        let input = GemvInput::Rows { x: View::of(&x), stride: cols as u32 };
        let to = GemvOutput::Rows { y: View::of(&y), stride: 16 };
        affine_gemv(&mut gpu, body, &[&m], &input, &to, 1).unwrap();
        run(&mut gpu).unwrap();
        let got = read_f32(&gpu, &y);
        assert_eq!(got[1], f32::EPSILON * 5.0);
        assert!((got[0] - (1.0 + f32::EPSILON * 10.0)).abs() <= 2.0 * f32::EPSILON, "{}", got[0]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_shape(groups in 1usize..40, shapes in prop::collection::vec((1usize..70, 0usize..3), 1..5),
                 batch in 1usize..9, norm in prop::option::of(1usize..70), residual: bool, seed in 1u32..) {
        let mut shapes: Vec<_> = shapes.into_iter().map(|(rows, bits)| (rows, 4 << bits)).collect();
        if residual {
            shapes.truncate(1);
        }
        Case { norm, residual, ..Case::plain(groups * 64, batch, seed) }.check(&shapes);
    }
}
