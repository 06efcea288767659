//! Opens the small checkpoints: both layouts, whole, in shards and in memory, and their permitted variations.

mod common;

use std::path::Path;

use common::{Parts, files, fixture, in_memory};
use lily_checkpoint::{Bytes, Checkpoint, Layout, Matrix, Mixer, inspect, quant};
use serde_json::{Map, Value, json};

fn dense(m: &Matrix) -> Vec<f32> {
    let mut out = vec![0.0; m.rows() * m.cols()];
    for (r, row) in out.chunks_exact_mut(m.cols()).enumerate() {
        m.row_f32(r, row);
    }
    out
}

fn bf16(bytes: &[u8]) -> Vec<f32> {
    let wide = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
    bytes.chunks_exact(2).map(wide).collect()
}

/// Every value of two checkpoints; `Debug` would show only lengths.
fn same(a: &Checkpoint, b: &Checkpoint) {
    assert_eq!(a.shape(), b.shape());
    let values = |c: &Checkpoint| {
        let w = c.weights();
        let mut all = vec![dense(&w.embed), dense(&w.lm_head), w.norm.clone()];
        for layer in &w.layers {
            all.extend([layer.input_norm.clone(), layer.post_norm.clone()]);
            match &layer.mixer {
                Mixer::Linear(m) => {
                    all.extend([&m.in_qkv, &m.in_z, &m.in_a, &m.in_b, &m.out].map(dense));
                    all.extend([&m.conv, &m.a_log, &m.dt_bias, &m.norm].map(Clone::clone));
                }
                Mixer::Full(m) => {
                    all.extend([&m.q, &m.k, &m.v, &m.o].map(dense));
                    all.extend([&m.q_norm, &m.k_norm].map(Clone::clone));
                }
            }
            let moe = &layer.moe;
            let single = [&moe.router, &moe.shared_gate, &moe.shared_up, &moe.shared_down, &moe.shared_expert_gate];
            all.extend(single.map(dense));
            all.extend([&moe.gate, &moe.up, &moe.down].into_iter().flat_map(|s| &s.0).map(dense));
        }
        all
    };
    assert!(values(a) == values(b), "the weights differ");
}

#[test]
fn tiny_mlx() {
    let dir = fixture("tiny/mlx-4bit");
    let c = Checkpoint::open(&dir).unwrap();
    assert_eq!((c.layout(), c.name().as_str(), c.path()), (Layout::Mlx, "mlx-4bit", Some(dir.as_path())));
    let g = c.generation();
    assert_eq!(g.eos, [386, 384]);
    assert_eq!((g.do_sample, g.temperature, g.top_k, g.top_p, g.min_p), (true, 1.0, 20, 0.95, 0.0));

    let file = Parts::read(&dir.join("model.safetensors"));
    let name = |n: &str| format!("language_model.model.layers.1.{n}");
    let layer = &c.weights().layers[1];
    assert!(matches!(&layer.moe.router, Matrix::Affine(a) if a.bits == 8 && (a.rows, a.cols) == (8, 128)));
    let Matrix::Affine(up) = layer.moe.up.expert(3) else { panic!("experts are quantised") };
    assert_eq!((up.rows, up.cols, up.bits), (64, 128, 4));
    assert_eq!(*up.codes, file.bytes(&name("mlp.switch_mlp.up_proj.weight"))[3 * 64 * 64..4 * 64 * 64]);
    assert_eq!(*up.scales, file.bytes(&name("mlp.switch_mlp.up_proj.scales"))[3 * 256..4 * 256]);
    // Ready for use: what is stored is the multiplier.
    assert_eq!(layer.input_norm, bf16(file.bytes(&name("input_layernorm.weight"))));
    assert_eq!(c.file("tokenizer.json").unwrap().first(), Some(&b'{'));
    assert!(c.file("chat_template.jinja").is_none() && c.file("../hf/config.json").is_none());
}

