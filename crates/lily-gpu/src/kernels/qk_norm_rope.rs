//! Norm and rotation of queries and keys, and the write to the cache (`docs/model.md §4.2, §4.3`).

use lily_model::KvType;

use super::kv::{HEAD, KvPool};
use super::{Element, View, need};
use crate::args::QkArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Heads of a threadgroup.
const SIMDGROUPS: u32 = 4;

/// Which positions the rows have.
pub enum Rows<'a, B> {
    /// One sequence, the first of the page table; row t stands at `start` + t.
    Prefill {
        /// Position of the first row.
        start: u32,
    },
    /// Row b is the next token of sequence b.
    Decode {
        /// Its position, `[rows]` u32.
        positions: View<'a, B>,
        /// Positions that the longest sequence has after this token, or more.
        longest: u32,
    },
}

/// Where everything lies; F32 unless said.
pub struct QkNormRope<'a, B> {
    /// `[rows × stride]`: 256 of query and 256 of gate for each query head; keys; values.
    pub projections: View<'a, B>,
    /// Values from one row to the next.
    pub stride: u32,
    /// `[256]`, ready to multiply.
    pub q_norm: View<'a, B>,
    /// `[256]`, ready to multiply.
    pub k_norm: View<'a, B>,
    /// Rotary frequencies `[32]`; the angle is their F32 product with the position.
    pub inv_freq: View<'a, B>,
    /// Out: `[rows × query heads × 256]`, scaled by 1/16.
    pub q: View<'a, B>,
    /// Type of `q`: F32, or BF16 where the cache is not of F32.
    pub q_element: Element,
    /// Out: keys and values of the rows.
    pub kv: KvPool<'a, B>,
    /// Query heads.
    pub query_heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Rows.
    pub rows: u32,
    /// Their positions.
    pub at: Rows<'a, B>,
}

/// Queries normalised, rotated and scaled to `q`; keys normalised and rotated, and values as they are, to the cache. The
/// gates stay where they are.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn qk_norm_rope<G: Gpu>(gpu: &mut G, n: &QkNormRope<'_, G::Buffer>) -> Result<(), GpuError> {
    let heads = n.query_heads + 2 * n.kv_heads;
    let values = (2 * n.query_heads + 2 * n.kv_heads) * HEAD;
    assert!(n.query_heads > 0 && n.kv_heads > 0 && n.rows > 0, "no heads or no rows");
    assert!(values <= n.stride, "{values} values every {}", n.stride);
    need(gpu, n.projections, u64::from(n.rows - 1) * u64::from(n.stride) + u64::from(values), 4, "projections");
    need(gpu, n.q_norm, HEAD.into(), 4, "query norm");
    need(gpu, n.k_norm, HEAD.into(), 4, "key norm");
    need(gpu, n.inv_freq, 32, 4, "rotary frequencies");
    need(gpu, n.q, u64::from(n.rows) * u64::from(n.query_heads * HEAD), n.q_element.size(), "queries");
    let (start, positions) = match n.at {
        Rows::Prefill { start } => {
            n.kv.check(gpu, n.kv_heads, 1, u64::from(start) + u64::from(n.rows));
            (start, n.kv.table) // bound, not read
        }
        Rows::Decode { positions, longest } => {
            need(gpu, positions, n.rows.into(), 4, "positions");
            n.kv.check(gpu, n.kv_heads, n.rows, longest.into());
            (0, positions)
        }
    };
    let kernel = match (n.q_element, n.kv.kv) {
        (Element::F32, KvType::F32) => "qk_norm_rope_f32_f32",
        (Element::F32, KvType::Bf16) => "qk_norm_rope_f32_bf16",
        (Element::Bf16, KvType::Bf16) => "qk_norm_rope_bf16_bf16",
        (Element::F32, KvType::Q8) => "qk_norm_rope_f32_q8",
        (Element::Bf16, KvType::Q8) => "qk_norm_rope_bf16_q8",
        (Element::Bf16, KvType::F32) => panic!("BF16 queries on an F32 cache"),
    };
    let args = QkArgs {
        page_stride: n.kv.page_stride,
        stride: n.stride,
        query_heads: n.query_heads,
        kv_heads: n.kv_heads,
        start,
        decode: u32::from(matches!(n.at, Rows::Decode { .. })),
        table_stride: n.kv.table_stride,
        eps: n.eps,
        unused: 0,
    };
    gpu.encode(&Launch {
        kernel,
        constants: &[],
        args: &[
            n.projections.arg(),
            n.q_norm.arg(),
            n.k_norm.arg(),
            n.inv_freq.arg(),
            positions.arg(),
            n.kv.table.arg(),
            n.q.arg(),
            n.kv.pool.arg(),
            Arg::Value(&args.to_bytes()),
        ],
        groups: [heads.div_ceil(SIMDGROUPS), n.rows, 1],
        threads: [32 * SIMDGROUPS, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "qk_norm_rope_tests.rs"]
mod tests;
