use lily_cpu::oracle::delta::{convolve, unit};

use super::*;
use crate::gpu::Contents;
use crate::testing::{Random, assert_close, bytes, device, floats, output, read_f32, run, to_bf16, words};

fn shape(keys: usize, values: usize) -> Shape {
    Shape { linear_key_heads: keys, linear_value_heads: values, ..Shape::qwen3_6_35b_a3b() }
}

/// The oracle over one sequence: qkv [T × channels], gates [T × 2 × values], state after.
fn reference(
    s: &Shape,
    weights: &[f32],
    a_log: &[f32],
    dt: &[f32],
    past: &[f32],
    rows: &[f32],
    stride: usize,
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let (channels, values) = (s.conv_dim(), s.linear_value_heads);
    let u: Vec<f32> = rows.chunks_exact(stride).flat_map(|r| r[..channels].to_vec()).collect();
    let mut state = past.to_vec();
    let c = convolve(s, weights, &mut state, &u);
    let mut qkv = Vec::new();
    for c in c.chunks_exact(channels) {
        for (h, head) in c.chunks_exact(128).enumerate() {
            match h / s.linear_key_heads {
                0 => qkv.extend(unit(head, 1.0 / 128f32.sqrt())),
                1 => qkv.extend(unit(head, 1.0)),
                _ => qkv.extend_from_slice(head),
            }
        }
    }
    let mut gates = Vec::new();
    for row in rows.chunks_exact(stride) {
        let (a, b) = (&row[channels..channels + values], &row[channels + values..channels + 2 * values]);
        let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        gates.extend((0..values).map(|h| (-f64::from(a_log[h]).exp() * softplus(f64::from(a[h] + dt[h]))) as f32));
        gates.extend((0..values).map(|h| (1.0 / (1.0 + (-f64::from(b[h])).exp())) as f32));
    }
    (qkv, gates, state)
}

/// Sequences in scattered slots; `extreme` puts the gates' inputs at ±80.
fn check(keys: usize, values: usize, sequences: usize, tokens: usize, extreme: bool, seed: u32) {
    let s = shape(keys, values);
    let (channels, mut random) = (s.conv_dim(), Random(u64::from(seed)));
    let stride = channels + 2 * values;
    // Past slots from the top down, each next slot below its past one; the lowest slot is nobody's.
    let slots: Vec<u32> = (0..sequences as u32).rev().flat_map(|i| [2 * i + 2, 2 * i + 1]).collect();
    let mut rows = random.values(sequences * tokens * stride, 2.0);
    if extreme {
        for row in rows.chunks_exact_mut(stride) {
            for (i, v) in row[channels..].iter_mut().enumerate() {
                *v = if i % 2 == 0 { 80.0 } else { -80.0 };
            }
        }
    }
    let weights = random.bf16_values(channels * 4, 0.7);
    let (a_log, dt) = (random.values(values, 2.0), random.values(values, 3.0));
    let past = random.values((2 * sequences + 1) * 3 * channels, 2.0);

    let mut gpu = device(seed);
    let projections = floats(&gpu, &rows, Contents::Activations);
    let state_buffer = floats(&gpu, &past, Contents::State);
    let slots_buffer = words(&gpu, &slots);
    let weights_buffer = bytes(&gpu, &to_bf16(&weights), Contents::Weights);
    let (a_buffer, dt_buffer) = (floats(&gpu, &a_log, Contents::Weights), floats(&gpu, &dt, Contents::Weights));
    let qkv = output(&gpu, sequences * tokens * channels);
    let gates = output(&gpu, sequences * tokens * 2 * values);
    let c = ConvSilu {
        projections: View::of(&projections),
        stride: stride as u32,
        gates_at: channels as u32,
        state: View::of(&state_buffer),
        slots: View::of(&slots_buffer),
        weights: View::of(&weights_buffer),
        a_log: View::of(&a_buffer),
        dt_bias: View::of(&dt_buffer),
        qkv: View::of(&qkv),
        gates: View::of(&gates),
        sequences: sequences as u32,
        tokens: tokens as u32,
    };
    conv_silu(&mut gpu, &s, &c).unwrap();
    run(&mut gpu).unwrap();

    let (got_qkv, got_gates) = (read_f32(&gpu, &qkv), read_f32(&gpu, &gates));
    let mut untouched = past.clone();
    for (i, pair) in slots.chunks_exact(2).enumerate() {
        let [slot, next] = [pair[0], pair[1]].map(|s| s as usize * 3 * channels..(s as usize + 1) * 3 * channels);
        let own = &rows[i * tokens * stride..(i + 1) * tokens * stride];
        let (q, g, state) = reference(&s, &weights, &a_log, &dt, &past[slot], own, stride);
        assert_close(&got_qkv[i * tokens * channels..][..tokens * channels], &q, 2e-6);
        for (got, want) in got_gates[i * tokens * 2 * values..].iter().zip(&g) {
            assert!((got - want).abs() <= 2e-6 * want.abs() + 1e-37, "gate {got}, wanted {want}");
        }
        untouched[next].copy_from_slice(&state);
    }
    assert_eq!(read_f32(&gpu, &state_buffer), untouched, "next slots, and no other, are written");
}

#[test]
fn one_token_at_the_real_heads() {
    check(16, 32, 1, 1, false, 3);
}

#[test]
fn chunks_shorter_and_longer_than_the_taps() {
    for tokens in [1, 2, 3, 4, 9] {
        check(2, 4, 1, tokens, false, 20 + tokens as u32);
    }
}

#[test]
fn several_sequences_in_their_slots() {
    check(2, 4, 3, 1, false, 31);
    check(2, 4, 2, 5, false, 32);
}

#[test]
fn b135_imp_1282_gates_at_80() {
    check(2, 4, 1, 2, true, 41);
}
