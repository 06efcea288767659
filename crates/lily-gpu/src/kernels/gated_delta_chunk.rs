//! The gated delta rule for prefill, over blocks of 64 tokens at once (`docs/model.md §4.5`).

use lily_model::Shape;

use super::{Body, View, need};
use crate::args::DeltaChunkArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Tokens of a block, `DELTA_BLOCK` of the shader.
const BLOCK: u32 = 64;
/// Values that the first dispatch hands to the second for a block and value head, `DELTA_SCRATCH` of the shader.
const SCRATCH: u64 = 2 * 36 * 64 + 4 * 64;
/// Values of a head that a threadgroup of the second dispatch takes, `DELTA_VALUES` and `SCAN_VALUES` of the shaders.
const VALUES: u32 = 32;

/// Where everything lies; all values F32. One sequence.
pub struct GatedDeltaChunk<'a, B> {
    /// What multiplies: [`Body::Mma`], or 8×8 steps for the others.
    pub body: Body,
    /// Of `conv_silu`: `[tokens × channels]`.
    pub qkv: View<'a, B>,
    /// Of `conv_silu`: `[tokens × 2 × value heads]`.
    pub gates: View<'a, B>,
    /// `[slots × value heads × 128 values × 128 keys]`: S transposed against the text.
    pub state: View<'a, B>,
    /// `[2]` u32: the slot that the sequence reads and another one that it writes.
    pub slots: View<'a, B>,
    /// [`gated_delta_chunk_scratch`] bytes, free again after these dispatches.
    pub scratch: View<'a, B>,
    /// Out: `[tokens × value heads × 128]`.
    pub out: View<'a, B>,
    /// Absolute position of the first token: blocks begin at multiples of 64.
    pub start: u32,
    /// Tokens.
    pub tokens: u32,
}

/// Bytes of scratch that are enough for so many tokens from any position.
pub fn gated_delta_chunk_scratch(shape: &Shape, tokens: u32) -> u64 {
    // The first block may be cut: one more than full ones would need.
    scratch_bytes(shape, tokens.div_ceil(BLOCK) + u32::from(tokens > 1))
}

fn scratch_bytes(shape: &Shape, blocks: u32) -> u64 {
    u64::from(blocks) * shape.linear_value_heads as u64 * SCRATCH * 4
}

/// Two dispatches. The bits of a row do not depend on where a prompt is cut at multiples of 64 of the position.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn gated_delta_chunk<G: Gpu>(
    gpu: &mut G,
    shape: &Shape,
    d: &GatedDeltaChunk<'_, G::Buffer>,
) -> Result<(), GpuError> {
    assert_eq!(shape.linear_head_dim, 128, "the kernel is written for heads of 128");
    let (keys, values) = (shape.linear_key_heads as u32, shape.linear_value_heads as u32);
    assert!(values.is_multiple_of(keys), "{values} value heads on {keys} key heads");
    assert!((1..=1 << 30).contains(&d.tokens), "{} tokens", d.tokens);
    let first = d.start % BLOCK;
    let blocks = (first + d.tokens).div_ceil(BLOCK);
    let rows = u64::from(d.tokens);
    need(gpu, d.qkv, rows * shape.conv_dim() as u64, 4, "qkv");
    need(gpu, d.gates, rows * 2 * u64::from(values), 4, "gates");
    // Past and next differ, so there are two slots at least.
    need(gpu, d.state, 2 * u64::from(values) * 128 * 128, 4, "recurrent state");
    need(gpu, d.slots, 2, 4, "slots");
    need(gpu, d.scratch, scratch_bytes(shape, blocks), 1, "scratch");
    need(gpu, d.out, rows * shape.value_dim() as u64, 4, "out");
    let args = DeltaChunkArgs { tokens: d.tokens, first, key_heads: keys, value_heads: values }.to_bytes();
    let ([prepare, scan], threads) = match d.body {
        Body::Simdgroup | Body::Tensor => (["gated_delta_chunk_prepare", "gated_delta_chunk_scan"], 128),
        Body::Mma => (["gated_delta_chunk_prepare_mma", "gated_delta_chunk_scan_mma"], 256),
    };
    gpu.encode(&Launch {
        kernel: prepare,
        constants: &[],
        args: &[d.qkv.arg(), d.gates.arg(), d.scratch.arg(), Arg::Value(&args)],
        groups: [blocks, keys, 1],
        threads: [128, 1, 1],
    })?;
    gpu.encode(&Launch {
        kernel: scan,
        constants: &[],
        args: &[d.qkv.arg(), d.scratch.arg(), d.state.arg(), d.slots.arg(), d.out.arg(), Arg::Value(&args)],
        groups: [128 / VALUES, values, 1],
        threads: [threads, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "gated_delta_chunk_tests.rs"]
mod tests;
