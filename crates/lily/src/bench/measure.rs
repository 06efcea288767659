//! Prefill and decode of one prompt length, timed.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lily_checkpoint::synthetic::{Stream, fnv1a64};
use lily_model::{Costs, Model, Rows, SeqId};

use super::report::{Roofline, Row};
use crate::memory::peak_bytes;

/// Prompts up to this many tokens get all rounds.
const SHORT: usize = 8192;

/// Bytes that one request of so many tokens takes, weights included.
pub type Planned = Box<dyn Fn(usize) -> u64>;

/// What every prompt length has in common.
pub struct Plan {
    /// Tokens decoded after each prompt.
    pub decode: usize,
    /// Rounds of prompts of up to 8,192 tokens.
    pub rounds: usize,
    /// Whether a run that is not counted comes first.
    pub warm_up: bool,
    /// Of this checkpoint: `decode_weight_bytes` counted from its tensors.
    pub costs: Costs,
    /// The device's limits, where they are known.
    pub roofline: Option<Roofline>,
    /// Of the engine that a plan is made for.
    pub planned: Option<Planned>,
}

/// One measurement.
struct Round {
    prefill_s: f64,
    decode_s: f64,
    digest: u64,
    /// Of the prefill and of all decoded tokens.
    dispatches: Option<(u64, u64)>,
}

impl Plan {
    /// Rounds of a prompt of `context` tokens: long ones in proportion fewer, at least one.
    pub fn rounds(&self, context: usize) -> usize {
        (self.rounds * SHORT / context).clamp(1, self.rounds)
    }

    /// Measures one prompt length.
    ///
    /// # Errors
    /// Of the model; logits that are not finite; a round that decodes other tokens than the one before it.
    pub fn measure(&self, model: &mut dyn Model, context: usize) -> Result<Row> {
        let prompt = prompt(context, model.shape().vocab);
        model.provide(context + self.decode, 1)?;
        // A GPU may make its second run of a shape a graph, which takes time: short prompts get two runs that do not count.
        let warm_up = match (self.warm_up, model.stats().dispatches.is_some() && context <= SHORT) {
            (true, true) => 2,
            (true, false) => 1,
            (false, _) => 0,
        };
        let runs = self.rounds(context) + warm_up;
        let rounds = (0..runs)
            .map(|_| Round::measure(model, &prompt, self.decode))
            .collect::<Result<Vec<_>>>()
            .with_context(|| format!("context {context}"))?;
        ensure!(
            rounds.iter().all(|r| r.digest == rounds[0].digest),
            "context {context}: rounds decoded different tokens after the same prompt"
        );
        let rounds = &rounds[warm_up..];
        let prefill = Spread::of(rounds.iter().map(|r| context as f64 / r.prefill_s));
        let decode = Spread::of(rounds.iter().map(|r| self.decode as f64 / r.decode_s));
        let flops = self.costs.prefill_flops(context) as f64;
        let bytes: u64 = (0..self.decode).map(|i| self.costs.decode_bytes(context + i)).sum();
        let tflops = flops / context as f64 * prefill.median / 1e12;
        let gb_s = bytes as f64 / self.decode as f64 * decode.median / 1e9;
        let dispatches = rounds[rounds.len() - 1].dispatches;
        let process = peak_bytes();
        Ok(Row {
            context: context as u64,
            rounds: Some(rounds.len() as u64),
            prefill_tok_s: Some(prefill.median),
            prefill_min: Some(prefill.min),
            prefill_max: Some(prefill.max),
            decode_tok_s: Some(decode.median),
            decode_min: Some(decode.min),
            decode_max: Some(decode.max),
            prefill_tflops: Some(tflops),
            decode_gb_s: Some(gb_s),
            prefill_roofline: self.roofline.as_ref().map(|r| tflops / r.matmul_tflops),
            decode_roofline: self.roofline.as_ref().map(|r| gb_s / r.copy_gb_s),
            peak_bytes: model.stats().peak_device_bytes.or(process),
            planned_bytes: self.planned.as_ref().map(|planned| planned(context + self.decode)),
            process_peak_bytes: process,
            dispatches_prefill: dispatches.map(|d| d.0),
            dispatches_token: dispatches.map(|d| d.1 as f64 / self.decode as f64),
            digest: Some(format!("{:016x}", rounds[0].digest)),
        })
    }
}

