//! Convolution, SiLU, unit q and k, decay and write strength of linear attention (`docs/model.md §4.4`).

use lily_model::Shape;

use super::{View, need};
use crate::args::ConvArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Heads of a threadgroup.
const SIMDGROUPS: u32 = 4;
/// Tokens of a simdgroup, `CONV_TOKENS` of the shader.
const TOKENS: u32 = 4;

/// Where everything lies. `channels` is [`Shape::conv_dim`], all values F32 but the BF16 convolution weights.
pub struct ConvSilu<'a, B> {
    /// `[sequences × tokens × stride]`, rows that begin with q | k | v.
    pub projections: View<'a, B>,
    /// Values from one row to the next, a multiple of 4.
    pub stride: u32,
    /// Where a begins in a row; b follows it.
    pub gates_at: u32,
    /// The last rows before convolution, oldest first: `[slots × 3 × channels]`.
    pub state: View<'a, B>,
    /// `[sequences × 2]` u32: the slot that a sequence reads and another one that it writes.
    pub slots: View<'a, B>,
    /// `[channels × 4]` BF16.
    pub weights: View<'a, B>,
    /// `[value heads]`.
    pub a_log: View<'a, B>,
    /// `[value heads]`.
    pub dt_bias: View<'a, B>,
    /// Out: `[sequences × tokens × channels]`.
    pub qkv: View<'a, B>,
    /// Out: `[sequences × tokens × 2 × value heads]`, log decay g and then β.
    pub gates: View<'a, B>,
    /// Sequences.
    pub sequences: u32,
    /// Tokens of each.
    pub tokens: u32,
}

/// # Errors
/// Of [`Gpu::encode`].
pub fn conv_silu<G: Gpu>(gpu: &mut G, shape: &Shape, c: &ConvSilu<'_, G::Buffer>) -> Result<(), GpuError> {
    assert_eq!((shape.linear_head_dim, shape.conv_taps), (128, 4), "the kernel is written for heads of 128 and 4 taps");
    let (keys, values) = (shape.linear_key_heads as u32, shape.linear_value_heads as u32);
    let (rows, channels) = (u64::from(c.sequences) * u64::from(c.tokens), shape.conv_dim() as u64);
    assert!(c.stride.is_multiple_of(4), "rows of {} values are not aligned to 16 bytes", c.stride);
    assert!(u64::from(c.gates_at) >= channels && c.gates_at + 2 * values <= c.stride, "gates at {}", c.gates_at);
    need(gpu, c.projections, rows * u64::from(c.stride), 4, "projections");
    need(gpu, c.weights, channels * 4, 2, "convolution weights");
    need(gpu, c.a_log, values.into(), 4, "A_log");
    need(gpu, c.dt_bias, values.into(), 4, "dt_bias");
    // Past and next differ, so there are two slots at least.
    need(gpu, c.state, 2 * 3 * channels, 4, "convolution state");
    need(gpu, c.slots, 2 * u64::from(c.sequences), 4, "slots");
    need(gpu, c.qkv, rows * channels, 4, "qkv");
    need(gpu, c.gates, rows * 2 * u64::from(values), 4, "gates");
    let args = ConvArgs { tokens: c.tokens, stride: c.stride, gates: c.gates_at, key_heads: keys, value_heads: values };
    gpu.encode(&Launch {
        kernel: "conv_silu",
        constants: &[],
        args: &[
            c.projections.arg(),
            c.state.arg(),
            c.slots.arg(),
            c.weights.arg(),
            c.a_log.arg(),
            c.dt_bias.arg(),
            c.qkv.arg(),
            c.gates.arg(),
            Arg::Value(&args.to_bytes()),
        ],
        groups: [(2 * keys + values).div_ceil(SIMDGROUPS), c.tokens.div_ceil(TOKENS), c.sequences],
        threads: [32 * SIMDGROUPS, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "conv_silu_tests.rs"]
mod tests;
