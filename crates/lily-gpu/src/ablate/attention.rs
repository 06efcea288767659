//! Decode's attention without one of its ideas, or as a control with both.

use super::launch::Named;
use super::{Ablated, SingleLaunches};
use crate::args::AblateAttentionArgs;
use crate::gpu::{Arg, Contents, GpuError, Launch};

/// Width of a full-attention head.
const HEAD: u32 = 256;
/// Dims that a threadgroup of the second pass takes, `ABLATE_DIMS` of the shader.
const DIMS: u32 = 64;

/// Which kernel stands in for decode's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// A threadgroup takes all query heads of a kv head; otherwise one.
    pub packed: bool,
    /// Parts that a sequence is cut into whatever its length, in whole pages; none: fixed blocks of 256 positions, and of 512
    /// beyond 16,384.
    pub splits: Option<u32>,
    /// Positions that a sequence has at most.
    pub longest: u32,
}

/// `ablate_span` of the shader.
fn span(length: u32, splits: u32) -> u32 {
    match splits {
        0 => {
            if length > 16384 {
                512
            } else {
                256
            }
        }
        n => length.div_ceil(n).next_multiple_of(64),
    }
}

/// The most parts that a sequence of up to `longest` positions can have.
fn parts(longest: u32, splits: u32) -> u32 {
    match splits {
        0 if longest > 16384 => longest.div_ceil(span(longest, 0)).max(64),
        0 => longest.div_ceil(span(longest, 0)),
        // A shorter sequence may need all of them where the longest, in whole pages, does not.
        n => n.min(longest.div_ceil(64)),
    }
}

impl<G: SingleLaunches> Ablated<G> {
    pub(super) fn attend(&mut self, launch: &Launch<'_, G::Buffer>, baseline: Baseline) -> Result<(), GpuError> {
        if ["attention_decode_merge", "attention_merge_mma"].contains(&launch.kernel) {
            return Ok(()); // the baseline has merged already
        }
        if !launch.kernel.starts_with("attention_decode") {
            return self.pass(launch);
        }
        let given = Named::of(launch)?;
        let sequences = launch.groups[2];
        let (query_heads, kv_heads) = (given.small("query_heads")?, given.small("kv_heads")?);
        let splits = baseline.splits.unwrap_or(0);
        let parts = parts(baseline.longest, splits);
        let args = AblateAttentionArgs {
            page_stride: given.field("page_stride")?,
            query_heads,
            kv_heads,
            stride: given.small("stride")?,
            table_stride: given.small("table_stride")?,
            parts,
            splits,
        };
        let args = args.to_bytes();
        let bytes = 4 * u64::from(sequences * query_heads * parts) * u64::from(HEAD + 2);
        let partials = match self.partials.take() {
            Some(buffer) if self.gpu.bytes(&buffer) >= bytes => buffer,
            _ => self.gpu.allocate(bytes, Contents::Activations)?,
        };
        let argument = |name| given.buffer(name).map(|(buffer, at)| Arg::Buffer(buffer, at));
        let sums = Arg::Buffer(&partials, 0);
        let f32 = launch.kernel.contains("f32");
        let kernel = match (baseline.packed, f32) {
            (false, true) => "ablate_attention_one_f32",
            (false, false) => "ablate_attention_one_bf16",
            (true, true) => "ablate_attention_packed_f32",
            (true, false) => "ablate_attention_packed_bf16",
        };
        let heads = if baseline.packed { kv_heads } else { query_heads };
        let positions = argument("positions")?;
        let bound = [argument("q")?, argument("pool")?, positions, argument("table")?, sums, Arg::Value(&args)];
        let groups = [heads, parts, sequences];
        self.pass(&Launch { kernel, constants: &[], args: &bound, groups, threads: [256, 1, 1] })?;
        let bound = [sums, positions, argument("projections")?, argument("out")?, Arg::Value(&args)];
        self.pass(&Launch {
            kernel: "ablate_attention_merge",
            constants: &[],
            args: &bound,
            groups: [query_heads * (HEAD / DIMS), sequences, 1],
            threads: [256, 1, 1],
        })?;
        self.partials = Some(partials);
        self.switch.state().replaced += 1;
        Ok(())
    }
}
