//! The prefix cache: states of earlier prompts and answers, so that a conversation's next turn reads its new tokens only.
//!
//! Recurrent layers cannot be rolled back, so a request restarts from the longest snapshot whose tokens are a prefix of
//! its own. Tokens are compared, not hashes of them. Keys and values live in the snapshots, in blocks that the device
//! shares between them; a block is counted once, and freed when the last snapshot that holds it goes.

mod bytes;
mod disk;
mod tree;

#[cfg(test)]
mod tests;

use lily_model::{Model, Snapshot};

use bytes::Held;
use tree::{EntryId, Tree};

pub use disk::DiskOptions;

pub(crate) use disk::Disk;

/// Snapshots are taken at multiples of this many tokens, where prefill from them gives the bits of a cold run; it is also
/// the block of keys and values.
pub(crate) const BLOCK: usize = 64;

/// Tokens between the snapshots inside a long message.
const INTERVAL: usize = 4096;

/// Where the engine keeps states for later requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixOptions {
    /// Bytes that kept states may hold together; 0 keeps none.
    pub bytes: u64,
    /// Reuse only what prefill made, cut at multiples of 64 tokens, so that a warm answer has the bits of a cold one on
    /// every device; the last answer is then read again. Without it the state that decoding left is reused as well, which
    /// gives the same bits on the CPU and may differ in the last ones on a GPU.
    pub exact: bool,
}

/// A state to start from.
pub(crate) struct Hit {
    pub(crate) snapshot: Snapshot,
    /// See [`Entry::exact`].
    pub(crate) exact: bool,
}

struct Entry {
    snapshot: Snapshot,
    /// Whether prefill alone made this state, in passes cut at multiples of [`BLOCK`]: no decoding took part.
    exact: bool,
    /// When it, or one that continues it, was used last.
    stamp: u64,
}

pub(crate) struct PrefixCache {
    options: PrefixOptions,
    tree: Tree<Entry>,
    held: Held,
    clock: u64,
    /// Bytes that the last snapshot held alone: what the next one is expected to take.
    own: u64,
    /// Bytes that states may hold now: what was asked for, or less while requests need the memory.
    budget: u64,
    /// Where states are kept beyond the life of the process.
    disk: Option<Disk>,
}

impl PrefixCache {
    /// `None` where nothing may be kept.
    pub(crate) fn new(options: PrefixOptions) -> Option<Self> {
        (options.bytes > 0).then(|| Self::empty(options))
    }

