//! Layers at the real dimensions, in memory.

use std::collections::HashMap;
use std::path::Path;

use lily_model::Shape;
use serde::Deserialize;

use super::stream::{Stream, bf16_bits, uniform, weight_range};
use crate::assemble::Assembler;
use crate::header::Dtype;
use crate::plan::{Layout, layer_slots};
use crate::survey::{Planned, Stored};
use crate::{Bytes, CheckpointError, Config, Layer};

/// What `tests/fixtures/blocks` holds goldens for: one layer of each kind and its input rows.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// The dimensions; all its layers, of which only two are made.
    pub shape: Shape,
    /// Layer 0.
    pub linear: Layer,
    /// Layer 3.
    pub full: Layer,
    /// Input of the linear layer [73 × 2048]: 72 rows of prompt and one of decode.
    pub linear_input: Vec<f32>,
    /// Input of the full layer [73 × 2048].
    pub full_input: Vec<f32>,
}

/// The two layers that the config.json of `tests/fixtures/blocks` describes (a bare text config with `seed` and
/// `tokens`).
pub fn blocks(config: &Path) -> Result<Blocks, CheckpointError> {
    #[derive(Deserialize)]
    struct Extra {
        seed: u64,
        tokens: usize,
    }
    let json =
        std::fs::read(config).map_err(|source| CheckpointError::Io { path: config.display().to_string(), source })?;
    let shape = Config::shape_from_text_config(&json)?;
    let extra: Extra = serde_json::from_slice(&json)
        .map_err(|e| CheckpointError::Json { file: config.display().to_string(), problem: e.to_string() })?;
    // One row more than the prompt: the decode step.
    let input = |kind: &str| {
        let values = (extra.tokens + 1) * shape.hidden;
        uniform(extra.seed, &format!("blocks.{kind}.input"), values, -1.732_050_8, 1.732_050_8)
    };
    Ok(Blocks {
        linear: layer(&shape, extra.seed, 0),
        full: layer(&shape, extra.seed, 3),
        linear_input: input("linear"),
        full_input: input("full"),
        shape,
    })
}

/// Layer `index` of a model of this shape: BF16 weights in the Hugging Face layout, from the streams of the tensors'
/// names.
pub fn layer(shape: &Shape, seed: u64, index: usize) -> Layer {
    let layout = Layout::Hf;
    let plan: Vec<Planned> =
        layer_slots(shape, layout, index).into_iter().map(|slot| Planned { slot, bits: None }).collect();
    let stored = |p: &Planned| {
        let slot = &p.slot;
        let (lo, hi) = weight_range(&slot.weight, slot.columns());
        let stream = Stream::new(seed, &slot.weight);
        let values = (0..slot.parameters()).flat_map(|i| bf16_bits(stream.uniform(i, lo, hi)).to_le_bytes());
        let bytes: Vec<u8> = values.collect();
        let stored = Stored {
            file: "memory".into(),
            dtype: Dtype::Bf16,
            shape: slot.shape.clone(),
            start: 0,
            len: bytes.len(),
            bytes: Some(Bytes::new(bytes)),
        };
        (slot.weight.clone(), stored)
    };
    let tensors: HashMap<String, Stored> = plan.iter().map(stored).collect();
    Assembler::new(shape, layout, &tensors, &plan).layer(index)
}
