//! A cheap, clonable view of read-only bytes that someone keeps alive.

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::synthetic::Numbers;

/// A view into a memory map or into bytes embedded in the binary. Clones share the backing.
///
/// No alignment is promised: MLX does not pad the header of its files, so tensors may begin at odd addresses, and
/// embedded bytes begin anywhere. Kernels use unaligned loads.
#[derive(Clone)]
pub struct Bytes {
    backing: Arc<dyn Backing>,
    range: Range<usize>,
}

/// What keeps the bytes.
pub(crate) trait Backing: Send + Sync {
    fn all(&self) -> &[u8];
    /// What they will be, where nobody has made them yet.
    fn numbers(&self) -> Option<Numbers> {
        None
    }
}

struct Held<T>(T);

impl<T: AsRef<[u8]> + Send + Sync> Backing for Held<T> {
    fn all(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl Bytes {
    /// All of `backing`.
    pub fn new(backing: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..backing.as_ref().len();
        Self { backing: Arc::new(Held(backing)), range }
    }

    /// `len` bytes that are made when they are first read.
    pub(crate) fn later(backing: impl Backing + 'static, len: usize) -> Self {
        Self { backing: Arc::new(backing), range: 0..len }
    }

    /// Seeded numbers that are not in host memory, and the byte of theirs where this view begins: a device can make them
    /// itself. `None` for all other bytes, and after the first read.
    pub fn numbers(&self) -> Option<(Numbers, usize)> {
        Some((self.backing.numbers()?, self.range.start))
    }

    /// Length, without making them.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// A part of this view. Panics where the range is outside, as slices do.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.range.len(), "slice {range:?} of {}", self.range.len());
        Self { backing: self.backing.clone(), range: self.range.start + range.start..self.range.start + range.end }
    }

    /// This view and `next` as one, where `next` begins at the byte where this one ends.
    pub fn joined(&self, next: &Self) -> Option<Self> {
        let adjacent = Arc::ptr_eq(&self.backing, &next.backing) && self.range.end == next.range.start;
        adjacent.then(|| Self { backing: self.backing.clone(), range: self.range.start..next.range.end })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.backing.all()[self.range.clone()]
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({})", self.range.len())
    }
}
