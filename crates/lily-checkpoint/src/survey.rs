//! Looks at every file of a checkpoint and collects all that is wrong, before anything is used. Opening fails with the
//! first problem; `inspect` shows all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Deserialize;

use crate::header::{Dtype, Header};
use crate::plan::{Layout, Skipped, Slot, skipped};
use crate::source::{Source, is_plain_name};
use crate::{Bytes, CheckpointError, Config, GenerationDefaults};

pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// A tensor as it lies in a shard.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub file: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Where it begins in the file.
    pub start: usize,
    /// Length in bytes by type and shape.
    pub len: usize,
    /// `None` where the shard ends before it does.
    pub bytes: Option<Bytes>,
}

/// A slot of the plan with the bits that its tensors have.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub slot: Slot,
    /// `None`: not quantised.
    pub bits: Option<usize>,
}

/// Everything known about a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub config: Option<Config>,
    pub generation: Option<GenerationDefaults>,
    pub layout: Option<Layout>,
    /// Shards that are or should be there, with their length where they are.
    pub shards: Vec<(String, Option<u64>)>,
    /// The text model's tensors.
    pub tensors: HashMap<String, Stored>,
    /// Tensors and bytes skipped.
    pub vision: (usize, u64),
    pub mtp: (usize, u64),
    pub plan: Vec<Planned>,
    pub problems: Vec<CheckpointError>,
}

impl Survey {
    pub fn of(source: &Source) -> Self {
        let mut survey = Survey::default();
        if !source.exists() {
            survey.problems.push(CheckpointError::NoFolder { path: source.place() });
            return survey;
        }
        survey.read_configs(source);
        survey.read_shards(source);
        survey.check_plan();
        survey
    }

    fn note<T>(&mut self, result: Result<T, CheckpointError>) -> Option<T> {
        result.map_err(|e| self.problems.push(e)).ok()
    }

    fn read_configs(&mut self, source: &Source) {
        let config = source.read("config.json").and_then(|bytes| match bytes {
            Some(bytes) => Config::from_json(&bytes),
            None => Err(CheckpointError::MissingFile {
                place: source.place(),
                file: "config.json".into(),
                hint: "a checkpoint is a folder with config.json, tokenizer.json and model*.safetensors".into(),
            }),
        });
        self.config = self.note(config);
        let Some(config) = self.config.clone() else { return };
        let generation = source
            .read("generation_config.json")
            .and_then(|bytes| GenerationDefaults::from_json(bytes.as_deref(), &config));
        self.generation = self.note(generation);
    }

    fn read_shards(&mut self, source: &Source) {
        let index = source.read(INDEX).and_then(|bytes| bytes.map(|b| read_index(&b)).transpose());
        let index = self.note(index).flatten();
        let names = match &index {
            Some(index) => index.values().cloned().collect::<BTreeSet<_>>().into_iter().collect(),
            None => {
                let list = source.list();
                let mut names = self.note(list).unwrap_or_default();
                names.retain(|n| n.starts_with("model") && n.ends_with(".safetensors"));
                if names.is_empty() && self.problems.is_empty() {
                    self.problems.push(CheckpointError::MissingFile {
                        place: source.place(),
                        file: "model*.safetensors".into(),
                        hint: "the weights are missing; download them into this folder".into(),
                    });
                }
                names
            }
        };
        for name in &names {
            self.read_shard(source, name, index.as_ref());
        }
        if let Some(index) = &index {
            self.check_index(index);
        }
    }

    fn read_shard(&mut self, source: &Source, file: &str, index: Option<&BTreeMap<String, String>>) {
        self.shards.push((file.into(), source.len(file)));
        let mapped = source.map(file).and_then(|bytes| {
            bytes.ok_or_else(|| CheckpointError::MissingFile {
                place: source.place(),
                file: file.into(),
                hint: format!(
                    "{} names it; download it into this folder",
                    if index.is_some() { INDEX } else { "the folder" }
                ),
            })
        });
        let Some(bytes) = self.note(mapped) else { return };
        let header = Header::parse(file, &bytes);
        let Some(header) = self.note(header) else { return };
        if bytes.len() < header.file_len {
            self.problems.push(CheckpointError::Truncated {
                file: file.into(),
                expected: header.file_len as u64,
                actual: bytes.len() as u64,
                missing: (header.file_len - bytes.len()) as u64,
            });
        } else if bytes.len() > header.file_len {
            self.problems.push(CheckpointError::Header {
                file: file.into(),
                problem: format!(
                    "has {} bytes after its last tensor; the file is damaged, download it again",
                    bytes.len() - header.file_len
                ),
            });
        }
        for t in header.tensors {
            let len = t.range.len();
            if index.is_some_and(|index| !index.contains_key(&t.name)) {
                self.problems.push(CheckpointError::Index {
                    problem: format!("does not list `{}`, which is in {file}", t.name),
                });
            }
            let skips = match skipped(&t.name) {
                Some(Skipped::Vision) => &mut self.vision,
                Some(Skipped::Mtp) => &mut self.mtp,
                None => {
                    let bytes = (t.range.end <= bytes.len()).then(|| bytes.slice(t.range.clone()));
                    let stored =
                        Stored { file: file.into(), dtype: t.dtype, shape: t.shape, start: t.range.start, len, bytes };
                    if let Some(other) = self.tensors.insert(t.name.clone(), stored) {
                        self.problems.push(CheckpointError::Tensor {
                            problem: format!("is in {} as well", other.file),
                            tensor: t.name,
                            file: file.into(),
                        });
                    }
                    continue;
                }
            };
            skips.0 += 1;
            skips.1 += len as u64;
        }
    }

    /// Every listed tensor must be where the index says; tensors of absent shards were reported with the shard.
    fn check_index(&mut self, index: &BTreeMap<String, String>) {
        let present: BTreeSet<&str> = self.shards.iter().filter(|(_, len)| len.is_some()).map(|(n, _)| &**n).collect();
        for (name, file) in index {
            if skipped(name).is_some() || !present.contains(file.as_str()) {
                continue;
            }
            let problem = match self.tensors.get(name) {
                None => format!("says that `{name}` is in {file}, which does not hold it"),
                Some(t) if t.file != *file => format!("says that `{name}` is in {file}, but it is in {}", t.file),
                Some(_) => continue,
            };
            self.problems.push(CheckpointError::Index { problem });
        }
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn read_index(bytes: &[u8]) -> Result<BTreeMap<String, String>, CheckpointError> {
    let index: Index = serde_json::from_slice(bytes)
        .map_err(|e| CheckpointError::Json { file: INDEX.into(), problem: e.to_string() })?;
    let bad = index.weight_map.iter().find(|(_, file)| !is_plain_name(file) || !file.ends_with(".safetensors"));
    match bad {
        Some((name, file)) => Err(CheckpointError::Index {
            problem: format!("says that `{name}` is in {file:?}, which is no safetensors file of this folder"),
        }),
        None if index.weight_map.is_empty() => Err(CheckpointError::Index { problem: "lists no tensor".into() }),
        None => Ok(index.weight_map),
    }
}
