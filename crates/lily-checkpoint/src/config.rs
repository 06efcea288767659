//! config.json, typed. Unknown keys are accepted; values that the engine relies on are checked
//! (`docs/model.md §1, §3.1`).

use std::collections::BTreeMap;

use lily_model::{LayerKind, Shape};
use serde_json::{Map, Value};

use crate::keys::{Keys, object};
use crate::weights::Affine;
use crate::{CheckpointError, Layout};

/// The architecture that Lily runs, as `architectures` names it.
pub const ARCHITECTURE: &str = "Qwen3_5MoeForConditionalGeneration";
/// The `model_type` that goes with [`ARCHITECTURE`].
pub const MODEL_TYPE: &str = "qwen3_5_moe";

/// What config.json says.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Dimensions of the text model.
    pub shape: Shape,
    /// How modules are quantised; `None` in a checkpoint without a `quantization` block.
    pub quantization: Option<Quantization>,
    /// Ids that end an answer, as far as config.json names them (it may name too few, see
    /// [`GenerationDefaults::eos`](crate::GenerationDefaults::eos)).
    pub eos: Vec<u32>,
}

/// The `quantization` block of an MLX checkpoint; the group size is always 64 and the mode affine.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// Bits of a module that is not in `modules`: 4 or 8.
    pub bits: usize,
    /// Bits by full module path; `None` where the module is not quantised.
    pub modules: BTreeMap<String, Option<usize>>,
}

impl Quantization {
    /// What the usual 4-bit conversion writes: 4 bits, the two gates of each layer 8.
    pub fn mlx_4bit(layers: usize) -> Self {
        let gates = (0..layers).flat_map(|l| {
            let module = Layout::Mlx.layer_prefix(l);
            ["mlp.gate", "mlp.shared_expert_gate"].map(|gate| (format!("{module}{gate}"), Some(8)))
        });
        Self { bits: 4, modules: gates.collect() }
    }

    /// Bits of a module. A module without an entry of its own is quantised where it has `scales`, as mlx-lm reads it.
    pub(crate) fn of(&self, module: &str, has_scales: bool) -> Option<usize> {
        self.modules.get(module).copied().unwrap_or(has_scales.then_some(self.bits))
    }
}

impl Config {
    /// Read config.json of a whole checkpoint.
    pub fn from_json(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let map = object("config.json", bytes)?;
        let top = Keys { file: "config.json", prefix: "", map: &map };
        check_architecture(top)?;
        let text_map = top.object("text_config")?.ok_or_else(|| top.bad("text_config", "is missing"))?;
        let text = Keys { prefix: "text_config.", map: text_map, ..top };
        top.only("tie_word_embeddings", false.into(), "this model has a head of its own")?;
        let shape = shape(text)?;
        let mut eos = top.ids("eos_token_id")?;
        for id in text.ids("eos_token_id")? {
            if !eos.contains(&id) {
                eos.push(id);
            }
        }
        Ok(Self { quantization: quantization(top)?, shape, eos })
    }

    /// Read the dimensions from a bare `text_config` object.
    pub fn shape_from_text_config(bytes: &[u8]) -> Result<Shape, CheckpointError> {
        shape(Keys { file: "config.json", prefix: "", map: &object("config.json", bytes)? })
    }
}

