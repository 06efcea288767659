//! A random checkpoint in the MLX 4-bit layout, streamed to disk.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::path::Path;

use lily_model::{LayerKind, Shape};
use serde_json::{Map, Value, json};

use super::seeded::Numbers;
use super::stream::{Stream, bf16_bits, bf16_round};
use crate::config::{ARCHITECTURE, MODEL_TYPE};
use crate::plan::{Form, Layout, Part, slots};
use crate::survey::INDEX;
use crate::verify::expected;
use crate::{Bytes, Checkpoint, CheckpointError, Quantization};

/// Bytes made before each write.
const CHUNK: u64 = 4 << 20;
/// Bytes of tensors after which a new shard begins.
const SHARD: u64 = 5 << 30;

/// The full model's dimensions with another number of layers (each fourth is full attention).
pub fn full_shape(layers: usize) -> Shape {
    let kind = |i| if i % 4 == 3 { LayerKind::Full } else { LayerKind::Linear };
    Shape { layers: (0..layers).map(kind).collect(), ..Shape::qwen3_6_35b_a3b() }
}

/// Write a random checkpoint of this shape into `dir` (made if needed) and return the bytes of its tensors.
///
/// Names, shapes, types and the quantisation table are those of a 4-bit conversion of the text model. Values keep
/// activations finite, spread routing over all experts and make the recurrent decays plausible: codes are uniform,
/// scales set the standard deviation that a trained matrix of the size would have, biases make the weights zero-mean.
/// There is no tokenizer. `progress` is told bytes written and bytes in total. Needs about 10 MB of memory. A folder that
/// holds another checkpoint is left alone.
pub fn write_mlx4(
    dir: &Path,
    shape: &Shape,
    seed: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, CheckpointError> {
    write(dir, shape, seed, SHARD, progress)
}

fn write(
    dir: &Path,
    shape: &Shape,
    seed: u64,
    shard_bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, CheckpointError> {
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |source| CheckpointError::Io { path, source }
    };
    if std::fs::read(dir.join("config.json")).is_ok_and(|json| !is_synthetic(&json)) {
        let source = std::io::Error::new(ErrorKind::AlreadyExists, "holds a checkpoint that is not synthetic");
        return Err(io(dir)(source));
    }
    std::fs::create_dir_all(dir).map_err(io(dir))?;
    let quantization = Quantization::mlx_4bit(shape.layers.len());
    let tensors = tensors(shape, &quantization);
    let total: u64 = tensors.iter().map(Tensor::bytes).sum();

    let mut shards: Vec<Vec<&Tensor>> = vec![Vec::new()];
    let mut size = 0;
    for t in &tensors {
        if size > 0 && size + t.bytes() > shard_bytes {
            shards.push(Vec::new());
            size = 0;
        }
        size += t.bytes();
        shards.last_mut().expect("never empty").push(t);
    }
    let mut index = Map::new();
    let mut written = 0;
    for (i, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".into(),
            n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
        };
        let path = dir.join(&name);
        let mut file = File::create(&path).map_err(io(&path))?;
        file.write_all(&header(shard)).map_err(io(&path))?;
        for t in shard {
            let mut at = 0;
            while at < t.bytes() {
                let chunk = t.make(seed, at..(at + CHUNK).min(t.bytes()));
                file.write_all(&chunk).map_err(io(&path))?;
                at += chunk.len() as u64;
                progress(written + at, total);
            }
            written += at;
            index.insert(t.name.clone(), name.clone().into());
        }
    }
    let index = json!({"metadata": {"total_size": total}, "weight_map": index});
    let generation = json!({
        "do_sample": true, "eos_token_id": eos(shape), "temperature": 1.0, "top_k": 20, "top_p": 0.95,
    });
    let config = config(shape, &quantization);
    for (name, value) in [(INDEX, index), ("generation_config.json", generation), ("config.json", config)] {
        let path = dir.join(name);
        std::fs::write(&path, format!("{value:#}\n")).map_err(io(&path))?;
    }
    Ok(total)
}

/// The checkpoint that [`write_mlx4`] writes, in memory.
pub fn mlx4_in_memory(shape: &Shape, seed: u64) -> Result<Checkpoint, CheckpointError> {
    let quantization = Quantization::mlx_4bit(shape.layers.len());
    let tensors = tensors(shape, &quantization);
    let mut file = header(&tensors.iter().collect::<Vec<_>>());
    for t in &tensors {
        file.append(&mut t.make(seed, 0..t.bytes()));
    }
    let config = config(shape, &quantization).to_string().into_bytes();
    let generation = json!({"eos_token_id": eos(shape)}).to_string().into_bytes();
    let files = [("config.json", config), ("generation_config.json", generation), ("model.safetensors", file)];
    Checkpoint::from_memory("synthetic", files.map(|(name, bytes)| (name.into(), Bytes::new(bytes))).into())
}