#[test]
fn tiny_hf() {
    let dir = fixture("tiny/hf");
    let c = Checkpoint::open(&dir).unwrap();
    assert_eq!(c.layout(), Layout::Hf);
    let file = Parts::read(&dir.join("model.safetensors"));
    let name = |n: &str| format!("model.language_model.layers.0.{n}");
    let layer = &c.weights().layers[0];
    let plus_one = |n: &str| bf16(file.bytes(&name(n))).iter().map(|w| 1.0 + w).collect::<Vec<_>>();
    assert_eq!(layer.input_norm, plus_one("input_layernorm.weight"));
    assert_eq!(layer.post_norm, plus_one("post_attention_layernorm.weight"));
    let Mixer::Linear(mixer) = &layer.mixer else { panic!("layer 0 is linear") };
    assert_eq!(mixer.norm, bf16(file.bytes(&name("linear_attn.norm.weight"))));
    assert_eq!(mixer.conv, bf16(file.bytes(&name("linear_attn.conv1d.weight"))));
    // gate_up is [8 × 128 × 128]: 64 rows of gate, then 64 of up.
    let fused = bf16(file.bytes(&name("mlp.experts.gate_up_proj")));
    let at = |e: usize, row: usize| (e * 128 + row) * 128;
    assert_eq!(dense(layer.moe.gate.expert(5)), fused[at(5, 0)..at(5, 64)]);
    assert_eq!(dense(layer.moe.up.expert(5)), fused[at(5, 64)..at(6, 0)]);
    let report = c.report();
    assert_eq!((report.tensors(), report.vision.count, report.mtp.count), (72, 3, 19));
}

#[test]
fn memory_and_folder_take_the_same_way() {
    let dir = fixture("tiny/mlx-4bit");
    let folder = Checkpoint::open(&dir).unwrap();
    let embedded: Vec<(&'static str, &'static [u8])> =
        files(&dir).into_iter().map(|(n, b)| (&*n.leak(), &*b.leak())).collect();
    let memory = Checkpoint::from_embedded("tiny", embedded.leak()).unwrap();
    assert_eq!((memory.name().as_str(), memory.path()), ("tiny", None));
    same(&folder, &memory);
    assert_eq!(folder.file("tokenizer.json").as_deref(), memory.file("tokenizer.json").as_deref());

    // At an odd address as well: no alignment is asked for.
    let shifted = files(&dir).into_iter().map(|(name, bytes)| {
        let padded = Bytes::new([vec![0; 3], bytes].concat());
        (name, padded.slice(3..padded.len()))
    });
    same(&folder, &Checkpoint::from_memory("shifted", shifted.collect()).unwrap());
}

/// Cut the single file of tiny/hf into three shards.
fn write_shards(dir: &Path, index: bool) {
    let whole = Parts::read(&fixture("tiny/hf/model.safetensors"));
    let mut shards: Vec<Parts> = (0..3).map(|_| Parts { header: Map::new(), data: Vec::new() }).collect();
    let mut map = Map::new();
    for (i, (name, entry)) in whole.header.iter().filter(|(n, _)| *n != "__metadata__").enumerate() {
        let shape: Vec<usize> = serde_json::from_value(entry["shape"].clone()).unwrap();
        shards[i % 3].push(name, entry["dtype"].as_str().unwrap(), &shape, whole.bytes(name));
        map.insert(name.clone(), format!("model-0000{}-of-00003.safetensors", i % 3 + 1).into());
    }
    for (i, shard) in shards.iter().enumerate() {
        std::fs::write(dir.join(format!("model-0000{}-of-00003.safetensors", i + 1)), shard.join()).unwrap();
    }
    if index {
        std::fs::write(dir.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    }
    std::fs::copy(fixture("tiny/hf/config.json"), dir.join("config.json")).unwrap();
}

#[test]
fn shards_with_and_without_an_index() {
    let whole = Checkpoint::open(&fixture("tiny/hf")).unwrap();
    for index in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        write_shards(dir.path(), index);
        let sharded = Checkpoint::open(dir.path()).unwrap();
        same(&whole, &sharded);
        // Without generation_config.json: config.json's stop id and the official sampling values.
        assert_eq!(sharded.generation().eos, [384]);
        assert_eq!((sharded.generation().top_k, sharded.generation().top_p), (20, 0.95));

        std::fs::remove_file(dir.path().join("model-00002-of-00003.safetensors")).unwrap();
        let message = Checkpoint::open(dir.path()).unwrap_err().to_string();
        if index {
            assert!(message.contains("has no model-00002-of-00003.safetensors"), "{message}");
            let report = inspect(dir.path());
            assert_eq!(report.problems.len(), 1, "a missing shard is one problem, not one a tensor");
            assert_eq!(report.layout, Some(Layout::Hf));
            assert!(report.bytes() > 1_000_000 && report.missing().any(|f| f.name.starts_with("model-00002")));
        } else {
            assert!(message.contains("is in none of the checkpoint's files"), "{message}");
        }
    }
}