impl Round {
    /// As the engine does it: the prompt in the device's chunks, then the device's own greedy choice where it has one,
    /// with the next step begun ahead.
    fn measure(model: &mut dyn Model, prompt: &[u32], decode: usize) -> Result<Self> {
        let dispatches = |model: &dyn Model| model.stats().dispatches;
        let vocab = model.shape().vocab;
        let seq = model.begin(prompt.len() + decode)?;
        let begun = dispatches(model);

        let start = Instant::now();
        let mut parts = prompt.chunks(model.prefill_chunk()).peekable();
        let mut logits = Default::default();
        while let Some(part) = parts.next() {
            let rows = if parts.peek().is_some() { Rows::None } else { Rows::Last };
            logits = model.prefill(seq, part, rows)?;
        }
        let prefill_s = start.elapsed().as_secs_f64();
        let read = dispatches(model);

        let row = logits.row(0);
        ensure!(row.iter().all(|x| x.is_finite()), "a logit after the prompt is not finite");
        let mut token = argmax(row);
        let mut decoded_ids = Vec::with_capacity(decode);
        let start = Instant::now();
        for _ in 0..decode {
            token = step(model, seq, token, vocab)?;
            decoded_ids.push(token);
        }
        let decode_s = start.elapsed().as_secs_f64();
        // Nothing is begun ahead of the last token, whose successor has no room: these are the steps of `decode` tokens.
        let decoded = dispatches(model);
        model.end(seq);
        let dispatches = begun.zip(read).zip(decoded).map(|((a, b), c)| (b - a, c - b));
        Ok(Self { prefill_s, decode_s, digest: digest(&decoded_ids), dispatches })
    }
}

fn step(model: &mut dyn Model, seq: SeqId, token: u32, vocab: usize) -> Result<u32> {
    match model.decode_greedy(&[(seq, token)], vocab)? {
        Some(tokens) => Ok(tokens[0]),
        None => Ok(argmax(model.decode(&[(seq, token)])?.row(0))),
    }
}

/// Of ids as little-endian words.
fn digest(ids: &[u32]) -> u64 {
    fnv1a64(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>())
}

/// Token ids spread over the vocabulary: the id at a position is a hash of the position.
fn prompt(len: usize, vocab: usize) -> Vec<u32> {
    let stream = Stream::new(1, "prompt");
    (0..len as u64).map(|i| (stream.get(i) % vocab as u64) as u32).collect()
}

/// Index of the largest value; ties go to the lower one.
pub fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &x) in row.iter().enumerate() {
        if x > row[best] {
            best = i;
        }
    }
    best as u32
}

/// Median, smallest and largest of a few measurements.
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut v: Vec<f64> = values.collect();
        v.sort_by(f64::total_cmp);
        let mid = v.len() / 2;
        let median = if v.len() % 2 == 1 { v[mid] } else { (v[mid - 1] + v[mid]) / 2.0 };
        Self { median, min: v[0], max: v[v.len() - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        let s = Spread::of([3.0, 1.0, 2.0].into_iter());
        assert_eq!((s.median, s.min, s.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0].into_iter()).median, 2.5);
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
    }

    #[test]
    fn prompts_stay_inside_the_vocabulary_and_repeat() {
        let p = prompt(1000, 512);
        assert!(p.iter().all(|&t| t < 512));
        assert_eq!(p, prompt(1000, 512));
    }

    #[test]
    fn long_prompts_get_fewer_rounds() {
        let costs = Costs::of(&lily_model::Shape::qwen3_6_35b_a3b());
        let plan = Plan { decode: 64, rounds: 5, warm_up: true, costs, roofline: None, planned: None };
        assert_eq!([256, 8192, 16_384, 32_768, 131_072].map(|c| plan.rounds(c)), [5, 5, 2, 1, 1]);
    }

    #[test]
    fn the_digest_is_fnv() {
        assert_eq!(digest(&[0x0403_0201]), fnv1a64(&[1, 2, 3, 4]));
        assert_eq!(digest(&[0x0403_0201, 5]), fnv1a64(&[1, 2, 3, 4, 5, 0, 0, 0]));
    }

    /// The same tokens again, with the last of them at the end of the sequence's room.
    #[cfg(feature = "demo")]
    #[test]
    fn digests_repeat() {
        let checkpoint = crate::load::demo().unwrap();
        let (shape, weights) = (checkpoint.shape(), checkpoint.weights());
        let mut model = lily_cpu::Local::new(lily_cpu::Fast::<lily_cpu::Bf16>::new(shape, weights, 1));
        let plan =
            Plan { decode: 2, rounds: 2, warm_up: false, costs: Costs::of(shape), roofline: None, planned: None };
        let digests = [(); 2].map(|()| plan.measure(&mut model, 70).unwrap().digest.unwrap());
        assert_eq!(digests[0], digests[1]);
    }
}
