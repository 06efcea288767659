//! Checkpoints with something wrong: each is refused with a message that says what and where, and none panics.

mod common;

use common::{Parts, files, fixture, in_memory};
use lily_checkpoint::synthetic::Stream;
use lily_checkpoint::{Checkpoint, inspect};
use serde_json::{Value, json};

/// A fixture in memory, to be damaged.
struct Patient {
    files: Vec<(String, Vec<u8>)>,
}

impl Patient {
    fn new(path: &str) -> Self {
        Self { files: files(&fixture(path)) }
    }

    fn mlx() -> Self {
        Self::new("tiny/mlx-4bit")
    }

    fn file(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.files.iter_mut().find(|(n, _)| n == name).expect(name).1
    }

    fn remove(mut self, name: &str) -> Self {
        self.files.retain(|(n, _)| n != name);
        self
    }

    fn json(mut self, name: &str, change: impl FnOnce(&mut Value)) -> Self {
        let mut value = serde_json::from_slice(self.file(name)).unwrap();
        change(&mut value);
        *self.file(name) = value.to_string().into_bytes();
        self
    }

    fn config(self, change: impl FnOnce(&mut Value)) -> Self {
        self.json("config.json", change)
    }

    fn text(self, key: &str, value: Value) -> Self {
        self.config(|c| c["text_config"][key] = value)
    }

    /// Change the shard; the index is dropped, as names may change.
    fn shard(self, change: impl FnOnce(&mut Parts)) -> Self {
        let mut this = self.remove("model.safetensors.index.json");
        let mut parts = Parts::of(this.file("model.safetensors"));
        change(&mut parts);
        *this.file("model.safetensors") = parts.join();
        this
    }

    fn refused(self, parts: &[&str]) {
        let message = match Checkpoint::from_memory("patient", in_memory(self.files)) {
            Err(e) => e.to_string(),
            Ok(_) => panic!("opened, but should say {parts:?}"),
        };
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in: {message}");
        }
    }
}

const QKV: &str = "language_model.model.layers.0.linear_attn.in_proj_qkv";

