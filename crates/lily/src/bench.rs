//! `lily bench`: speed, bandwidth and memory on this machine.

use std::time::Instant;

use anyhow::{Context, Result};
use lily_checkpoint::{Layer, Mixer, Weights};
use lily_model::{Costs, Model, Rows};
use serde_json::json;

use crate::cli::BenchArgs;
use crate::memory::peak_bytes;
use crate::{load, synthetic};

/// Measure, print a table, and write JSON where asked.
pub fn bench(args: BenchArgs) -> Result<()> {
    if args.count {
        return crate::count::count(args.prompt_tokens);
    }
    let checkpoint = match args.synthetic {
        true => synthetic::checkpoint(&args)?,
        false => load::checkpoint(args.model.model.as_deref())?,
    };
    let weight_bytes = decode_weight_bytes(checkpoint.weights(), checkpoint.shape().experts_per_token);
    let loading = Instant::now();
    let mut model = load::model(&checkpoint, &args.model, args.engine)?;
    let load_seconds = loading.elapsed().as_secs_f64();

    let prompt = prompt(args.prompt_tokens as usize, model.shape().vocab);
    let rounds = (0..=args.rounds)
        .map(|_| Round::measure(model.as_mut(), &prompt, args.decode_tokens as usize))
        .collect::<Result<Vec<_>>>()?;
    let rounds = &rounds[1..]; // the first one warmed caches and the page tables of the weights

    let costs = Costs::of(model.shape());
    let prefill = Spread::of(rounds.iter().map(|r| prompt.len() as f64 / r.prefill_s));
    let decode = Spread::of(rounds.iter().map(|r| f64::from(args.decode_tokens) / r.decode_s));
    let first = Spread::of(rounds.iter().map(|r| r.prefill_s * 1e3));
    let read =
        Spread::of(rounds.iter().map(|r| weight_bytes as f64 * f64::from(args.decode_tokens) / r.decode_s / 1e9));
    let flops = costs.prefill_flops(prompt.len()) as f64;
    let gflops = Spread::of(rounds.iter().map(|r| flops / r.prefill_s / 1e9));
    let peak = peak_bytes();

    println!("model        {}", checkpoint.name());
    println!("device       {}", model.device());
    println!("prompt       {} tokens, then {} decoded, {} rounds", prompt.len(), args.decode_tokens, args.rounds);
    println!();
    println!("                          median       min       max");
    for (name, spread, unit) in [
        ("prefill", &prefill, "tok/s"),
        ("prefill", &gflops, "GFLOP/s"),
        ("first token after", &first, "ms"),
        ("decode", &decode, "tok/s"),
        ("weights read", &read, "GB/s"),
    ] {
        println!("{name:<18}{:>14.2}{:>10.2}{:>10.2}  {unit}", spread.median, spread.min, spread.max);
    }
    println!();
    println!("weights per decoded token  {:.2} MB", weight_bytes as f64 / 1e6);
    println!("loaded in                  {load_seconds:.2} s");
    match peak {
        Some(bytes) => println!("peak memory                {:.1} MB (mapped weights included)", bytes as f64 / 1e6),
        None => println!("peak memory                not known on this system"),
    }

    if let Some(path) = &args.json {
        let report = json!({
            "model": checkpoint.name(),
            "device": model.device(),
            "prompt_tokens": prompt.len(),
            "decode_tokens": args.decode_tokens,
            "rounds": args.rounds,
            "load_s": load_seconds,
            "prefill_tok_s": prefill.json(),
            "prefill_gflop_s": gflops.json(),
            "first_token_ms": first.json(),
            "decode_tok_s": decode.json(),
            "decode_weights_gb_s": read.json(),
            "decode_weight_bytes": weight_bytes,
            "peak_bytes": peak,
        });
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// One measurement, in seconds.
struct Round {
    prefill_s: f64,
    decode_s: f64,
}

impl Round {
    fn measure(model: &mut dyn Model, prompt: &[u32], decode: usize) -> Result<Self> {
        let seq = model.begin(prompt.len() + decode)?;
        let start = Instant::now();
        let mut logits = model.prefill(seq, prompt, Rows::Last)?;
        let prefill_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for _ in 0..decode {
            let token = argmax(logits.row(0));
            logits = model.decode(&[(seq, token)])?;
        }
        let decode_s = start.elapsed().as_secs_f64();
        model.end(seq);
        Ok(Self { prefill_s, decode_s })
    }
}

/// Token ids spread over the vocabulary, the same on every run.
fn prompt(len: usize, vocab: usize) -> Vec<u32> {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x % vocab as u64) as u32
    };
    (0..len).map(|_| next()).collect()
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

/// Weight bytes that one decoded token reads from this checkpoint: everything but the experts that are not chosen and
/// the other rows of the embedding. Small F32 vectors count as the BF16 that the files hold.
fn decode_weight_bytes(w: &Weights, experts_per_token: usize) -> u64 {
    let vector = |v: &[f32]| 2 * v.len() as u64;
    let layer = |l: &Layer| {
        let mixer = match &l.mixer {
            Mixer::Linear(a) => {
                [&a.in_qkv, &a.in_z, &a.in_a, &a.in_b, &a.out].iter().map(|m| m.bytes()).sum::<u64>()
                    + [&a.conv, &a.a_log, &a.dt_bias, &a.norm].iter().map(|v| vector(v)).sum::<u64>()
            }
            Mixer::Full(a) => {
                [&a.q, &a.k, &a.v, &a.o].iter().map(|m| m.bytes()).sum::<u64>() + vector(&a.q_norm) + vector(&a.k_norm)
            }
        };
        let moe = &l.moe;
        let shared = [&moe.router, &moe.shared_gate, &moe.shared_up, &moe.shared_down, &moe.shared_expert_gate];
        let expert = moe.gate.expert(0).bytes() + moe.up.expert(0).bytes() + moe.down.expert(0).bytes();
        mixer
            + vector(&l.input_norm)
            + vector(&l.post_norm)
            + shared.iter().map(|m| m.bytes()).sum::<u64>()
            + experts_per_token as u64 * expert
    };
    let embedding_row = w.embed.bytes() / w.embed.rows() as u64;
    embedding_row + w.layers.iter().map(layer).sum::<u64>() + vector(&w.norm) + w.lm_head.bytes()
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

    fn json(&self) -> serde_json::Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
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

    #[cfg(feature = "demo")]
    #[test]
    fn bytes_of_the_demo_agree_with_the_cost_model() {
        let checkpoint = crate::load::demo().unwrap();
        let shape = checkpoint.shape();
        let counted = decode_weight_bytes(checkpoint.weights(), shape.experts_per_token);
        assert_eq!(counted, Costs::of(shape).decode_weight_bytes);
    }
}
