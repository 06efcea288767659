use lily_checkpoint::Matrix;
use lily_cpu::oracle;
use proptest::prelude::*;

use super::*;
use crate::gpu::{Contents::Activations, Dispatched};
use crate::testing::Buffer;
use crate::testing::{
    Random, assert_close, counts, dense, device, floats, output, read_f32, read_u32, run, share_matrix, step_bodies,
};

#[derive(Clone, Copy, Debug)]
struct Case {
    hidden: usize,
    width: usize,
    shared_width: usize,
    count: usize,
    chosen: usize,
    /// Of the routed and of the shared experts.
    bits: (usize, usize),
    batch: usize,
    partials: usize,
    /// Distinct router logits; few make ties.
    levels: u64,
    gate: f32,
    seed: u32,
}

const FULL: Case = Case {
    hidden: 2048,
    width: 512,
    shared_width: 512,
    count: 16,
    chosen: 8,
    bits: (4, 4),
    batch: 1,
    partials: 256,
    levels: 1 << 20,
    gate: 2.0,
    seed: 1,
};

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// A row of W · x.
fn times(w: &[f32], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
}

impl Case {
    /// Returns the dispatches of the first body.
    fn check(self) -> Vec<Dispatched> {
        step_bodies().into_iter().map(|body| self.check_on(body)).collect::<Vec<_>>().swap_remove(0)
    }

