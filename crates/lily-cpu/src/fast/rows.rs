//! What is done to one row (a token, or a head of it) at a time.

use super::simd::{dot, multiversion, sigmoid, silu};

multiversion! {
    /// x / rms(x) · weight.
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
        for i in 0..out.len() {
            out[i] = x[i] * scale * weight[i];
        }
    }
}

multiversion! {
    /// Each head of x [heads × d] to unit length, times `scale` (`docs/model.md §4.4`: 1e-6 is added to the sum).
    pub fn unit_heads(x: &mut [f32], d: usize, scale: f32) {
        for head in x.chunks_exact_mut(d) {
            let factor = scale / (dot(head, head) + 1e-6).sqrt();
            for v in head.iter_mut() {
                *v *= factor;
            }
        }
    }
}

multiversion! {
    /// Gated norm of a token: each head of o [heads × d] normalised, times weight [d], times silu(z).
    pub fn gated_norm(o: &mut [f32], weight: &[f32], z: &[f32], eps: f32) {
        let d = weight.len();
        for (o, z) in o.chunks_exact_mut(d).zip(z.chunks_exact(d)) {
            let scale = 1.0 / (dot(o, o) / d as f32 + eps).sqrt();
            for i in 0..d {
                o[i] = o[i] * scale * weight[i] * silu(z[i]);
            }
        }
    }
}

multiversion! {
    /// o ⊙ sigmoid(gate).
    pub fn sigmoid_gate(o: &mut [f32], gate: &[f32]) {
        for i in 0..o.len() {
            o[i] *= sigmoid(gate[i]);
        }
    }
}

multiversion! {
    /// gate ← silu(gate) ⊙ up.
    pub fn swiglu(gate: &mut [f32], up: &[f32]) {
        for i in 0..gate.len() {
            gate[i] = silu(gate[i]) * up[i];
        }
    }
}

multiversion! {
    /// y += weight · x.
    pub fn add_scaled(y: &mut [f32], weight: f32, x: &[f32]) {
        for i in 0..y.len() {
            y[i] = weight.mul_add(x[i], y[i]);
        }
    }
}

multiversion! {
    /// y += x.
    pub fn add(y: &mut [f32], x: &[f32]) {
        for i in 0..y.len() {
            y[i] += x[i];
        }
    }
}

/// cos and sin of the rotary angles of one position, [rotary_dim / 2] each.
pub fn rotary(position: usize, inv_freq: &[f32], cos: &mut [f32], sin: &mut [f32]) {
    for (j, f) in inv_freq.iter().enumerate() {
        (sin[j], cos[j]) = (position as f32 * f).sin_cos();
    }
}

/// Rotates the first dims of a head in split halves (`docs/model.md §4.3`).
pub fn rope(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for j in 0..half {
        let (a, b) = (head[j], head[j + half]);
        head[j] = a * cos[j] - b * sin[j];
        head[j + half] = b * cos[j] + a * sin[j];
    }
}

/// The `k` largest router logits, ties to the lower index, in descending order, with the softmax over them
/// (`docs/model.md §4.6`).
pub fn route(logits: &[f32], k: usize, experts: &mut [u32], weights: &mut [f32]) {
    let mut taken = 0;
    for (i, &logit) in logits.iter().enumerate() {
        // Insertion into a sorted list of k: equal logits stay behind the earlier index.
        let mut at = taken;
        while at > 0 && weights[at - 1] < logit {
            at -= 1;
        }
        if at < k {
            taken = (taken + 1).min(k);
            experts.copy_within(at..taken - 1, at + 1);
            weights.copy_within(at..taken - 1, at + 1);
            (experts[at], weights[at]) = (i as u32, logit);
        }
    }
    let max = weights[0];
    let mut total = 0.0;
    for w in &mut weights[..k] {
        *w = (*w - max).exp();
        total += *w;
    }
    weights[..k].iter_mut().for_each(|w| *w /= total);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    #[test]
    fn routing_equals_a_stable_sort() {
        for seed in 0..200 {
            let mut logits = noise(seed, 32);
            if seed % 2 == 0 {
                logits.iter_mut().for_each(|l| *l = (*l * 3.0).round());
            }
            let mut order: Vec<u32> = (0..32).collect();
            order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            let (mut experts, mut weights) = ([0; 8], [0.0; 8]);
            route(&logits, 8, &mut experts, &mut weights);
            assert_eq!(experts, order[..8], "{logits:?}");
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            assert!(weights.windows(2).all(|w| w[0] >= w[1]));
        }
    }
}
