use proptest::prelude::*;

use super::*;
use crate::gpu::Contents::Activations;
use crate::testing::{Random, assert_close, device, floats, output, read_bf16, read_f32, run};

fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

fn rms_norm(row: &[f32], weight: &[f32], eps: f64) -> Vec<f32> {
    let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    row.iter().zip(weight).map(|(v, w)| (f64::from(*v) * scale * f64::from(*w)) as f32).collect()
}

fn check(tokens: usize, width: usize, chosen: usize, gate_scale: f32, (exact, rounded): (bool, bool), seed: u32) {
    let mut random = Random(u64::from(seed));
    let stride = 9;
    let x = random.values(tokens * width, 2.0);
    let experts = random.values(tokens * chosen * width, 1.0);
    let shared = random.values(tokens * width, 1.0);
    let logits = random.values(tokens * stride, gate_scale);
    let weight = random.values(width, 2.0);

    let mut sum = x.clone();
    for (t, row) in sum.chunks_mut(width).enumerate() {
        let gate = sigmoid(logits[t * stride + 8]);
        for (i, x) in row.iter_mut().enumerate() {
            let routed: f32 = (0..chosen).map(|j| experts[(t * chosen + j) * width + i]).sum();
            *x += routed + gate * shared[t * width + i];
        }
    }

    let mut gpu = device(seed);
    let x_buffer = floats(&gpu, &x, Activations);
    let [experts, shared, logits, weight_buffer] =
        [&experts, &shared, &logits, &weight].map(|v| floats(&gpu, v, Activations));
    let y32 = output(&gpu, tokens * width);
    let y16 = gpu.allocate((tokens * width * 2) as u64, Activations).unwrap();
    let outputs = NormOutputs { exact: exact.then_some(View::of(&y32)), rounded: rounded.then_some(View::of(&y16)) };
    let c = MoeCombine {
        x: View::of(&x_buffer),
        experts: View::of(&experts),
        shared: View::of(&shared),
        shared_gate: View::at(&logits, 4 * 8),
        stride: stride as u32,
        norm: (exact || rounded).then_some((View::of(&weight_buffer), outputs)),
        tokens: tokens as u32,
        chosen: chosen as u32,
        width: width as u32,
        eps: 1e-6,
    };
    moe_combine(&mut gpu, &c).unwrap();
    run(&mut gpu).unwrap();
    assert_close(&read_f32(&gpu, &x_buffer), &sum, 1e-6);
    let want: Vec<f32> = sum.chunks(width).flat_map(|row| rms_norm(row, &weight, 1e-6)).collect();
    if exact {
        assert_close(&read_f32(&gpu, &y32), &want, 3e-6);
    }
    if rounded {
        for (g, w) in read_bf16(&gpu, &y16).into_iter().zip(&want) {
            assert!((g - w).abs() <= w.abs() / 250.0 + 1e-5, "{g}, wanted {w}");
        }
    }
}

#[test]
fn the_full_width() {
    for outputs in [(true, true), (true, false), (false, true), (false, false)] {
        check(3, 2048, 8, 4.0, outputs, 1);
    }
    // The gate shut and open.
    check(4, 256, 8, 80.0, (true, true), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_rows(tokens in 1usize..5, quads in 1usize..600, chosen in 1usize..9, seed in 1u32..) {
        check(tokens, quads * 4, chosen, 4.0, (true, true), seed);
    }
}