    fn empty(options: PrefixOptions) -> Self {
        Self {
            options,
            tree: Tree::default(),
            held: Held::default(),
            clock: 0,
            own: 0,
            budget: options.bytes,
            disk: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_exact(&self) -> bool {
        self.options.exact
    }

    /// Keep states on disk too.
    pub(crate) fn keep_on(&mut self, disk: Option<Disk>) {
        self.disk = disk;
    }

    /// An empty one with the same options. What lies on the disk stays.
    pub(crate) fn anew(&mut self) -> Self {
        Self { disk: self.disk.take(), budget: self.budget, ..Self::empty(self.options) }
    }

    /// Read the state that `prompt` continues from the disk, where it is longer than those in memory and worth it.
    pub(crate) fn recall(&mut self, prompt: &[u32], model: &mut dyn Model) {
        let tokens = &prompt[..prompt.len().saturating_sub(1)];
        let (exact, most) = (self.options.exact, self.budget);
        let usable = |id: &EntryId| self.tree.get(*id).exact || !exact;
        let have = self.tree.path(tokens).into_iter().rev().find(usable).map_or(0, |id| self.tree.len(id));
        while let Some(found) = self.disk.as_ref().and_then(|disk| disk.find(tokens, have, exact, most)) {
            // Room before it is taken, as for a copy.
            self.shrink(most.saturating_sub(found.bytes));
            match self.disk.as_ref().map(|disk| disk.load(&found, tokens, model)) {
                Some(Ok(Some(snapshot))) => return self.put(&tokens[..found.len], snapshot, found.exact),
                // Perhaps another one is whole.
                Some(Ok(None)) => {}
                Some(Err(error)) => {
                    return tracing::warn!(%error, "a state could not be read from the cache directory");
                }
                None => return,
            }
        }
    }

    /// Whether states wait for the disk.
    pub(crate) fn is_behind(&self) -> bool {
        self.disk.as_ref().is_some_and(Disk::is_behind)
    }

    /// Copy some of what waits for the disk. False where there is nothing to do now.
    pub(crate) fn tend(&mut self, model: &mut dyn Model) -> bool {
        self.disk.as_mut().is_some_and(|disk| disk.tend(model))
    }

    /// Return when all that is to be on the disk is there.
    pub(crate) fn flush(&mut self, model: &mut dyn Model) {
        if let Some(disk) = &mut self.disk {
            disk.flush(model);
        }
    }

    /// Bytes that states may hold now.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// Hold at most `bytes` from now on, and what was asked for if that is less.
    pub(crate) fn limit(&mut self, bytes: u64) {
        self.budget = bytes.min(self.options.bytes);
        self.shrink(self.budget);
    }

    /// The longest state that `prompt` continues by at least one token: the last one is always computed, for its logits.
    pub(crate) fn find(&mut self, prompt: &[u32]) -> Option<Hit> {
        let before_last = &prompt[..prompt.len().checked_sub(1)?];
        let path = self.tree.path(before_last);
        let usable = |id: &&EntryId| self.tree.get(**id).exact || !self.options.exact;
        let &id = path.iter().rev().find(usable)?;
        self.touch(&path);
        let entry = self.tree.get(id);
        Some(Hit { snapshot: entry.snapshot.clone(), exact: entry.exact })
    }

    /// Whether a snapshot after `tokens` would be worth its copy; marks the one that is there as used.
    pub(crate) fn wants(&mut self, tokens: &[u32], exact: bool) -> bool {
        let fits = self.own <= self.budget;
        if tokens.is_empty() || !fits || (self.options.exact && !exact) {
            return false;
        }
        let path = self.tree.path(tokens);
        self.touch(&path);
        !self.tree.at(tokens).is_some_and(|id| self.tree.get(id).exact || !exact)
    }

    /// Make room for one more snapshot before it is copied.
    pub(crate) fn make_room(&mut self) {
        let budget = self.budget.saturating_sub(self.own);
        self.shrink(budget);
    }

    /// Keep the state after `tokens`. Drops others, or this one, where the bytes do not suffice.
    pub(crate) fn insert(&mut self, tokens: &[u32], snapshot: Snapshot, exact: bool) {
        if let Some(disk) = &mut self.disk {
            disk.offer(tokens, &snapshot, exact);
        }
        self.put(tokens, snapshot, exact);
    }

    fn put(&mut self, tokens: &[u32], snapshot: Snapshot, exact: bool) {
        debug_assert_eq!(tokens.len(), snapshot.len);
        self.own = bytes::own(&snapshot);
        self.held.add(&snapshot);
        let entry = Entry { snapshot, exact, stamp: 0 };
        if let Some(old) = self.tree.insert(tokens, entry) {
            self.dropped(&old.snapshot);
        }
        let path = self.tree.path(tokens);
        self.touch(&path);
        self.shrink(self.budget);
    }

    /// What is used marks what it continues, so that a conversation never looks older at its root than at its end.
    fn touch(&mut self, path: &[EntryId]) {
        self.clock += 1;
        for &id in path {
            self.tree.get_mut(id).stamp = self.clock;
        }
    }

    fn shrink(&mut self, budget: u64) {
        while self.held.bytes() > budget {
            let Some(id) = victim(&self.tree, |entry| entry.stamp) else { return };
            let entry = self.tree.remove(id);
            tracing::debug!(tokens = entry.snapshot.len, "dropped a cached state");
            self.dropped(&entry.snapshot);
        }
    }

    /// Its memory is free, and does not wait for the disk.
    fn dropped(&mut self, snapshot: &Snapshot) {
        self.held.remove(snapshot);
        if let Some(disk) = &mut self.disk {
            disk.forget(snapshot);
        }
    }

    /// Bytes that kept states hold now.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// States that are kept.
    pub(crate) fn states(&self) -> usize {
        self.tree.count()
    }
}

/// What goes next. Of conversations other than the one used last, first what lies between the ends: a later snapshot
/// holds the same keys and values, so only the state itself is freed, and all that is lost is a place to restart
/// from. Then whole conversations, and at last the newest in the same way. Within these, what was used least recently,
/// and of one age what leaves the smallest gap.
fn victim<T>(tree: &Tree<T>, stamp: impl Fn(&T) -> u64) -> Option<EntryId> {
    let places = tree.places();
    let newest = places.iter().map(|p| stamp(tree.get(p.id))).max()?;
    let key = |p: &tree::Place| {
        let stamp = stamp(tree.get(p.id));
        (stamp == newest, p.next.is_none(), stamp, p.next.map_or(0, |next| next - p.previous))
    };
    places.iter().min_by_key(|p| key(p)).map(|p| p.id)
}

/// Lengths of the prompt after which its state is worth keeping, ascending: the last multiple of [`BLOCK`] at or before each
/// message boundary and before the end, and every [`INTERVAL`] tokens.
pub(crate) fn cuts(prompt: usize, boundaries: &[usize]) -> Vec<usize> {
    let ends = boundaries.iter().copied().filter(|&b| b < prompt).chain([prompt.saturating_sub(1)]);
    let mut cuts: Vec<usize> = ends.map(|end| end / BLOCK * BLOCK).collect();
    cuts.extend((INTERVAL..prompt).step_by(INTERVAL));
    cuts.sort_unstable();
    cuts.dedup();
    cuts.retain(|&cut| cut > 0);
    cuts
}
