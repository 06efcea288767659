//! The full model's files, sparse on disk: every header, offset and length is that of the real checkpoints, the bytes
//! are holes. Shows that opening touches almost nothing of them and that offsets are 64 bits wide.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use common::fixture;
use lily_checkpoint::{Affine, Checkpoint, Layout, Matrix, Part};
use lily_model::Shape;
use serde_json::{Map, Value, json};

/// Write the tensors of a list in tests/fixtures/official as `count` shards with an index.
fn write_sparse(dir: &Path, list: &str, count: usize) {
    let tsv = fs::read_to_string(fixture("official").join(list)).unwrap();
    let rows: Vec<Vec<&str>> = tsv.lines().map(|line| line.split('\t').collect()).collect();
    let mut index = Map::new();
    for (i, rows) in rows.chunks(rows.len().div_ceil(count)).enumerate() {
        let name = format!("model-{:05}-of-{count:05}.safetensors", i + 1);
        let (mut header, mut at) = (Map::new(), 0u64);
        for row in rows {
            let shape: Vec<u64> = row[2].split('x').map(|d| d.parse().unwrap()).collect();
            let end = at + row[3].parse::<u64>().unwrap();
            header.insert(row[0].into(), json!({"dtype": row[1], "shape": shape, "data_offsets": [at, end]}));
            index.insert(row[0].into(), name.clone().into());
            at = end;
        }
        let header = Value::Object(header).to_string();
        let mut file = File::create(dir.join(name)).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file.set_len(8 + header.len() as u64 + at).unwrap();
    }
    fs::write(dir.join("model.safetensors.index.json"), json!({"weight_map": index}).to_string()).unwrap();
    fs::copy(fixture("official/generation_config.json"), dir.join("generation_config.json")).unwrap();
}

#[test]
fn the_4_bit_conversion() {
    let dir = tempfile::tempdir().unwrap();
    write_sparse(dir.path(), "tensors_mlx4.tsv", 4);
    let mut config: Value = serde_json::from_slice(&fs::read(fixture("official/config.json")).unwrap()).unwrap();
    config["quantization"] = json!({"group_size": 64, "bits": 4, "mode": "affine"});
    for layer in 0..40 {
        for gate in ["gate", "shared_expert_gate"] {
            let module = format!("language_model.model.layers.{layer}.mlp.{gate}");
            config["quantization"][module] = json!({"group_size": 64, "bits": 8});
        }
    }
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();

    let c = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(c.shape(), &Shape::qwen3_6_35b_a3b());
    assert_eq!(c.generation().eos, [248_046, 248_044]);
    let report = c.report();
    assert_eq!((report.tensors(), report.bytes()), (1757, 19_508_787_456));
    assert_eq!(report.parameters(), 34_660_610_688);
    assert_eq!(report.parts[&Part::RoutedExperts].bytes, 18_119_393_280);
    assert_eq!((report.precisions[&8].count, report.precisions[&4].count), (80, 2 + 40 * 6 + 30 * 5 + 10 * 4));
    let page = report.to_string();
    for says in ["19.51 GB in 1757 tensors, 4.503 bits a parameter", "20,480 bytes a token", "64.4 MB a sequence"] {
        assert!(page.contains(says), "{says:?} is not in:\n{page}");
    }
    let moe = &c.weights().layers[39].moe;
    assert!(matches!(moe.down.expert(255), Matrix::Affine(Affine { rows: 2048, cols: 512, bits: 4, .. })));
    assert_eq!([&moe.gate, &moe.up, &moe.down].map(|s| s.expert(255).bytes()).iter().sum::<u64>(), 1_769_472);
}

#[test]
fn the_official_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    write_sparse(dir.path(), "tensors_hf.tsv", 26);
    fs::copy(fixture("official/config.json"), dir.path().join("config.json")).unwrap();
    let c = Checkpoint::open(dir.path()).unwrap();
    assert_eq!((c.layout(), c.shape()), (Layout::Hf, &Shape::qwen3_6_35b_a3b()));
    let report = c.report();
    assert_eq!((report.tensors(), report.bytes()), (693, 2 * 34_660_610_688));
    assert_eq!((report.vision.count, report.mtp.count), (333, 19));
    assert_eq!((report.vision.bytes, report.mtp.bytes), (893_142_496, 1_689_281_536));
    // Holes read as zero: w = 0 is a multiplier of 1.
    assert_eq!(c.weights().norm, [1.0; 2048]);
    assert!(matches!(c.weights().layers[0].moe.up.expert(255), Matrix::Bf16 { rows: 512, cols: 2048, .. }));
}
