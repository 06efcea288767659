//! Shared by the tests of this crate: where the fixtures are, and a seeded source of randomness.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod output;

use std::path::{Path, PathBuf};

use lily_chat::Tokenizer;
use serde_json::Value;

/// A path in the repository.
pub fn repo(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

pub fn read(path: &str) -> String {
    std::fs::read_to_string(repo(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub fn json(path: &str) -> Value {
    serde_json::from_str(&read(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub fn tokenizer(folder: &Path) -> Tokenizer {
    let vocabulary = std::fs::read(folder.join("tokenizer.json")).unwrap_or_else(|e| panic!("{folder:?}: {e}"));
    let config = std::fs::read(folder.join("tokenizer_config.json")).ok();
    Tokenizer::from_json(&vocabulary, config.as_deref()).unwrap()
}

pub fn demo_tokenizer() -> Tokenizer {
    tokenizer(&repo("demo/4bit"))
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    /// Up to `most` of these joined.
    pub fn join(&mut self, of: &[&str], most: usize) -> String {
        (0..self.below(most + 1)).map(|_| self.pick(of)).collect()
    }
}