    fn check_on(self, body: Body) -> Vec<Dispatched> {
        let Self { hidden, width, shared_width, count, chosen, batch, seed, .. } = self;
        let mut random = Random(u64::from(seed));
        let mut matrix = |rows, cols, bits| random.matrix(rows, cols, bits);
        let [gate, up] = [(); 2].map(|()| matrix(count * width, hidden, self.bits.0));
        let down = matrix(count * hidden, width, self.bits.0);
        let [shared_gate, shared_up] = [(); 2].map(|()| matrix(shared_width, hidden, self.bits.1));
        let shared_down = matrix(hidden, shared_width, self.bits.1);
        let (x, weight) = (random.values(batch * hidden, 1.0), random.values(hidden, 0.2));
        let stride = count + 1 + seed as usize % 3;
        let mut logits: Vec<f32> =
            (0..batch * stride).map(|_| random.below(self.levels) as f32 / self.levels as f32 * 6.0 - 3.0).collect();
        for row in logits.chunks_mut(stride) {
            row[count] = random.value(self.gate);
        }
        let eps = 1e-6;

        let mut want = Vec::new();
        let mut want_experts = Vec::new();
        let dense_all = [&gate, &up, &down, &shared_gate, &shared_up, &shared_down].map(dense);
        for (b, x) in x.chunks(hidden).enumerate() {
            let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / hidden as f64;
            let scale = 1.0 / (mean + eps).sqrt();
            let n: Vec<f64> = x.iter().zip(&weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect();
            let row = &logits[b * stride..];
            let (experts, shares) = oracle::moe::route(&row[..count], chosen);
            let mut y: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            let mut add = |gate: &[f32], up: &[f32], down: &[f32], share: f64| {
                let inner = times(gate, &n).into_iter().zip(times(up, &n));
                let inner: Vec<f64> = inner.map(|(g, u)| share * silu(g) * u).collect();
                y.iter_mut().zip(times(down, &inner)).for_each(|(y, d)| *y += d);
            };
            for (&e, &share) in experts.iter().zip(&shares) {
                let part = |w: &'_ [f32]| w[e * width * hidden..(e + 1) * width * hidden].to_vec();
                add(&part(&dense_all[0]), &part(&dense_all[1]), &part(&dense_all[2]), share.into());
            }
            let open = 1.0 / (1.0 + (-f64::from(row[count])).exp());
            add(&dense_all[3], &dense_all[4], &dense_all[5], open);
            want.extend(y.into_iter().map(|v| v as f32));
            want_experts.extend(experts.into_iter().map(|e| e as u32));
        }

        let mut gpu = device(seed);
        let m = [&gate, &up, &down, &shared_gate, &shared_up, &shared_down].map(|w: &Matrix| share_matrix(&gpu, w));
        let mut squares = vec![0.0; batch * self.partials];
        for (b, x) in x.chunks(hidden).enumerate() {
            for (i, v) in x.iter().enumerate() {
                squares[b * self.partials + i % self.partials] += v * v;
            }
        }
        let [x_buffer, weight, squares, logits] =
            [&x, &weight, &squares, &logits].map(|v| floats(&gpu, v, Activations));
        let experts = output(&gpu, batch * chosen);
        let act = output(&gpu, batch * (chosen * width + shared_width));
        let parts = moe_partials(body, &m[2], &m[5], chosen as u32) as usize;
        let sums = output(&gpu, batch * parts);
        let view = |b| View::<Buffer>::of(b);
        let (batch, count, chosen) = (batch as u32, count as u32, chosen as u32);
        let first = MoeGateUpStep {
            body,
            gate: &m[0],
            up: &m[1],
            shared_gate: &m[3],
            shared_up: &m[4],
            x: view(&x_buffer),
            norm: StepNorm {
                weight: view(&weight),
                partials: view(&squares),
                count: self.partials as u32,
                eps: eps as f32,
            },
            logits: view(&logits),
            stride: stride as u32,
            experts: view(&experts),
            act: view(&act),
            batch,
            count,
            chosen,
        };
        let second = MoeDownStep {
            body,
            down: &m[2],
            shared_down: &m[5],
            experts: view(&experts),
            act: view(&act),
            x: view(&x_buffer),
            partials: view(&sums),
            batch,
            count,
            chosen,
        };
        moe_gate_up_step(&mut gpu, &first).unwrap();
        moe_down_step(&mut gpu, &second).unwrap();
        let done = run(&mut gpu).unwrap();
        assert_eq!(read_u32(&gpu, &experts), want_experts);
        let got = read_f32(&gpu, &x_buffer);
        assert_close(&got, &want, 5e-6);
        let of_rows: Vec<f32> = got.chunks(hidden).map(|row| row.iter().map(|v| v * v).sum()).collect();
        let summed: Vec<f32> = read_f32(&gpu, &sums).chunks(parts).map(|p| p.iter().sum()).collect();
        assert_close(&summed, &of_rows, 2e-6);

        if !counts() {
            return done.dispatches;
        }
        // Each matrix of a chosen expert once for each token, and the shared one.
        let loaded: u64 =
            done.dispatches[0].traffic[..12].iter().chain(&done.dispatches[1].traffic[..6]).map(|t| t.bytes()).sum();
        let routed = (gate.bytes() + up.bytes() + down.bytes()) * u64::from(chosen) / u64::from(count);
        let least = routed + shared_gate.bytes() + shared_up.bytes() + shared_down.bytes();
        assert_eq!(loaded, least * u64::from(batch));
        done.dispatches
    }
}

#[test]
fn the_full_width_and_its_bytes() {
    let done = FULL.check();
    if !counts() {
        return;
    }
    let moved: u64 = done.iter().flat_map(|d| &d.traffic).map(|t| t.bytes()).sum();
    let weights: u64 = done[0].traffic[..12].iter().chain(&done[1].traffic[..6]).map(|t| t.bytes()).sum();
    let ratio = moved as f64 / weights as f64;
    assert!((1.0..1.01).contains(&ratio), "{ratio}");
}

#[test]
fn every_batch() {
    for batch in 1..=8 {
        Case { hidden: 128, width: 64, shared_width: 64, count: 8, chosen: 4, batch, partials: 3, ..FULL }.check();
    }
}

#[test]
fn every_mix_of_bits() {
    for routed in [4, 8, 16] {
        for shared in [4, 8, 16] {
            let bits = (routed, shared);
            Case { hidden: 128, width: 64, shared_width: 192, count: 32, bits, partials: 1, seed: 5, ..FULL }.check();
        }
    }
}

/// Both sides of what the kernels for matrix instructions take: pieces of 256 values, at most 18 in the second.
#[test]
fn whole_pieces_of_values() {
    for (hidden, width, shared_width, chosen) in [
        (256, 256, 256, 8),
        (512, 512, 512, 8),
        (768, 256, 512, 3),
        (256, 768, 768, 5),
        (512, 768, 768, 6),
        (256, 256, 192, 8),
    ] {
        for batch in [1, 3] {
            Case { hidden, width, shared_width, count: 9, chosen, batch, partials: 5, seed: 9, ..FULL }.check();
        }
    }
}

#[test]
fn the_shared_gate_shut_and_open() {
    for seed in 1..5 {
        let small = Case { hidden: 64, width: 128, shared_width: 64, count: 8, partials: 1, ..FULL };
        Case { gate: 80.0, seed, ..small }.check();
    }
}

#[test]
fn one_expert_of_one() {
    Case { hidden: 64, width: 64, shared_width: 64, count: 1, chosen: 1, partials: 1, ..FULL }.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    #[cfg_attr(sanitized, ignore = "large")]
    #[test]
    fn any_shape(hidden in 1usize..8, width in 1usize..5, shared_width in 1usize..5, count in 1usize..40,
                 chosen in 1usize..9, bits in (2u32..5, 2u32..5), batch in 1usize..9, partials in 1usize..70,
                 levels in prop::sample::select(vec![1, 3, 1 << 20]), seed in 1u32..) {
        let bits = (1 << bits.0, 1 << bits.1);
        Case { hidden: hidden * 64, width: width * 64, shared_width: shared_width * 64, count, chosen: chosen.min(count),
               bits, batch, partials, levels, gate: 2.0, seed }.check();
    }
}
