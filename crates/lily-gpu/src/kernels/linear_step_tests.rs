use lily_cpu::oracle::delta::{convolve, step, unit};

use proptest::prelude::*;

use super::*;
use crate::gpu::Contents;
use crate::kernels::{ConvSilu, Element, GatedDeltaChunk, GatedNorm};
use crate::kernels::{conv_silu, gated_delta_chunk, gated_delta_chunk_scratch, gated_norm};
use crate::testing::{
    Random, assert_close, body, bytes, counts, device, floats, output, read_f32, run, to_bf16, words,
};

/// Weights of a layer, and what a sequence carries, S as [value × key].
struct Layer {
    shape: Shape,
    weights: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
    z_at: usize,
    gates_at: usize,
    stride: usize,
}

impl Layer {
    fn new(keys: usize, values: usize, random: &mut Random) -> Self {
        let shape = Shape { linear_key_heads: keys, linear_value_heads: values, ..Shape::qwen3_6_35b_a3b() };
        let channels = shape.conv_dim();
        Self {
            weights: random.bf16_values(channels * 4, 0.7),
            a_log: random.values(values, 2.0),
            dt_bias: random.values(values, 1.0),
            norm: random.values(128, 1.5),
            z_at: channels,
            gates_at: channels + shape.value_dim(),
            stride: (channels + shape.value_dim() + 2 * values).next_multiple_of(4) + 4,
            shape,
        }
    }

    /// The oracle over one row; `conv` and `state` become those after it.
    fn reference(&self, row: &[f32], conv: &mut Vec<f32>, state: &mut [f32]) -> Vec<f32> {
        let (s, values) = (&self.shape, self.shape.linear_value_heads);
        let c = convolve(s, &self.weights, conv, &row[..s.conv_dim()]);
        let mut y = Vec::new();
        for h in 0..values {
            let key = h / (values / s.linear_key_heads) * 128;
            let q = unit(&c[key..key + 128], 1.0 / 128f32.sqrt());
            let k = unit(&c[s.key_dim() + key..][..128], 1.0);
            let v = &c[2 * s.key_dim() + h * 128..][..128];
            let (a, b) = (row[self.gates_at + h], row[self.gates_at + values + h]);
            let x = f64::from(a + self.dt_bias[h]);
            let g = -f64::from(self.a_log[h]).exp() * (x.max(0.0) + (-x.abs()).exp().ln_1p());
            let beta = 1.0 / (1.0 + (-f64::from(b)).exp());
            let own = &mut state[h * 128 * 128..][..128 * 128];
            let mut turned = transposed(own);
            let o = step(&mut turned, &q, &k, v, g as f32, beta as f32);
            own.copy_from_slice(&transposed(&turned));
            let scale = 1.0 / (o.iter().map(|v| v * v).sum::<f32>() / 128.0 + s.norm_eps).sqrt();
            let z = &row[self.z_at + h * 128..][..128];
            y.extend(o.iter().zip(z).zip(&self.norm).map(|((o, z), w)| o * scale * w * z / (1.0 + (-z).exp())));
        }
        y
    }
}

/// [128 × 128].
fn transposed(m: &[f32]) -> Vec<f32> {
    (0..128 * 128).map(|i| m[i % 128 * 128 + i / 128]).collect()
}