#[test]
fn small_vectors_may_be_f32_and_modules_unquantised() {
    let dir = fixture("tiny/mlx-4bit");
    let original = Checkpoint::open(&dir).unwrap();
    let whole = Parts::read(&dir.join("model.safetensors"));
    let module = "language_model.model.layers.2.mlp.gate";
    let Matrix::Affine(router) = &original.weights().layers[2].moe.router else { panic!("the router is quantised") };
    let router = quant::dequantize(router);

    let mut parts = Parts { header: Map::new(), data: Vec::new() };
    for (name, entry) in whole.header.iter().filter(|(n, _)| *n != "__metadata__") {
        let shape: Vec<usize> = serde_json::from_value(entry["shape"].clone()).unwrap();
        let bytes = whole.bytes(name);
        if name.ends_with("A_log") || name.ends_with("dt_bias") || name.ends_with("input_layernorm.weight") {
            let wide: Vec<u8> = bf16(bytes).iter().flat_map(|v| v.to_le_bytes()).collect();
            parts.push(name, "F32", &shape, &wide);
        } else if name == &format!("{module}.weight") {
            let narrow: Vec<u8> =
                router.iter().flat_map(|&v| lily_checkpoint::synthetic::bf16_bits(v).to_le_bytes()).collect();
            parts.push(name, "BF16", &[8, 128], &narrow);
        } else if !name.starts_with(module) {
            parts.push(name, entry["dtype"].as_str().unwrap(), &shape, bytes);
        }
    }
    let mut config: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let open = |config: &Value| {
        let files = vec![
            ("config.json".to_owned(), config.to_string().into_bytes()),
            ("model.safetensors".to_owned(), parts.join()),
        ];
        Checkpoint::from_memory("changed", in_memory(files))
    };
    // The table still says 8 bits.
    let message = open(&config).unwrap_err().to_string();
    assert!(
        message.contains(&format!("`{module}.weight`")) && message.contains("is BF16, but should be U32"),
        "{message}"
    );
    config["quantization"][module] = json!(false);
    let changed = open(&config).unwrap();
    let layer = &changed.weights().layers[2];
    assert!(matches!(layer.moe.router, Matrix::Bf16 { rows: 8, cols: 128, .. }));
    assert_eq!(layer.input_norm, original.weights().layers[2].input_norm);
    let (Mixer::Linear(a), Mixer::Linear(b)) = (&layer.mixer, &original.weights().layers[2].mixer) else { panic!() };
    assert_eq!((&a.a_log, &a.dt_bias), (&b.a_log, &b.dt_bias));
    // Without an entry of its own a module without scales is not quantised either.
    config["quantization"].as_object_mut().unwrap().remove(module);
    assert!(open(&config).is_ok());
}

#[test]
fn the_demo_checkpoint() {
    let c = Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/4bit")).unwrap();
    assert_eq!(c.generation().eos, [8185, 8183]);
    assert_eq!((c.shape().vocab, c.shape().layers.len()), (8192, 8));
    assert_eq!(c.report().parameters(), 23_834_672);
    let text = c.report().to_string();
    assert!(text.contains("23,834,672") && text.ends_with("can be served.\n"), "{text}");
}

#[test]
fn reading_through_reports_to_the_end() {
    let c = Checkpoint::open(&fixture("tiny/hf")).unwrap();
    let total = c.report().bytes();
    let mut reports = Vec::new();
    c.read_through(&mut |done, all| {
        reports.push((done, all));
        true
    });
    assert_eq!(reports, [(total, total)]);
}

#[test]
fn a_snapshot_in_the_cache_is_named_after_its_repository() {
    let cache = tempfile::tempdir().unwrap();
    let dir = cache.path().join("models--owner--tiny-model/snapshots/abc");
    std::fs::create_dir_all(&dir).unwrap();
    for (name, bytes) in files(&fixture("tiny/mlx-4bit")) {
        std::fs::write(dir.join(name), bytes).unwrap();
    }
    assert_eq!(Checkpoint::open(&dir).unwrap().name(), "owner/tiny-model");
}

#[test]
fn experts_are_one_matrix_where_they_lie_one_after_another() {
    for (dir, stacked) in [("tiny/mlx-4bit", [true, true, true]), ("tiny/hf", [false, false, true])] {
        let checkpoint = Checkpoint::open(&fixture(dir)).unwrap();
        let moe = &checkpoint.weights().layers[1].moe;
        for (experts, whole) in [&moe.gate, &moe.up, &moe.down].into_iter().zip(stacked) {
            let all = experts.stacked();
            assert_eq!(all.is_some(), whole, "{dir}");
            if let Some(all) = all {
                assert!(dense(&all) == experts.0.iter().flat_map(dense).collect::<Vec<_>>(), "{dir}");
            }
        }
    }
}
