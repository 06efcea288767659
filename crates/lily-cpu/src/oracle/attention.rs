//! Gated softmax attention (`docs/model.md §4.2, §4.3`).

use lily_checkpoint::FullAttention;
use lily_model::{KvType, Shape};

use super::ops::{dot, linear, rms_norm, sigmoid};

/// Keys (after norm and rope) and values, [positions × kv_heads × head_dim] each.
#[derive(Clone)]
pub struct KvCache {
    /// What they are rounded to when they are appended.
    pub kind: KvType,
    /// Keys.
    pub k: Vec<f32>,
    /// Values.
    pub v: Vec<f32>,
}

impl KvCache {
    /// Before the first token.
    pub fn new(kind: KvType) -> Self {
        Self { kind, k: Vec::new(), v: Vec::new() }
    }
}

/// Rounds cached rows to what `kind` keeps of them; a group of eight-bit values never crosses two heads.
pub fn round_kv(kind: KvType, x: &mut [f32]) {
    // To the upper half of an F32, to nearest, ties to even; for finite values.
    let bf16 = |x: f32| f32::from_bits((x.to_bits() + 0x7FFF + (x.to_bits() >> 16 & 1)) & 0xFFFF_0000);
    match kind {
        KvType::F32 => {}
        KvType::Bf16 => x.iter_mut().for_each(|x| *x = bf16(*x)),
        KvType::Q8 => {
            for group in x.chunks_exact_mut(KvType::GROUP) {
                let largest = group.iter().map(|x| x.abs()).fold(0.0, f32::max);
                let scale = bf16(largest / 127.0);
                let inverse = 1.0 / scale;
                for x in group {
                    let code = (*x * inverse).round_ties_even().clamp(-127.0, 127.0);
                    *x = if scale < f32::MIN_POSITIVE { 0.0 } else { code * scale };
                }
            }
        }
    }
}

/// x [T × hidden] → [T × hidden]; the first row stands at position `start`.
pub fn full_attention(s: &Shape, w: &FullAttention, cache: &mut KvCache, start: usize, x: &[f32]) -> Vec<f32> {
    let d = s.head_dim;
    let tokens = x.len() / s.hidden;

    // Rows of q_proj are interleaved a head: 256 of query, 256 of gate.
    let query_and_gate = linear(x, &w.q);
    let mut q = Vec::with_capacity(tokens * s.query_dim());
    let mut gate = Vec::with_capacity(tokens * s.query_dim());
    for head in query_and_gate.chunks_exact(2 * d) {
        q.extend_from_slice(&head[..d]);
        gate.extend_from_slice(&head[d..]);
    }
    let mut q = rms_norm(&q, &w.q_norm, s.norm_eps);
    let mut k = rms_norm(&linear(x, &w.k), &w.k_norm, s.norm_eps);
    rope(s, &mut q, s.query_heads, start);
    rope(s, &mut k, s.kv_heads, start);
    let mut v = linear(x, &w.v);
    round_kv(cache.kind, &mut k);
    round_kv(cache.kind, &mut v);
    cache.k.extend_from_slice(&k);
    cache.v.extend_from_slice(&v);

    let group = s.query_heads / s.kv_heads;
    let scale = 1.0 / (d as f32).sqrt();
    let mut out = vec![0.0; tokens * s.query_dim()];
    for (t, (q, out)) in q.chunks_exact(s.query_dim()).zip(out.chunks_exact_mut(s.query_dim())).enumerate() {
        for h in 0..s.query_heads {
            let q = &q[h * d..(h + 1) * d];
            let at = |position: usize| position * s.kv_dim() + h / group * d;
            let scores: Vec<f32> = (0..=start + t).map(|p| dot(q, &cache.k[at(p)..at(p) + d]) * scale).collect();
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
            let total: f32 = weights.iter().sum();
            let out = &mut out[h * d..(h + 1) * d];
            for (p, weight) in weights.iter().enumerate() {
                for (o, v) in out.iter_mut().zip(&cache.v[at(p)..at(p) + d]) {
                    *o += weight / total * v;
                }
            }
        }
    }
    for (o, g) in out.iter_mut().zip(&gate) {
        *o *= sigmoid(*g);
    }
    linear(&out, &w.o)
}

/// Rotates the first `rotary_dim` dims of each head in split halves: x [T × heads × head_dim]. The angle is one F32
/// product of position and F32 frequency, as the references form it.
pub fn rope(s: &Shape, x: &mut [f32], heads: usize, start: usize) {
    let half = s.rotary_dim / 2;
    for (t, row) in x.chunks_exact_mut(heads * s.head_dim).enumerate() {
        for j in 0..half {
            let angle = (start + t) as f32 * inv_freq(s, j);
            let (sin, cos) = angle.sin_cos();
            for head in row.chunks_exact_mut(s.head_dim) {
                let (a, b) = (head[j], head[j + half]);
                head[j] = a * cos - b * sin;
                head[j + half] = b * cos + a * sin;
            }
        }
    }
}

/// theta^(−2j / rotary_dim), rounded once to F32.
pub fn inv_freq(s: &Shape, j: usize) -> f32 {
    f64::from(s.rope_theta).powf(-2.0 * j as f64 / s.rotary_dim as f64) as f32
}