/// Sequences in scattered slots over several tokens, past and next slot exchanged after each. `extreme`: inputs of the gates
/// at ±80. Returns bytes of weights and state over what they must be.
fn check(keys: usize, values: usize, batch: usize, tokens: usize, extreme: bool, seed: u32) -> f64 {
    let mut random = Random(u64::from(seed));
    let layer = Layer::new(keys, values, &mut random);
    let (channels, width, stride) = (layer.shape.conv_dim(), layer.shape.value_dim(), layer.stride);
    let (conv_slot, state_slot) = (3 * channels, width * 128);
    // Past slots from the top down, each next slot below its past one; the lowest slot is nobody's.
    let mut slots: Vec<u32> = (0..batch as u32).rev().flat_map(|i| [2 * i + 2, 2 * i + 1]).collect();
    let mut conv = random.values((2 * batch + 1) * conv_slot, 2.0);
    let mut state = random.values((2 * batch + 1) * state_slot, 0.3);

    let mut gpu = device(seed);
    let conv_buffer = floats(&gpu, &conv, Contents::State);
    let state_buffer = floats(&gpu, &state, Contents::State);
    let weights = bytes(&gpu, &to_bf16(&layer.weights), Contents::Weights);
    let [a_log, dt_bias, norm] =
        [&layer.a_log, &layer.dt_bias, &layer.norm].map(|v| floats(&gpu, v, Contents::Weights));
    let y = output(&gpu, batch * width);
    let mut ratio = 0.0f64;
    for _ in 0..tokens {
        let mut rows = random.values(batch * stride, 2.0);
        if extreme {
            for row in rows.chunks_exact_mut(stride) {
                for v in &mut row[layer.gates_at..layer.gates_at + 2 * values] {
                    *v = if random.below(2) == 0 { 80.0 } else { -80.0 };
                }
            }
        }
        let projections = floats(&gpu, &rows, Contents::Activations);
        let slots_buffer = words(&gpu, &slots);
        let l = LinearStep {
            projections: View::of(&projections),
            stride: stride as u32,
            z_at: layer.z_at as u32,
            gates_at: layer.gates_at as u32,
            conv: View::of(&conv_buffer),
            state: View::of(&state_buffer),
            slots: View::of(&slots_buffer),
            weights: View::of(&weights),
            a_log: View::of(&a_log),
            dt_bias: View::of(&dt_bias),
            norm: View::of(&norm),
            y: View::of(&y),
            batch: batch as u32,
        };
        linear_step(&mut gpu, &layer.shape, &l).unwrap();
        let done = run(&mut gpu).unwrap();

        let mut want = Vec::new();
        for (pair, row) in slots.chunks_exact(2).zip(rows.chunks_exact(stride)) {
            let (past, next) = (pair[0] as usize, pair[1] as usize);
            let mut own_conv = conv[past * conv_slot..][..conv_slot].to_vec();
            let mut own_state = state[past * state_slot..][..state_slot].to_vec();
            want.extend(layer.reference(row, &mut own_conv, &mut own_state));
            conv[next * conv_slot..][..conv_slot].copy_from_slice(&own_conv);
            state[next * state_slot..][..state_slot].copy_from_slice(&own_state);
        }
        assert_close(&read_f32(&gpu, &y), &want, 2e-5);
        assert_eq!(read_f32(&gpu, &conv_buffer), conv, "next slots, and no other, are written");
        let got = read_f32(&gpu, &state_buffer);
        for (slot, (got, want)) in got.chunks_exact(state_slot).zip(state.chunks_exact(state_slot)).enumerate() {
            if slots.chunks_exact(2).any(|pair| pair[1] as usize == slot) {
                assert_close(got, want, 5e-6);
            } else {
                assert_eq!(got, want, "slot {slot} is not written");
            }
        }
        // The next token begins with what the device has.
        state = got;
        for pair in slots.chunks_exact_mut(2) {
            pair.swap(0, 1);
        }
        let counted = |t: &&crate::gpu::Traffic| t.contents != Contents::Activations;
        let moved: u64 = done.dispatches[0].traffic.iter().filter(counted).map(crate::gpu::Traffic::bytes).sum();
        let weights = 2 * channels * 4 + 4 * (2 * values + 128);
        ratio = ratio.max(moved as f64 / (batch * 8 * (conv_slot + state_slot) + weights) as f64);
        assert_eq!(done.dispatches.len(), 1);
    }
    ratio
}

#[test]
fn two_tokens_at_the_real_heads_and_their_bytes() {
    let ratio = check(16, 32, 1, 2, false, 1);
    assert!(!counts() || ratio > 1.0 && ratio <= 1.03, "{ratio}");
}

#[test]
fn a_batch_in_shuffled_slots() {
    let ratio = check(2, 4, 8, 2, false, 2);
    assert!(!counts() || ratio > 1.0 && ratio <= 1.05, "{ratio}");
}

#[test]
fn heads_that_do_not_share_and_that_share_by_four() {
    check(2, 2, 2, 3, false, 3);
    check(1, 4, 1, 6, false, 4);
}

#[test]
fn b135_imp_1282_gates_at_80() {
    for seed in 10..14 {
        check(2, 4, 1, 3, true, seed);
    }
}

