//! The weights of the model, typed. Shapes are `[rows × columns]` = `[outputs × inputs]`; the full model's sizes stand in
//! brackets (`docs/model.md §2`).

use crate::Bytes;

/// A matrix `[rows × cols]` that multiplies activations: y = x · Wᵀ.
#[derive(Clone, Debug)]
pub enum Matrix {
    /// 4 or 8 bit codes with a scale and a bias per group of 64 columns (`docs/model.md §3.2`).
    Affine(Affine),
    /// Little-endian BF16, row-major.
    Bf16 {
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
        /// rows × cols × 2 bytes.
        data: Bytes,
    },
}

/// `w[o, i] = scales[o, i/64] · code(o, i) + biases[o, i/64]`. Scales may be negative.
#[derive(Clone, Debug)]
pub struct Affine {
    /// Outputs.
    pub rows: usize,
    /// Inputs, a multiple of 64.
    pub cols: usize,
    /// 4 or 8.
    pub bits: usize,
    /// rows × cols × bits / 8 bytes, low nibble first.
    pub codes: Bytes,
    /// rows × cols/64 BF16, little-endian.
    pub scales: Bytes,
    /// rows × cols/64 BF16, little-endian.
    pub biases: Bytes,
}

impl Affine {
    /// Columns that share a scale and a bias.
    pub const GROUP: usize = 64;
}

impl Matrix {
    /// Outputs.
    pub fn rows(&self) -> usize {
        match self {
            Matrix::Affine(a) => a.rows,
            Matrix::Bf16 { rows, .. } => *rows,
        }
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        match self {
            Matrix::Affine(a) => a.cols,
            Matrix::Bf16 { cols, .. } => *cols,
        }
    }

    /// Bytes that one pass over the matrix reads.
    pub fn bytes(&self) -> u64 {
        match self {
            Matrix::Affine(a) => (a.codes.len() + a.scales.len() + a.biases.len()) as u64,
            Matrix::Bf16 { data, .. } => data.len() as u64,
        }
    }

    /// A view of rows `start..start + rows`.
    pub fn slice_rows(&self, start: usize, rows: usize) -> Matrix {
        match self {
            Matrix::Affine(a) => {
                let part = |b: &Bytes| {
                    let row = b.len() / a.rows;
                    b.slice(start * row..(start + rows) * row)
                };
                Matrix::Affine(Affine {
                    rows,
                    codes: part(&a.codes),
                    scales: part(&a.scales),
                    biases: part(&a.biases),
                    ..*a
                })
            }
            Matrix::Bf16 { cols, data, .. } => {
                Matrix::Bf16 { rows, cols: *cols, data: data.slice(start * cols * 2..(start + rows) * cols * 2) }
            }
        }
    }

    /// Row `r` as F32, written to `out`, `[cols]`.
    pub fn row_f32(&self, r: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols());
        match self {
            Matrix::Affine(a) => {
                let groups = a.cols / Affine::GROUP;
                let bytes = a.cols * a.bits / 8;
                let codes = &a.codes[r * bytes..(r + 1) * bytes];
                for (g, out) in out.chunks_exact_mut(Affine::GROUP).enumerate() {
                    let scale = bf16_at(&a.scales, r * groups + g);
                    let bias = bf16_at(&a.biases, r * groups + g);
                    for (i, w) in out.iter_mut().enumerate() {
                        let i = g * Affine::GROUP + i;
                        let code = if a.bits == 4 { codes[i / 2] >> (4 * (i % 2)) & 15 } else { codes[i] };
                        *w = scale * f32::from(code) + bias;
                    }
                }
            }
            Matrix::Bf16 { cols, data, .. } => {
                for (i, w) in out.iter_mut().enumerate() {
                    *w = bf16_at(data, r * cols + i);
                }
            }
        }
    }
}

/// BF16 element `i` of little-endian bytes, as F32.
pub(crate) fn bf16_at(bytes: &[u8], i: usize) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])) << 16)
}

/// All the weights of the text model.
#[derive(Clone, Debug)]
pub struct Weights {
    /// `[248320 × 2048]`; read by row.
    pub embed: Matrix,
    /// One entry a layer.
    pub layers: Vec<Layer>,
    /// Multiplier of the final norm `[2048]`. Norm multipliers are ready for use: the HF layout's 1 + w is already done.
    pub norm: Vec<f32>,
    /// `[248320 × 2048]`.
    pub lm_head: Matrix,
}

