//! Dispatches and bytes by part of the model, beside the least bytes of `docs/model.md §5`.

use std::collections::BTreeMap;
use std::fmt::Write;

use lily_model::{LayerKind, PartBytes, Shape};

use crate::gpu::Dispatched;
use crate::program::Part;

/// Dispatches and bytes of a group of dispatches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub dispatches: u64,
    /// Weights, cache and state by every load and store of a lane; of activations each 128-byte line once a dispatch.
    pub bytes: u64,
    /// Every load and store of a lane.
    pub raw: u64,
}

impl Sum {
    fn add(&mut self, d: &Dispatched) {
        self.dispatches += 1;
        self.bytes += d.traffic.iter().map(crate::Traffic::bytes).sum::<u64>();
        self.raw += d.traffic.iter().map(|t| t.loaded + t.stored).sum::<u64>();
    }
}

/// What a decoded token or a prefill chunk did.
pub struct Count {
    parts: BTreeMap<Part, (Sum, BTreeMap<String, Sum>)>,
    /// Layers of each kind that ran.
    layers: [u64; 2],
}

/// The least bytes of a part: each byte of weights and state once.
#[derive(Clone, Copy, Debug)]
pub enum Minimum {
    /// One token with this many positions cached before it.
    Decode(u64),
    /// A chunk of this many tokens from position 0 on, with the logits of the last.
    Prefill(u64),
}

impl Minimum {
    /// Of a part; `None` where there is no floor.
    pub fn of(self, s: &Shape, part: Part) -> Option<u64> {
        let p = PartBytes::of(s);
        // Every expert that can be chosen is read once; a decoded token's are in the weights already.
        let more_experts = match self {
            Self::Decode(_) => 0,
            Self::Prefill(tokens) => {
                (s.experts as u64).min(tokens * s.experts_per_token as u64) - s.experts_per_token as u64
            }
        };
        match (part, self) {
            (Part::Copy, _) => None,
            (Part::Embed, Self::Decode(_)) => Some(p.embed),
            (Part::Embed, Self::Prefill(tokens)) => Some(p.embed * tokens),
            (Part::Head, _) => Some(p.head),
            (Part::Layer(LayerKind::Linear), _) => Some(p.linear_weights + p.linear_state + more_experts * p.expert),
            (Part::Layer(LayerKind::Full), Self::Decode(cached)) => {
                Some(p.full_weights + (cached + 1) * p.full_position)
            }
            // Each position is written and read.
            (Part::Layer(LayerKind::Full), Self::Prefill(tokens)) => {
                Some(p.full_weights + 2 * tokens * p.full_position + more_experts * p.expert)
            }
        }
    }
}

impl Count {
    /// Sums what was counted over a model of this shape.
    pub fn of(shape: &Shape, dispatched: &[(Part, Dispatched)]) -> Self {
        let mut parts: BTreeMap<Part, (Sum, BTreeMap<String, Sum>)> = BTreeMap::new();
        for (part, d) in dispatched {
            let (sum, kernels) = parts.entry(*part).or_default();
            sum.add(d);
            kernels.entry(d.kernel.to_string()).or_default().add(d);
        }
        Self { parts, layers: [LayerKind::Linear, LayerKind::Full].map(|kind| shape.count(kind) as u64) }
    }

    fn times(&self, part: Part) -> u64 {
        match part {
            Part::Layer(LayerKind::Linear) => self.layers[0].max(1),
            Part::Layer(LayerKind::Full) => self.layers[1].max(1),
            _ => 1,
        }
    }

    /// Of one layer of the kind, or of the part.
    pub fn part(&self, part: Part) -> Sum {
        let n = self.times(part);
        let Sum { dispatches, bytes, raw } = self.parts.get(&part).map(|p| p.0).unwrap_or_default();
        Sum { dispatches: dispatches / n, bytes: bytes / n, raw: raw / n }
    }

    /// Bytes ÷ minimum of one layer of the kind, or of the part.
    pub fn ratio(&self, s: &Shape, part: Part, minimum: Minimum) -> Option<f64> {
        Some(self.part(part).bytes as f64 / minimum.of(s, part)? as f64)
    }

    /// Bytes ÷ minimum of the model with `layers` layers of each kind, linear and full, whatever was counted.
    pub fn whole(&self, s: &Shape, minimum: Minimum, layers: [u64; 2]) -> (Sum, f64) {
        let (mut sum, mut least) = (Sum::default(), 0);
        let [linear, full] = layers;
        for (part, times) in [
            (Part::Embed, 1),
            (Part::Layer(LayerKind::Linear), linear),
            (Part::Layer(LayerKind::Full), full),
            (Part::Head, 1),
        ] {
            let one = self.part(part);
            sum.dispatches += times * one.dispatches;
            sum.bytes += times * one.bytes;
            sum.raw += times * one.raw;
            least += times * minimum.of(s, part).unwrap_or(0);
        }
        (sum, sum.bytes as f64 / least as f64)
    }

    /// A table, a line a kernel and part.
    pub fn table(&self, s: &Shape, minimum: Minimum) -> String {
        let mut text = format!("{:<34}{:>11}{:>16}{:>10}{:>16}\n", "", "dispatches", "bytes", "÷ least", "all lanes");
        let mut line = |name: &str, sum: Sum, ratio: Option<f64>| {
            let ratio = ratio.map_or_else(String::new, |r| format!("{r:.3}"));
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<34}{:>11}{:>16}{ratio:>10}{:>16}", sum.dispatches, sum.bytes, sum.raw);
        };
        for (&part, (_, kernels)) in &self.parts {
            let name = match part {
                Part::Embed => "embedding",
                Part::Layer(LayerKind::Linear) => "linear layer",
                Part::Layer(LayerKind::Full) => "full layer",
                Part::Head => "head",
                Part::Copy => "copies",
            };
            line(name, self.part(part), self.ratio(s, part, minimum));
            let n = self.times(part);
            for (kernel, sum) in kernels {
                let one = Sum { dispatches: sum.dispatches / n, bytes: sum.bytes / n, raw: sum.raw / n };
                line(&format!("  {kernel}"), one, None);
            }
        }
        let (sum, ratio) = self.whole(s, minimum, [30, 10]);
        line("30 linear, 10 full, the rest", sum, Some(ratio));
        text
    }
}
