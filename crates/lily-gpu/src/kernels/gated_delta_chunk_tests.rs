use lily_cpu::oracle::chunked::{Chunk, chunk};
use lily_cpu::oracle::delta::{step, unit};

use super::*;
use crate::gpu::Contents;
use crate::testing::{Random, assert_close, body, counts, device, floats, output, read_f32, run, words};

/// [128 × 128].
fn transposed(m: &[f32]) -> Vec<f32> {
    (0..128 * 128).map(|i| m[i % 128 * 128 + i / 128]).collect()
}

/// One sequence: inputs as `conv_silu` gives them, and the state that it begins with.
struct Case {
    shape: Shape,
    start: u32,
    tokens: usize,
    qkv: Vec<f32>,
    gates: Vec<f32>,
    state: Vec<f32>,
}

impl Case {
    fn new(keys: usize, values: usize, start: u32, tokens: usize, seed: u64) -> Self {
        let shape = Shape { linear_key_heads: keys, linear_value_heads: values, ..Shape::qwen3_6_35b_a3b() };
        let mut random = Random(seed);
        let (mut qkv, mut gates) = (Vec::new(), Vec::new());
        for _ in 0..tokens {
            for head in 0..2 * keys {
                qkv.extend(unit(&random.values(128, 1.0), if head < keys { 1.0 / 128f32.sqrt() } else { 1.0 }));
            }
            qkv.extend(random.values(values * 128, 1.0));
            // Decays from nearly none to strong ones.
            gates.extend((0..values).map(|_| -random.value(1.0).powi(4).abs() * 3.0));
            gates.extend((0..values).map(|_| random.value(0.5) + 0.5));
        }
        let state = random.values(values * 128 * 128, 0.3);
        Self { shape, start, tokens, qkv, gates, state }
    }

    /// q, k and v [T × 128], g and β [T] of a value head.
    fn head(&self, h: usize) -> [Vec<f32>; 5] {
        let s = &self.shape;
        let key = h / (s.linear_value_heads / s.linear_key_heads) * 128;
        let columns = |from: usize| self.qkv.chunks_exact(s.conv_dim()).flat_map(move |r| r[from..from + 128].to_vec());
        let gates = |from: usize| self.gates.chunks_exact(2 * s.linear_value_heads).map(move |r| r[from]);
        let (v, beta) = (2 * s.key_dim() + h * 128, s.linear_value_heads + h);
        [
            columns(key).collect(),
            columns(s.key_dim() + key).collect(),
            columns(v).collect(),
            gates(h).collect(),
            gates(beta).collect(),
        ]
    }

    /// Outputs [T × value heads × 128] and state after; `blocks`: by the oracle's chunked form, else token after token.
    fn reference(&self, blocks: bool) -> (Vec<f32>, Vec<f32>) {
        let values = self.shape.linear_value_heads;
        let (mut out, mut after) = (vec![0.0; self.tokens * values * 128], Vec::new());
        for h in 0..values {
            let [q, k, v, g, beta] = self.head(h);
            let mut state = transposed(&self.state[h * 128 * 128..][..128 * 128]);
            let mut t = 0;
            while t < self.tokens {
                let n = if blocks { (64 - (self.start as usize + t) % 64).min(self.tokens - t) } else { 1 };
                let rows = |x: &'_ [f32]| x[t * 128..(t + n) * 128].to_vec();
                let (q, k, v) = (rows(&q), rows(&k), rows(&v));
                let (g, beta) = (&g[t..t + n], &beta[t..t + n]);
                let o = match blocks {
                    true => chunk(&mut state, &Chunk { q: &q, k: &k, v: &v, g, beta }),
                    false => step(&mut state, &q, &k, &v, g[0], beta[0]),
                };
                for (i, o) in o.chunks_exact(128).enumerate() {
                    out[((t + i) * values + h) * 128..][..128].copy_from_slice(o);
                }
                t += n;
            }
            after.extend(transposed(&state));
        }
        (out, after)
    }

