//! Causal attention of a prompt's rows (`docs/model.md §4.2`).

use lily_model::KvType;

use super::kv::{HEAD, KvPool};
use super::{Body, Element, View, need};
use crate::args::PrefillArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Rows of a threadgroup, `PREFILL_ROWS` of the shader.
const ROWS: u32 = 8;
/// Rows of scores of a threadgroup with [`Body::Mma`], of all its query heads: `ATTEND_ROWS` of the shader.
const MMA_ROWS: u32 = 128;
/// Its threads: two warp groups that multiply, one that copies.
const MMA_THREADS: u32 = 384;
/// Query heads of a kv head, at most; each is a simdgroup.
const GROUP: u32 = 8;

/// Where everything lies.
pub struct AttentionPrefill<'a, B> {
    /// What multiplies; only [`Body::Mma`] has kernels of its own here, for BF16.
    pub body: Body,
    /// Type of `q` and `out`, and of what is multiplied: that of the cache, or any with a cache of 8 bits, whose values are
    /// rounded to it.
    pub element: Element,
    /// Of `qk_norm_rope`: `[rows × query heads × 256]`, scaled.
    pub q: View<'a, B>,
    /// Keys and values of positions 0 to `start` + `rows` - 1; the sequence is the first of the page table.
    pub kv: KvPool<'a, B>,
    /// `[rows × stride]` F32: 256 of query and 256 of gate for each query head.
    pub projections: View<'a, B>,
    /// Values from one row to the next, a multiple of 4.
    pub stride: u32,
    /// Out: `[rows × query heads × 256]`, gated.
    pub out: View<'a, B>,
    /// Query heads, 1 to 8 for each kv head.
    pub query_heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Position of the first row.
    pub start: u32,
    /// Rows.
    pub rows: u32,
}

/// Softmax attention of each row over the positions up to its own, times the sigmoid of its gate. One dispatch; the bits
/// of a row do not depend on `start` and `rows`.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn attention_prefill<G: Gpu>(gpu: &mut G, a: &AttentionPrefill<'_, G::Buffer>) -> Result<(), GpuError> {
    let group = a.query_heads / a.kv_heads;
    assert!(
        a.query_heads.is_multiple_of(a.kv_heads) && (1..=GROUP).contains(&group),
        "{} query heads on {} kv heads",
        a.query_heads,
        a.kv_heads
    );
    let (rows, row) = (u64::from(a.rows), u64::from(a.query_heads * HEAD));
    assert!(a.rows > 0, "no rows");
    assert!(2 * row <= a.stride.into() && a.stride.is_multiple_of(4), "gates in rows of {} values", a.stride);
    need(gpu, a.q, rows * row, a.element.size(), "queries");
    need(gpu, a.projections, (rows - 1) * u64::from(a.stride) + 2 * row, 4, "gates");
    need(gpu, a.out, rows * row, a.element.size(), "attention");
    a.kv.check(gpu, a.kv_heads, 1, u64::from(a.start) + rows);
    let args = PrefillArgs {
        page_stride: a.kv.page_stride,
        query_heads: a.query_heads,
        kv_heads: a.kv_heads,
        stride: a.stride,
        start: a.start,
        rows: a.rows,
        unused: 0,
    };
    let body = if a.kv.kv == KvType::Q8 { Body::Simdgroup } else { a.body.of(a.element) };
    let kernel = match (a.element, a.kv.kv) {
        (Element::F32, KvType::F32) => "attention_prefill_f32",
        (Element::Bf16, KvType::Bf16) if body == Body::Mma => "attention_prefill_bf16_mma",
        (Element::Bf16, KvType::Bf16) => "attention_prefill_bf16",
        (Element::F32, KvType::Q8) => "attention_prefill_f32_q8",
        (Element::Bf16, KvType::Q8) => "attention_prefill_bf16_q8",
        (element, kv) => panic!("{element:?} rows on a cache of {}", kv.name()),
    };
    let (groups, threads) = match body {
        Body::Simdgroup | Body::Tensor => ([a.rows.div_ceil(ROWS), a.kv_heads], 32 * group),
        // One dimension: the longest rows of all kv heads come first.
        Body::Mma => ([a.rows.div_ceil(MMA_ROWS / group) * a.kv_heads, 1], MMA_THREADS),
    };
    gpu.encode(&Launch {
        kernel,
        constants: &[],
        args: &[
            a.q.arg(),
            a.kv.pool.arg(),
            a.kv.table.arg(),
            a.projections.arg(),
            a.out.arg(),
            Arg::Value(&args.to_bytes()),
        ],
        groups: [groups[0], groups[1], 1],
        threads: [threads, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "attention_prefill_tests.rs"]
mod tests;