#[test]
fn a_shard_that_is_cut_short() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files(&fixture("tiny/hf")) {
        let keep = if name == "model.safetensors" { bytes.len() - 12_345 } else { bytes.len() };
        std::fs::write(dir.path().join(name), &bytes[..keep]).unwrap();
    }
    let message = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("model.safetensors is cut short: 12345 bytes are missing"), "{message}");
    let page = inspect(dir.path()).to_string();
    assert!(page.contains("12345 bytes are missing") && page.contains("Hugging Face"), "{page}");

    let shard = dir.path().join("model.safetensors");
    let whole = std::fs::read(&shard).unwrap();
    for (keep, says) in [(0, "0 bytes are too few"), (7, "7 bytes are too few"), (100, "bytes are missing")] {
        std::fs::write(&shard, &whole[..keep]).unwrap();
        let message = Checkpoint::open(dir.path()).unwrap_err().to_string();
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn files_that_are_not_there() {
    Patient::mlx().remove("config.json").refused(&["the built-in checkpoint `patient` has no config.json"]);
    Patient::mlx().remove("model.safetensors").refused(&["has no model.safetensors", "index.json names it"]);
    Patient::mlx()
        .remove("model.safetensors")
        .remove("model.safetensors.index.json")
        .refused(&["has no model*.safetensors"]);
    let message = Checkpoint::open(&fixture("no-such-folder")).unwrap_err().to_string();
    assert!(message.contains("no-such-folder is not a folder"), "{message}");
}

#[test]
fn another_architecture() {
    let other = |c: &mut Value| {
        c["architectures"] = json!(["LlamaForCausalLM"]);
        c["model_type"] = json!("llama");
    };
    let lily = "Lily runs only Qwen3.6-35B-A3B";
    Patient::mlx().config(other).refused(&["the architecture LlamaForCausalLM (model_type llama)", lily]);
    Patient::mlx().config(|c| c["model_type"] = json!("qwen3_5")).refused(&["model_type qwen3_5)", lily]);
    Patient::mlx().config(|c| *c = json!({})).refused(&["no architecture at all", lily]);
}

#[test]
fn impossible_configurations() {
    let cases = [
        ("num_key_value_heads", json!(3), "`text_config.num_attention_heads` is 4, which num_key_value_heads (3)"),
        ("linear_num_key_heads", json!(3), "which linear_num_key_heads (3) does not divide"),
        ("hidden_size", json!(100), "`text_config.hidden_size` is 100, which the quantisation group (64)"),
        ("hidden_size", json!(-1), "is -1 and should be an integer from 1"),
        ("hidden_size", json!("128"), "is \"128\" and should be an integer"),
        ("vocab_size", json!(u64::MAX), "should be an integer from 1 to"),
        ("vocab_size", Value::Null, "`text_config.vocab_size` is missing"),
        ("num_experts_per_tok", json!(9), "is 9, more than the 8 experts"),
        ("num_hidden_layers", json!(5), "`text_config.layer_types` has 4 entries for 5 layers"),
        ("layer_types", json!(["mamba", "x", "y", "z"]), "holds \"mamba\""),
        ("hidden_act", json!("gelu"), "`text_config.hidden_act` is \"gelu\""),
        ("attention_bias", json!(true), "the model has no biases"),
        ("attn_output_gate", json!(false), "the model gates its attention output"),
        ("tie_word_embeddings", json!(true), "this model has a head of its own"),
        ("mamba_ssm_dtype", json!("bfloat16"), "the recurrent state is kept in float32"),
        ("linear_value_head_dim", json!(64), "they must be equal"),
        ("rms_norm_eps", json!(0), "`text_config.rms_norm_eps` is 0"),
        (
            "rope_parameters",
            json!({"type": "yarn", "rope_theta": 1e7}),
            "`text_config.rope_parameters.type` is \"yarn\"",
        ),
        ("rope_parameters", json!({"rope_theta": 1e7, "partial_rotary_factor": 2}), "512 of 256 dimensions"),
        ("rope_parameters", json!({}), "rope_theta` is missing"),
    ];
    for (key, value, says) in cases {
        Patient::mlx().text(key, value).refused(&[says]);
    }
    Patient::mlx().config(|c| c["tie_word_embeddings"] = json!(true)).refused(&["`tie_word_embeddings` is true"]);
    Patient::mlx().config(|c| c["text_config"] = json!(7)).refused(&["`text_config` is 7 and should be an object"]);
    let mut broken = Patient::mlx();
    broken.file("config.json").truncate(300);
    broken.refused(&["config.json is not the JSON that is expected there", "line"]);
}

#[test]
fn quantisation_that_lily_does_not_read() {
    let set = |key: &str, value: Value| Patient::mlx().config(|c| c["quantization"][key] = value);
    set("group_size", json!(32)).refused(&["`quantization.group_size` is 32; only groups of 64"]);
    set("bits", json!(6)).refused(&["`quantization.bits` is 6; only 4 and 8"]);
    set("mode", json!("mxfp4")).refused(&["`quantization.mode` is \"mxfp4\""]);
    set(QKV, json!({"bits": 3})).refused(&["in_proj_qkv.bits` is 3"]);
    set(QKV, json!({"group_size": 64, "bits": 8})).refused(&["in_proj_qkv` means 8 bits", "are 4.0000 bits"]);
    set(QKV, json!(false)).refused(&["in_proj_qkv.weight`", "is U32, but should be BF16"]);
    let fp8 = |c: &mut Value| {
        c.as_object_mut().unwrap().remove("quantization");
        c["quantization_config"] = json!({"quant_method": "fp8"});
    };
    Patient::mlx().config(fp8).refused(&["names the method \"fp8\""]);
    Patient::new("tiny/hf")
        .config(|c| c["quantization"] = json!({"group_size": 64, "bits": 4}))
        .refused(&["`quantization` is set, but the tensors have the names of the unquantised"]);
}

#[test]
fn stop_ids_and_sampling() {
    let set = |key: &str, value: Value| Patient::mlx().json("generation_config.json", |g| g[key] = value);
    set("eos_token_id", json!([386, 512])).refused(&["generation_config.json: `eos_token_id` holds 512", "512 ids"]);
    set("eos_token_id", json!("x")).refused(&["holds \"x\", which is not a token id"]);
    set("temperature", json!(-1)).refused(&["generation_config.json: `temperature` is -1"]);
    set("top_p", json!(1.5)).refused(&["`top_p` is 1.5 and should be from 0 to 1"]);
    set("top_k", json!(2.5)).refused(&["`top_k` is 2.5"]);
    Patient::mlx()
        .remove("generation_config.json")
        .config(|c| c["eos_token_id"] = Value::Null)
        .text("eos_token_id", Value::Null)
        .refused(&["config.json: `eos_token_id` is missing"]);
}

#[test]
fn tensors_that_do_not_fit() {
    let scales = format!("{QKV}.scales");
    let entry = |name: &str, key: &str, value: Value| {
        let name = name.to_owned();
        let key = key.to_owned();
        Patient::mlx().shard(move |p| p.header[&name][&key] = value)
    };
    entry(&scales, "dtype", json!("F16")).refused(&[&scales, "in model.safetensors is F16, but should be BF16"]);
    entry(&scales, "dtype", json!("Q4")).refused(&[&scales, "the data type `Q4`"]);
    entry(&scales, "shape", json!([512, 4])).refused(&[QKV]);
    let norm = "language_model.model.norm.weight";
    entry(norm, "shape", json!([2, 64])).refused(&[norm, "has the shape [2, 64], but config.json makes it [128]"]);
    entry(norm, "shape", json!([127])).refused(&[norm, "254 bytes by its type BF16 and shape [127]"]);
    entry(norm, "shape", json!([u64::MAX, 2])).refused(&[norm, "impossible shape"]);
    entry(norm, "data_offsets", json!([9, 1])).refused(&[norm, "data_offsets are 9..1"]);
    entry(norm, "data_offsets", json!([0, 256])).refused(&["overlaps"]);
    entry(norm, "data_offsets", json!([u64::MAX - 256, u64::MAX])).refused(&[norm, "impossible offset"]);
    // The layout's sign must agree with the names.
    let conv = "language_model.model.layers.0.linear_attn.conv1d.weight";
    entry(conv, "shape", json!([1024, 1, 4])).refused(&[conv, "[1024, 1, 4]", "MLX layout"]);

    Patient::mlx()
        .shard(|p| p.push("language_model.model.layers.4.extra", "U8", &[3], b"abc"))
        .refused(&["tensor `language_model.model.layers.4.extra` in model.safetensors does not belong to this model"]);
    Patient::mlx()
        .shard(|p| {
            let entry = p.header.remove(norm).unwrap();
            p.header.insert("vision_tower.decoy".into(), entry);
        })
        .refused(&["tensor `language_model.model.norm.weight` is in none of the checkpoint's files"]);
    Patient::mlx()
        .shard(|p| {
            let entry = p.header.remove(norm).unwrap();
            p.header.insert("model.language_model.norm.weight".into(), entry);
        })
        .refused(&["is in neither layout that Lily reads"]);
    Patient::mlx().shard(|p| p.data.extend([0; 5])).refused(&["has 5 bytes after its last tensor"]);
}

#[test]
fn headers_that_are_broken() {
    let with = |bytes: Vec<u8>| {
        let mut patient = Patient::mlx();
        *patient.file("model.safetensors") = bytes;
        patient
    };
    with(u64::MAX.to_le_bytes().to_vec()).refused(&["ask for a header of 18446744073709551615 bytes"]);
    with(b"version https://git-lfs.github.com/spec/v1\noid sha256:00".to_vec()).refused(&["Git LFS pointer"]);
    with([&50_000_000u64.to_le_bytes()[..], b"{}"].concat()).refused(&["49999998 bytes are missing"]);
    with([&4u64.to_le_bytes()[..], b"[1]x"].concat()).refused(&["the header of model.safetensors is not the JSON"]);
    let twice =
        br#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    with([&(twice.len() as u64).to_le_bytes()[..], twice].concat()).refused(&["tensor `a` is listed twice"]);
    let gap = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}"#;
    with([&(gap.len() as u64).to_le_bytes()[..], gap, b"abc"].concat()).refused(&["leaves 2 unused bytes"]);
}

