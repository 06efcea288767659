//! Where cached keys and values of full attention lie.

use super::{Element, View, need};
use crate::gpu::Gpu;

/// Positions of a page.
pub const KV_PAGE: u32 = 64;

/// Width of a full-attention head; the kernels are written for it.
pub(super) const HEAD: u32 = 256;

/// One layer's keys and values. A page of [`KV_PAGE`] positions holds all full layers, each
/// `[keys | values][kv heads][64 positions][256]`; sequences own pages through a table.
#[derive(Debug)]
pub struct KvPool<'a, B> {
    /// The pool, from the layer's place in page 0 on. Aligned to 16 bytes.
    pub pool: View<'a, B>,
    /// Type of keys and values.
    pub element: Element,
    /// Values from one page to the next, a multiple of 8.
    pub page_stride: u64,
    /// `[sequences × table_stride]` u32: page n of a row holds its sequence's positions 64·n to 64·n + 63.
    pub table: View<'a, B>,
    /// Pages of a row.
    pub table_stride: u32,
}

impl<B> Clone for KvPool<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for KvPool<'_, B> {}

impl<B> KvPool<'_, B> {
    /// Panics unless sequences of up to `positions` positions can lie here. Which pages the table names is not checked.
    pub(super) fn check<G: Gpu<Buffer = B>>(&self, gpu: &G, kv_heads: u32, sequences: u32, positions: u64) {
        let layer = 2 * u64::from(kv_heads) * u64::from(KV_PAGE) * u64::from(HEAD);
        assert!(self.page_stride >= layer, "pages of {} values for {kv_heads} kv heads", self.page_stride);
        assert!(
            self.page_stride.is_multiple_of(8) && self.pool.offset.is_multiple_of(16),
            "rows not aligned to 16 bytes"
        );
        let pages = positions.div_ceil(KV_PAGE.into());
        assert!(pages <= self.table_stride.into(), "{positions} positions in {} pages", self.table_stride);
        need(gpu, self.pool, layer, self.element.size(), "cache");
        need(gpu, self.table, u64::from(sequences) * u64::from(self.table_stride), 4, "page table");
    }
}
