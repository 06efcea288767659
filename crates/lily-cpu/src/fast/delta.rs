//! The gated delta rule, recurrent (`docs/model.md §4.4`), over blocks of state columns.
//!
//! Column j of S, the memory read, the delta and the output needs no other column, so a block of columns stays in the
//! L1 cache while all tokens of a chunk pass over it. A token's arithmetic is the same in prefill and decode.

use super::simd::{exp, multiversion, silu};

/// Columns of a block: 128 rows × 32 columns of F32 are 16 KB.
pub const BLOCK: usize = 32;

/// Inputs of one value head for T tokens.
pub struct Head<'a> {
    /// Unit keys, row t at `t × key_stride`, [head_dim].
    pub k: &'a [f32],
    /// Unit queries, scaled, likewise.
    pub q: &'a [f32],
    /// From one token's keys (or queries) to the next.
    pub key_stride: usize,
    /// Values of the block's columns, row t at `t × value_stride`, [BLOCK].
    pub v: &'a [f32],
    /// From one token's values to the next.
    pub value_stride: usize,
    /// exp(g), at `t × gate_stride`.
    pub decay: &'a [f32],
    /// Write strength, likewise.
    pub beta: &'a [f32],
    /// From one token's gates to the next.
    pub gate_stride: usize,
}

multiversion! {
    /// T tokens over one block: state [head_dim × BLOCK], out [T × BLOCK].
    pub fn pass(state: &mut [f32], head: &Head<'_>, out: &mut [f32]) {
        let d = state.len() / BLOCK;
        for (t, o) in out.chunks_exact_mut(BLOCK).enumerate() {
            let k = &head.k[t * head.key_stride..][..d];
            let q = &head.q[t * head.key_stride..][..d];
            let v = &head.v[t * head.value_stride..][..BLOCK];
            let (decay, beta) = (head.decay[t * head.gate_stride], head.beta[t * head.gate_stride]);
            let mut memory = [0.0f32; BLOCK];
            for (row, k) in state.chunks_exact_mut(BLOCK).zip(k) {
                for j in 0..BLOCK {
                    row[j] *= decay;
                    memory[j] = row[j].mul_add(*k, memory[j]);
                }
            }
            let mut delta = [0.0f32; BLOCK];
            for j in 0..BLOCK {
                delta[j] = beta * (v[j] - memory[j]);
            }
            let mut sum = [0.0f32; BLOCK];
            for ((row, k), q) in state.chunks_exact_mut(BLOCK).zip(k).zip(q) {
                for j in 0..BLOCK {
                    row[j] = k.mul_add(delta[j], row[j]);
                    sum[j] = row[j].mul_add(*q, sum[j]);
                }
            }
            o.copy_from_slice(&sum);
        }
    }
}

multiversion! {
    /// Causal convolution over four rows (oldest first) and SiLU: weights [4][width], out [width].
    pub fn convolve(rows: [&[f32]; 4], weights: &[f32], out: &mut [f32]) {
        let width = out.len();
        let (w0, rest) = weights.split_at(width);
        let (w1, rest) = rest.split_at(width);
        let (w2, w3) = rest.split_at(width);
        let [r0, r1, r2, r3] = rows.map(|r| &r[..width]);
        for i in 0..width {
            let sum = r3[i].mul_add(w3[i], r2[i].mul_add(w2[i], r1[i].mul_add(w1[i], r0[i] * w0[i])));
            out[i] = silu(sum);
        }
    }
}

multiversion! {
    /// Gates of one token: a, b [heads] → decay and beta [heads]. `rate` is −exp(A_log).
    pub fn gates(a: &[f32], b: &[f32], rate: &[f32], dt_bias: &[f32], decay: &mut [f32], beta: &mut [f32]) {
        for h in 0..decay.len() {
            let x = a[h] + dt_bias[h];
            // softplus without overflow; the few values of a token can afford the exact logarithm.
            let softplus = x.max(0.0) + exp(-x.abs()).ln_1p();
            decay[h] = exp(rate[h] * softplus);
            beta[h] = super::simd::sigmoid(b[h]);
        }
    }
}
