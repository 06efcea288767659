//! Gated DeltaNet in its recurrent form (`docs/model.md §4.4`).

use lily_checkpoint::LinearAttention;
use lily_model::Shape;

use super::ops::{dot, linear, rms_norm, sigmoid, silu, softplus};

/// What a linear layer carries between calls.
#[derive(Clone)]
pub struct DeltaState {
    /// S, [value heads × key dim × value dim].
    pub recurrent: Vec<f32>,
    /// The last `conv_taps` − 1 rows of u, oldest first, [3 × conv_dim].
    pub conv: Vec<f32>,
}

impl DeltaState {
    /// All zero.
    pub fn start(s: &Shape) -> Self {
        Self {
            recurrent: vec![0.0; s.linear_value_heads * s.linear_head_dim * s.linear_head_dim],
            conv: vec![0.0; (s.conv_taps - 1) * s.conv_dim()],
        }
    }
}

/// x [T × hidden] → [T × hidden].
pub fn linear_attention(s: &Shape, w: &LinearAttention, state: &mut DeltaState, x: &[f32]) -> Vec<f32> {
    let d = s.linear_head_dim;
    let z = linear(x, &w.in_z);
    let a = linear(x, &w.in_a);
    let b = linear(x, &w.in_b);
    let c = convolve(s, &w.conv, &mut state.conv, &linear(x, &w.in_qkv));

    let mut out = Vec::with_capacity(z.len());
    let heads_per_key = s.linear_value_heads / s.linear_key_heads;
    for (t, c) in c.chunks_exact(s.conv_dim()).enumerate() {
        for h in 0..s.linear_value_heads {
            let key_head = h / heads_per_key;
            let q = unit(&c[key_head * d..(key_head + 1) * d], 1.0 / (d as f32).sqrt());
            let k = unit(&c[s.key_dim() + key_head * d..s.key_dim() + (key_head + 1) * d], 1.0);
            let v = &c[2 * s.key_dim() + h * d..2 * s.key_dim() + (h + 1) * d];
            let gate = t * s.linear_value_heads + h;
            let g = -w.a_log[h].exp() * softplus(a[gate] + w.dt_bias[h]);
            let beta = sigmoid(b[gate]);
            let recurrent = &mut state.recurrent[h * d * d..(h + 1) * d * d];
            out.extend(step(recurrent, &q, &k, v, g, beta));
        }
    }

    let mut y = rms_norm(&out, &w.norm, s.norm_eps);
    for (y, z) in y.iter_mut().zip(&z) {
        *y *= silu(*z);
    }
    linear(&y, &w.out)
}

/// Causal depthwise convolution and SiLU: u [T × conv_dim], weights [conv_dim × taps]. `past` becomes the last rows.
pub fn convolve(s: &Shape, weights: &[f32], past: &mut Vec<f32>, u: &[f32]) -> Vec<f32> {
    let (width, taps) = (s.conv_dim(), s.conv_taps);
    let rows = [past.as_slice(), u].concat();
    let mut c = vec![0.0; u.len()];
    for (t, c) in c.chunks_exact_mut(width).enumerate() {
        for (channel, c) in c.iter_mut().enumerate() {
            let sum: f32 = (0..taps).map(|j| weights[channel * taps + j] * rows[(t + j) * width + channel]).sum();
            *c = silu(sum);
        }
    }
    *past = rows[rows.len() - (taps - 1) * width..].to_vec();
    c
}

/// x / sqrt(Σ x² + 1e-6) · scale. The epsilon is fixed and added to the sum, not the mean.
pub fn unit(x: &[f32], scale: f32) -> Vec<f32> {
    let inv = scale / (dot(x, x) + 1e-6).sqrt();
    x.iter().map(|v| v * inv).collect()
}

/// One token of one value head; S [key dim × value dim] is updated, o [value dim] returned.
pub fn step(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], g: f32, beta: f32) -> Vec<f32> {
    let d = v.len();
    let decay = g.exp();
    let mut memory = vec![0.0; d];
    for (row, k) in state.chunks_exact_mut(d).zip(k) {
        for (s, m) in row.iter_mut().zip(&mut memory) {
            *s *= decay;
            *m += *s * k;
        }
    }
    let delta: Vec<f32> = v.iter().zip(&memory).map(|(v, m)| beta * (v - m)).collect();
    let mut o = vec![0.0; d];
    for ((row, k), q) in state.chunks_exact_mut(d).zip(k).zip(q) {
        for ((s, delta), o) in row.iter_mut().zip(&delta).zip(&mut o) {
            *s += k * delta;
            *o += *s * q;
        }
    }
    o
}
