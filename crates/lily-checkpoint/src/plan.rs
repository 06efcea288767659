//! The list of tensors that a checkpoint of a given shape must hold (`docs/model.md §2, §3.1`).

use lily_model::{LayerKind, Shape};

use crate::weights::Affine;

/// How a checkpoint names and stores its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Converted by mlx-lm or mlx-vlm: experts as separate stacks, norm multipliers ready, usually quantised.
    Mlx,
    /// The official Hugging Face layout: BF16, gate and up of the experts fused, norms stored as w of 1 + w.
    Hf,
}

impl Layout {
    /// What the text model's tensors are prefixed with (the head apart).
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Layout::Mlx => "language_model.model.",
            Layout::Hf => "model.language_model.",
        }
    }

    pub(crate) fn layer_prefix(self, layer: usize) -> String {
        format!("{}layers.{layer}.", self.prefix())
    }

    pub(crate) fn head(self) -> &'static str {
        match self {
            Layout::Mlx => "language_model.lm_head",
            Layout::Hf => "lm_head",
        }
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Layout::Mlx => "MLX",
            Layout::Hf => "Hugging Face",
        })
    }
}

/// A part of the model, for sums of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Token embedding.
    Embedding,
    /// Output head.
    Head,
    /// Projections, convolution and small vectors of the linear-attention layers.
    LinearMixers,
    /// Projections of the full-attention layers.
    FullMixers,
    /// Routers.
    Routers,
    /// Routed experts.
    RoutedExperts,
    /// Shared experts and their gates.
    SharedExperts,
    /// All norms.
    Norms,
}

/// What a tensor (or a quantised module's group of three) holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A matrix or a stack of them; may be quantised in the MLX layout.
    Matrix,
    /// A small vector that is converted to F32: BF16 or F32.
    Vector,
}

/// One module or parameter of the model.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// Module path, as the quantisation table names it.
    pub module: String,
    /// Name of the tensor that holds it (or its codes).
    pub weight: String,
    pub part: Part,
    pub form: Form,
    /// Unquantised shape: [experts ×] rows × columns, or that of the vector.
    pub shape: Vec<usize>,
}

impl Slot {
    pub fn scales(&self) -> String {
        format!("{}.scales", self.module)
    }

    pub fn biases(&self) -> String {
        format!("{}.biases", self.module)
    }

    pub fn parameters(&self) -> u64 {
        self.shape.iter().map(|&d| d as u64).product()
    }

    /// Shape with the last dimension replaced.
    fn with_last(&self, last: usize) -> Vec<usize> {
        let (_, lead) = self.shape.split_last().expect("no scalar slots");
        lead.iter().copied().chain([last]).collect()
    }

    pub fn columns(&self) -> usize {
        *self.shape.last().expect("no scalar slots")
    }

    /// Shape of the U32 codes of a module with `bits` bits.
    pub fn code_shape(&self, bits: usize) -> Vec<usize> {
        self.with_last(self.columns() * bits / 32)
    }

    /// Shape of scales and biases.
    pub fn scale_shape(&self) -> Vec<usize> {
        self.with_last(self.columns() / Affine::GROUP)
    }
}

/// All slots of the text model.
pub(crate) fn slots(s: &Shape, layout: Layout) -> Vec<Slot> {
    let mut list = Slots { list: Vec::new() };
    let top = layout.prefix();
    list.matrix(Part::Embedding, format!("{top}embed_tokens"), &[s.vocab, s.hidden]);
    for layer in 0..s.layers.len() {
        list.layer(s, layout, layer);
    }
    list.vector(Part::Norms, format!("{top}norm.weight"), &[s.hidden]);
    list.matrix(Part::Head, layout.head().into(), &[s.vocab, s.hidden]);
    list.list
}

/// The slots of one layer.
pub(crate) fn layer_slots(s: &Shape, layout: Layout, layer: usize) -> Vec<Slot> {
    let mut list = Slots { list: Vec::new() };
    list.layer(s, layout, layer);
    list.list
}