fn is_synthetic(config: &[u8]) -> bool {
    serde_json::from_slice::<Value>(config).is_ok_and(|c| c["lily_synthetic"] == true)
}

/// What the numbers of a tensor are.
enum Kind {
    /// Uniform random bits.
    Codes,
    /// Step between codes, times 0.75 to 1.25, from the module's stream.
    Scales { module: String, step: f32 },
    /// −middle code · scale of the same group.
    Biases { module: String, step: f32, middle: f32 },
    /// Uniform in a range.
    Range(f32, f32),
}

pub(super) struct Tensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    kind: Kind,
}

impl Tensor {
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * if self.dtype == "U32" { 4 } else { 2 }
    }

    /// What a device needs to make them; `None` for small vectors.
    pub fn numbers(&self, seed: u64) -> Option<Numbers> {
        let scales = |module: &str| Stream::new(seed, &format!("{module}.scales"));
        match &self.kind {
            Kind::Codes => Some(Numbers::Bits(Stream::new(seed, &self.name))),
            Kind::Scales { module, step } => Some(Numbers::Scales { stream: scales(module), step: *step, factor: 1.0 }),
            Kind::Biases { module, step, middle } => {
                Some(Numbers::Scales { stream: scales(module), step: *step, factor: -middle })
            }
            Kind::Range(..) => None,
        }
    }

    /// The bytes of a range; both ends are multiples of 8 or the tensor's own.
    pub fn make(&self, seed: u64, range: Range<u64>) -> Vec<u8> {
        let mut out = Vec::with_capacity((range.end - range.start) as usize + 8);
        match (self.numbers(seed), &self.kind) {
            (Some(Numbers::Bits(stream)), _) => {
                let len = (range.end - range.start) as usize;
                out.resize(len.next_multiple_of(8), 0);
                for (word, i) in out.chunks_exact_mut(8).zip(range.start / 8..) {
                    word.copy_from_slice(&stream.get(i).to_le_bytes());
                }
                out.truncate(len);
            }
            (Some(Numbers::Scales { stream, step, factor }), _) => {
                bf16(&mut out, range, |i| factor * bf16_round(step * stream.uniform(i, 0.75, 1.25)));
            }
            (None, &Kind::Range(lo, hi)) => {
                let stream = Stream::new(seed, &self.name);
                bf16(&mut out, range, |i| stream.uniform(i, lo, hi));
            }
            (None, _) => unreachable!("matrices are numbers that a device can make"),
        }
        out
    }
}

/// Append the BF16 values of a range of bytes.
fn bf16(out: &mut Vec<u8>, range: Range<u64>, value: impl Fn(u64) -> f32) {
    out.resize((range.end - range.start) as usize, 0);
    for (bytes, i) in out.chunks_exact_mut(2).zip(range.start / 2..) {
        bytes.copy_from_slice(&bf16_bits(value(i)).to_le_bytes());
    }
}

pub(super) fn tensors(shape: &Shape, quantization: &Quantization) -> Vec<Tensor> {
    let mut list = Vec::new();
    for slot in slots(shape, Layout::Mlx) {
        if slot.form == Form::Vector {
            let (lo, hi) = match slot.weight.rsplit('.').next() {
                Some("A_log") => (-1.0, 2.0),
                Some("dt_bias") => (-6.0, -1.5),
                _ if slot.part == Part::Norms => (0.8, 1.2),
                _ => (-0.5, 0.5),
            };
            list.push(Tensor { name: slot.weight, dtype: "BF16", shape: slot.shape, kind: Kind::Range(lo, hi) });
            continue;
        }
        let bits = quantization.of(&slot.module, true).expect("every matrix is quantised");
        let gain = match slot.part {
            Part::Embedding => (slot.columns() as f64).sqrt(),
            Part::Head => 3.0,
            Part::Routers => 2.0,
            _ => 1.0,
        };
        let sigma = gain / (slot.columns() as f64).sqrt();
        // The standard deviation of uniform codes 0..2^bits − 1.
        let step = (sigma / ((4f64.powi(bits as i32) - 1.0) / 12.0).sqrt()) as f32;
        let middle = ((1 << bits) - 1) as f32 / 2.0;
        for tensor in expected(&slot, Some(bits)) {
            let module = slot.module.clone();
            let (dtype, kind) = match tensor.name.rsplit('.').next() {
                Some("scales") => ("BF16", Kind::Scales { module, step }),
                Some("biases") => ("BF16", Kind::Biases { module, step, middle }),
                _ => ("U32", Kind::Codes),
            };
            list.push(Tensor { name: tensor.name, dtype, shape: tensor.shape, kind });
        }
    }
    list
}

