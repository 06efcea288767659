//! The directory: who may write it, whose files they are, and what was left there.
//!
//! Each key of model, build and format has a subdirectory of its own, which one process holds at a time by a lock on a file
//! in it. Everything of a key that is not held may be deleted to make room, except its lock.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::files::{Name, Opened, Problem, State, Sum, open_pack, open_state};
use super::index::Index;

const LOCK: &str = "lock";

/// Why there is no cache on the disk.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("{path} cannot be used: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
}

/// The subdirectory of one key, held by this process.
pub(super) struct Dir {
    root: PathBuf,
    pub(super) path: PathBuf,
    /// Locked.
    lock: File,
}

impl Drop for Dir {
    fn drop(&mut self) {
        // Closing alone would leave it to a child that is being started at this moment and has copies of all open files.
        let _ = self.lock.unlock();
    }
}

impl Dir {
    /// Takes hold of the subdirectory of `key`, which `about` describes to people.
    pub(super) fn open(root: &Path, key: &Sum, about: &str) -> Result<Self, OpenError> {
        let path = root.join(key[..8].iter().map(|b| format!("{b:02x}")).collect::<String>());
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |error| OpenError::Io { path, error }
        };
        private_dir(root).map_err(failed(root))?;
        private_dir(&path).map_err(failed(&path))?;
        let lock_path = path.join(LOCK);
        let lock = private_file(OpenOptions::new().create(true).write(true), &lock_path).map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(path)),
            Err(TryLockError::Error(error)) => return Err(OpenError::Io { path: lock_path, error }),
        }
        // For people, and as the time of the last use.
        let note = lock.set_len(0).and_then(|()| (&lock).write_all(about.as_bytes()));
        note.map_err(failed(&lock_path))?;
        Ok(Self { root: root.into(), path, lock })
    }

    /// Reads the heads of all files. What cannot be used is named in a warning.
    pub(super) fn scan(&self, key: &Sum) -> io::Result<Index> {
        let mut index = Index::new(&self.path);
        let mut states: Vec<(SystemTime, Name, PathBuf)> = Vec::new();
        let ignore = |index: &mut Index, path: PathBuf, why: &dyn std::fmt::Display| {
            tracing::warn!("{} is not used: {why}", path.display());
            let bytes = fs::symlink_metadata(&path).map_or(0, |m| m.len());
            index.ignore(path, bytes);
        };
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let path = entry.path();
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            let name = path.file_stem().and_then(|s| s.to_str()).and_then(Name::parse);
            match (extension, name) {
                ("tmp", Some(_)) => {
                    // Half written when a process ended.
                    fs::remove_file(&path)?;
                }
                ("state", Some(name)) => {
                    let modified = entry.metadata().and_then(|m| m.modified());
                    states.push((modified.unwrap_or(SystemTime::UNIX_EPOCH), name, path));
                }
                ("kv", Some(name)) => match open_pack(&path, key) {
                    Ok(Opened { body, .. }) if Name::of_pack(&body) != name => {
                        ignore(&mut index, path, &"its name is that of other contents");
                    }
                    Ok(Opened { body, bytes, .. }) => index.insert_pack(name, body, bytes),
                    Err(problem) => ignore(&mut index, path, &problem),
                },
                _ if path.ends_with(LOCK) => {}
                _ => tracing::warn!("{} is not used: no such file belongs there", path.display()),
            }
        }
        // The least recently used first, so that their order is kept.
        states.sort();
        for (_, name, path) in states {
            match open_state(&path, key).and_then(|state| check(state, name, &index)) {
                Ok(Opened { body, bytes, .. }) => index.insert(name, &body, bytes),
                Err(problem) => ignore(&mut index, path, &problem),
            }
        }
        index.sweep();
        Ok(index)
    }

    /// Bytes of the other keys' files, and whose they are.
    pub(super) fn others(&self) -> Vec<Other> {
        let Ok(entries) = fs::read_dir(&self.root) else { return Vec::new() };
        let paths = entries.flatten().map(|entry| entry.path()).filter(|path| *path != self.path);
        paths.filter_map(|path| Other::at(&path)).collect()
    }

    /// Makes what was renamed into the directory survive a loss of power, where the system can.
    pub(super) fn sync(&self) {
        #[cfg(unix)]
        if let Err(error) = File::open(&self.path).and_then(|dir| dir.sync_all()) {
            tracing::debug!(%error, "the cache directory cannot be synchronised");
        }
    }
}

fn check(state: Opened<State>, name: Name, index: &Index) -> Result<Opened<State>, Problem> {
    if Name::of_state(&state.body.tokens, state.body.exact) != name {
        return Err(Problem::Damaged("its name is that of other tokens"));
    }
    match state.body.packs.iter().all(|pack| index.has_pack(*pack)) {
        true => Ok(state),
        false => Err(Problem::Damaged("keys and values that it needs are missing")),
    }
}

/// The subdirectory of another key.
pub(super) struct Other {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    used: SystemTime,
}

impl Other {
    /// `None` where it is something else, or empty.
    fn at(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        if name.len() != 16 || !name.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let used = fs::symlink_metadata(path.join(LOCK)).ok()?.modified().ok()?;
        let files = files_of(path);
        let bytes = files.iter().map(|(_, bytes)| bytes).sum();
        (bytes > 0).then(|| Self { path: path.into(), bytes, used })
    }

    /// Deletes all, unless a process holds it. Returns the bytes that are free now.
    pub(super) fn delete(&self) -> u64 {
        let lock = OpenOptions::new().write(true).open(self.path.join(LOCK));
        if !lock.is_ok_and(|lock| lock.try_lock().is_ok_and(|()| self.delete_files(&lock))) {
            return 0;
        }
        self.bytes
    }

    /// While the lock is held. It stays, so that nobody ever locks a file that is gone.
    fn delete_files(&self, _lock: &File) -> bool {
        tracing::debug!("{}: deleted to make room", self.path.display());
        files_of(&self.path).iter().all(|(path, _)| fs::remove_file(path).is_ok())
    }
}

/// The least recently used first.
pub(super) fn by_age(mut others: Vec<Other>) -> Vec<Other> {
    others.sort_by_key(|other| other.used);
    others
}

fn files_of(dir: &Path) -> Vec<(PathBuf, u64)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let ours = |path: &Path| {
        let kind = path.extension().is_some_and(|e| e == "state" || e == "kv" || e == "tmp");
        kind && path.file_stem().and_then(|s| s.to_str()).and_then(Name::parse).is_some()
    };
    let files = entries.flatten().filter(|entry| ours(&entry.path()));
    files.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len()))).collect()
}

/// A directory that only its owner may enter, if it is not there yet: prompts are private.
fn private_dir(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Opened with `options`; if it is made, only its owner may read it.
pub(super) fn private_file(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.open(path)
}
