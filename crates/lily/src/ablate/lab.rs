//! The model on a device that can leave ideas out, and the clocks.

use std::time::Instant;

use anyhow::{Result, ensure};
use lily_checkpoint::Weights;
use lily_gpu::ablate::{Ablated, KeyReads, SingleLaunches, Switch, Without, key_reads};
use lily_gpu::kernels::View;
use lily_gpu::program::{Choice, Held, Program};
use lily_gpu::{Contents, Gpu, GpuError, Options};
use lily_model::{LayerKind, Rows, Shape};

use super::table::Samples;

/// Runs that do not count, each time that something was switched: kernels are compiled, graphs are made.
const WARM: usize = 2;
/// Times that kernels alone are measured.
const REPEATS: usize = 7;
/// Passes over the keys in a command buffer.
const PASSES: u64 = 4;

pub struct Lab<G: SingleLaunches> {
    program: Program<Ablated<G>>,
    switch: Switch,
}

/// What a side is without; the program as it ships is without nothing.
pub type Side = Option<Without>;

impl<G: SingleLaunches> Lab<G> {
    pub fn new(gpu: G, shape: &Shape, weights: &Weights, options: Options) -> Result<Self> {
        let gpu = Ablated::new(gpu);
        let switch = gpu.switch();
        Ok(Self { program: Program::new(gpu, shape, weights, options)?, switch })
    }

    pub fn shape(&self) -> &Shape {
        self.program.shape()
    }

    /// Measures each side, in turn, twice half of the rounds. `one` says what it measured.
    fn compare<const N: usize>(
        &mut self,
        sides: [Side; N],
        rounds: u32,
        mut warm: impl FnMut(&mut Self) -> Result<()>,
        mut one: impl FnMut(&mut Self) -> Result<f64>,
    ) -> Result<[Samples; N]> {
        let mut measured = [const { Vec::new() }; N];
        let halves = if rounds > 1 { 2 } else { 1 };
        for _ in 0..halves {
            for (without, measured) in sides.into_iter().zip(&mut measured) {
                self.switch.set(without);
                self.switch.replaced();
                for _ in 0..WARM {
                    warm(self)?;
                }
                let replaced = self.switch.replaced();
                // Where the program ships with products of any weights there is nothing to replace them by.
                let expected = without != Some(Without::FusedDequantisation { expanded: false });
                ensure!(
                    !expected || (replaced > 0) == without.is_some(),
                    "{without:?} replaced {replaced} dispatches: the program has changed, and the ablation must follow"
                );
                for _ in 0..rounds.div_ceil(halves) {
                    measured.push(one(self)?);
                }
            }
        }
        self.switch.set(None);
        Ok(measured.map(Samples::of))
    }

    /// Prompt tokens a second of each side, and the largest difference between the last logits of the first and the second,
    /// over the largest logit.
    pub fn prefill<const N: usize>(
        &mut self,
        sides: [Side; N],
        tokens: u32,
        rounds: u32,
    ) -> Result<([Samples; N], f32)> {
        let vocab = self.shape().vocab as u32;
        let tokens: Vec<u32> = (0..tokens).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
        self.program.admit(tokens.len() as u64);
        let run = |lab: &mut Self| -> Result<(f64, Vec<f32>)> {
            let mut held = lab.program.begin()?;
            let chunk = lab.program.options().chunk as usize;
            let start = Instant::now();
            let mut logits = Vec::new();
            for part in tokens.chunks(chunk) {
                logits = lab.program.prefill(&mut held, part, Rows::Last)?.data;
            }
            Ok((tokens.len() as f64 / start.elapsed().as_secs_f64(), logits))
        };
        let rates = self.compare(sides, rounds, |lab| run(lab).map(|_| ()), |lab| run(lab).map(|(rate, _)| rate))?;
        let mut last = Vec::new();
        for side in &sides[..2] {
            self.switch.set(*side);
            last.push(run(self)?.1);
        }
        self.switch.set(None);
        let [off, on] = [&last[0], &last[1]];
        let largest = on.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        ensure!(largest.is_finite() && largest > 0.0, "logits are not numbers");
        let difference = off.iter().zip(on).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
        Ok((rates, difference / largest))
    }

    /// A sequence of random keys, values and state, with room for `more` tokens.
    pub fn filled(&mut self, context: u32, more: u32) -> Result<Held> {
        self.program.admit(u64::from(context + more) + 64);
        Ok(self.program.begin_filled(context, 1)?)
    }

