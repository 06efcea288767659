//! The choice of the next token from one row of logits.

use std::cmp::Ordering;

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{RngCore, SeedableRng};

use crate::adjust::{Adjust, Adjuster};

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
    /// `None` where logits are taken as they are.
    adjuster: Option<Adjuster>,
}

impl Sampler {
    /// `vocab` is the tokenizer's size: ids at or above it are masked.
    pub fn new(params: SamplingParams, vocab: usize) -> Self {
        let seed = params.seed.unwrap_or_else(|| {
            getrandom::u64().unwrap_or_else(|_| std::time::Instant::now().elapsed().as_nanos() as u64)
        });
        Self { params, vocab, rng: Pcg64::seed_from_u64(seed), adjuster: None }
    }

    /// Change logits as `adjust` says before each choice, in an answer to `prompt`.
    #[must_use]
    pub fn adjusted(self, adjust: Adjust, prompt: &[u32]) -> Self {
        Self { adjuster: Adjuster::new(adjust, prompt), ..self }
    }

    /// The answer goes on with `token`.
    pub fn generated(&mut self, token: u32) {
        if let Some(adjuster) = &mut self.adjuster {
            adjuster.generated(token);
        }
    }

    /// Whether a token may be generated at all.
    pub fn allows(&self, id: u32) -> bool {
        (id as usize) < self.vocab
    }

    /// Whether the choice is the largest logit, whatever else was asked for.
    pub fn is_greedy(&self) -> bool {
        self.params.temperature <= 0.0
    }

    /// How many of the largest logits the choice looks at; `None` where it looks at all.
    pub fn candidates(&self) -> Option<usize> {
        if self.adjuster.is_some() { None } else { self.likeliest() }
    }

    /// As [`Self::candidates`], of the logits after their adjustment.
    fn likeliest(&self) -> Option<usize> {
        match self.params.top_k {
            _ if self.is_greedy() => Some(1),
            0 => None,
            k => Some(k),
        }
    }

    /// Choose from `logits` [model vocabulary]. One random number is drawn for each call that is not greedy, so that
    /// the random stream does not depend on the logits.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplerError> {
        let logits = &logits[..self.vocab.min(logits.len())];
        let adjusted = self.adjuster.as_ref().map(|adjuster| {
            let mut logits = logits.to_vec();
            adjuster.apply(&mut logits);
            logits
        });
        let logits = adjusted.as_deref().unwrap_or(logits);
        let best = greedy(logits)?;
        if self.is_greedy() {
            return Ok(best);
        }
        let keep = self.likeliest().map_or(logits.len(), |k| k.min(logits.len()));
        let mut kept = likeliest(logits, keep);
        if self.likeliest().is_some() {
            kept.sort_unstable_by(likelier);
        }
        Ok(self.choose(&kept, (best, logits[best as usize])))
    }

    /// Choose from the largest logits, in descending order, ties to the lower id, at least [`Self::candidates`] of them.
    /// The same choice as [`Self::sample`] makes from the whole row.
    pub fn sample_top(&mut self, top: &[(u32, f32)]) -> Result<u32, SamplerError> {
        if let Some((id, value)) = top.iter().find(|(_, l)| l.is_nan() || *l == f32::INFINITY) {
            return Err(SamplerError::NotFinite { id: *id as usize, value: value.to_string() });
        }
        let best = *top.first().ok_or(SamplerError::NothingAllowed)?;
        if self.is_greedy() {
            return Ok(best.0);
        }
        Ok(self.choose(&top[..self.likeliest().map_or(top.len(), |k| k.min(top.len()))], best))
    }

    fn choose(&mut self, likeliest: &[(u32, f32)], best: (u32, f32)) -> u32 {
        let draw = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let SamplingParams { temperature, top_p, min_p, .. } = self.params;
        // Relative to the likeliest, so that weights are at most 1. f64: with a tiny temperature the scaled distances
        // overflow f32.
        let (max, scale) = (f64::from(best.1), 1.0 / f64::from(temperature));
        let weight = |&(id, l): &(u32, f32)| (id, ((f64::from(l) - max) * scale).exp());
        let mut kept: Vec<(u32, f64)> = likeliest.iter().map(weight).collect();
        if top_p < 1.0 {
            keep_nucleus(&mut kept, f64::from(top_p));
        }
        if min_p > 0.0 {
            kept.retain(|(id, w)| *id == best.0 || *w >= f64::from(min_p));
        }
        pick(&kept, draw)
    }
}

/// Larger first, then lower id. The values are known not to be NaN; 0 and -0 are equal here.
fn likelier<T: PartialOrd>(a: &(u32, T), b: &(u32, T)) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// Index of the largest logit, the lowest of equals. In passes without branches, so that each is vectorised.
fn greedy(logits: &[f32]) -> Result<u32, SamplerError> {
    let broken = |l: &f32| l.is_nan() || *l == f32::INFINITY;
    if logits.iter().fold(false, |any, l| any | broken(l)) {
        let id = logits.iter().position(broken).unwrap_or(0);
        return Err(SamplerError::NotFinite { id, value: logits[id].to_string() });
    }
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut chunks = logits.chunks_exact(lanes.len());
    for chunk in &mut chunks {
        for (lane, l) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *l);
        }
    }
    let max = lanes.iter().chain(chunks.remainder()).copied().fold(f32::NEG_INFINITY, larger);
    let best = logits.iter().position(|l| *l == max && max != f32::NEG_INFINITY);
    best.map(|i| i as u32).ok_or(SamplerError::NothingAllowed)
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
    for (chunk, ids) in logits.chunks(64).zip((0u32..).step_by(64)) {
        // Most chunks hold nothing of interest, which one vectorised pass finds out.
        if !chunk.iter().fold(false, |any, l| any | (*l > floor)) {
            continue;
        }
        for (id, &l) in (ids..).zip(chunk) {
            if l > floor {
                kept.push((id, l));
                if kept.len() == room && k < room {
                    floor = cut(&mut kept);
                }
            }
        }
    }
    if kept.len() > k {
        cut(&mut kept);
    }
    kept
}

/// Cut `kept`, pairs of id and weight, to the shortest run of likeliest tokens that holds `top_p` of the whole weight.
/// Sorts only as far as that needs: of 248,077 tokens usually a few hundred hold nearly all.
fn keep_nucleus(kept: &mut Vec<(u32, f64)>, top_p: f64) {
    let enough = top_p * kept.iter().map(|(_, w)| w).sum::<f64>();
    let (mut sum, mut from, mut width) = (0.0, 0, 256);
    while from < kept.len() {
        let to = (from + width).min(kept.len());
        if to < kept.len() {
            kept[from..].select_nth_unstable_by(to - from - 1, likelier);
        }
        kept[from..to].sort_unstable_by(likelier);
        for i in from..to {
            sum += kept[i].1;
            if sum >= enough {
                kept.truncate(i + 1);
                return;
            }
        }
        (from, width) = (to, width * 4);
    }
}

/// The token at the `draw`-th part (0 ≤ draw < 1) of the summed weights.
fn pick(kept: &[(u32, f64)], draw: f64) -> u32 {
    let mut left = draw * kept.iter().map(|(_, w)| w).sum::<f64>();
    let mut last = kept[0].0;
    for &(id, w) in kept {
        // A token of weight 0 is never chosen, whatever rounding leaves.
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
