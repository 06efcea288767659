//! An opened checkpoint.

use std::path::Path;

use lily_model::Shape;

use crate::assemble::Assembler;
use crate::fingerprint::fingerprint;
use crate::source::{Source, is_plain_name};
use crate::survey::{Stored, Survey};
use crate::{Bytes, CheckpointError, Config, GenerationDefaults, Inspection, Layout, Weights};

/// A checkpoint whose files were all checked: names, shapes, types, offsets and lengths.
#[derive(Debug)]
pub struct Checkpoint {
    source: Source,
    config: Config,
    generation: GenerationDefaults,
    layout: Layout,
    weights: Weights,
    inspection: Inspection,
    /// Every text tensor with its name, type and shape, in the order of files and bytes.
    tensors: Vec<(String, Bytes)>,
    /// Shards.
    shards: Vec<String>,
}

impl Checkpoint {
    /// Open a folder with config.json and `model*.safetensors`, in the MLX or the Hugging Face layout.
    ///
    /// Shards are memory-mapped and must not be changed while the checkpoint is in use. Fails with the first problem;
    /// [`inspect`](crate::inspect) lists all of them.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        Self::from_source(Source::Folder(dir.to_path_buf()))
    }

    /// Open a checkpoint embedded in the binary: pairs of file name and bytes.
    pub fn from_embedded(name: &str, files: &'static [(&'static str, &'static [u8])]) -> Result<Self, CheckpointError> {
        Self::from_memory(name, files.iter().map(|&(file, bytes)| (file.to_owned(), Bytes::new(bytes))).collect())
    }

    /// Open a checkpoint whose files are in memory.
    pub fn from_memory(name: &str, files: Vec<(String, Bytes)>) -> Result<Self, CheckpointError> {
        Self::from_source(Source::Memory { name: name.into(), files })
    }

    fn from_source(source: Source) -> Result<Self, CheckpointError> {
        let mut survey = Survey::of(&source);
        if !survey.problems.is_empty() {
            return Err(survey.problems.swap_remove(0));
        }
        let inspection = Inspection::new(&source, &survey);
        let Survey { config, generation, layout, tensors, plan, shards, .. } = survey;
        let (Some(config), Some(generation), Some(layout)) = (config, generation, layout) else {
            return Err(CheckpointError::MissingFile {
                place: source.place(),
                file: "text tensors".into(),
                hint: "its safetensors files hold nothing of the text model".into(),
            });
        };
        let weights = Assembler::new(&config.shape, layout, &tensors, &plan).weights();
        let mut tensors: Vec<_> = tensors.into_iter().collect();
        tensors.sort_by(|(_, a), (_, b)| (&a.file, a.start).cmp(&(&b.file, b.start)));
        let describe = |(name, t): (String, Stored)| Some((format!("{name} {:?} {:?}", t.dtype, t.shape), t.bytes?));
        let tensors = tensors.into_iter().filter_map(describe).collect();
        let shards = shards.into_iter().map(|(name, _)| name).collect();
        Ok(Self { source, config, generation, layout, weights, inspection, tensors, shards })
    }

    /// Dimensions.
    pub fn shape(&self) -> &Shape {
        &self.config.shape
    }

    /// All weights of the text model, as views.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// config.json, typed.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Stop ids and sampling defaults.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
    }

    /// How the tensors were stored.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Folder name, `owner/name` for a snapshot in the Hugging Face cache, or the name of an embedded checkpoint.
    pub fn name(&self) -> String {
        self.source.name()
    }

    /// The folder; `None` where the checkpoint is in memory.
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Folder(dir) => Some(dir),
            Source::Memory { .. } => None,
        }
    }

    /// Another file of the checkpoint (tokenizer.json, chat_template.jinja, …), copied into memory. `None` where it is
    /// absent, cannot be read, or where `name` is more than a file name.
    pub fn file(&self, name: &str) -> Option<Bytes> {
        is_plain_name(name).then(|| self.source.read(name).ok().flatten()).flatten()
    }

    /// Read every weight once, so that the first request does not wait for the disk. `progress` is told bytes read and
    /// bytes in total, about every 16 MB, and stops the reading by returning `false`.
    ///
    /// Nothing is kept: the system holds the pages while it has memory for them, so this helps only where the weights
    /// fit.
    pub fn read_through(&self, progress: &mut dyn FnMut(u64, u64) -> bool) {
        const STEP: usize = 16 << 20;
        const PAGE: usize = 4096;
        let total = self.inspection.bytes();
        let mut done = 0;
        for (_, tensor) in &self.tensors {
            for part in tensor.chunks(STEP) {
                std::hint::black_box(part.iter().step_by(PAGE).fold(0u8, |sum, &b| sum.wrapping_add(b)));
                done += part.len() as u64;
                // Small tensors would make far more reports than anyone can see.
                if (part.len() == STEP || done == total) && !progress(done, total) {
                    return;
                }
            }
        }
    }

    /// What tells this checkpoint from others: a SHA-256 in hexadecimal digits over config.json's numbers, the names, types
    /// and shapes of the tensors, and their bytes: all of them up to 64 MiB, else 64 KiB of each tensor and the times of the
    /// files. Reads what it hashes: 20 GB on a cold disk take seconds.
    pub fn fingerprint(&self) -> String {
        let config = format!("{:?} {:?}", self.config, self.layout);
        fingerprint(&config, &self.tensors, self.path(), &self.shards)
    }

    /// Sizes by part, files and costs, for people.
    pub fn report(&self) -> &Inspection {
        &self.inspection
    }
}