    /// Tokens a second of each side from `tokens` greedy steps, the next one begun before the last is read.
    pub fn decode<const N: usize>(
        &mut self,
        sides: [Side; N],
        held: &mut Held,
        tokens: u32,
        rounds: u32,
    ) -> Result<[Samples; N]> {
        let vocab = self.shape().vocab as u32;
        let run = |lab: &mut Self, held: &mut Held, tokens: u32| -> Result<f64> {
            let start = Instant::now();
            let choice = Choice::Greedy { vocab };
            let mut step = lab.program.start_step(&mut [held], Some(&[1]), choice)?;
            for _ in 1..tokens {
                let next = lab.program.start_step(&mut [held], None, choice)?;
                lab.program.finish_tokens(step)?;
                step = next;
            }
            lab.program.finish_tokens(step)?;
            Ok(f64::from(tokens) / start.elapsed().as_secs_f64())
        };
        // Both closures want the sequence, one after the other.
        let held = std::cell::RefCell::new(held);
        self.compare(
            sides,
            rounds,
            |lab| run(lab, &mut held.borrow_mut(), tokens.min(4)).map(|_| ()),
            |lab| run(lab, &mut held.borrow_mut(), tokens),
        )
    }

    /// Microseconds of decode's attention of one layer, merging included, alone in a command buffer with that of the others.
    /// `None` where the device tells no times.
    pub fn attention(&mut self, without: Option<Without>, held: &mut Held) -> Result<Option<Samples>> {
        self.switch.set(without);
        self.switch.keep(Some(if without.is_some() { "ablate_attention" } else { "attention_" }));
        let vocab = self.shape().vocab as u32;
        let step = self.program.start_step(&mut [held], Some(&[1]), Choice::Greedy { vocab })?;
        self.program.finish_tokens(step)?;
        self.switch.keep(None);
        self.switch.set(None);
        let layers = self.shape().count(LayerKind::Full).max(1) as f64;
        let gpu = self.program.gpu_mut();
        let mut times = Vec::new();
        for round in 0..WARM + REPEATS {
            let (kept, finished) = gpu.repeat()?;
            ensure!(kept > 0, "no attention was dispatched");
            match finished.gpu_time {
                Some(time) if round >= WARM => times.push(time.as_secs_f64() * 1e6 / layers),
                Some(_) => {}
                None => break,
            }
        }
        gpu.forget();
        Ok((!times.is_empty()).then(|| Samples::of(times)))
    }

    /// GB of keys a second, 10⁹: q · k over caches of `positions`, as many at once as hold `least` bytes together.
    pub fn keys(&mut self, how: KeyReads, positions: u32, least: u64) -> Result<Samples> {
        let cache = u64::from(positions) * 512;
        // Of all layers together: one dispatch fills the device.
        let caches = (least.div_ceil(cache) as u32).next_multiple_of(self.shape().kv_heads as u32);
        let bytes = u64::from(caches) * cache;
        let gpu = self.program.gpu_mut();
        let filled = |bytes: u64, contents: Contents, pattern: &[u8]| -> Result<_, GpuError> {
            let buffer = gpu.allocate(bytes, contents)?;
            for at in (0..bytes).step_by(pattern.len()) {
                gpu.upload(&buffer, at, &pattern[..pattern.len().min((bytes - at) as usize)])?;
            }
            Ok(buffer)
        };
        // Values of ±0.5 to ±1, in BF16.
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        let mut value = || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((x >> 33) as u16 & 0x807f) | 0x3f00
        };
        let pattern: Vec<u8> = (0..1 << 20).flat_map(|_| value().to_ne_bytes()).collect();
        let keys = filled(bytes, Contents::Cache, &pattern)?;
        let q: Vec<u8> = (0..caches * 256).flat_map(|i| (i as f32 / 1e3).to_ne_bytes()).collect();
        let q = filled(q.len() as u64, Contents::Activations, &q)?;
        let scores = gpu.allocate(u64::from(caches) * u64::from(positions) * 4, Contents::Activations)?;
        let mut rates = Vec::new();
        for round in 0..WARM + REPEATS {
            for _ in 0..PASSES {
                let [q, keys, scores] = [&q, &keys, &scores].map(View::of);
                key_reads(gpu.inner(), how, q, keys, scores, [caches, positions])?;
            }
            let start = Instant::now();
            let ticket = gpu.commit()?;
            let finished = gpu.wait(ticket)?;
            let time = finished.gpu_time.unwrap_or_else(|| start.elapsed());
            if round >= WARM {
                rates.push((PASSES * bytes) as f64 / time.as_secs_f64() / 1e9);
            }
        }
        Ok(Samples::of(rates))
    }
}