/// Length and JSON, padded with spaces to a multiple of 16, so that no GPU needs a copy of a tensor.
fn header(shard: &[&Tensor]) -> Vec<u8> {
    let mut map = Map::new();
    map.insert("__metadata__".into(), json!({"format": "mlx"}));
    let mut at = 0;
    for t in shard {
        let entry = json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, at + t.bytes()]});
        map.insert(t.name.clone(), entry);
        at += t.bytes();
    }
    let mut json = Value::Object(map).to_string().into_bytes();
    json.resize((8 + json.len()).next_multiple_of(16) - 8, b' ');
    [&(json.len() as u64).to_le_bytes()[..], &json].concat()
}

/// The official ids, or the last two of a smaller vocabulary.
fn eos(shape: &Shape) -> Vec<usize> {
    if shape.vocab == 248_320 { vec![248_046, 248_044] } else { vec![shape.vocab - 2, shape.vocab - 1] }
}

fn config(s: &Shape, quantization: &Quantization) -> Value {
    let mut table = Map::new();
    for (key, value) in [("group_size", json!(64)), ("bits", json!(quantization.bits)), ("mode", json!("affine"))] {
        table.insert(key.into(), value);
    }
    for (module, bits) in &quantization.modules {
        table.insert(module.clone(), json!({"group_size": 64, "bits": bits}));
    }
    let kind = |k: &LayerKind| if *k == LayerKind::Full { "full_attention" } else { "linear_attention" };
    json!({
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "eos_token_id": eos(s),
        "tie_word_embeddings": false,
        "lily_synthetic": true,
        "quantization": table,
        "quantization_config": table,
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "dtype": "bfloat16",
            "vocab_size": s.vocab,
            "hidden_size": s.hidden,
            "num_hidden_layers": s.layers.len(),
            "layer_types": s.layers.iter().map(kind).collect::<Vec<_>>(),
            "num_attention_heads": s.query_heads,
            "num_key_value_heads": s.kv_heads,
            "head_dim": s.head_dim,
            "attention_bias": false,
            "attn_output_gate": true,
            "hidden_act": "silu",
            "linear_conv_kernel_dim": s.conv_taps,
            "linear_key_head_dim": s.linear_head_dim,
            "linear_value_head_dim": s.linear_head_dim,
            "linear_num_key_heads": s.linear_key_heads,
            "linear_num_value_heads": s.linear_value_heads,
            "mamba_ssm_dtype": "float32",
            "num_experts": s.experts,
            "num_experts_per_tok": s.experts_per_token,
            "moe_intermediate_size": s.expert_width,
            "shared_expert_intermediate_size": s.shared_width,
            "max_position_embeddings": s.max_context,
            "rms_norm_eps": 1e-6,
            "mtp_num_hidden_layers": 0,
            "tie_word_embeddings": false,
            "rope_parameters": {
                "type": "default",
                "rope_theta": s.rope_theta,
                "partial_rotary_factor": s.rotary_dim as f64 / s.head_dim as f64,
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_join_to_the_whole_tensor() {
        let shape = full_shape(1);
        for t in tensors(&shape, &Quantization::mlx_4bit(1)).iter().filter(|t| t.name.contains("linear_attn")) {
            let whole = t.make(3, 0..t.bytes());
            assert_eq!(whole.len() as u64, t.bytes(), "{}", t.name);
            let cut = (t.bytes() / 3).next_multiple_of(8).min(t.bytes());
            assert!(whole == [t.make(3, 0..cut), t.make(3, cut..t.bytes())].concat(), "{}", t.name);
        }
    }

    #[test]
    fn shards_have_an_index_and_real_checkpoints_are_left_alone() {
        let shape = Shape { vocab: 256, hidden: 64, experts: 8, expert_width: 64, shared_width: 64, ..full_shape(4) };
        let dir = tempfile::tempdir().unwrap();
        let total = write(dir.path(), &shape, 1, 600_000, &mut |_, _| ()).unwrap();
        let c = Checkpoint::open(dir.path()).unwrap();
        assert_eq!((c.shape(), c.report().bytes()), (&shape, total));
        let shards = c.report().files.iter().filter(|f| f.purpose == "weights").count();
        assert!(shards > 2, "{shards} shards of {total} bytes");

        // In memory the same numbers, where no GPU needs a copy of them.
        let memory = mlx4_in_memory(&shape, 1).unwrap();
        assert_eq!(memory.shape(), &shape);
        let codes = |c: &Checkpoint| match &c.weights().lm_head {
            crate::Matrix::Affine(a) => a.codes.clone(),
            crate::Matrix::Bf16 { data, .. } => data.clone(),
        };
        assert!(*codes(&memory) == *codes(&c));
        assert!((codes(&memory).as_ptr() as usize).is_multiple_of(16));

        // Again into the same folder; but not over another checkpoint.
        write_mlx4(dir.path(), &shape, 2, &mut |_, _| ()).unwrap();
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        let message = write_mlx4(dir.path(), &shape, 2, &mut |_, _| ()).unwrap_err().to_string();
        assert!(message.contains("not synthetic"), "{message}");
    }
}
