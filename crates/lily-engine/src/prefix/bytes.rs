//! Bytes that snapshots hold together, with what they share counted once.

use std::collections::HashMap;

use lily_model::Snapshot;

#[derive(Default)]
pub(super) struct Held {
    own: u64,
    shared_bytes: u64,
    /// Holders of each piece of shared memory.
    holders: HashMap<u64, usize>,
}

/// Bytes of a snapshot that nobody else can hold.
pub(super) fn own(snapshot: &Snapshot) -> u64 {
    snapshot.bytes.saturating_sub(snapshot.shared.iter().map(|s| s.bytes).sum())
}

impl Held {
    pub(super) fn add(&mut self, snapshot: &Snapshot) {
        self.own += own(snapshot);
        for part in &snapshot.shared {
            let holders = self.holders.entry(part.id).or_default();
            *holders += 1;
            if *holders == 1 {
                self.shared_bytes += part.bytes;
            }
        }
    }

    /// Of a snapshot that was added.
    pub(super) fn remove(&mut self, snapshot: &Snapshot) {
        self.own -= own(snapshot);
        for part in &snapshot.shared {
            let Some(holders) = self.holders.get_mut(&part.id) else { continue };
            *holders -= 1;
            if *holders == 0 {
                self.holders.remove(&part.id);
                self.shared_bytes -= part.bytes;
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.own + self.shared_bytes
    }
}
