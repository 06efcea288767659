//! Mixture of experts (`docs/model.md §4.6`).

use lily_checkpoint::{Matrix, Moe};
use lily_model::Shape;

use super::ops::{linear, sigmoid, silu};

/// x [T × hidden] → y [T × hidden], the experts chosen and their weights [T × experts_per_token].
pub fn moe(s: &Shape, w: &Moe, x: &[f32]) -> (Vec<f32>, Vec<usize>, Vec<f32>) {
    let tokens = x.len() / s.hidden;
    let router = linear(x, &w.router);
    let (mut experts, mut weights) = (Vec::new(), Vec::new());
    for logits in router.chunks_exact(s.experts) {
        let (e, p) = route(logits, s.experts_per_token);
        experts.extend(e);
        weights.extend(p);
    }

    // By expert, so that each matrix is expanded once; a token's experts are summed in descending weight below.
    let k = s.experts_per_token;
    let mut routed = vec![0.0; tokens * k * s.hidden];
    for e in 0..s.experts {
        let slots: Vec<usize> = (0..tokens * k).filter(|&i| experts[i] == e).collect();
        let rows: Vec<f32> = slots.iter().flat_map(|i| x[i / k * s.hidden..][..s.hidden].iter().copied()).collect();
        let y = mlp(&rows, w.gate.expert(e), w.up.expert(e), w.down.expert(e));
        for (i, y) in slots.iter().zip(y.chunks_exact(s.hidden)) {
            routed[i * s.hidden..(i + 1) * s.hidden].copy_from_slice(y);
        }
    }

    let shared = mlp(x, &w.shared_gate, &w.shared_up, &w.shared_down);
    let shared_gate = linear(x, &w.shared_expert_gate);
    let mut y = vec![0.0; x.len()];
    for (t, y) in y.chunks_exact_mut(s.hidden).enumerate() {
        for slot in t * k..(t + 1) * k {
            for (y, r) in y.iter_mut().zip(&routed[slot * s.hidden..(slot + 1) * s.hidden]) {
                *y += weights[slot] * r;
            }
        }
        let gate = sigmoid(shared_gate[t]);
        for (y, r) in y.iter_mut().zip(&shared[t * s.hidden..(t + 1) * s.hidden]) {
            *y += gate * r;
        }
    }
    (y, experts, weights)
}

/// down( silu(gate x) ⊙ up x ).
fn mlp(x: &[f32], gate: &Matrix, up: &Matrix, down: &Matrix) -> Vec<f32> {
    let mut h = linear(x, gate);
    for (g, u) in h.iter_mut().zip(linear(x, up)) {
        *g = silu(*g) * u;
    }
    linear(&h, down)
}

/// The `k` largest router logits, ties to the lower index, in descending order; their weights are the softmax over
/// the chosen ones, which equals the renormalised softmax over all.
pub fn route(logits: &[f32], k: usize) -> (Vec<usize>, Vec<f32>) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.truncate(k);
    let max = logits[order[0]];
    let e: Vec<f32> = order.iter().map(|&i| (logits[i] - max).exp()).collect();
    let total: f32 = e.iter().sum();
    (order, e.iter().map(|e| e / total).collect())
}
