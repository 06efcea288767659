//! Rows sorted by expert, and the blocks of the grouped products (`docs/model.md §4.6`). Nothing is read back: the grid of
//! the products covers the worst case, and blocks past the last one are marked.

use super::{Body, View, need};
use crate::args::MapArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Threads of the one threadgroup, `MAP_THREADS` of the shader.
const THREADS: u32 = 512;

/// Where everything lies. Rows are numbered token · chosen + place among the token's experts.
#[derive(Debug)]
pub struct MoeMap<'a, B> {
    /// Of the products that follow: [`Body::Mma`] sorts in a kernel of its own.
    pub body: Body,
    /// `[rows]` u32: expert of each row, all below `count`.
    pub experts: View<'a, B>,
    /// Out: `[rows]` u32: rows sorted by expert, those of an expert in ascending order.
    pub order: View<'a, B>,
    /// Out: `[blocks]` u32: expert of each block; `u32::MAX` past the last one.
    pub block_expert: View<'a, B>,
    /// Out: `[blocks]` u32: place in `order` of a block's first row; 0 past the last block.
    pub block_first: View<'a, B>,
    /// Out: `[blocks]` u32: place after its last row; 0 past the last block.
    pub block_end: View<'a, B>,
    /// Tokens × experts of a token.
    pub rows: u32,
    /// Experts of the layer, at most 256.
    pub count: u32,
    /// Rows of a block.
    pub block: u32,
    /// Blocks of the grid, at least ⌈rows / block⌉ + min(count, rows), which the worst case does not exceed.
    pub blocks: u32,
}

/// # Errors
/// Of [`Gpu::encode`].
pub fn moe_map<G: Gpu>(gpu: &mut G, m: &MoeMap<'_, G::Buffer>) -> Result<(), GpuError> {
    assert!(m.rows > 0 && m.block > 0, "{} rows in blocks of {}", m.rows, m.block);
    assert!((1..=256).contains(&m.count), "{} experts", m.count);
    let worst = m.rows.div_ceil(m.block) + m.count.min(m.rows);
    assert!(m.blocks >= worst, "{} blocks, up to {worst} are needed", m.blocks);
    need(gpu, m.experts, m.rows.into(), 4, "experts");
    need(gpu, m.order, m.rows.into(), 4, "order");
    for view in [m.block_expert, m.block_first, m.block_end] {
        need(gpu, view, m.blocks.into(), 4, "block map");
    }
    let args = MapArgs { rows: m.rows, block: m.block, blocks: m.blocks }.to_bytes();
    let (kernel, threads) = match m.body {
        Body::Simdgroup | Body::Tensor => ("moe_map", THREADS),
        Body::Mma => ("moe_map_mma", 1024),
    };
    gpu.encode(&Launch {
        kernel,
        constants: &[],
        args: &[
            m.experts.arg(),
            m.order.arg(),
            m.block_expert.arg(),
            m.block_first.arg(),
            m.block_end.arg(),
            Arg::Value(&args),
        ],
        groups: [1, 1, 1],
        threads: [threads, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "moe_map_tests.rs"]
mod tests;