struct Slots {
    list: Vec<Slot>,
}

impl Slots {
    fn matrix(&mut self, part: Part, module: String, shape: &[usize]) {
        let weight = format!("{module}.weight");
        self.list.push(Slot { module, weight, part, form: Form::Matrix, shape: shape.into() });
    }

    fn vector(&mut self, part: Part, name: String, shape: &[usize]) {
        self.list.push(Slot { module: name.clone(), weight: name, part, form: Form::Vector, shape: shape.into() });
    }

    fn layer(&mut self, s: &Shape, layout: Layout, layer: usize) {
        let p = layout.layer_prefix(layer);
        self.vector(Part::Norms, format!("{p}input_layernorm.weight"), &[s.hidden]);
        self.vector(Part::Norms, format!("{p}post_attention_layernorm.weight"), &[s.hidden]);
        match s.layers[layer] {
            LayerKind::Linear => self.linear(s, layout, &format!("{p}linear_attn.")),
            LayerKind::Full => self.full(s, &format!("{p}self_attn.")),
        }
        self.moe(s, layout, &format!("{p}mlp."));
    }

    fn linear(&mut self, s: &Shape, layout: Layout, p: &str) {
        let part = Part::LinearMixers;
        self.matrix(part, format!("{p}in_proj_qkv"), &[s.conv_dim(), s.hidden]);
        self.matrix(part, format!("{p}in_proj_z"), &[s.value_dim(), s.hidden]);
        self.matrix(part, format!("{p}in_proj_b"), &[s.linear_value_heads, s.hidden]);
        self.matrix(part, format!("{p}in_proj_a"), &[s.linear_value_heads, s.hidden]);
        self.matrix(part, format!("{p}out_proj"), &[s.hidden, s.value_dim()]);
        let conv = match layout {
            Layout::Mlx => [s.conv_dim(), s.conv_taps, 1],
            Layout::Hf => [s.conv_dim(), 1, s.conv_taps],
        };
        self.vector(part, format!("{p}conv1d.weight"), &conv);
        self.vector(part, format!("{p}A_log"), &[s.linear_value_heads]);
        self.vector(part, format!("{p}dt_bias"), &[s.linear_value_heads]);
        self.vector(Part::Norms, format!("{p}norm.weight"), &[s.linear_head_dim]);
    }

    fn full(&mut self, s: &Shape, p: &str) {
        let part = Part::FullMixers;
        self.matrix(part, format!("{p}q_proj"), &[2 * s.query_dim(), s.hidden]);
        self.matrix(part, format!("{p}k_proj"), &[s.kv_dim(), s.hidden]);
        self.matrix(part, format!("{p}v_proj"), &[s.kv_dim(), s.hidden]);
        self.matrix(part, format!("{p}o_proj"), &[s.hidden, s.query_dim()]);
        self.vector(Part::Norms, format!("{p}q_norm.weight"), &[s.head_dim]);
        self.vector(Part::Norms, format!("{p}k_norm.weight"), &[s.head_dim]);
    }

    fn moe(&mut self, s: &Shape, layout: Layout, p: &str) {
        self.matrix(Part::Routers, format!("{p}gate"), &[s.experts, s.hidden]);
        self.matrix(Part::SharedExperts, format!("{p}shared_expert_gate"), &[1, s.hidden]);
        for name in ["gate_proj", "up_proj"] {
            self.matrix(Part::SharedExperts, format!("{p}shared_expert.{name}"), &[s.shared_width, s.hidden]);
        }
        self.matrix(Part::SharedExperts, format!("{p}shared_expert.down_proj"), &[s.hidden, s.shared_width]);
        let part = Part::RoutedExperts;
        match layout {
            Layout::Mlx => {
                for name in ["gate_proj", "up_proj"] {
                    self.matrix(part, format!("{p}switch_mlp.{name}"), &[s.experts, s.expert_width, s.hidden]);
                }
                self.matrix(part, format!("{p}switch_mlp.down_proj"), &[s.experts, s.hidden, s.expert_width]);
            }
            // These two have no `.weight`.
            Layout::Hf => {
                let mut stack = |module: String, shape: [usize; 3]| {
                    let weight = module.clone();
                    self.list.push(Slot { module, weight, part, form: Form::Matrix, shape: shape.into() });
                };
                stack(format!("{p}experts.gate_up_proj"), [s.experts, 2 * s.expert_width, s.hidden]);
                stack(format!("{p}experts.down_proj"), [s.experts, s.hidden, s.expert_width]);
            }
        }
    }
}

