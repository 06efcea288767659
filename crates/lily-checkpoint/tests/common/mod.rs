//! Shared by the integration tests: fixtures, their golden tensors, and checkpoints changed in memory.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

use lily_checkpoint::Bytes;
use serde_json::{Map, Value, json};

pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(path)
}

/// A safetensors file taken apart: header and data, to be changed and put together again.
pub struct Parts {
    pub header: Map<String, Value>,
    pub data: Vec<u8>,
}

impl Parts {
    pub fn of(file: &[u8]) -> Self {
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        Self { header: serde_json::from_slice(&file[8..8 + length]).unwrap(), data: file[8 + length..].to_vec() }
    }

    pub fn read(path: &Path) -> Self {
        Self::of(&std::fs::read(path).unwrap())
    }

    pub fn join(&self) -> Vec<u8> {
        let json = serde_json::to_vec(&self.header).unwrap();
        [&(json.len() as u64).to_le_bytes()[..], &json, &self.data].concat()
    }

    pub fn bytes(&self, name: &str) -> &[u8] {
        let offset = |i: usize| self.header[name]["data_offsets"][i].as_u64().unwrap() as usize;
        &self.data[offset(0)..offset(1)]
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        assert_eq!(self.header[name]["dtype"], "F32", "{name}");
        self.bytes(name).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// Add a tensor at the end.
    pub fn push(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) {
        let at = self.data.len();
        self.data.extend_from_slice(bytes);
        self.header.insert(name.into(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, self.data.len()]}));
    }
}

/// All files of a folder, in memory.
pub fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

pub fn in_memory(files: Vec<(String, Vec<u8>)>) -> Vec<(String, Bytes)> {
    files.into_iter().map(|(name, bytes)| (name, Bytes::new(bytes))).collect()
}
