//! The likeliest tokens of each row of logits, for sampling; ids that do not exist are never among them
//! (`docs/model.md §6.2`).

use super::{View, need};
use crate::args::TopKArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// The largest k, `TOP_K` of the shader.
pub const TOP_K: u32 = 64;
/// Logits of a block, `TOP_BLOCK` of the shader.
const BLOCK: u32 = 4096;
/// Threads of a block, `TOP_THREADS` of the shader.
const THREADS: u32 = 256;
/// Blocks that `top_k_final` merges.
const BLOCKS: u32 = 64;

/// Where everything lies.
#[derive(Debug)]
pub struct TopK<'a, B> {
    /// `[rows × stride]` F32, finite.
    pub logits: View<'a, B>,
    /// Values from one row to the next.
    pub stride: u32,
    /// Ids that exist, at most 262,144.
    pub vocab: u32,
    /// How many are wanted: 1 to [`TOP_K`], at most `vocab`.
    pub k: u32,
    /// Scratch: `[rows × top_k_scratch]` F32.
    pub block_values: View<'a, B>,
    /// Scratch: `[rows × top_k_scratch]` u32.
    pub block_ids: View<'a, B>,
    /// Out: `[rows × k]` F32 logits, in descending order.
    pub values: View<'a, B>,
    /// Out: `[rows × k]` u32, their ids; of equal logits the lower id first.
    pub ids: View<'a, B>,
    /// Rows.
    pub rows: u32,
}

/// Values of scratch for each row.
pub fn top_k_scratch(vocab: u32, k: u32) -> u32 {
    vocab.div_ceil(BLOCK) * k
}

/// Two dispatches.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn top_k<G: Gpu>(gpu: &mut G, t: &TopK<'_, G::Buffer>) -> Result<(), GpuError> {
    assert!(t.vocab > 0 && t.vocab <= t.stride, "{} ids every {} values", t.vocab, t.stride);
    assert!((1..=TOP_K.min(t.vocab)).contains(&t.k), "the {} largest of {}", t.k, t.vocab);
    let blocks = t.vocab.div_ceil(BLOCK);
    assert!(blocks <= BLOCKS, "{} ids", t.vocab);
    need(gpu, t.logits, u64::from(t.rows - 1) * u64::from(t.stride) + u64::from(t.vocab), 4, "logits");
    let scratch = u64::from(t.rows) * u64::from(top_k_scratch(t.vocab, t.k));
    need(gpu, t.block_values, scratch, 4, "block values");
    need(gpu, t.block_ids, scratch, 4, "block ids");
    need(gpu, t.values, u64::from(t.rows) * u64::from(t.k), 4, "values");
    need(gpu, t.ids, u64::from(t.rows) * u64::from(t.k), 4, "ids");
    let args = TopKArgs { vocab: t.vocab, stride: t.stride, blocks, k: t.k }.to_bytes();
    gpu.encode(&Launch {
        kernel: "top_k_blocks",
        constants: &[],
        args: &[t.logits.arg(), t.block_values.arg(), t.block_ids.arg(), Arg::Value(&args)],
        groups: [blocks, t.rows, 1],
        threads: [THREADS, 1, 1],
    })?;
    gpu.encode(&Launch {
        kernel: "top_k_final",
        constants: &[],
        args: &[t.block_values.arg(), t.block_ids.arg(), t.values.arg(), t.ids.arg(), Arg::Value(&args)],
        groups: [t.rows, 1, 1],
        threads: [32, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "top_k_tests.rs"]
mod tests;
