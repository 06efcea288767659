//! Opens the small checkpoints of both layouts.

use std::path::{Path, PathBuf};

use lily_checkpoint::{Checkpoint, Layout, Matrix, Mixer};

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(path)
}

#[test]
fn tiny_mlx() {
    let c = Checkpoint::open(&fixture("tiny/mlx-4bit")).unwrap();
    assert_eq!(c.layout(), Layout::Mlx);
    assert_eq!(c.generation().eos, [386, 384]);
    let layer = &c.weights().layers[0];
    assert!(matches!(&layer.moe.router, Matrix::Affine(a) if a.bits == 8 && (a.rows, a.cols) == (8, 128)));
    assert!(matches!(&c.weights().lm_head, Matrix::Affine(a) if a.bits == 4 && (a.rows, a.cols) == (512, 128)));
    assert_eq!(layer.moe.up.0.len(), 8);
}

#[test]
fn tiny_hf() {
    let c = Checkpoint::open(&fixture("tiny/hf")).unwrap();
    assert_eq!(c.layout(), Layout::Hf);
    let Mixer::Linear(mixer) = &c.weights().layers[0].mixer else { panic!("layer 0 is linear") };
    assert_eq!(mixer.conv.len(), 1024 * 4);
    assert!(matches!(&c.weights().layers[0].moe.gate.0[7], Matrix::Bf16 { rows: 64, cols: 128, .. }));
}
