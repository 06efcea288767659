//! Where the files of a checkpoint come from: a folder, or memory (bytes embedded in the binary, tests). Everything
//! above reads through this one type, so the embedded demo and a folder take the same path.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{Bytes, CheckpointError};

#[derive(Clone, Debug)]
pub(crate) enum Source {
    Folder(PathBuf),
    Memory { name: String, files: Vec<(String, Bytes)> },
}

impl Source {
    /// The files' home, for error messages.
    pub fn place(&self) -> String {
        match self {
            Source::Folder(dir) => dir.display().to_string(),
            Source::Memory { name, .. } => format!("the built-in checkpoint `{name}`"),
        }
    }

    /// What people call the checkpoint: a folder's name, `owner/name` for a snapshot in the Hugging Face cache.
    pub fn name(&self) -> String {
        let dir = match self {
            Source::Memory { name, .. } => return name.clone(),
            Source::Folder(dir) => dir.canonicalize().unwrap_or_else(|_| dir.clone()),
        };
        let last = |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned());
        if let Some(snapshots) = dir.parent()
            && last(snapshots).as_deref() == Some("snapshots")
            && let Some(repo) = snapshots.parent().and_then(last)
            && let Some(repo) = repo.strip_prefix("models--")
        {
            return repo.replacen("--", "/", 1);
        }
        last(&dir).unwrap_or_else(|| dir.display().to_string())
    }

    /// Whether there is anything to look into.
    pub fn exists(&self) -> bool {
        match self {
            Source::Folder(dir) => dir.is_dir(),
            Source::Memory { .. } => true,
        }
    }

    /// Names of all files, sorted.
    pub fn list(&self) -> Result<Vec<String>, CheckpointError> {
        let mut names = match self {
            Source::Memory { files, .. } => files.iter().map(|(name, _)| name.clone()).collect(),
            Source::Folder(dir) => {
                let io = |source| CheckpointError::Io { path: dir.display().to_string(), source };
                let mut names = Vec::new();
                for entry in std::fs::read_dir(dir).map_err(io)? {
                    names.push(entry.map_err(io)?.file_name().to_string_lossy().into_owned());
                }
                names
            }
        };
        names.sort();
        Ok(names)
    }

    /// A small file, copied; `None` where it is not there.
    pub fn read(&self, file: &str) -> Result<Option<Bytes>, CheckpointError> {
        match self {
            Source::Memory { .. } => Ok(self.in_memory(file)),
            Source::Folder(dir) => match std::fs::read(dir.join(file)) {
                Ok(bytes) => Ok(Some(Bytes::new(bytes))),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
                Err(source) => Err(CheckpointError::Io { path: dir.join(file).display().to_string(), source }),
            },
        }
    }

    /// Bytes of a file; `None` where it is not there (or is a link to nowhere).
    pub fn len(&self, file: &str) -> Option<u64> {
        match self {
            Source::Memory { .. } => self.in_memory(file).map(|b| b.len() as u64),
            Source::Folder(dir) => std::fs::metadata(dir.join(file)).ok().filter(|m| m.is_file()).map(|m| m.len()),
        }
    }

    /// A shard, memory-mapped; `None` where it is not there.
    pub fn map(&self, file: &str) -> Result<Option<Bytes>, CheckpointError> {
        let dir = match self {
            Source::Memory { .. } => return Ok(self.in_memory(file)),
            Source::Folder(dir) => dir,
        };
        let path = dir.join(file);
        let io = |source| CheckpointError::Io { path: path.display().to_string(), source };
        let handle = match File::open(&path) {
            Ok(handle) => handle,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io(e)),
        };
        // SAFETY: the map is read-only and only ever seen as bytes, for which every bit pattern is valid. What
        // cannot be ruled out is another process that changes or cuts the file while it is mapped; weights would
        // change or the process would be stopped by the system. Copying 20 GB to exclude that is not an option.
        let map = unsafe { memmap2::Mmap::map(&handle) }.map_err(io)?;
        Ok(Some(Bytes::new(map)))
    }

    fn in_memory(&self, file: &str) -> Option<Bytes> {
        match self {
            Source::Memory { files, .. } => files.iter().find(|(name, _)| name == file).map(|(_, b)| b.clone()),
            Source::Folder(_) => None,
        }
    }
}

/// Whether `name` is a bare file name: what an index or a caller names must not lead out of the folder.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}
