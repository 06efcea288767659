//! Where cached keys and values of full attention lie.

use lily_model::KvType;

use super::{View, need};
use crate::gpu::Gpu;

/// Positions of a page.
pub const KV_PAGE: u32 = 64;

/// Width of a full-attention head; the kernels are written for it.
pub(super) const HEAD: u32 = 256;

/// Bytes of the units that a pool is counted in: values, or in [`KvType::Q8`] single bytes.
pub fn kv_unit(kv: KvType) -> u64 {
    match kv {
        KvType::F32 => 4,
        KvType::Bf16 => 2,
        KvType::Q8 => 1,
    }
}

/// Rows of 256 values as a pool of [`KvType::Q8`] has them, 272 bytes each: what a kernel would store, for tests and checks.
pub fn to_q8(values: &[f32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len() / HEAD as usize * 272);
    for row in values.chunks_exact(HEAD as usize) {
        let mut scales = Vec::with_capacity(16);
        for group in row.chunks_exact(KvType::GROUP) {
            let largest = group.iter().fold(0.0f32, |m, v| if v.is_nan() { *v } else { m.max(v.abs()) }) / 127.0;
            // To the upper half, to nearest, ties to even; NaN stays one.
            let upper = match largest.is_nan() {
                true => 0x7FC0,
                false => ((largest.to_bits() + 0x7FFF + (largest.to_bits() >> 16 & 1)) >> 16) as u16,
            };
            let scale = f32::from_bits(u32::from(upper) << 16);
            let (upper, inverse) = if scale < f32::MIN_POSITIVE { (0, 0.0) } else { (upper, 1.0 / scale) };
            out.extend(group.iter().map(|v| (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8));
            scales.extend(upper.to_ne_bytes());
        }
        out.extend(scales);
    }
    out
}

/// The values of such rows.
pub fn from_q8(rows: &[u8]) -> Vec<f32> {
    let values = |row: &[u8]| {
        let (codes, scales) = row.split_at(HEAD as usize);
        let scales = scales.as_chunks().0.iter().map(|s| f32::from_bits(u32::from(u16::from_ne_bytes(*s)) << 16));
        let groups = codes.chunks_exact(KvType::GROUP).zip(scales);
        groups.flat_map(|(g, scale)| g.iter().map(move |c| f32::from(*c as i8) * scale)).collect::<Vec<_>>()
    };
    rows.chunks_exact(272).flat_map(values).collect()
}

/// One layer's keys and values. A page of [`KV_PAGE`] positions holds all full layers, each
/// `[keys | values][kv heads][64 positions][row]`; sequences own pages through a table. A row is 256 values; in
/// [`KvType::Q8`] 256 signed bytes and 8 BF16 scales of 32 of them each.
#[derive(Debug)]
pub struct KvPool<'a, B> {
    /// The pool, from the layer's place in page 0 on. Aligned to 16 bytes.
    pub pool: View<'a, B>,
    /// Type of keys and values.
    pub kv: KvType,
    /// Units ([`kv_unit`]) from one page to the next, a multiple of 8 values or 16 bytes.
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
        let (unit, row) = (kv_unit(self.kv), self.kv.row_bytes(HEAD as usize));
        let layer = 2 * u64::from(kv_heads) * u64::from(KV_PAGE) * row / unit;
        assert!(self.page_stride >= layer, "pages of {} units for {kv_heads} kv heads", self.page_stride);
        assert!(
            (self.page_stride * unit).is_multiple_of(16) && self.pool.offset.is_multiple_of(16),
            "rows not aligned to 16 bytes"
        );
        let pages = positions.div_ceil(KV_PAGE.into());
        assert!(pages <= self.table_stride.into(), "{positions} positions in {} pages", self.table_stride);
        need(gpu, self.pool, layer, unit, "cache");
        need(gpu, self.table, u64::from(sequences) * u64::from(self.table_stride), 4, "page table");
    }
}
