//! Rows of the embedding (`docs/model.md §4.1`).

use super::{DeviceMatrix, View, need};
use crate::args::EmbedArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Sums of squares that [`embed_gather`] writes for each row.
pub const EMBED_PARTIALS: u32 = 1;

/// out `[tokens × cols]` F32 = the rows of `embed` that `ids` `[tokens]` u32 name. Every id is below `embed.rows`.
/// `partials` `[tokens × EMBED_PARTIALS]` F32: each row's sum of squares, for the norm that the next kernel does.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn embed_gather<G: Gpu>(
    gpu: &mut G,
    embed: &DeviceMatrix<G::Buffer>,
    ids: View<'_, G::Buffer>,
    out: View<'_, G::Buffer>,
    partials: Option<View<'_, G::Buffer>>,
    tokens: u32,
) -> Result<(), GpuError> {
    assert!(matches!(embed.bits, 4 | 8 | 16), "{} bits", embed.bits);
    assert!(embed.cols.is_multiple_of(64) && embed.cols <= 32 * 1024, "{} columns", embed.cols);
    need(gpu, ids, tokens.into(), 4, "ids");
    need(gpu, out, u64::from(tokens) * u64::from(embed.cols), 4, "embedding rows");
    if let Some(partials) = partials {
        need(gpu, partials, u64::from(tokens) * u64::from(EMBED_PARTIALS), 4, "sums of squares");
    }
    let args = EmbedArgs { hidden: embed.cols, bits: embed.bits, sums: partials.is_some().into() };
    gpu.encode(&Launch {
        kernel: "embed_gather",
        constants: &[],
        args: &[
            Arg::Buffer(&embed.codes, 0),
            Arg::Buffer(&embed.scales, 0),
            Arg::Buffer(&embed.biases, 0),
            ids.arg(),
            out.arg(),
            partials.unwrap_or(out).arg(),
            Arg::Value(&args.to_bytes()),
        ],
        groups: [tokens, 1, 1],
        threads: [(embed.cols / 32).next_multiple_of(32), 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "embed_gather_tests.rs"]
mod tests;