/// Any tokens by the kernels of prefill and the rest one by one: outputs and states as if all went one by one.
fn prefill_is_many_steps(keys: usize, values: usize, prefilled: usize, stepped: usize, extreme: bool, seed: u32) {
    let mut random = Random(u64::from(seed));
    let layer = Layer::new(keys, values, &mut random);
    let (s, stride) = (&layer.shape, layer.stride);
    let (channels, width) = (s.conv_dim(), s.value_dim());
    let tokens = prefilled + stepped;
    let mut rows = random.values(tokens * stride, 2.0);
    if extreme {
        for v in rows.chunks_exact_mut(stride).flat_map(|r| &mut r[layer.gates_at..layer.gates_at + 2 * values]) {
            *v = [-80.0, 80.0, *v][random.below(3) as usize];
        }
    }
    let (mut conv, mut state) = (vec![0.0; 3 * channels], vec![0.0; width * 128]);
    let want: Vec<f32> =
        rows.chunks_exact(stride).flat_map(|row| layer.reference(row, &mut conv, &mut state)).collect();

    let mut gpu = device(seed);
    let conv_pool = floats(&gpu, &vec![0.0; 2 * 3 * channels], Contents::State);
    let state_pool = floats(&gpu, &vec![0.0; 2 * width * 128], Contents::State);
    let weights = bytes(&gpu, &to_bf16(&layer.weights), Contents::Weights);
    let [a_log, dt_bias, norm] =
        [&layer.a_log, &layer.dt_bias, &layer.norm].map(|v| floats(&gpu, v, Contents::Weights));
    let projections = floats(&gpu, &rows, Contents::Activations);
    let slots = [words(&gpu, &[0, 1]), words(&gpu, &[1, 0])];
    let y = output(&gpu, tokens * width);
    let [qkv, gates, out] = [channels, 2 * values, width].map(|n| output(&gpu, prefilled * n));
    let scratch = gpu.allocate(gated_delta_chunk_scratch(s, prefilled as u32), Contents::Activations).unwrap();
    let c = ConvSilu {
        projections: View::of(&projections),
        stride: stride as u32,
        gates_at: layer.gates_at as u32,
        state: View::of(&conv_pool),
        slots: View::of(&slots[0]),
        weights: View::of(&weights),
        a_log: View::of(&a_log),
        dt_bias: View::of(&dt_bias),
        qkv: View::of(&qkv),
        gates: View::of(&gates),
        sequences: 1,
        tokens: prefilled as u32,
    };
    conv_silu(&mut gpu, s, &c).unwrap();
    let d = GatedDeltaChunk {
        body: body(),
        qkv: View::of(&qkv),
        gates: View::of(&gates),
        state: View::of(&state_pool),
        slots: View::of(&slots[0]),
        scratch: View::of(&scratch),
        out: View::of(&out),
        start: 0,
        tokens: prefilled as u32,
    };
    gated_delta_chunk(&mut gpu, s, &d).unwrap();
    let n = GatedNorm {
        o: View::of(&out),
        z: View::at(&projections, 4 * layer.z_at as u64),
        stride: stride as u32,
        weight: View::of(&norm),
        y: View::of(&y),
        output: Element::F32,
        rows: prefilled as u32,
    };
    gated_norm(&mut gpu, s, &n).unwrap();
    for t in prefilled..tokens {
        let l = LinearStep {
            projections: View::at(&projections, 4 * (t * stride) as u64),
            stride: stride as u32,
            z_at: layer.z_at as u32,
            gates_at: layer.gates_at as u32,
            conv: View::of(&conv_pool),
            state: View::of(&state_pool),
            slots: View::of(&slots[(t - prefilled + 1) % 2]),
            weights: View::of(&weights),
            a_log: View::of(&a_log),
            dt_bias: View::of(&dt_bias),
            norm: View::of(&norm),
            y: View::at(&y, 4 * (t * width) as u64),
            batch: 1,
        };
        linear_step(&mut gpu, s, &l).unwrap();
    }
    run(&mut gpu).unwrap();
    assert_close(&read_f32(&gpu, &y), &want, 5e-5);
    let last = (stepped + 1) % 2;
    assert_eq!(read_f32(&gpu, &conv_pool)[last * conv.len()..][..conv.len()], conv);
    assert_close(&read_f32(&gpu, &state_pool)[last * state.len()..][..state.len()], &state, 2e-5);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[cfg_attr(sanitized, ignore = "large")]
    #[test]
    fn prefill_and_decode_agree(
        keys in 1usize..3,
        share in 1usize..4,
        prefilled in 1usize..140,
        stepped in 1usize..4,
        extreme: bool,
        seed in 0u32..1000,
    ) {
        prefill_is_many_steps(keys, keys * share, prefilled, stepped, extreme, seed);
    }
}
