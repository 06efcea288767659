//! The choice of the next token from one row of logits.

use std::cmp::Ordering;

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{RngCore, SeedableRng};

/// How tokens are chosen. The filters apply in the order of the fields, as in the transformers library: logits are
/// divided by `temperature`, then `top_k`, `top_p` and `min_p` each look at what the one before left, renormalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy: the largest logit, ties to the lower id; the other fields are then without effect.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens, ties to the lower id. 0 keeps all.
    pub top_k: usize,
    /// Keep the likeliest tokens until their probabilities sum to `top_p`; the one that crosses is kept. 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as likely as the likeliest. 0 keeps all.
    pub min_p: f32,
    /// The same seed, parameters and logits give the same tokens. `None` takes a fresh one.
    pub seed: Option<u64>,
}

impl SamplingParams {
    /// The largest logit, always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: None };
}

/// Why no token could be chosen: the model is broken, not the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    /// A logit is NaN or +∞.
    #[error("the model gave {value} as logit of token {id}")]
    NotFinite {
        /// The token.
        id: usize,
        /// `NaN` or `inf`.
        value: String,
    },
    /// Every token is masked.
    #[error("no token is allowed here")]
    NothingAllowed,
}

/// Chooses the tokens of one request.
pub struct Sampler {
    params: SamplingParams,
    /// Ids from here on are padding rows of the head and never chosen (`docs/model.md §6.2`).
    vocab: usize,
    rng: Pcg64,
}

/// Larger logit first, then lower id. Logits are known not to be NaN; 0 and -0 are equal here.
fn likelier(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

impl Sampler {
    /// `vocab` is the tokenizer's size: ids at or above it are masked.
    pub fn new(params: SamplingParams, vocab: usize) -> Self {
        let seed = params.seed.unwrap_or_else(|| {
            getrandom::u64().unwrap_or_else(|_| std::time::Instant::now().elapsed().as_nanos() as u64)
        });
        Self { params, vocab, rng: Pcg64::seed_from_u64(seed) }
    }

    /// Whether a token may be generated at all.
    pub fn allows(&self, id: u32) -> bool {
        (id as usize) < self.vocab
    }

    /// Choose from `logits` [model vocabulary]. One random number is drawn for each call that is not greedy, so that
    /// the random stream does not depend on the logits.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplerError> {
        let logits = &logits[..self.vocab.min(logits.len())];
        if let Some(id) = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY) {
            return Err(SamplerError::NotFinite { id, value: logits[id].to_string() });
        }
        let best = greedy(logits).ok_or(SamplerError::NothingAllowed)?;
        if self.params.temperature <= 0.0 {
            return Ok(best);
        }
        let draw = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        // f64: with a tiny temperature the scaled distances overflow f32.
        let max = f64::from(logits[best as usize]);
        let weight = |l: f32| ((f64::from(l) - max) / f64::from(temperature)).exp();

        let keep = if top_k == 0 { logits.len() } else { top_k.min(logits.len()) };
        let mut kept = likeliest(logits, keep);
        if top_p < 1.0 {
            let total: f64 = kept.iter().map(|(_, l)| weight(*l)).sum();
            keep_nucleus(&mut kept, |l| weight(l) / total, f64::from(top_p));
        }
        if min_p > 0.0 {
            kept.retain(|(id, l)| *id == best || weight(*l) >= f64::from(min_p));
        }
        Ok(pick(&kept, weight, draw))
    }
}

/// Index of the largest logit, the lowest of equals; `None` when all are -∞.
fn greedy(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (i, &l) in logits.iter().enumerate() {
        if l > best.map_or(f32::NEG_INFINITY, |(_, b)| b) {
            best = Some((i, l));
        }
    }
    best.map(|(i, _)| i as u32)
}

/// The `k` likeliest tokens that are not masked by -∞, in no particular order. One pass over the row with a buffer of
/// a few k: once k tokens are known, only larger logits enter (an equal one has a higher id and would lose the tie).
fn likeliest(logits: &[f32], k: usize) -> Vec<(u32, f32)> {
    let room = k.saturating_mul(4).clamp(256, logits.len().max(256));
    let mut kept: Vec<(u32, f32)> = Vec::with_capacity(room);
    let mut floor = f32::NEG_INFINITY;
    let cut = |kept: &mut Vec<(u32, f32)>| {
        kept.select_nth_unstable_by(k - 1, likelier);
        kept.truncate(k);
        kept[k - 1].1
    };
    for (id, &l) in (0u32..).zip(logits) {
        if l > floor {
            kept.push((id, l));
            if kept.len() == room && k < room {
                floor = cut(&mut kept);
            }
        }
    }
    if kept.len() > k {
        cut(&mut kept);
    }
    kept
}

/// Cut `kept` to the shortest run of likeliest tokens whose probabilities reach `top_p`. Sorts only as far as that
/// needs: of 248,077 tokens usually a few hundred hold nearly all probability.
fn keep_nucleus(kept: &mut Vec<(u32, f32)>, probability: impl Fn(f32) -> f64, top_p: f64) {
    let (mut sum, mut from, mut width) = (0.0, 0, 256);
    while from < kept.len() {
        let to = (from + width).min(kept.len());
        if to < kept.len() {
            kept[from..].select_nth_unstable_by(to - from - 1, likelier);
        }
        kept[from..to].sort_unstable_by(likelier);
        for i in from..to {
            sum += probability(kept[i].1);
            if sum >= top_p {
                kept.truncate(i + 1);
                return;
            }
        }
        (from, width) = (to, width * 4);
    }
}

/// The token at the `draw`-th part (0 ≤ draw < 1) of the summed weights.
fn pick(kept: &[(u32, f32)], weight: impl Fn(f32) -> f64, draw: f64) -> u32 {
    let total: f64 = kept.iter().map(|(_, l)| weight(*l)).sum();
    let mut left = draw * total;
    let mut last = kept[0].0;
    for &(id, l) in kept {
        let w = weight(l);
        if w > 0.0 {
            last = id;
            if left < w {
                return id;
            }
        }
        left -= w;
    }
    last
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
