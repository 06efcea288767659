//! Attention of decoded tokens, one row a sequence (`docs/model.md §4.2`).

use lily_model::KvType;

use super::kv::{HEAD, KvPool};
use super::{Body, View, need};
use crate::args::DecodeArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Positions up to which a sequence is one threadgroup's for each kv head: one pass is enough.
pub const ATTENTION_BLOCK: u32 = 256;
/// Query heads of a kv head, at most: `DECODE_GROUP` of the shader.
const GROUP: u32 = 8;

/// Dims that a threadgroup of the second pass takes, `MERGE_DIMS` of the shader.
const MERGE_DIMS: u32 = 64;
/// The same with [`Body::Mma`]: the lanes of a simdgroup.
const STEP_MERGE_DIMS: u32 = 32;

/// Where everything lies; F32 unless said.
pub struct AttentionDecode<'a, B> {
    /// With [`Body::Mma`] and a BF16 cache the matrix instructions of NVIDIA GPUs multiply.
    pub body: Body,
    /// Of `qk_norm_rope`: `[sequences × query heads × 256]`, scaled.
    pub q: View<'a, B>,
    /// Keys and values, those of this token included.
    pub kv: KvPool<'a, B>,
    /// Position of each sequence's token, `[sequences]` u32.
    pub positions: View<'a, B>,
    /// Positions that the longest sequence has with this token, or more.
    pub longest: u32,
    /// `[sequences × stride]`: 256 of query and 256 of gate for each query head.
    pub projections: View<'a, B>,
    /// Values from one row to the next, a multiple of 4.
    pub stride: u32,
    /// Out: `[sequences × query heads × 256]`, gated.
    pub out: View<'a, B>,
    /// [`attention_decode_scratch`] bytes; not read where that is 0.
    pub scratch: View<'a, B>,
    /// Sequences, 1 to 8.
    pub sequences: u32,
    /// Query heads, 1 to 8 for each kv head.
    pub query_heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
}

/// How a context is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// 256 positions, and twice as many where 64 threadgroups for each kv head are there already, so that the sums that spans
    /// hand over weigh less (`decode_span` in the shader).
    Blocks,
    /// 32 positions and, in longer contexts, twice as many again and again (`step_span` in the shader of [`Body::Mma`]).
    Steps,
}

impl Cut {
    fn of(body: Body, kv: KvType) -> Self {
        if body == Body::Mma && kv == KvType::Bf16 { Self::Steps } else { Self::Blocks }
    }

    /// Positions up to which spans have which length; longer contexts have the last one.
    fn steps(self) -> &'static [(u32, u32)] {
        match self {
            Self::Blocks => &[(16_384, ATTENTION_BLOCK), (u32::MAX, 512)],
            Self::Steps => &[(1024, 32), (4096, 64), (8192, 128), (32_768, 256), (131_072, 512), (u32::MAX, 1024)],
        }
    }

    /// The most spans that a sequence of up to `positions` positions can have.
    fn spans(self, positions: u32) -> u32 {
        let mut most = 0;
        for &(up_to, span) in self.steps() {
            most = most.max(positions.min(up_to).div_ceil(span));
            if positions <= up_to {
                break;
            }
        }
        most
    }
}

/// Bytes of scratch for sequences of up to `positions` positions: 0 where one pass is enough.
pub fn attention_decode_scratch(body: Body, kv: KvType, sequences: u32, query_heads: u32, positions: u32) -> u64 {
    match Cut::of(body, kv).spans(positions) {
        0 | 1 => 0,
        n => u64::from(sequences) * u64::from(query_heads) * u64::from(n) * u64::from(HEAD + 2) * 4,
    }
}

/// Softmax attention of one row a sequence over its cached positions, times the sigmoid of its gate. One dispatch where no
/// sequence has more than [`ATTENTION_BLOCK`] positions (32 with the matrix instructions of [`Body::Mma`]), else two; the bits of
/// a row depend on its own sequence alone.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn attention_decode<G: Gpu>(gpu: &mut G, a: &AttentionDecode<'_, G::Buffer>) -> Result<(), GpuError> {
    assert!((1..=8).contains(&a.sequences), "a batch of {}; more than 8 rows are prefill", a.sequences);
    let group = a.query_heads / a.kv_heads;
    assert!(
        a.query_heads.is_multiple_of(a.kv_heads) && (1..=GROUP).contains(&group),
        "{} query heads on {} kv heads",
        a.query_heads,
        a.kv_heads
    );
    let (sequences, row) = (u64::from(a.sequences), u64::from(a.query_heads * HEAD));
    assert!(a.longest > 0, "no positions");
    assert!(2 * row <= a.stride.into() && a.stride.is_multiple_of(4), "gates in rows of {} values", a.stride);
    let aligned = [a.q, a.projections, a.out, a.scratch].iter().all(|v| v.offset.is_multiple_of(16));
    assert!(aligned, "rows not aligned to 16 bytes");
    need(gpu, a.q, sequences * row, 4, "queries");
    need(gpu, a.positions, sequences, 4, "positions");
    need(gpu, a.projections, (sequences - 1) * u64::from(a.stride) + 2 * row, 4, "gates");
    need(gpu, a.out, sequences * row, 4, "attention");
    let scratch = attention_decode_scratch(a.body, a.kv.kv, a.sequences, a.query_heads, a.longest);
    need(gpu, a.scratch, scratch, 1, "scratch");
    a.kv.check(gpu, a.kv_heads, a.sequences, a.longest.into());

    let cut = Cut::of(a.body, a.kv.kv);
    let spans = cut.spans(a.longest);
    let args = DecodeArgs {
        page_stride: a.kv.page_stride,
        query_heads: a.query_heads,
        kv_heads: a.kv_heads,
        stride: a.stride,
        table_stride: a.kv.table_stride,
        spans,
        unused: 0,
    };
    let args = args.to_bytes();
    let partials = if spans == 1 { a.out } else { a.scratch };
    gpu.encode(&Launch {
        kernel: match (cut, a.kv.kv) {
            (Cut::Steps, _) => "attention_decode_mma",
            (Cut::Blocks, KvType::F32) => "attention_decode_f32",
            (Cut::Blocks, KvType::Bf16) => "attention_decode_bf16",
            (Cut::Blocks, KvType::Q8) => "attention_decode_q8",
        },
        constants: &[],
        args: &[
            a.q.arg(),
            a.kv.pool.arg(),
            a.positions.arg(),
            a.kv.table.arg(),
            a.projections.arg(),
            a.out.arg(),
            partials.arg(),
            Arg::Value(&args),
        ],
        groups: [spans, a.kv_heads, a.sequences],
        threads: [32 * GROUP, 1, 1],
    })?;
    if spans == 1 {
        return Ok(());
    }
    let (kernel, dims) = match cut {
        Cut::Blocks => ("attention_decode_merge", MERGE_DIMS),
        Cut::Steps => ("attention_merge_mma", STEP_MERGE_DIMS),
    };
    gpu.encode(&Launch {
        kernel,
        constants: &[],
        args: &[partials.arg(), a.positions.arg(), a.projections.arg(), a.out.arg(), Arg::Value(&args)],
        groups: [a.query_heads * (HEAD / dims), a.sequences, 1],
        threads: [256, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "attention_decode_tests.rs"]
mod tests;