/// One layer: x += mixer(norm(x)); x += moe(norm(x)).
#[derive(Clone, Debug)]
pub struct Layer {
    /// Multiplier of the norm before the mixer `[2048]`.
    pub input_norm: Vec<f32>,
    /// Mixes tokens.
    pub mixer: Mixer,
    /// Multiplier of the norm before the experts `[2048]`.
    pub post_norm: Vec<f32>,
    /// Mixture of experts.
    pub moe: Moe,
}

/// What mixes tokens.
#[derive(Clone, Debug)]
pub enum Mixer {
    /// Gated DeltaNet.
    Linear(LinearAttention),
    /// Gated softmax attention.
    Full(FullAttention),
}

/// `docs/model.md §4.4`.
#[derive(Clone, Debug)]
pub struct LinearAttention {
    /// `[8192 × 2048]`: rows q | k | v.
    pub in_qkv: Matrix,
    /// `[4096 × 2048]`.
    pub in_z: Matrix,
    /// `[32 × 2048]`, decay, one row a value head.
    pub in_a: Matrix,
    /// `[32 × 2048]`, write strength, one row a value head.
    pub in_b: Matrix,
    /// `[8192 × 4]`, channel-major; tap 3 is the current token.
    pub conv: Vec<f32>,
    /// `[32]`.
    pub a_log: Vec<f32>,
    /// `[32]`.
    pub dt_bias: Vec<f32>,
    /// Multiplier of the gated norm `[128]`, shared by the heads.
    pub norm: Vec<f32>,
    /// `[2048 × 4096]`.
    pub out: Matrix,
}

/// `docs/model.md §4.2`.
#[derive(Clone, Debug)]
pub struct FullAttention {
    /// `[8192 × 2048]`: per head 256 rows of query, then 256 rows of gate.
    pub q: Matrix,
    /// `[512 × 2048]`.
    pub k: Matrix,
    /// `[512 × 2048]`.
    pub v: Matrix,
    /// `[2048 × 4096]`.
    pub o: Matrix,
    /// Multiplier `[256]`.
    pub q_norm: Vec<f32>,
    /// Multiplier `[256]`.
    pub k_norm: Vec<f32>,
}

/// `docs/model.md §4.6`.
#[derive(Clone, Debug)]
pub struct Moe {
    /// `[256 × 2048]`.
    pub router: Matrix,
    /// Per expert `[512 × 2048]`.
    pub gate: ExpertStack,
    /// Per expert `[512 × 2048]`.
    pub up: ExpertStack,
    /// Per expert `[2048 × 512]`.
    pub down: ExpertStack,
    /// `[512 × 2048]`.
    pub shared_gate: Matrix,
    /// `[512 × 2048]`.
    pub shared_up: Matrix,
    /// `[2048 × 512]`.
    pub shared_down: Matrix,
    /// `[1 × 2048]`, sigmoid gate of the shared expert.
    pub shared_expert_gate: Matrix,
}

/// The same matrix of every expert, one view each. Views of the HF layout's fused gate_up tensor look the same as
/// those of MLX's separate ones.
#[derive(Clone, Debug)]
pub struct ExpertStack(pub Vec<Matrix>);

impl ExpertStack {
    /// The matrix of expert `e`.
    pub fn expert(&self, e: usize) -> &Matrix {
        &self.0[e]
    }

    /// All experts as one matrix, rows of expert 0 first, where they lie one after another: in the MLX layout all do,
    /// in the HF layout only the down projections.
    pub fn stacked(&self) -> Option<Matrix> {
        let mut all = self.0.first()?.clone();
        for next in &self.0[1..] {
            all = match (all, next) {
                (Matrix::Affine(a), Matrix::Affine(b)) if (a.cols, a.bits) == (b.cols, b.bits) => {
                    Matrix::Affine(Affine {
                        rows: a.rows + b.rows,
                        codes: a.codes.joined(&b.codes)?,
                        scales: a.scales.joined(&b.scales)?,
                        biases: a.biases.joined(&b.biases)?,
                        ..a
                    })
                }
                (Matrix::Bf16 { rows, cols, data }, Matrix::Bf16 { rows: more, cols: same, data: next })
                    if cols == *same =>
                {
                    Matrix::Bf16 { rows: rows + more, cols, data: data.joined(next)? }
                }
                _ => return None,
            };
        }
        Some(all)
    }
}
