//! Snapshots on disk, for requests after a restart and for what memory has no room for.
//!
//! - The engine's thread copies a kept snapshot to host memory between two calls of the model, a bounded number of bytes
//!   each time; a thread of its own hashes and writes. What is slower than that is dropped, not waited for.
//! - A file appears by renaming, whole and synchronised: the keys and values before the snapshot that needs them. Its head
//!   is checked at the start, its parts when they are read, by SHA-256.
//! - Files of another model, build or format are another subdirectory's, and two processes never write the same one.

mod dir;
mod files;
mod index;
mod known;
mod writer;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use lily_model::{Model, ModelError, Part, Snapshot};

use super::tree::EntryId;
use dir::Dir;
use files::{Name, Opened, PartInfo, Problem, open_pack, open_state};
use writer::{Job, Piece, Save, Shared, lock};

/// Snapshots that wait to be copied; the oldest gives way.
const WAITING: usize = 8;
/// Snapshots that were copied and are not written yet.
const WRITING: usize = 2;
/// Bytes to copy between two calls of the model. A snapshot's own part is copied in one piece, however large it is.
const COPY_BYTES: u64 = 16 << 20;
/// A snapshot is read from the disk where it saves at least one token in so many of its length.
const WORTH: usize = 16;

/// Where states are kept beyond the life of the process.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// A directory; made if it is not there.
    pub dir: PathBuf,
    /// Bytes that the files in it may have together.
    pub bytes: u64,
    /// What must be the same for a state to be used again, beside the model's own format: the checkpoint and the build.
    pub identity: String,
}

/// A snapshot that is being turned into bytes.
struct Copying {
    tokens: Vec<u32>,
    exact: bool,
    snapshot: Snapshot,
    own: Option<Vec<u8>>,
    shared: Vec<Piece>,
}

/// A snapshot on disk that a prompt continues.
pub(super) struct Found {
    id: EntryId,
    name: Name,
    /// Tokens.
    pub(super) len: usize,
    pub(super) exact: bool,
    /// Bytes of it in memory.
    pub(super) bytes: u64,
}

/// Why a snapshot that was found is not there.
enum Failed {
    File(PathBuf, Problem),
    Pack(Name, Problem),
    Model(ModelError),
}

pub(crate) struct Disk {
    shared: Arc<Shared>,
    waiting: VecDeque<Copying>,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// `None`, with a warning, where the directory cannot be used: requests are served without it.
    pub(crate) fn open(options: &DiskOptions, model: &dyn Model) -> Option<Self> {
        let root = options.dir.display();
        let Some(format) = model.state_format() else {
            tracing::warn!("nothing is kept in {root}: states of this model cannot be saved");
            return None;
        };
        let key = writer::key(&options.identity, &format);
        let about = format!("{}\n{format}\n", options.identity);
        let opened = Dir::open(&options.dir, &key, &about);
        let dir = opened.inspect_err(|error| tracing::warn!("nothing is kept on disk: {error}")).ok()?;
        for other in dir.others() {
            let (path, bytes) = (other.path.display(), other.bytes);
            tracing::warn!("{path} is not used: its {bytes} bytes are of another model, build or KV type");
        }
        let index = dir.scan(&key).inspect_err(|error| tracing::warn!("nothing is kept in {root}: {error}")).ok()?;
        tracing::info!(states = index.len(), bytes = index.bytes(), "read the cache directory");
        let shared = Arc::new(Shared {
            dir,
            key,
            limit: options.bytes,
            index: Mutex::new(index),
            known: Mutex::default(),
            writing: Mutex::new(0),
            written: Condvar::new(),
        });
        let (jobs, receiver) = channel();
        let for_thread = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("cache".into()).spawn(move || writer::write(&for_thread, &receiver));
        let thread = thread.inspect_err(|error| tracing::warn!("nothing is kept in {root}: {error}")).ok()?;
        Some(Self { shared, waiting: VecDeque::new(), jobs: Some(jobs), thread: Some(thread) })
    }

