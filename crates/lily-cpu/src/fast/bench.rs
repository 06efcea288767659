//! What `benches/` and `lily bench` may time; not for other rooms.

use lily_checkpoint::{Affine, Bytes};

use super::affine4::{self, Panel, Pick};
use super::matmul::ROWS;
use super::quantise::{GROUP, Quantised, quantise_row};
use super::simd::Isa;

/// A 4-bit matrix and some rows of activations.
pub struct Product {
    isa: Isa,
    matrix: Affine,
    x: Quantised,
    tokens: usize,
    panel: Panel,
    out: Vec<f32>,
}

impl Product {
    /// Filled with a fixed pattern; `isa` is one of [`Isa::available`].
    pub fn new(isa: Isa, rows: usize, cols: usize, tokens: usize) -> Self {
        let pattern = |n: usize| Bytes::new((0..n).map(|i| (i * 167 + i / 251) as u8).collect::<Vec<_>>());
        let ones = |n: usize| Bytes::new([0x80, 0x3F].repeat(n));
        let groups = cols / GROUP;
        let matrix = Affine {
            rows,
            cols,
            bits: 4,
            codes: pattern(rows * cols / 2),
            scales: ones(rows * groups),
            biases: ones(rows * groups),
        };
        let mut x = Quantised::default();
        x.reset(tokens, cols);
        let stride = x.stride();
        for t in 0..tokens {
            let row: Vec<f32> = (0..cols).map(|i| ((i * 31 + t * 17) % 97) as f32 - 48.0).collect();
            quantise_row(
                isa,
                &row,
                &mut x.codes[t * stride..t * stride + cols],
                &mut x.scales[t * groups..(t + 1) * groups],
                &mut x.sums[t * groups..(t + 1) * groups],
            );
        }
        Self { isa, matrix, x, tokens, panel: Panel::default(), out: vec![0.0; tokens * ROWS] }
    }

    /// Bytes of the matrix.
    pub fn bytes(&self) -> usize {
        self.matrix.codes.len() + self.matrix.scales.len() + self.matrix.biases.len()
    }

    /// Multiplies all rows, token by token or with unpacked panels, whatever the number of tokens.
    pub fn run(&mut self, gemm: bool) {
        let Self { isa, matrix, x, tokens, panel, out } = self;
        for first in (0..matrix.rows).step_by(ROWS) {
            if gemm {
                affine4::gemm(*isa, matrix, first, ROWS, x, Pick::First(*tokens), ROWS, panel, out);
            } else {
                for t in 0..*tokens {
                    affine4::gemv(*isa, matrix, first, ROWS, x.row(t), panel, &mut out[t * ROWS..(t + 1) * ROWS]);
                }
            }
        }
        std::hint::black_box(&out);
    }
}
