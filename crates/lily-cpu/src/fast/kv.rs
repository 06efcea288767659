//! Keys and values of one layer, in blocks of 64 positions that clones share.
//!
//! Cloning a state (a snapshot) copies no block; the one that is written next is copied then. So many snapshots of one
//! conversation hold its keys and values once.

use std::sync::Arc;

use lily_model::Shared;

use super::attention::BLOCK;
use super::element::KvElement;

/// One block: keys and values of every key/value head, [kv_heads][64 × head_dim] each, as units of `K`.
#[derive(Clone)]
struct Block<K> {
    k: Box<[K]>,
    v: Box<[K]>,
}

/// The cache of one layer.
#[derive(Clone)]
pub struct KvCache<K> {
    heads: usize,
    d: usize,
    /// Units of a head's key or value: d values.
    row: usize,
    len: usize,
    blocks: Vec<Arc<Block<K>>>,
}

impl<K: KvElement> KvCache<K> {
    /// Empty, for `heads` key/value heads of width `d`.
    pub fn new(heads: usize, d: usize) -> Self {
        assert!(d.is_multiple_of(K::VALUES), "a head of {d} values in groups of {}", K::VALUES);
        Self { heads, d, row: d / K::VALUES, len: 0, blocks: Vec::new() }
    }

    /// Appends one position: k, v [heads × d].
    pub fn append(&mut self, k: &[f32], v: &[f32]) {
        let (heads, row, at) = (self.heads, self.row, self.len % BLOCK);
        if at == 0 {
            let zero = vec![K::ZERO; heads * BLOCK * row].into_boxed_slice();
            self.blocks.push(Arc::new(Block { k: zero.clone(), v: zero }));
        }
        let block = Arc::make_mut(self.blocks.last_mut().expect("pushed above where there was none"));
        for (to, from) in [(&mut block.k, k), (&mut block.v, v)] {
            for (head, from) in from.chunks_exact(self.d).enumerate() {
                K::store(from, &mut to[(head * BLOCK + at) * row..][..row]);
            }
        }
        self.len += 1;
    }

    /// Keys and values of head `head` in block `i`, 64 rows each; positions not written yet are 0.
    pub fn block(&self, i: usize, head: usize) -> (&[K], &[K]) {
        let at = head * BLOCK * self.row..(head + 1) * BLOCK * self.row;
        (&self.blocks[i].k[at.clone()], &self.blocks[i].v[at])
    }

    /// Width of a head.
    pub fn d(&self) -> usize {
        self.d
    }

    /// Bytes of all blocks, shared ones included.
    pub fn bytes(&self) -> u64 {
        self.blocks.len() as u64 * self.block_bytes()
    }

    /// Units of a row.
    pub fn row(&self) -> usize {
        self.row
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> u64 {
        (2 * self.heads * BLOCK) as u64 * K::TYPE.row_bytes(self.d)
    }

    /// Blocks so far.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The bytes of block `i`, keys before values.
    pub fn save_block(&self, i: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.block_bytes() as usize);
        K::write(&self.blocks[i].k, &mut bytes);
        K::write(&self.blocks[i].v, &mut bytes);
        bytes
    }

    /// A cache of `len` positions from the bytes of its blocks; `None` where they are too few or of another size.
    pub fn load(heads: usize, d: usize, len: usize, parts: &mut dyn Iterator<Item = Vec<u8>>) -> Option<Self> {
        let mut cache = Self { len, ..Self::new(heads, d) };
        for _ in 0..len.div_ceil(BLOCK) {
            let bytes = parts.next().filter(|bytes| bytes.len() as u64 == cache.block_bytes())?;
            let (k, v) = bytes.split_at(bytes.len() / 2);
            cache.blocks.push(Arc::new(Block { k: K::read(k), v: K::read(v) }));
        }
        Some(cache)
    }

    /// Every block, which clones of this cache may hold too. Its address is nobody else's while one of them lives.
    pub fn shared(&self) -> impl Iterator<Item = Shared> + '_ {
        let bytes = self.block_bytes();
        self.blocks.iter().map(move |block| Shared { id: Arc::as_ptr(block) as usize as u64, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast::element::{Bf16, Q8};
    use crate::testing::noise;

    #[test]
    fn clones_share_blocks_until_they_are_written() {
        let mut cache = KvCache::<f32>::new(2, 4);
        let rows = noise(1, 80 * 8);
        for row in rows[..70 * 8].chunks_exact(8) {
            cache.append(row, row);
        }
        let snapshot = cache.clone();
        assert!(
            Arc::ptr_eq(&cache.blocks[0], &snapshot.blocks[0]) && Arc::ptr_eq(&cache.blocks[1], &snapshot.blocks[1])
        );
        for row in rows[70 * 8..].chunks_exact(8) {
            cache.append(row, row);
        }
        assert!(Arc::ptr_eq(&cache.blocks[0], &snapshot.blocks[0]), "a full block stays shared");
        assert!(!Arc::ptr_eq(&cache.blocks[1], &snapshot.blocks[1]), "the written one is a copy");
        for position in 0..80 {
            for head in 0..2 {
                let (k, v) = cache.block(position / 64, head);
                let at = position % 64 * 4;
                let want = &rows[position * 8 + head * 4..][..4];
                assert_eq!((&k[at..at + 4], &v[at..at + 4]), (want, want));
            }
        }
        assert_eq!(snapshot.len, 70);
        let ids = |c: &KvCache<f32>| c.shared().map(|s| s.id).collect::<Vec<_>>();
        let (a, b) = (ids(&cache), ids(&snapshot));
        assert!(a[0] == b[0] && a[1] != b[1], "{a:?} {b:?}");
        assert_eq!(cache.shared().map(|s| s.bytes).sum::<u64>(), cache.bytes());
        assert!(snapshot.block(1, 0).0[6 * 4..].iter().all(|&v| v == 0.0), "the snapshot is as it was");
        assert_eq!(cache.bytes(), 2 * 2 * 2 * 64 * 4 * 4);
    }

    #[test]
    fn bytes_are_those_of_the_type() {
        fn of<K: KvElement>() -> (u64, u64) {
            let mut cache = KvCache::<K>::new(2, 256);
            for row in noise(1, 65 * 512).chunks_exact(512) {
                cache.append(row, row);
            }
            (cache.bytes(), cache.shared().map(|s| s.bytes).sum())
        }
        // Two blocks, keys and values, two heads, 64 rows.
        assert_eq!(of::<f32>(), (2 * 2 * 2 * 64 * 1024, 524_288));
        assert_eq!(of::<Bf16>(), (2 * 2 * 2 * 64 * 512, 262_144));
        assert_eq!(of::<Q8>(), (2 * 2 * 2 * 64 * 272, 139_264));
    }
}
