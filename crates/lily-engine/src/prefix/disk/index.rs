//! What lies on the disk, by tokens; and what goes when the bytes run out.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use super::files::{Name, PartInfo, State, Sum};
use crate::prefix::tree::{EntryId, Tree};
use crate::prefix::victim;

/// A snapshot that can be read back.
pub(super) struct Saved {
    pub(super) name: Name,
    pub(super) exact: bool,
    /// Bytes of the snapshot in memory.
    pub(super) memory: u64,
    /// Of its file.
    bytes: u64,
    packs: Vec<Name>,
    stamp: u64,
}

struct Pack {
    parts: Vec<PartInfo>,
    bytes: u64,
    /// Snapshots that need it, and work in progress that does.
    holders: usize,
}

/// Files of one model, build and format.
#[derive(Default)]
pub(super) struct Index {
    dir: PathBuf,
    tree: Tree<Saved>,
    packs: HashMap<Name, Pack>,
    /// The pack that has a part.
    parts: HashMap<Sum, Name>,
    /// Files that cannot be used, with their bytes: the first to go.
    ignored: BTreeMap<PathBuf, u64>,
    bytes: u64,
    clock: u64,
}

impl Index {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.into(), ..Self::default() }
    }

    pub(super) fn state_path(&self, name: Name) -> PathBuf {
        self.dir.join(format!("{name}.state"))
    }

    pub(super) fn pack_path(&self, name: Name) -> PathBuf {
        self.dir.join(format!("{name}.kv"))
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The longest usable snapshot whose tokens `tokens` begin with: its name, length and bytes in memory.
    pub(super) fn find(&self, tokens: &[u32], exact: bool, memory: u64) -> Option<(EntryId, usize)> {
        let usable = |id: &&EntryId| {
            let saved = self.tree.get(**id);
            (saved.exact || !exact) && saved.memory <= memory
        };
        let path = self.tree.path(tokens);
        let &id = path.iter().rev().find(usable)?;
        Some((id, self.tree.len(id)))
    }

    pub(super) fn get(&self, id: EntryId) -> &Saved {
        self.tree.get(id)
    }

    /// Whether there is a snapshot of exactly these tokens that is at least as good.
    pub(super) fn has(&self, tokens: &[u32], exact: bool) -> bool {
        self.tree.at(tokens).is_some_and(|id| self.tree.get(id).exact || !exact)
    }

    /// Marks what `tokens` continue as used, and returns the files.
    pub(super) fn touch(&mut self, tokens: &[u32]) -> Vec<PathBuf> {
        self.clock += 1;
        let path = self.tree.path(tokens);
        path.iter().for_each(|&id| self.tree.get_mut(id).stamp = self.clock);
        path.iter().map(|&id| self.state_path(self.tree.get(id).name)).collect()
    }

    /// A snapshot whose file and packs are there. What it takes the place of is deleted.
    pub(super) fn insert(&mut self, name: Name, state: &State, bytes: u64) {
        self.replaced(&self.state_path(name));
        for pack in &state.packs {
            self.hold(*pack);
        }
        self.bytes += bytes;
        self.clock += 1;
        let saved = Saved {
            name,
            exact: state.exact,
            memory: state.memory(),
            bytes,
            packs: state.packs.clone(),
            stamp: self.clock,
        };
        if let Some(old) = self.tree.insert(&state.tokens, saved) {
            self.bytes -= old.bytes;
            if old.name != name {
                delete(&self.state_path(old.name));
            }
            old.packs.iter().for_each(|pack| self.release(*pack));
        }
    }

    /// A pack whose file is there. Nobody holds it yet.
    pub(super) fn insert_pack(&mut self, name: Name, parts: Vec<PartInfo>, bytes: u64) {
        self.replaced(&self.pack_path(name));
        for part in &parts {
            self.parts.insert(part.sum, name);
        }
        if let Some(old) = self.packs.remove(&name) {
            self.bytes -= old.bytes;
        }
        self.bytes += bytes;
        self.packs.insert(name, Pack { parts, bytes, holders: 0 });
    }

    pub(super) fn has_pack(&self, name: Name) -> bool {
        self.packs.contains_key(&name)
    }

    /// The pack with this part, held from now on.
    pub(super) fn hold_part(&mut self, sum: &Sum) -> Option<Name> {
        let pack = *self.parts.get(sum)?;
        self.hold(pack);
        Some(pack)
    }

    pub(super) fn hold(&mut self, pack: Name) {
        if let Some(pack) = self.packs.get_mut(&pack) {
            pack.holders += 1;
        }
    }

    /// One holder less; the last one's pack is deleted.
    pub(super) fn release(&mut self, name: Name) {
        let Some(pack) = self.packs.get_mut(&name) else { return };
        pack.holders = pack.holders.saturating_sub(1);
        if pack.holders == 0
            && let Some(bytes) = self.remove_pack(name)
        {
            self.bytes -= bytes;
            delete(&self.pack_path(name));
        }
    }

    fn remove_pack(&mut self, name: Name) -> Option<u64> {
        let pack = self.packs.remove(&name)?;
        for part in &pack.parts {
            if self.parts.get(&part.sum) == Some(&name) {
                self.parts.remove(&part.sum);
            }
        }
        Some(pack.bytes)
    }

    /// A file that cannot be used counts, and goes first.
    pub(super) fn ignore(&mut self, path: PathBuf, bytes: u64) {
        if self.ignored.insert(path, bytes).is_none() {
            self.bytes += bytes;
        }
    }

    /// A new file stands where an ignored one did.
    fn replaced(&mut self, path: &Path) {
        if let Some(bytes) = self.ignored.remove(path) {
            self.bytes -= bytes;
        }
    }

    /// Deletes a snapshot. Its file goes before its packs: what is left behind halfway is never a snapshot without them.
    pub(super) fn drop_state(&mut self, id: EntryId) {
        let saved = self.tree.remove(id);
        self.bytes -= saved.bytes;
        delete(&self.state_path(saved.name));
        saved.packs.iter().for_each(|pack| self.release(*pack));
    }

    /// Deletes a pack that turned out to be unusable, and with it every snapshot that needs it.
    pub(super) fn drop_pack(&mut self, name: Name) {
        let needs = |id: &EntryId| self.tree.get(*id).packs.contains(&name);
        let gone: Vec<EntryId> = self.tree.places().iter().map(|place| place.id).filter(needs).collect();
        gone.into_iter().for_each(|id| self.drop_state(id));
        // Work in progress may hold it still.
        if let Some(bytes) = self.remove_pack(name) {
            self.bytes -= bytes;
            delete(&self.pack_path(name));
        }
    }

    /// Delete packs that nobody holds: what a process left behind that was killed between a pack and its snapshot.
    pub(super) fn sweep(&mut self) {
        let orphans: Vec<Name> =
            self.packs.iter().filter(|(_, pack)| pack.holders == 0).map(|(name, _)| *name).collect();
        orphans.into_iter().for_each(|name| self.release(name));
    }

    /// Delete one thing; false when there is nothing to delete. As in memory: what lies between the ends of other
    /// conversations than the newest first, then whole conversations.
    pub(super) fn evict(&mut self) -> bool {
        if let Some((path, bytes)) = self.ignored.pop_first() {
            self.bytes -= bytes;
            delete(&path);
            return true;
        }
        let id = victim(&self.tree, |saved| saved.stamp);
        id.is_some_and(|id| {
            self.drop_state(id);
            true
        })
    }

    /// Snapshots that can be read back.
    pub(super) fn len(&self) -> usize {
        self.tree.places().len()
    }
}

/// What cannot be deleted is counted no longer, and found again at the next start.
fn delete(path: &Path) {
    let deleted = std::fs::remove_file(path);
    if let Some(error) = deleted.err().filter(|error| error.kind() != std::io::ErrorKind::NotFound) {
        tracing::warn!("{} cannot be deleted: {error}", path.display());
    }
}
