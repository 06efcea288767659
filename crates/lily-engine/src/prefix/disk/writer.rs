//! The thread that writes. It hashes, makes room, writes under another name, synchronises and renames.

use std::any::Any;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use super::dir::{self, Dir};
use super::files::{Name, PartInfo, State, Sum, pack_head, sum};
use super::index::Index;
use super::known::Known;

/// What the engine's thread and the writer share.
pub(super) struct Shared {
    pub(super) dir: Dir,
    pub(super) key: Sum,
    /// Bytes that all files may have together.
    pub(super) limit: u64,
    pub(super) index: Mutex<Index>,
    pub(super) known: Mutex<Known>,
    /// Snapshots that were copied and are not written yet.
    pub(super) writing: Mutex<usize>,
    pub(super) written: Condvar,
}

impl Shared {
    /// The index is whole whenever the lock is free: what can fail happens to files, not to it.
    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A part of a snapshot on its way to the disk.
pub(super) enum Piece {
    /// It is there: its pack is held for this job.
    Known(PartInfo, Name),
    Bytes(Vec<u8>),
}

pub(super) enum Job {
    Save(Save),
    /// These files were used.
    Touch(Vec<PathBuf>),
}

/// A snapshot as bytes.
pub(super) struct Save {
    pub(super) tokens: Vec<u32>,
    pub(super) exact: bool,
    pub(super) own: Vec<u8>,
    pub(super) shared: Vec<Piece>,
    /// The ids of the shared parts, true while this lives.
    pub(super) ids: Vec<u64>,
    pub(super) alive: Weak<dyn Any + Send + Sync>,
}

/// Until every sender is gone.
pub(super) fn write(shared: &Arc<Shared>, jobs: &Receiver<Job>) {
    let mut failing = false;
    for job in jobs {
        match job {
            Job::Touch(files) => files.iter().for_each(|path| touch(path)),
            Job::Save(job) => {
                let tokens = job.tokens.len();
                let saved = catch_unwind(AssertUnwindSafe(|| save(shared, job)));
                match saved.unwrap_or_else(|_| Err(io::Error::other("internal error"))) {
                    Ok(()) => failing = false,
                    // Once: a disk that is full says so at every attempt.
                    Err(error) if !failing => {
                        failing = true;
                        tracing::warn!(
                            "a state of {tokens} tokens could not be written to the cache directory: {error}"
                        );
                    }
                    Err(error) => tracing::debug!(%error, tokens, "a state could not be written"),
                }
                *lock(&shared.writing) -= 1;
                shared.written.notify_all();
            }
        }
    }
}

fn touch(path: &Path) {
    // It may be gone by now, and no more than the order of eviction hangs on it.
    let _ = OpenOptions::new().append(true).open(path).and_then(|file| file.set_modified(SystemTime::now()));
}

fn save(shared: &Shared, job: Save) -> io::Result<()> {
    if shared.index().has(&job.tokens, job.exact) {
        return Ok(());
    }
    let mut held = Vec::new();
    let saved = save_holding(shared, job, &mut held);
    let mut index = shared.index();
    held.into_iter().for_each(|pack| index.release(pack));
    saved
}

/// Every pack in `held` is held for the caller, also after an error.
fn save_holding(shared: &Shared, job: Save, held: &mut Vec<Name>) -> io::Result<()> {
    let (mut infos, mut places, mut fresh) = (Vec::new(), Vec::new(), Vec::<(PartInfo, Vec<u8>)>::new());
    for piece in job.shared {
        let (info, pack) = match piece {
            Piece::Known(info, pack) => {
                held.push(pack);
                (info, Some(pack))
            }
            Piece::Bytes(bytes) => {
                let info = PartInfo::of(&bytes);
                let pack = shared.index().hold_part(&info.sum);
                held.extend(pack);
                if pack.is_none() && !fresh.iter().any(|(other, _)| *other == info) {
                    fresh.push((info, bytes));
                }
                (info, pack)
            }
        };
        infos.push(info);
        places.push(pack);
    }
    let fresh_infos: Vec<PartInfo> = fresh.iter().map(|(info, _)| *info).collect();
    let fresh_pack = Name::of_pack(&fresh_infos);
    let mut packs = Vec::new();
    let mut place = |pack: Name| match packs.iter().position(|p| *p == pack) {
        Some(at) => at as u32,
        None => {
            packs.push(pack);
            packs.len() as u32 - 1
        }
    };
    let parts = infos.iter().zip(&places).map(|(info, pack)| (*info, place(pack.unwrap_or(fresh_pack)))).collect();
    let own = PartInfo::of(&job.own);
    let state = State { exact: job.exact, tokens: job.tokens, own, shared: parts, packs };
    let (state_head, pack_head) = (state.head(&shared.key), pack_head(&fresh_infos, &shared.key));
    let pack_bytes = match fresh.is_empty() {
        true => 0,
        false => pack_head.len() as u64 + fresh_infos.iter().map(|info| info.bytes).sum::<u64>(),
    };
    let state_bytes = state_head.len() as u64 + own.bytes;
    if !make_room(shared, pack_bytes + state_bytes) {
        tracing::debug!(bytes = pack_bytes + state_bytes, "a state is larger than the cache directory may be");
        return Ok(());
    }

    if !fresh.is_empty() {
        let path = shared.index().pack_path(fresh_pack);
        write_file(&path, [pack_head.as_slice()].into_iter().chain(fresh.iter().map(|(_, bytes)| bytes.as_slice())))?;
        let mut index = shared.index();
        index.insert_pack(fresh_pack, fresh_infos, pack_bytes);
        index.hold(fresh_pack);
        held.push(fresh_pack);
    }
    // The pack's name is on the disk before a snapshot that needs it.
    shared.dir.sync();
    let name = Name::of_state(&state.tokens, state.exact);
    let path = shared.index().state_path(name);
    write_file(&path, [state_head.as_slice(), &job.own])?;
    shared.dir.sync();
    shared.index().insert(name, &state, state_bytes);
    lock(&shared.known).learn(&job.ids, &infos, &job.alive);
    Ok(())
}

/// Whether `bytes` more fit, after what had to go went: what other keys have that nobody holds, then the least recently used
/// of this one.
fn make_room(shared: &Shared, bytes: u64) -> bool {
    let others = shared.dir.others();
    let mut theirs: u64 = others.iter().map(|other| other.bytes).sum();
    let mut others = dir::by_age(others).into_iter();
    loop {
        let ours = shared.index().bytes();
        if ours.saturating_add(theirs).saturating_add(bytes) <= shared.limit {
            return true;
        }
        match others.next() {
            Some(other) => theirs -= other.delete(),
            // Nothing is thrown away for what would not fit into all there is.
            None if theirs.saturating_add(bytes) > shared.limit => return false,
            None if !shared.index().evict() => return false,
            None => {}
        }
    }
}

/// The file is whole under its name, or it is not there.
fn write_file<'a>(path: &Path, parts: impl IntoIterator<Item = &'a [u8]>) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let written = (|| {
        let mut file = dir::private_file(OpenOptions::new().create(true).truncate(true).write(true), &temporary)?;
        parts.into_iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        drop(file);
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// The key of states that may be used together.
pub(super) fn key(identity: &str, format: &str) -> Sum {
    sum([b"lily cache 1\n".as_slice(), identity.as_bytes(), b"\n", format.as_bytes()])
}
