//! Which memory of the device is on the disk already, so that it is neither copied nor hashed again.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Weak;

use super::files::PartInfo;

#[derive(Default)]
pub(super) struct Known {
    /// By the id of shared memory: what it holds, for as long as a snapshot that holds it lives. After that the id may be
    /// that of other memory.
    parts: HashMap<u64, (PartInfo, Weak<dyn Any + Send + Sync>)>,
}

impl Known {
    /// The memory `ids` holds `parts`, while `alive` lives.
    pub(super) fn learn(&mut self, ids: &[u64], parts: &[PartInfo], alive: &Weak<dyn Any + Send + Sync>) {
        self.parts.retain(|_, (_, alive)| alive.strong_count() > 0);
        for (id, part) in ids.iter().zip(parts) {
            self.parts.insert(*id, (*part, alive.clone()));
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<PartInfo> {
        self.parts.get(&id).filter(|(_, alive)| alive.strong_count() > 0).map(|(part, _)| *part)
    }
}
