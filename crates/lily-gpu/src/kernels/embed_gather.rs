//! Rows of the 4-bit embedding (`docs/model.md §4.1`).

use super::{DeviceMatrix, View, need};
use crate::args::EmbedArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// out `[tokens × cols]` F32 = the rows of `embed` that `ids` `[tokens]` u32 name. Every id is below `embed.rows`.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn embed_gather<G: Gpu>(
    gpu: &mut G,
    embed: &DeviceMatrix<G::Buffer>,
    ids: View<'_, G::Buffer>,
    out: View<'_, G::Buffer>,
    tokens: u32,
) -> Result<(), GpuError> {
    assert_eq!(embed.bits, 4, "the embedding has 4-bit codes");
    assert!(embed.cols.is_multiple_of(64) && embed.cols <= 32 * 1024, "{} columns", embed.cols);
    need(gpu, ids, tokens.into(), 4, "ids");
    need(gpu, out, u64::from(tokens) * u64::from(embed.cols), 4, "embedding rows");
    gpu.encode(&Launch {
        kernel: "embed_gather",
        constants: &[],
        args: &[
            Arg::Buffer(&embed.codes, 0),
            Arg::Buffer(&embed.scales, 0),
            Arg::Buffer(&embed.biases, 0),
            ids.arg(),
            out.arg(),
            Arg::Value(&EmbedArgs { hidden: embed.cols }.to_bytes()),
        ],
        groups: [tokens, 1, 1],
        threads: [(embed.cols / 32).next_multiple_of(32), 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "embed_gather_tests.rs"]
mod tests;