fn check_architecture(top: Keys) -> Result<(), CheckpointError> {
    let architectures: Vec<&str> = match top.get("architectures") {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let model_type = top.get("model_type").and_then(Value::as_str);
    let named = architectures.contains(&ARCHITECTURE) || architectures.is_empty();
    if named && model_type == Some(MODEL_TYPE) {
        return Ok(());
    }
    let found = match (architectures.as_slice(), model_type) {
        ([], None) => "no architecture at all".into(),
        ([], Some(t)) => format!("a model of type {t}"),
        (a, None) => format!("the architecture {} without a model_type", a.join(", ")),
        (a, Some(t)) => format!("the architecture {} (model_type {t})", a.join(", ")),
    };
    Err(CheckpointError::Architecture { found })
}

fn shape(text: Keys) -> Result<Shape, CheckpointError> {
    text.only("hidden_act", "silu".into(), "the model uses silu")?;
    text.only("attention_bias", false.into(), "the model has no biases")?;
    text.only("attn_output_gate", true.into(), "the model gates its attention output")?;
    text.only("tie_word_embeddings", false.into(), "this model has a head of its own")?;
    text.only("mamba_ssm_dtype", "float32".into(), "the recurrent state is kept in float32")?;

    let head_dim = text.size("head_dim", 1 << 12)?;
    let rope = text.object("rope_parameters")?;
    let rope = Keys { prefix: "text_config.rope_parameters.", map: rope.unwrap_or(text.map), ..text };
    for key in ["rope_type", "type"] {
        if std::ptr::eq(rope.map, text.map) {
            break;
        }
        rope.only(key, "default".into(), "only the default rotary embedding is supported (no YaRN)")?;
    }
    let either = |key| Ok(rope.number(key)?.or(text.number(key)?));
    let theta = either("rope_theta")?.ok_or_else(|| text.bad("rope_parameters.rope_theta", "is missing"))?;
    if !(theta > 1.0 && theta.is_finite()) {
        return Err(rope.bad("rope_theta", format!("is {theta} and should be above 1")));
    }
    let factor = either("partial_rotary_factor")?.unwrap_or(0.25);
    let rotary_dim = (head_dim as f64 * factor).round();
    if !(2.0..=head_dim as f64).contains(&rotary_dim) || rotary_dim % 2.0 != 0.0 {
        return Err(rope.bad(
            "partial_rotary_factor",
            format!("is {factor}: {rotary_dim} of {head_dim} dimensions cannot rotate in pairs"),
        ));
    }
    let linear_head_dim = text.size("linear_key_head_dim", 1 << 12)?;
    let value_head_dim = text.size("linear_value_head_dim", 1 << 12)?;
    if value_head_dim != linear_head_dim {
        return Err(text.bad(
            "linear_value_head_dim",
            format!("is {value_head_dim}, but linear_key_head_dim is {linear_head_dim}; they must be equal"),
        ));
    }
    let norm_eps = text.number("rms_norm_eps")?.unwrap_or(1e-6);
    if !(norm_eps > 0.0 && norm_eps < 1.0) {
        return Err(text.bad("rms_norm_eps", format!("is {norm_eps} and should be between 0 and 1")));
    }
    let shape = Shape {
        vocab: text.size("vocab_size", 1 << 24)?,
        hidden: text.size("hidden_size", 1 << 16)?,
        layers: layers(text)?,
        query_heads: text.size("num_attention_heads", 1 << 12)?,
        kv_heads: text.size("num_key_value_heads", 1 << 12)?,
        head_dim,
        rotary_dim: rotary_dim as usize,
        rope_theta: theta as f32,
        linear_key_heads: text.size("linear_num_key_heads", 1 << 12)?,
        linear_value_heads: text.size("linear_num_value_heads", 1 << 12)?,
        linear_head_dim,
        conv_taps: text.size("linear_conv_kernel_dim", 64)?,
        experts: text.size("num_experts", 1 << 14)?,
        experts_per_token: text.size("num_experts_per_tok", 1 << 14)?,
        expert_width: text.size("moe_intermediate_size", 1 << 17)?,
        shared_width: text.size("shared_expert_intermediate_size", 1 << 17)?,
        norm_eps: norm_eps as f32,
        max_context: text.size("max_position_embeddings", 1 << 32)?,
    };
    consistent(text, &shape)?;
    Ok(shape)
}

fn consistent(text: Keys, s: &Shape) -> Result<(), CheckpointError> {
    let divides = |key: &str, n: usize, by_key: &str, by: usize| {
        if n.is_multiple_of(by) {
            return Ok(());
        }
        Err(text.bad(key, format!("is {n}, which {by_key} ({by}) does not divide")))
    };
    divides("num_attention_heads", s.query_heads, "num_key_value_heads", s.kv_heads)?;
    divides("linear_num_value_heads", s.linear_value_heads, "linear_num_key_heads", s.linear_key_heads)?;
    // Every input dimension of a matrix is cut into quantisation groups.
    for (key, n) in [
        ("hidden_size", s.hidden),
        ("moe_intermediate_size", s.expert_width),
        ("shared_expert_intermediate_size", s.shared_width),
    ] {
        divides(key, n, "the quantisation group", Affine::GROUP)?;
    }
    divides("num_attention_heads × head_dim", s.query_dim(), "the quantisation group", Affine::GROUP)?;
    divides("linear_num_value_heads × linear_value_head_dim", s.value_dim(), "the quantisation group", Affine::GROUP)?;
    if s.experts_per_token > s.experts {
        return Err(text.bad(
            "num_experts_per_tok",
            format!("is {}, more than the {} experts there are", s.experts_per_token, s.experts),
        ));
    }
    Ok(())
}

fn layers(text: Keys) -> Result<Vec<LayerKind>, CheckpointError> {
    let count = text.size("num_hidden_layers", 1 << 12)?;
    let Some(types) = text.get("layer_types") else {
        let interval = text.size("full_attention_interval", 1 << 12)?;
        let kind = |i| if i % interval == interval - 1 { LayerKind::Full } else { LayerKind::Linear };
        return Ok((0..count).map(kind).collect());
    };
    let types = types.as_array().ok_or_else(|| text.bad("layer_types", "should be a list"))?;
    if types.len() != count {
        return Err(text.bad("layer_types", format!("has {} entries for {count} layers", types.len())));
    }
    let kind = |v: &Value| match v.as_str() {
        Some("linear_attention") => Ok(LayerKind::Linear),
        Some("full_attention") => Ok(LayerKind::Full),
        _ => Err(text.bad("layer_types", format!("holds {v}; linear_attention and full_attention are known"))),
    };
    types.iter().map(kind).collect()
}

fn quantization(top: Keys) -> Result<Option<Quantization>, CheckpointError> {
    let (key, map) = match (top.object("quantization")?, top.object("quantization_config")?) {
        (Some(map), _) => ("quantization", map),
        (None, Some(map)) => ("quantization_config", map),
        (None, None) => return Ok(None),
    };
    if let Some(method) = map.get("quant_method") {
        return Err(top.bad(key, format!("names the method {method}; only MLX's affine 4 and 8 bit are supported")));
    }
    let read = |path: &str, map: &Map<String, Value>, whole: bool| {
        let path = |k: &str| if path.is_empty() { format!("{key}.{k}") } else { format!("{key}.{path}.{k}") };
        let number = |k: &str, default| match map.get(k) {
            None if !whole => Ok(default),
            None => Err(top.bad(&path(k), "is missing")),
            Some(v) => v.as_u64().ok_or_else(|| top.bad(&path(k), format!("is {v} and should be an integer"))),
        };
        let group = number("group_size", Affine::GROUP as u64)?;
        if group != Affine::GROUP as u64 {
            return Err(top.bad(&path("group_size"), format!("is {group}; only groups of 64 are supported")));
        }
        let bits = number("bits", map.get("bits").and_then(Value::as_u64).unwrap_or(4))?;
        if bits != 4 && bits != 8 {
            return Err(top.bad(&path("bits"), format!("is {bits}; only 4 and 8 are supported")));
        }
        match map.get("mode") {
            None | Some(Value::Null) => {}
            Some(v) if v == "affine" => {}
            Some(v) => return Err(top.bad(&path("mode"), format!("is {v}; only \"affine\" is supported"))),
        }
        Ok(bits as usize)
    };
    let bits = read("", map, true)?;
    let mut modules = BTreeMap::new();
    for (module, value) in map {
        let entry = match value {
            Value::Bool(quantised) if module.contains('.') => quantised.then_some(bits),
            Value::Object(entry) => Some(if entry.contains_key("bits") { read(module, entry, false)? } else { bits }),
            _ => continue,
        };
        modules.insert(module.clone(), entry);
    }
    Ok(Some(Quantization { bits, modules }))
}
