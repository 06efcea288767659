//! The weights of a run: a checkpoint, or random ones that are in no file.

use anyhow::Result;
use lily_checkpoint::synthetic::{SeededWeights, full_shape};
use lily_checkpoint::{Checkpoint, Layer, Mixer, Weights};
use lily_model::{Model, Shape};

use super::BenchArgs;
use crate::device::Chosen;
use crate::term::Progress;
use crate::{load, synthetic};

/// Where the weights come from.
pub enum Source {
    /// Files, or the demo in the binary.
    Checkpoint(Box<Checkpoint>),
    /// Made where they are needed: on a GPU by a kernel.
    Seeded(Box<(Shape, SeededWeights)>),
}

impl Source {
    /// What was asked for.
    pub fn open(args: &BenchArgs) -> Result<Self> {
        if !args.synthetic {
            return Ok(Self::Checkpoint(Box::new(load::checkpoint(args.model.model.as_deref())?)));
        }
        synthetic::check(args.layers)?;
        Ok(match &args.synthetic_dir {
            Some(dir) => Self::Checkpoint(Box::new(synthetic::checkpoint(dir, args.layers)?)),
            None => {
                let shape = full_shape(args.layers);
                let weights = SeededWeights::new(&shape, synthetic::SEED);
                Self::Seeded(Box::new((shape, weights)))
            }
        })
    }

    /// For people.
    pub fn name(&self) -> String {
        match self {
            Self::Checkpoint(c) => c.name(),
            Self::Seeded(s) => format!("random, {} layers, 4 bit, seed {}", s.0.layers.len(), synthetic::SEED),
        }
    }

    /// Dimensions.
    pub fn shape(&self) -> &Shape {
        match self {
            Self::Checkpoint(c) => c.shape(),
            Self::Seeded(s) => &s.0,
        }
    }

    /// All of them.
    pub fn weights(&self) -> &Weights {
        match self {
            Self::Checkpoint(c) => c.weights(),
            Self::Seeded(s) => &s.1.weights,
        }
    }

    /// Bytes of the tensors in use.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Checkpoint(c) => c.report().bytes(),
            Self::Seeded(s) => s.1.bytes,
        }
    }

    /// Ready the model on a device.
    pub fn model(&self, device: Chosen, args: &BenchArgs) -> Result<Box<dyn Model>> {
        match self {
            Self::Checkpoint(c) => load::model_on(device, c, &args.model, args.engine),
            Self::Seeded(s) => {
                let (shape, seeded) = &**s;
                let progress = Progress::start("making random weights");
                if !device.is_gpu() {
                    seeded.make(args.model.workers(), &|done, total| progress.bytes(done, total));
                }
                let kv = args.model.kv_dtype.map(Into::into);
                device.model(shape, &seeded.weights, args.engine, args.model.workers(), kv)
            }
        }
    }
}

/// Weight bytes that one decoded token reads from this checkpoint: everything but the experts that are not chosen and
/// the other rows of the embedding. Small F32 vectors count as the BF16 that the files hold.
pub fn decode_weight_bytes(w: &Weights, experts_per_token: usize) -> u64 {
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

#[cfg(all(test, feature = "demo"))]
mod tests {
    use lily_model::Costs;

    use super::*;

    #[test]
    fn bytes_of_the_demo_agree_with_the_cost_model() {
        let checkpoint = load::demo().unwrap();
        let shape = checkpoint.shape();
        let counted = decode_weight_bytes(checkpoint.weights(), shape.experts_per_token);
        assert_eq!(counted, Costs::of(shape).decode_weight_bytes);
    }
}