#[test]
fn an_index_that_was_tampered_with() {
    let index = "model.safetensors.index.json";
    let set = |name: &str, file: Value| Patient::mlx().json(index, |i| i["weight_map"][name] = file);
    set("language_model.model.norm.weight", json!("model-2.safetensors")).refused(&["has no model-2.safetensors"]);
    set("language_model.model.norm.weight", json!("../../model.safetensors"))
        .refused(&[index, "which is no safetensors file of this folder"]);
    set("language_model.ghost", json!("model.safetensors"))
        .refused(&["says that `language_model.ghost` is in model.safetensors, which does not hold it"]);
    Patient::mlx()
        .json(index, |i| drop(i["weight_map"].as_object_mut().unwrap().remove("language_model.model.norm.weight")))
        .refused(&["does not list `language_model.model.norm.weight`, which is in model.safetensors"]);
    Patient::mlx().json(index, |i| i["weight_map"] = json!({})).refused(&["lists no tensor"]);
    Patient::mlx().json(index, |i| *i = json!([])).refused(&[index, "not the JSON"]);
}

#[test]
fn the_same_tensor_in_two_files() {
    let mut patient = Patient::mlx().remove("model.safetensors.index.json");
    let copy = patient.file("model.safetensors").clone();
    patient.files.push(("model-extra.safetensors".into(), copy));
    patient.refused(&["is in model-extra.safetensors as well"]);
}

