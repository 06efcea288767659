use lily_cpu::oracle::delta::step;

use super::*;
use crate::gpu::Contents;
use crate::testing::{Random, assert_close, device, floats, output, read_f32, run, words};

fn check(keys: usize, values: usize, sequences: usize, tokens: usize, g_scale: f32, seed: u32) {
    let s = Shape { linear_key_heads: keys, linear_value_heads: values, ..Shape::qwen3_6_35b_a3b() };
    let (channels, mut random) = (s.conv_dim(), Random(u64::from(seed)));
    let slots: Vec<u32> = (0..sequences as u32).rev().collect();
    // About unit length, as the convolution kernel gives them.
    let qkv = random.values(sequences * tokens * channels, 0.15);
    let mut gates = Vec::new();
    for _ in 0..sequences * tokens {
        gates.extend((0..values).map(|_| -random.value(1.0).abs() * g_scale));
        gates.extend((0..values).map(|_| random.value(0.5) + 0.5));
    }
    let state = random.values(sequences * values * 128 * 128, 0.3);

    let mut gpu = device(seed);
    let qkv_buffer = floats(&gpu, &qkv, Contents::Activations);
    let gates_buffer = floats(&gpu, &gates, Contents::Activations);
    let state_buffer = floats(&gpu, &state, Contents::State);
    let slots_buffer = words(&gpu, &slots);
    let out = output(&gpu, sequences * tokens * values * 128);
    let d = GatedDeltaStep {
        qkv: View::of(&qkv_buffer),
        gates: View::of(&gates_buffer),
        state: View::of(&state_buffer),
        slots: View::of(&slots_buffer),
        out: View::of(&out),
        sequences: sequences as u32,
        tokens: tokens as u32,
    };
    gated_delta_step(&mut gpu, &s, &d).unwrap();
    let done = run(&mut gpu).unwrap();
    let traffic = &done.dispatches[0].traffic[2];
    let state_bytes = (4 * state.len()) as u64;
    assert_eq!((traffic.loaded, traffic.stored), (state_bytes, state_bytes), "the state is read and written once");

    let (mut want, mut want_state) = (Vec::new(), state.clone());
    for (sequence, &slot) in slots.iter().enumerate() {
        for t in 0..tokens {
            let row = sequence * tokens + t;
            let c = &qkv[row * channels..(row + 1) * channels];
            for h in 0..values {
                let key = h / (values / keys) * 128;
                let at = (slot as usize * values + h) * 128 * 128;
                let mut own = transposed(&want_state[at..at + 128 * 128]);
                let v = &c[2 * s.key_dim() + h * 128..][..128];
                let gate = row * 2 * values;
                let (g, beta) = (gates[gate + h], gates[gate + values + h]);
                want.extend(step(&mut own, &c[key..key + 128], &c[s.key_dim() + key..][..128], v, g, beta));
                want_state[at..at + 128 * 128].copy_from_slice(&transposed(&own));
            }
        }
    }
    assert_close(&read_f32(&gpu, &out), &want, 5e-6);
    assert_close(&read_f32(&gpu, &state_buffer), &want_state, 5e-6);
}

/// [128 × 128].
fn transposed(m: &[f32]) -> Vec<f32> {
    (0..128 * 128).map(|i| m[i % 128 * 128 + i / 128]).collect()
}

#[test]
fn one_token_at_the_real_heads() {
    check(16, 32, 1, 1, 2.0, 1);
}

#[test]
fn tokens_one_after_another_and_sequences_in_their_slots() {
    check(1, 2, 2, 3, 1.0, 2);
    check(2, 2, 3, 1, 1.0, 3);
}

#[test]
fn a_decay_that_forgets_everything() {
    check(1, 2, 1, 2, 80.0, 4);
}