    /// The kernels, in dispatches of so many tokens. Slots 2 and 1 take turns; slot 0 and its neighbour stay as they are.
    fn run(&self, pieces: &[usize], seed: u32) -> (Vec<f32>, Vec<f32>) {
        assert_eq!(pieces.iter().sum::<usize>(), self.tokens);
        let (channels, values) = (self.shape.conv_dim(), self.shape.linear_value_heads);
        let slot = values * 128 * 128;
        let mut pool = vec![0.5; 4 * slot];
        pool[2 * slot..3 * slot].copy_from_slice(&self.state);
        let mut gpu = device(seed);
        let qkv = floats(&gpu, &self.qkv, Contents::Activations);
        let gates = floats(&gpu, &self.gates, Contents::Activations);
        let state = floats(&gpu, &pool, Contents::State);
        let out = output(&gpu, self.tokens * values * 128);
        let (mut slots, mut done) = ([2, 1], 0);
        for &tokens in pieces {
            let slots_buffer = words(&gpu, &slots);
            // New memory is NaN: what is read has been written.
            let bytes = gated_delta_chunk_scratch(&self.shape, tokens as u32);
            let scratch = gpu.allocate(bytes, Contents::Activations).unwrap();
            let d = GatedDeltaChunk {
                body: body(),
                qkv: View::at(&qkv, (done * channels * 4) as u64),
                gates: View::at(&gates, (done * 2 * values * 4) as u64),
                state: View::of(&state),
                slots: View::of(&slots_buffer),
                scratch: View::of(&scratch),
                out: View::at(&out, (done * values * 128 * 4) as u64),
                start: self.start + done as u32,
                tokens: tokens as u32,
            };
            gated_delta_chunk(&mut gpu, &self.shape, &d).unwrap();
            let finished = run(&mut gpu).unwrap();
            assert_eq!(finished.dispatches.len(), 2);
            if counts() {
                let moved = finished.dispatches[1].traffic.iter().find(|t| t.argument == "state").unwrap();
                assert_eq!((moved.loaded, moved.stored), (4 * slot as u64, 4 * slot as u64), "the state moves once");
            }
            slots.swap(0, 1);
            done += tokens;
        }
        let pool = read_f32(&gpu, &state);
        let others = [&pool[..slot], &pool[3 * slot..]].concat();
        assert!(others.iter().all(|v| *v == 0.5), "slots of others");
        (read_f32(&gpu, &out), pool[slots[0] as usize * slot..][..slot].to_vec())
    }

    fn check(&self, seed: u32) {
        self.check_within(seed, 1e-5);
    }

    /// `chunked`: tolerance against the oracle's chunked form, whose sums of g are plain floats.
    fn check_within(&self, seed: u32, chunked: f32) {
        let (out, state) = self.run(&[self.tokens], seed);
        for (blocks, tolerance) in [(false, 1e-5), (true, chunked)] {
            let (want_out, want_state) = self.reference(blocks);
            assert_close(&out, &want_out, tolerance);
            assert_close(&state, &want_state, tolerance);
        }
    }
}

#[test]
fn lengths_around_a_block() {
    for tokens in [1, 2, 7, 8, 9, 63, 64, 65, 200] {
        Case::new(1, 2, 0, tokens, tokens as u64).check(tokens as u32);
    }
}

#[test]
fn first_tokens_inside_a_block() {
    for (start, tokens) in [(63, 1), (63, 2), (40, 24), (40, 25), (9, 100), (1000, 130), (u32::MAX - 70, 60)] {
        Case::new(1, 2, start, tokens, u64::from(start) + tokens as u64).check(start);
    }
}

#[cfg_attr(sanitized, ignore = "large")]
#[test]
fn the_real_heads_and_others() {
    Case::new(16, 32, 5, 70, 1).check(1);
    Case::new(2, 2, 0, 66, 2).check(2);
    Case::new(1, 4, 60, 20, 3).check(3);
}

#[cfg_attr(sanitized, ignore = "large")]
#[test]
fn b135_imp_1282_gates_at_80() {
    for seed in 0..6 {
        let mut case = Case::new(1, 2, 30, 150, seed);
        let mut random = Random(seed + 100);
        // What softplus and the rate make of ±80, with small decays between that a large sum must not swallow.
        for row in case.gates.chunks_exact_mut(4) {
            for h in 0..2 {
                row[h] = -[0.0, 1.8e-35, 0.01, 0.7, 80.0, 590.0][random.below(6) as usize];
                row[2 + h] = [0.0, 1.8e-35, 0.5, 1.0][random.below(4) as usize];
            }
        }
        case.check_within(seed as u32, 2e-4);
    }
}

/// Nothing is forgotten and each token overwrites what the one before wrote: T is furthest from the identity.
#[test]
fn one_key_written_again_and_again() {
    let mut case = Case::new(1, 1, 0, 130, 7);
    let key = case.qkv[128..256].to_vec();
    for (t, row) in case.qkv.chunks_exact_mut(3 * 128).enumerate() {
        let sign = if t % 3 == 0 { -1.0 } else { 1.0 };
        row[128..256].iter_mut().zip(&key).for_each(|(r, k)| *r = sign * k);
    }
    case.gates.chunks_exact_mut(2).for_each(|g| g.copy_from_slice(&[0.0, 1.0]));
    case.check(7);
}

#[cfg_attr(sanitized, ignore = "large")]
#[test]
fn cuts_at_multiples_of_64_change_no_bit() {
    let case = Case::new(1, 2, 10, 260, 11);
    let whole = case.run(&[260], 1);
    for (i, pieces) in [&[54, 206][..], &[118, 142], &[54, 64, 64, 64, 14], &[182, 64, 14]].iter().enumerate() {
        assert!(case.run(pieces, i as u32 + 2) == whole, "pieces of {pieces:?}");
    }
    // Elsewhere the sums do change: the comparison can fail.
    assert!(case.run(&[100, 160], 9) != whole);
}
