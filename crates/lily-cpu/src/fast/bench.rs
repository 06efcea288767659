//! What `benches/` and `lily bench` may time; not for other rooms.

use lily_checkpoint::{Affine, Bytes};

use super::affine4::{self, Panel, Pick};
use super::attention::{Scratch, attend};
use super::element::Bf16;
use super::kv::KvCache;
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

/// Query rows at the end of a BF16 cache of one key/value head with 256 values.
pub struct Attention {
    isa: Isa,
    q: Vec<f32>,
    positions: Vec<usize>,
    cache: KvCache<Bf16>,
    scratch: Scratch,
    out: Vec<f32>,
}

impl Attention {
    /// `rows` that see all of `context` positions, filled with a fixed pattern; `isa` is one of [`Isa::available`].
    pub fn new(isa: Isa, rows: usize, context: usize) -> Self {
        const D: usize = 256;
        let pattern =
            |n: usize, step: usize| (0..n).map(|i| ((i * step) % 97) as f32 / 97.0 - 0.5).collect::<Vec<f32>>();
        let mut cache = KvCache::new(1, D);
        for p in 0..context {
            cache.append(&pattern(D, 31 + p), &pattern(D, 17 + p));
        }
        let (q, out) = (pattern(rows * D, 13), vec![0.0; rows * D]);
        Self { isa, q, positions: vec![context - 1; rows], cache, scratch: Scratch::default(), out }
    }

    /// Once.
    pub fn run(&mut self) {
        let Self { isa, q, positions, cache, scratch, out } = self;
        attend(*isa, q, positions, cache, 0, scratch, out);
        std::hint::black_box(&out);
    }
}
