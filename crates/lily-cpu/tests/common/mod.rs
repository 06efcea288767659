//! Reads golden files and checkpoints of the repository.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod demo;

use std::path::PathBuf;

use lily_checkpoint::Checkpoint;
use safetensors::SafeTensors;

/// A path below the repository's root.
pub fn repo(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

pub fn open(path: &str) -> Checkpoint {
    Checkpoint::open(&repo(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Tensors of a golden file.
pub struct Golden(Vec<u8>);

impl Golden {
    pub fn open(path: &str) -> Self {
        Self(std::fs::read(repo(path)).unwrap_or_else(|e| panic!("{path}: {e}")))
    }

    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        tensor.data().chunks_exact(4).map(|b| b.try_into().expect("4 bytes")).collect()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_le_bytes).collect()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name).into_iter().map(u32::from_le_bytes).collect()
    }
}

/// Fails where any two values differ by more than `bound`; prints the largest difference.
pub fn close(what: &str, got: &[f32], want: &[f32], bound: f32) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let worst =
        got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, |a, d| if d > a || d.is_nan() { d } else { a });
    println!("{what}: largest difference {worst:e} (bound {bound:e})");
    assert!(worst <= bound, "{what}: {worst:e} > {bound:e}");
}

/// Index of the largest value, the first of equals.
pub fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = i;
        }
    }
    best as u32
}