    /// A snapshot to be written when there is time.
    pub(crate) fn offer(&mut self, tokens: &[u32], snapshot: &Snapshot, exact: bool) {
        if self.shared.index().has(tokens, exact) {
            return;
        }
        if self.waiting.iter().any(|other| other.tokens == tokens && (other.exact || !exact)) {
            return;
        }
        if self.waiting.len() == WAITING {
            tracing::debug!("the disk is slower than the engine: a state is not written");
            // Not the one that may be half copied.
            self.drop_waiting(1);
        }
        let (tokens, snapshot) = (tokens.to_vec(), snapshot.clone());
        self.waiting.push_back(Copying { tokens, exact, snapshot, own: None, shared: Vec::new() });
    }

    /// Memory drops this snapshot. What was not copied yet is not written: it would hold memory that others were promised.
    pub(super) fn forget(&mut self, snapshot: &Snapshot) {
        if let Some(place) = self.waiting.iter().position(|other| Arc::ptr_eq(&other.snapshot.state, &snapshot.state)) {
            tracing::debug!(tokens = snapshot.len, "a state was dropped before it was copied for the disk");
            self.drop_waiting(place);
        }
    }

    fn drop_waiting(&mut self, place: usize) {
        let dropped = self.waiting.remove(place);
        self.release(dropped);
    }

    /// Packs that were held for something that is not written.
    fn release(&self, dropped: Option<Copying>) {
        let mut index = self.shared.index();
        for piece in dropped.into_iter().flat_map(|copying| copying.shared) {
            if let Piece::Known(_, pack) = piece {
                index.release(pack);
            }
        }
    }

    /// Whether snapshots wait to be copied.
    pub(crate) fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Copies some of what waits. False where there is nothing to do now.
    pub(crate) fn tend(&mut self, model: &mut dyn Model) -> bool {
        if *lock(&self.shared.writing) >= WRITING {
            return false;
        }
        let Some(mut copying) = self.waiting.pop_front() else { return false };
        match self.copy(&mut copying, model) {
            Ok(false) => self.waiting.push_front(copying),
            Ok(true) => self.send(copying),
            Err(error) => {
                tracing::warn!(%error, "a state could not be copied for the disk");
                self.release(Some(copying));
            }
        }
        true
    }

    /// Up to [`COPY_BYTES`] more. Whether the copy is whole.
    fn copy(&self, copying: &mut Copying, model: &mut dyn Model) -> Result<bool, ModelError> {
        let mut copied = 0;
        while copied < COPY_BYTES {
            let next = copying.shared.len();
            let Some(part) = copying.snapshot.shared.get(next) else {
                if copying.own.is_some() {
                    return Ok(true);
                }
                let own = model.save(&copying.snapshot, Part::Own)?;
                copied += own.len() as u64;
                copying.own = Some(own);
                continue;
            };
            let known = lock(&self.shared.known).get(part.id);
            let held = known.and_then(|info| Some((info, self.shared.index().hold_part(&info.sum)?)));
            copying.shared.push(match held {
                Some((info, pack)) => Piece::Known(info, pack),
                None => {
                    let bytes = model.save(&copying.snapshot, Part::Shared(next))?;
                    copied += bytes.len() as u64;
                    Piece::Bytes(bytes)
                }
            });
        }
        Ok(copying.own.is_some() && copying.shared.len() == copying.snapshot.shared.len())
    }

    fn send(&self, copying: Copying) {
        let Copying { tokens, exact, snapshot, own, shared } = copying;
        let ids = snapshot.shared.iter().map(|part| part.id).collect();
        let alive = Arc::downgrade(&snapshot.state);
        let save = Save { tokens, exact, own: own.unwrap_or_default(), shared, ids, alive };
        *lock(&self.shared.writing) += 1;
        if self.jobs.as_ref().is_none_or(|jobs| jobs.send(Job::Save(save)).is_err()) {
            *lock(&self.shared.writing) -= 1;
            tracing::warn!("the thread that writes the cache directory has ended");
        }
    }

