use proptest::prelude::*;

use super::*;
use crate::gpu::Contents;
use crate::testing::{Random, assert_close, device, floats, output, read_f32, read_u32, run};

/// Sorted by logit, then by index; softmax over the chosen in f64.
fn reference(logits: &[f32], chosen: usize) -> (Vec<u32>, Vec<f32>) {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let at = |i: u32| logits[i as usize];
    order.sort_by(|&a, &b| at(b).partial_cmp(&at(a)).expect("finite").then(a.cmp(&b)));
    order.truncate(chosen);
    let e: Vec<f64> = order.iter().map(|&i| (f64::from(at(i)) - f64::from(at(order[0]))).exp()).collect();
    let total: f64 = e.iter().sum();
    (order, e.iter().map(|e| (e / total) as f32).collect())
}

fn check(logits: &[f32], count: usize, stride: usize, chosen: usize, seed: u32) {
    let tokens = logits.len() / stride;
    let mut gpu = device(seed);
    let buffer = floats(&gpu, logits, Contents::Activations);
    let (experts, weights) = (output(&gpu, tokens * chosen), output(&gpu, tokens * chosen));
    let r = MoeRoute {
        logits: View::of(&buffer),
        stride: stride as u32,
        experts: View::of(&experts),
        weights: View::of(&weights),
        tokens: tokens as u32,
        count: count as u32,
        chosen: chosen as u32,
    };
    moe_route(&mut gpu, &r).unwrap();
    run(&mut gpu).unwrap();
    let (mut want_experts, mut want_weights) = (Vec::new(), Vec::new());
    for row in logits.chunks_exact(stride) {
        let (e, w) = reference(&row[..count], chosen);
        want_experts.extend(e);
        want_weights.extend(w);
    }
    assert_eq!(read_u32(&gpu, &experts), want_experts);
    assert_close(&read_f32(&gpu, &weights), &want_weights, 1e-6);
}

#[test]
fn eight_of_256_and_four_of_eight() {
    let mut random = Random(1);
    check(&random.values(9 * 256, 5.0), 256, 256, 8, 1);
    check(&random.values(5 * 12, 5.0), 8, 12, 4, 2);
}

#[test]
fn ties_go_to_the_lower_index() {
    let mut logits = vec![0.25; 256];
    check(&logits, 256, 256, 8, 1);
    // A tie at the eighth place, across lanes and across the rows of a lane.
    for i in [3, 35, 67, 200, 201, 40, 41] {
        logits[i] = 1.0;
    }
    check(&logits, 256, 256, 8, 2);
}

#[test]
fn far_apart_logits_give_finite_weights() {
    let mut logits = vec![-80.0; 256];
    (logits[17], logits[255]) = (80.0, 79.0);
    check(&logits, 256, 256, 8, 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    /// Few distinct values, so that most choices are ties.
    #[test]
    fn any_rows(tokens in 1usize..10, count in 8usize..257, chosen in 1usize..9, levels in 1u64..40, seed in 1u32..) {
        let mut random = Random(u64::from(seed));
        let logits: Vec<f32> = (0..tokens * count).map(|_| random.below(levels) as f32 * 0.5 - 3.0).collect();
        check(&logits, count, count, chosen, seed);
    }
}
