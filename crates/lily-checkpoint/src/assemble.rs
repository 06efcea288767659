//! Puts verified tensors in their places as [`Weights`]: matrices as views, small vectors as F32.

use std::collections::HashMap;

use lily_model::{LayerKind, Shape};

use crate::header::Dtype;
use crate::plan::Layout;
use crate::survey::{Planned, Stored};
use crate::weights::{
    Affine, ExpertStack, FullAttention, Layer, LinearAttention, Matrix, Mixer, Moe, Weights, bf16_at,
};

/// Everything that the survey found to be right; the look-ups below therefore cannot fail.
pub(crate) struct Assembler<'a> {
    shape: &'a Shape,
    layout: Layout,
    tensors: &'a HashMap<String, Stored>,
    planned: HashMap<&'a str, &'a Planned>,
}

impl<'a> Assembler<'a> {
    pub fn new(
        shape: &'a Shape,
        layout: Layout,
        tensors: &'a HashMap<String, Stored>,
        plan: &'a [Planned],
    ) -> Assembler<'a> {
        let planned = plan.iter().map(|p| (p.slot.module.as_str(), p)).collect();
        Self { shape, layout, tensors, planned }
    }

    pub fn weights(&self) -> Weights {
        let top = self.layout.prefix();
        Weights {
            embed: self.matrix(&format!("{top}embed_tokens")),
            layers: (0..self.shape.layers.len()).map(|l| self.layer(l)).collect(),
            norm: self.norm(&format!("{top}norm.weight")),
            lm_head: self.matrix(self.layout.head()),
        }
    }

    pub fn layer(&self, layer: usize) -> Layer {
        let p = self.layout.layer_prefix(layer);
        Layer {
            input_norm: self.norm(&format!("{p}input_layernorm.weight")),
            mixer: match self.shape.layers[layer] {
                LayerKind::Linear => Mixer::Linear(self.linear(&format!("{p}linear_attn."))),
                LayerKind::Full => Mixer::Full(self.full(&format!("{p}self_attn."))),
            },
            post_norm: self.norm(&format!("{p}post_attention_layernorm.weight")),
            moe: self.moe(&format!("{p}mlp.")),
        }
    }

    fn linear(&self, p: &str) -> LinearAttention {
        LinearAttention {
            in_qkv: self.matrix(&format!("{p}in_proj_qkv")),
            in_z: self.matrix(&format!("{p}in_proj_z")),
            in_a: self.matrix(&format!("{p}in_proj_a")),
            in_b: self.matrix(&format!("{p}in_proj_b")),
            conv: self.vector(&format!("{p}conv1d.weight")),
            a_log: self.vector(&format!("{p}A_log")),
            dt_bias: self.vector(&format!("{p}dt_bias")),
            norm: self.vector(&format!("{p}norm.weight")),
            out: self.matrix(&format!("{p}out_proj")),
        }
    }

    fn full(&self, p: &str) -> FullAttention {
        FullAttention {
            q: self.matrix(&format!("{p}q_proj")),
            k: self.matrix(&format!("{p}k_proj")),
            v: self.matrix(&format!("{p}v_proj")),
            o: self.matrix(&format!("{p}o_proj")),
            q_norm: self.norm(&format!("{p}q_norm.weight")),
            k_norm: self.norm(&format!("{p}k_norm.weight")),
        }
    }

    fn moe(&self, p: &str) -> Moe {
        let (gate, up, down) = match self.layout {
            Layout::Mlx => {
                let stack = |name: &str| self.stack(&format!("{p}switch_mlp.{name}"));
                (stack("gate_proj"), stack("up_proj"), stack("down_proj"))
            }
            // Per expert: rows of the gate, then rows of up.
            Layout::Hf => {
                let fused = self.stack(&format!("{p}experts.gate_up_proj")).0;
                let width = self.shape.expert_width;
                let half = |start| ExpertStack(fused.iter().map(|m| m.slice_rows(start, width)).collect());
                (half(0), half(width), self.stack(&format!("{p}experts.down_proj")))
            }
        };
        Moe {
            router: self.matrix(&format!("{p}gate")),
            gate,
            up,
            down,
            shared_gate: self.matrix(&format!("{p}shared_expert.gate_proj")),
            shared_up: self.matrix(&format!("{p}shared_expert.up_proj")),
            shared_down: self.matrix(&format!("{p}shared_expert.down_proj")),
            shared_expert_gate: self.matrix(&format!("{p}shared_expert_gate")),
        }
    }

    fn tensor(&self, name: &str) -> (&crate::Bytes, Dtype) {
        let stored = &self.tensors[name];
        (stored.bytes.as_ref().expect("a checked shard is complete"), stored.dtype)
    }

    fn matrix(&self, module: &str) -> Matrix {
        let Planned { slot, bits } = self.planned[module];
        let cols = slot.columns();
        let rows = slot.shape[..slot.shape.len() - 1].iter().product();
        match *bits {
            None => Matrix::Bf16 { rows, cols, data: self.tensor(&slot.weight).0.clone() },
            Some(bits) => Matrix::Affine(Affine {
                rows,
                cols,
                bits,
                codes: self.tensor(&slot.weight).0.clone(),
                scales: self.tensor(&slot.scales()).0.clone(),
                biases: self.tensor(&slot.biases()).0.clone(),
            }),
        }
    }

    /// One view an expert of [experts × rows × columns].
    fn stack(&self, module: &str) -> ExpertStack {
        let all = self.matrix(module);
        let shape = &self.planned[module].slot.shape;
        ExpertStack((0..shape[0]).map(|e| all.slice_rows(e * shape[1], shape[1])).collect())
    }

    fn vector(&self, name: &str) -> Vec<f32> {
        let (bytes, dtype) = self.tensor(name);
        match dtype {
            Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect(),
            _ => (0..bytes.len() / 2).map(|i| bf16_at(bytes, i)).collect(),
        }
    }

    /// The multiplier of a norm. The Hugging Face layout stores w of 1 + w; `linear_attn.norm` alone is a plain
    /// multiplier in both layouts and goes through [`Self::vector`] (`docs/model.md §3.1`).
    fn norm(&self, name: &str) -> Vec<f32> {
        let mut norm = self.vector(name);
        if self.layout == Layout::Hf {
            norm.iter_mut().for_each(|w| *w += 1.0);
        }
        norm
    }
}