    /// The longest snapshot that `tokens` begin with, where it is worth reading although memory has one of `have` tokens. At
    /// most `memory` bytes. What `tokens` continue counts as used.
    pub(super) fn find(&self, tokens: &[u32], have: usize, exact: bool, memory: u64) -> Option<Found> {
        let mut index = self.shared.index();
        let touched = index.touch(tokens);
        if let Some(jobs) = self.jobs.as_ref().filter(|_| !touched.is_empty()) {
            let _ = jobs.send(Job::Touch(touched));
        }
        let (id, len) = index.find(tokens, exact, memory)?;
        let saved = index.get(id);
        let worth = len > have && (len - have) * WORTH >= len;
        worth.then_some(Found { id, name: saved.name, len, exact: saved.exact, bytes: saved.memory })
    }

    /// Reads it. On `Ok(None)` its files turned out to be unusable, and are gone.
    pub(super) fn load(
        &self,
        found: &Found,
        tokens: &[u32],
        model: &mut dyn Model,
    ) -> Result<Option<Snapshot>, ModelError> {
        let path = self.shared.index().state_path(found.name);
        match self.read(found, path, tokens, model) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(Failed::Model(error)) => Err(error),
            // What the writer has deleted meanwhile is no surprise.
            Err(Failed::File(path, problem)) => {
                let mut index = self.shared.index();
                if index.find(&tokens[..found.len], false, u64::MAX).is_some_and(|(id, _)| id == found.id) {
                    tracing::warn!("{} is not used: {problem}", path.display());
                    index.drop_state(found.id);
                }
                Ok(None)
            }
            Err(Failed::Pack(name, problem)) => {
                let mut index = self.shared.index();
                if index.has_pack(name) {
                    tracing::warn!("{} is not used: {problem}", index.pack_path(name).display());
                    index.drop_pack(name);
                }
                Ok(None)
            }
        }
    }

    fn read(&self, found: &Found, path: PathBuf, tokens: &[u32], model: &mut dyn Model) -> Result<Snapshot, Failed> {
        let at_state = |problem| Failed::File(path.clone(), problem);
        let mut state = open_state(&path, &self.shared.key).map_err(at_state)?;
        if state.body.tokens != tokens[..found.len] || state.body.exact != found.exact {
            return Err(at_state(Problem::Damaged("it is that of other tokens")));
        }
        let own = state.read_own().map_err(at_state)?;
        let mut packs: HashMap<u32, Opened<Vec<PartInfo>>> = HashMap::new();
        let body = &state.body;
        let mut part = |(info, place): &(PartInfo, u32)| {
            let name = body.packs[*place as usize];
            let mut read = || -> Result<Vec<u8>, Problem> {
                if !packs.contains_key(place) {
                    let pack_path = self.shared.index().pack_path(name);
                    packs.insert(*place, open_pack(&pack_path, &self.shared.key)?);
                }
                match packs.get_mut(place) {
                    Some(pack) => pack.read_part(&info.sum),
                    None => Err(Problem::Damaged("a part is not in it")),
                }
            };
            read().map_err(|problem| (name, problem))
        };
        let mut wrong = None;
        // Ends at what cannot be read; the model then refuses.
        let shared = body.shared.iter().map_while(|shared| part(shared).map_err(|failed| wrong = Some(failed)).ok());
        let loaded = model.load(found.len, &mut std::iter::once(own).chain(shared));
        match (loaded, wrong) {
            (_, Some((name, problem))) => Err(Failed::Pack(name, problem)),
            (Ok(snapshot), None) => {
                let ids: Vec<u64> = snapshot.shared.iter().map(|part| part.id).collect();
                let infos: Vec<PartInfo> = body.shared.iter().map(|(info, _)| *info).collect();
                lock(&self.shared.known).learn(&ids, &infos, &Arc::downgrade(&snapshot.state));
                Ok(snapshot)
            }
            (Err(ModelError::Unknown(why)), None) => Err(at_state(Problem::Damaged(why))),
            (Err(error), None) => Err(Failed::Model(error)),
        }
    }

    /// Writes all that waits, and returns when it is on the disk.
    pub(crate) fn flush(&mut self, model: &mut dyn Model) {
        loop {
            let mut writing = lock(&self.shared.writing);
            while *writing >= if self.waiting.is_empty() { 1 } else { WRITING } {
                writing = self.shared.written.wait(writing).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            drop(writing);
            if self.waiting.is_empty() {
                return;
            }
            self.tend(model);
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
