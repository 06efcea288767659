//! A tree over blocks of tokens: a node stands for a sequence of whole blocks, and its entries for that sequence with less
//! than a block behind it. Children are found by the tokens of their block, which are compared.

use std::collections::{BTreeMap, HashMap};

use super::BLOCK;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct EntryId(u64);

type NodeId = u64;

const ROOT: NodeId = 0;

struct Node {
    /// The node it continues, and by which block; the root has none.
    parent: Option<(NodeId, Box<[u32]>)>,
    children: HashMap<Box<[u32]>, NodeId>,
    /// The tokens after the node's blocks, and the entry there; the shortest first.
    entries: Vec<(Box<[u32]>, EntryId)>,
}

impl Node {
    fn new(parent: Option<(NodeId, Box<[u32]>)>) -> Self {
        Self { parent, children: HashMap::new(), entries: Vec::new() }
    }
}

pub(super) struct Tree<T> {
    /// The root is always there.
    nodes: HashMap<NodeId, Node>,
    entries: BTreeMap<EntryId, Held<T>>,
    /// The next id of a node or an entry; none is used twice.
    next: u64,
}

struct Held<T> {
    node: NodeId,
    len: usize,
    value: T,
}

/// Where an entry stands among the others.
pub(super) struct Place {
    pub(super) id: EntryId,
    /// Length of the longest entry that it continues; 0 without one.
    pub(super) previous: usize,
    /// Length of the entry that continues it, where exactly one line of entries does. `None` at an end, and at a fork,
    /// which several lines restart from.
    pub(super) next: Option<usize>,
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        Self { nodes: HashMap::from([(ROOT, Node::new(None))]), entries: BTreeMap::new(), next: ROOT + 1 }
    }
}

impl<T> Tree<T> {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    pub(super) fn get(&self, id: EntryId) -> &T {
        &self.entries[&id].value
    }

    /// Tokens of an entry.
    pub(super) fn len(&self, id: EntryId) -> usize {
        self.entries[&id].len
    }

    /// # Panics
    /// As [`Self::get`], for an id that was removed.
    pub(super) fn get_mut(&mut self, id: EntryId) -> &mut T {
        &mut self.entries.get_mut(&id).expect("an id of this tree").value
    }

    /// Entries whose tokens are a prefix of `tokens` or all of them, the shortest first.
    pub(super) fn path(&self, tokens: &[u32]) -> Vec<EntryId> {
        let (mut path, mut node, mut rest) = (Vec::new(), ROOT, tokens);
        loop {
            let at = &self.nodes[&node];
            path.extend(at.entries.iter().filter(|(tail, _)| rest.starts_with(tail)).map(|(_, id)| *id));
            let child = rest.split_at_checked(BLOCK).and_then(|(block, rest)| Some((*at.children.get(block)?, rest)));
            match child {
                Some(next) => (node, rest) = next,
                None => return path,
            }
        }
    }

    /// The entry after exactly `tokens`.
    pub(super) fn at(&self, tokens: &[u32]) -> Option<EntryId> {
        self.path(tokens).pop().filter(|id| self.entries[id].len == tokens.len())
    }

    /// Put `value` after `tokens`; returns what stood there.
    pub(super) fn insert(&mut self, tokens: &[u32], value: T) -> Option<T> {
        if let Some(id) = self.at(tokens) {
            return Some(std::mem::replace(self.get_mut(id), value));
        }
        let mut node = ROOT;
        let blocks = tokens.chunks_exact(BLOCK);
        let tail = blocks.remainder();
        for block in blocks {
            node = match self.nodes[&node].children.get(block) {
                Some(&child) => child,
                None => {
                    let child = self.fresh();
                    self.nodes.insert(child, Node::new(Some((node, block.into()))));
                    self.node(node).children.insert(block.into(), child);
                    child
                }
            };
        }
        let id = EntryId(self.fresh());
        let entries = &mut self.node(node).entries;
        let place = entries.partition_point(|(other, _)| other.len() < tail.len());
        entries.insert(place, (tail.into(), id));
        self.entries.insert(id, Held { node, len: tokens.len(), value });
        None
    }

    fn node(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("children, parents and entries name nodes of the tree")
    }

    /// Take an entry out, and the nodes that only led to it.
    pub(super) fn remove(&mut self, id: EntryId) -> T {
        let held = self.entries.remove(&id).expect("an id of this tree");
        let mut node = held.node;
        self.node(node).entries.retain(|(_, other)| *other != id);
        while self.nodes[&node].entries.is_empty() && self.nodes[&node].children.is_empty() {
            // The root stays.
            let Some((parent, block)) = self.node(node).parent.take() else { break };
            self.nodes.remove(&node);
            self.node(parent).children.remove(&block);
            node = parent;
        }
        held.value
    }

    /// Every entry with its neighbours.
    pub(super) fn places(&self) -> Vec<Place> {
        let mut next: HashMap<EntryId, (usize, usize)> = HashMap::new();
        let mut previous: HashMap<EntryId, usize> = HashMap::new();
        for (&id, held) in &self.entries {
            let Some(before) = self.before(id, held) else { continue };
            previous.insert(id, self.entries[&before].len);
            let (lines, len) = next.entry(before).or_default();
            (*lines, *len) = (*lines + 1, held.len);
        }
        let place = |&id: &EntryId| Place {
            id,
            previous: previous.get(&id).copied().unwrap_or(0),
            next: next.get(&id).filter(|(lines, _)| *lines == 1).map(|(_, len)| *len),
        };
        self.entries.keys().map(place).collect()
    }

    /// The longest entry that `id` continues.
    fn before(&self, id: EntryId, held: &Held<T>) -> Option<EntryId> {
        let mut node = &self.nodes[&held.node];
        let (tail, _) = node.entries.iter().find(|(_, other)| *other == id)?;
        let mut rest: &[u32] = tail;
        loop {
            let shorter = |(other, _): &&(Box<[u32]>, EntryId)| other.len() < rest.len() && rest.starts_with(other);
            if let Some((_, before)) = node.entries.iter().rev().find(shorter) {
                return Some(*before);
            }
            let (parent, block) = node.parent.as_ref()?;
            (node, rest) = (&self.nodes[parent], block);
        }
    }

    /// Entries.
    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    #[cfg(test)]
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }
}