/// What a text engine skips by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    Vision,
    Mtp,
}

/// Whether `name` belongs to the vision tower or to the MTP layer.
pub(crate) fn skipped(name: &str) -> Option<Skipped> {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
    if starts(&["vision_tower.", "model.visual."]) {
        Some(Skipped::Vision)
    } else if starts(&["mtp.", "language_model.mtp."]) {
        Some(Skipped::Mtp)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::expected;
    use crate::{Config, Quantization};

    type Row = (String, String, String, u64);

    /// Name, type, shape and bytes of a list in tests/fixtures/official, sorted.
    fn list(tsv: &str) -> Vec<Row> {
        let row = |line: &str| {
            let f: Vec<&str> = line.split('\t').collect();
            (f[0].into(), f[1].into(), f[2].into(), f[3].parse().unwrap())
        };
        let mut rows: Vec<Row> = tsv.lines().map(row).collect();
        rows.sort();
        rows
    }

    fn planned(layout: Layout, quantization: Option<&Quantization>) -> Vec<Row> {
        let config = Config::from_json(include_bytes!("../../../tests/fixtures/official/config.json")).unwrap();
        assert_eq!(config.shape, Shape::qwen3_6_35b_a3b());
        let slots = slots(&config.shape, layout);
        assert_eq!(slots.iter().map(Slot::parameters).sum::<u64>(), 34_660_610_688);
        let mut rows = Vec::new();
        for slot in slots {
            let bits = quantization.filter(|_| slot.form == Form::Matrix).and_then(|q| q.of(&slot.module, true));
            for e in expected(&slot, bits) {
                let dims: Vec<String> = e.shape.iter().map(usize::to_string).collect();
                let bytes = (e.shape.iter().product::<usize>() * e.dtypes[0].size()) as u64;
                rows.push((e.name, e.dtypes[0].to_string(), dims.join("x"), bytes));
            }
        }
        rows.sort();
        rows
    }

    #[test]
    fn the_official_checkpoint() {
        let all = list(include_str!("../../../tests/fixtures/official/tensors_hf.tsv"));
        assert_eq!(all.len(), 1045);
        let (text, rest): (Vec<Row>, Vec<Row>) = all.into_iter().partition(|row| skipped(&row.0).is_none());
        assert_eq!(text.len(), 693);
        assert_eq!(planned(Layout::Hf, None), text);
        let tally = |kind| {
            let bytes = rest.iter().filter(|row| skipped(&row.0) == Some(kind)).map(|row| row.3);
            (bytes.clone().count(), bytes.sum::<u64>())
        };
        assert_eq!(tally(Skipped::Mtp), (19, 1_689_281_536));
        assert_eq!(tally(Skipped::Vision), (333, 893_142_496));
    }

    #[test]
    fn the_4_bit_checkpoint() {
        let ours = planned(Layout::Mlx, Some(&Quantization::mlx_4bit(40)));
        assert_eq!(ours.len(), 1757);
        assert_eq!(ours, list(include_str!("../../../tests/fixtures/official/tensors_mlx4.tsv")));
        assert_eq!(ours.iter().map(|row| row.3).sum::<u64>(), 19_508_787_456);
    }
}
