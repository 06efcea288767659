//! `--cache-dir`: where states are kept beyond the life of the process, and what tells whose they are.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use lily_checkpoint::Checkpoint;
use lily_engine::{DiskOptions, PrefixOptions};
use sha2::{Digest, Sha256};

use crate::cli::PrefixArgs;
use crate::term::Progress;

/// What is kept of earlier prompts and answers.
#[derive(Default)]
pub struct Keep {
    /// Bytes in memory, where somebody said.
    pub cache: Option<u64>,
    exact: bool,
    /// On disk.
    dir: Option<(PathBuf, u64)>,
}

impl Keep {
    /// Nothing.
    pub fn nothing() -> Self {
        Self { cache: Some(0), ..Self::default() }
    }

    /// What was typed, checked before anything is loaded. A directory that cannot be written is found out later and does not
    /// keep the server from serving.
    pub fn of(args: &PrefixArgs) -> Result<Self> {
        let keep = Self { cache: args.cache_bytes, exact: args.exact_prefix, dir: None };
        let Some(dir) = args.cache_dir.clone() else { return Ok(keep) };
        let bytes = args.cache_dir_bytes;
        if keep.cache == Some(0) {
            bail!("--cache-dir keeps what is kept in memory, and --cache-bytes 0 keeps nothing there");
        }
        if bytes == 0 {
            bail!("--cache-dir-bytes 0 leaves no room in --cache-dir; leave both out to keep nothing on disk");
        }
        if dir.exists() && !dir.is_dir() {
            bail!("--cache-dir {} is no directory", dir.display());
        }
        Ok(Self { dir: Some((dir, bytes)), ..keep })
    }

    /// In memory, with `bytes`.
    pub fn prefix(&self, bytes: u64) -> PrefixOptions {
        PrefixOptions { bytes, exact: self.exact }
    }

    /// The directory, with what tells states of `checkpoint` and of this build from others.
    pub fn disk(self, checkpoint: &Checkpoint) -> Result<Option<DiskOptions>> {
        let Some((dir, bytes)) = self.dir else { return Ok(None) };
        let _progress = Progress::start("hashing the weights for --cache-dir");
        let identity = format!("checkpoint {}\nbuild {}", checkpoint.fingerprint(), build()?);
        Ok(Some(DiskOptions { dir, bytes, identity }))
    }
}

/// SHA-256 of this program's file: another build may compute other bits, and no version number that somebody has to raise says
/// so reliably.
fn build() -> Result<String> {
    let hash = || -> std::io::Result<String> {
        let mut file = File::open(std::env::current_exe()?)?;
        let (mut hash, mut piece) = (Sha256::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut piece)? {
                0 => break,
                n => hash.update(&piece[..n]),
            }
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    };
    hash().context("--cache-dir needs to know which build this is, and the program cannot read its own file")
}
