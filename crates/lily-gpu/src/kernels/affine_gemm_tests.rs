use lily_checkpoint::Matrix;
use proptest::prelude::*;

use super::*;
use crate::gpu::{Contents, Finished};
use crate::testing::TestGpu;
use crate::testing::{
    Random, assert_close, bodies, counts, device, elements, multiplied, output, read_f32, run, share_matrix,
};

/// A product with its inputs, `pad` values between rows of x and y.
struct Case {
    body: Body,
    element: Element,
    matrices: Vec<Matrix>,
    x: Vec<f32>,
    rows: usize,
    pad: usize,
}

impl Case {
    /// `shapes`: rows and bits of each matrix.
    fn new(body: Body, element: Element, cols: usize, shapes: &[(usize, usize)], rows: usize, seed: u32) -> Self {
        let mut random = Random(u64::from(seed));
        let matrices = shapes.iter().map(|&(rows, bits)| random.matrix(rows, cols, bits)).collect();
        let pad = 8 * random.below(3) as usize;
        let n = rows * (cols + pad);
        let x = if element == Element::F32 { random.values(n, 1.0) } else { random.bf16_values(n, 1.0) };
        Self { body, element, matrices, x, rows, pad }
    }

    fn cols(&self) -> usize {
        self.matrices[0].cols()
    }

    fn outputs(&self) -> usize {
        self.matrices.iter().map(Matrix::rows).sum()
    }

    /// Rows `from` to `to` of y without what lies between them, which no kernel may touch.
    fn compute(&self, gpu: &mut TestGpu, from: usize, to: usize) -> (Vec<f32>, Finished) {
        let (x_stride, y_stride) = (self.cols() + self.pad, self.outputs() + self.pad);
        let x = elements(gpu, &self.x, self.element, Contents::Activations);
        let y = output(gpu, (to - from) * y_stride);
        let shared: Vec<_> = self.matrices.iter().map(|m| share_matrix(gpu, m)).collect();
        let product = AffineGemm {
            body: self.body,
            matrices: &shared.iter().collect::<Vec<_>>(),
            x: View::at(&x, (from * x_stride) as u64 * self.element.size()),
            element: self.element,
            y: View::of(&y),
            rows: (to - from) as u32,
            x_stride: x_stride as u32,
            y_stride: y_stride as u32,
        };
        affine_gemm(gpu, &product).unwrap();
        let done = run(gpu).unwrap();
        let mut out = Vec::new();
        for row in read_f32(gpu, &y).chunks_exact(y_stride) {
            let (values, between) = row.split_at(self.outputs());
            assert!(between.iter().all(|v| v.to_bits() == u32::MAX), "written between the rows");
            out.extend_from_slice(values);
        }
        (out, done)
    }

    /// In f64.
    fn reference(&self) -> Vec<f32> {
        let weights: Vec<f32> = self.matrices.iter().flat_map(|m| multiplied(m, self.element)).collect();
        let mut y = Vec::new();
        for x in self.x.chunks_exact(self.cols() + self.pad) {
            for row in weights.chunks_exact(self.cols()) {
                y.push(row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32);
            }
        }
        y
    }

    fn check(&self, seed: u32) -> Finished {
        let (y, done) = self.compute(&mut device(seed), 0, self.rows);
        // NVIDIA's matrix units cut each of up to 256 sums off.
        let cut_off = self.element == Element::Bf16 && !counts();
        assert_close(&y, &self.reference(), if cut_off { 2e-5 } else { 5e-6 });
        done
    }
}

#[cfg_attr(sanitized, ignore = "large")]
#[test]
fn the_real_shapes_in_part() {
    for (body, element) in bodies() {
        // Linear layer: in_proj_qkv | z | a | b, the large ones cut to a few rows.
        Case::new(body, element, 2048, &[(100, 4), (70, 4), (32, 4), (32, 4)], 3, 1).check(1);
        // Router with the shared expert's gate.
        Case::new(body, element, 2048, &[(256, 8), (1, 8)], 2, 2).check(2);
        // out_proj.
        Case::new(body, element, 4096, &[(65, 4)], 5, 3).check(3);
        for rows in [63, 64, 65, 127, 129] {
            Case::new(body, element, 256, &[(130, 4), (8, 4)], rows, 4).check(4);
        }
    }
}

