//! The greedy token of each row of logits; ids that do not exist are never chosen (`docs/model.md §6.2`).

use super::{View, need};
use crate::args::ArgmaxArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Blocks that a row of logits is cut into, so that the whole device reads it.
pub const ARGMAX_BLOCKS: u32 = 64;
/// No id.
pub const NO_TOKEN: u32 = u32::MAX;
/// Threads of a block, `ARGMAX_THREADS` of the shader.
const THREADS: u32 = 256;

/// Where everything lies.
pub struct Argmax<'a, B> {
    /// `[rows × stride]` F32.
    pub logits: View<'a, B>,
    /// Values from one row to the next.
    pub stride: u32,
    /// Ids that exist.
    pub vocab: u32,
    /// Scratch: `[rows × ARGMAX_BLOCKS]` F32.
    pub block_values: View<'a, B>,
    /// Scratch: `[2 × rows × ARGMAX_BLOCKS]` u32.
    pub block_indices: View<'a, B>,
    /// Out: `[2 × rows]` u32: the tokens, then for each row the first id whose logit is NaN or +∞, else [`NO_TOKEN`]. Of a row
    /// with such a logit the token is some id that exists.
    pub tokens: View<'a, B>,
    /// Rows.
    pub rows: u32,
}

/// Two dispatches.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn argmax<G: Gpu>(gpu: &mut G, a: &Argmax<'_, G::Buffer>) -> Result<(), GpuError> {
    assert!(a.vocab > 0 && a.vocab <= a.stride, "{} ids every {} values", a.vocab, a.stride);
    need(gpu, a.logits, u64::from(a.rows - 1) * u64::from(a.stride) + u64::from(a.vocab), 4, "logits");
    let blocks = u64::from(a.rows) * u64::from(ARGMAX_BLOCKS);
    need(gpu, a.block_values, blocks, 4, "block values");
    need(gpu, a.block_indices, 2 * blocks, 4, "block indices");
    need(gpu, a.tokens, 2 * u64::from(a.rows), 4, "tokens");
    let args = ArgmaxArgs { vocab: a.vocab, stride: a.stride, blocks: ARGMAX_BLOCKS }.to_bytes();
    gpu.encode(&Launch {
        kernel: "argmax_blocks",
        constants: &[],
        args: &[a.logits.arg(), a.block_values.arg(), a.block_indices.arg(), Arg::Value(&args)],
        groups: [ARGMAX_BLOCKS, a.rows, 1],
        threads: [THREADS, 1, 1],
    })?;
    gpu.encode(&Launch {
        kernel: "argmax_final",
        constants: &[],
        args: &[a.block_values.arg(), a.block_indices.arg(), a.tokens.arg(), Arg::Value(&args)],
        groups: [a.rows, 1, 1],
        threads: [32, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "argmax_tests.rs"]
mod tests;