/// Damage at random places (seeded): an error or, where nothing that counts was hit, a checkpoint; never a panic.
#[test]
fn random_damage_never_panics() {
    let mut opened = 0;
    for (fixture, rounds) in [("tiny/mlx-4bit", 600), ("tiny/hf", 200)] {
        let mut patient = Patient::new(fixture);
        let shard = patient.file("model.safetensors").clone();
        let header = 8 + u64::from_le_bytes(shard[..8].try_into().unwrap());
        let random = Stream::new(1, fixture);
        for round in 0..rounds {
            let mut numbers = (round * 100..).map(|i| random.get(i));
            let mut next = |below: u64| numbers.next().unwrap() % below;
            let mut files = patient.files.clone();
            for (name, bytes) in &mut files {
                let (flips, within) = match (name.as_str(), round % 4) {
                    ("model.safetensors", 0 | 1) => (1 + next(3), header),
                    ("model.safetensors", 2) => {
                        let keep = next(bytes.len() as u64) as usize;
                        bytes.truncate(keep);
                        continue;
                    }
                    ("config.json" | "generation_config.json", 3) => (1 + next(2), bytes.len() as u64),
                    _ => continue,
                };
                for _ in 0..flips {
                    bytes[next(within) as usize] ^= 1 << next(8);
                }
            }
            match Checkpoint::from_memory("damaged", in_memory(files)) {
                Ok(c) => {
                    assert_eq!(c.weights().layers.len(), c.shape().layers.len());
                    opened += 1;
                }
                Err(e) => assert!(!e.to_string().is_empty()),
            }
        }
    }
    assert!(opened < 200, "{opened} of 800 damaged checkpoints opened");
}