#[test]
fn b134_mlx_lm_844_rows_on_both_sides_of_each_block_and_kernel() {
    for (body, element) in bodies() {
        for rows in [1, 16, 17, 31, 32, 33, 63, 64, 65, 97, 128, 129] {
            Case::new(body, element, 64, &[(40, 4), (9, 16)], rows, 10 + rows as u32).check(rows as u32);
        }
    }
}

#[test]
fn every_width_of_weights_and_outputs_on_both_sides_of_a_block() {
    for (body, element) in bodies() {
        for bits in [4, 8, 16] {
            for outputs in [1, 31, 32, 33, 63, 64, 65, 129] {
                Case::new(body, element, 128, &[(outputs, bits)], 18, 30 + outputs as u32).check(outputs as u32);
            }
        }
    }
}

/// Each matrix is loaded once for each block of rows; by tensor operations four lanes load the scale of their row.
#[test]
fn weights_are_loaded_once_a_block() {
    for (body, times) in [(Body::Simdgroup, 1), (Body::Tensor, 4)] {
        for (rows, blocks) in [(32, 1), (64, 1), (65, 2)] {
            let case = Case::new(body, Element::Bf16, 192, &[(70, 4), (33, 8), (5, 16)], rows, 7);
            let done = case.check(3);
            if !counts() {
                return;
            }
            let loaded = |argument: usize| done.dispatches[0].traffic[argument].bytes();
            for (i, m) in case.matrices.iter().enumerate() {
                let values = (m.rows() * m.cols()) as u64;
                let bits = [4, 8, 16][i];
                assert_eq!(loaded(3 * i), blocks * values * bits / 8);
                let scales = if bits == 16 { 0 } else { blocks * values / 64 * 2 * times };
                assert_eq!((loaded(3 * i + 1), loaded(3 * i + 2)), (scales, scales));
            }
        }
    }
}

/// A row has the same bits whatever the rows beside it and its place in a block.
#[cfg_attr(sanitized, ignore = "large")]
#[test]
fn a_row_does_not_depend_on_the_others() {
    for (body, element) in bodies() {
        let shapes: [&[(usize, usize)]; 2] = [&[(67, 4), (10, 8), (3, 16)], &[(140, 4)]];
        for (cols, shapes) in [320, 256].into_iter().zip(shapes) {
            let case = Case::new(body, element, cols, shapes, 135, 5);
            let mut gpu = device(4);
            let (all, _) = case.compute(&mut gpu, 0, case.rows);
            for (from, to) in [(0, 1), (7, 8), (64, 128), (64, 135), (3, 40), (100, 132), (134, 135)] {
                let (part, _) = case.compute(&mut gpu, from, to);
                let whole = &all[from * case.outputs()..to * case.outputs()];
                let same = part.iter().zip(whole).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "rows {from} to {to}, {element:?}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "share their input")]
fn matrices_of_other_widths_are_refused() {
    let mut case = Case::new(Body::Simdgroup, Element::F32, 64, &[(4, 4)], 1, 1);
    case.matrices.push(Random(1).matrix(4, 128, 4));
    case.compute(&mut device(1), 0, 1);
}

#[test]
#[should_panic(expected = "rows of x every 68 values")]
fn rows_that_are_not_aligned_are_refused() {
    let mut case = Case::new(Body::Simdgroup, Element::Bf16, 64, &[(4, 4)], 2, 1);
    (case.pad, case.x) = (4, vec![0.0; 2 * 68]);
    case.compute(&mut device(1), 0, 2);
}

/// The kernels of CUDA's body, elsewhere.
#[test]
fn instructions_of_other_hardware_are_refused() {
    if !counts() {
        return;
    }
    let (kernel, threads) = ("affine_gemm_bf16_mma", [256, 1, 1]);
    let launch = Launch { kernel, constants: &[], args: &[], groups: [1; 3], threads };
    let refused = device(1).encode(&launch).unwrap_err().to_string();
    assert!(refused.contains("NVIDIA"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_shape(groups in 1usize..8, shapes in prop::collection::vec((1usize..140, 0usize..3), 1..5),
                 rows in 1usize..80, body in 0usize..bodies().len(), seed in 1u32..) {
        let shapes: Vec<_> = shapes.into_iter().map(|(rows, i)| (rows, [4, 8, 16][i])).collect();
        let (body, element) = bodies()[body];
        Case::new(body, element, groups * 64, &shapes, rows, seed).check(seed);
    }
}
