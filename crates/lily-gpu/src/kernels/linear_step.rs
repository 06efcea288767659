//! Decode of linear attention between its projections, in one dispatch (`docs/model.md §4.4`).

use lily_model::Shape;

use super::{View, need};
use crate::args::LinearStepArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// 128 rows of the state, 8 a simdgroup.
const THREADS: u32 = 512;

/// Where everything lies. `channels` is [`Shape::conv_dim`], all values F32 but the BF16 convolution weights.
pub struct LinearStep<'a, B> {
    /// `[batch × stride]`, rows that begin with q | k | v.
    pub projections: View<'a, B>,
    /// Values from one row to the next, a multiple of 4.
    pub stride: u32,
    /// Where z begins in a row, a multiple of 4.
    pub z_at: u32,
    /// Where a begins in a row; b follows it.
    pub gates_at: u32,
    /// The last rows before convolution, oldest first: `[slots × 3 × channels]`.
    pub conv: View<'a, B>,
    /// `[slots × value heads × 128 values × 128 keys]`: S transposed against the text.
    pub state: View<'a, B>,
    /// `[batch × 2]` u32: the slot that a sequence reads and another one that it writes, in both pools.
    pub slots: View<'a, B>,
    /// `[channels × 4]` BF16.
    pub weights: View<'a, B>,
    /// `[value heads]`.
    pub a_log: View<'a, B>,
    /// `[value heads]`.
    pub dt_bias: View<'a, B>,
    /// Of the gated norm, `[128]`.
    pub norm: View<'a, B>,
    /// Out: `[batch × value heads × 128]`, the input of the output projection.
    pub y: View<'a, B>,
    /// Sequences, one token each.
    pub batch: u32,
}

/// # Errors
/// Of [`Gpu::encode`].
pub fn linear_step<G: Gpu>(gpu: &mut G, shape: &Shape, l: &LinearStep<'_, G::Buffer>) -> Result<(), GpuError> {
    assert_eq!((shape.linear_head_dim, shape.conv_taps), (128, 4), "the kernel is written for heads of 128 and 4 taps");
    let (keys, values) = (shape.linear_key_heads as u32, shape.linear_value_heads as u32);
    assert!(values.is_multiple_of(keys), "{values} value heads on {keys} key heads");
    let (batch, channels, width) = (u64::from(l.batch), shape.conv_dim() as u64, shape.value_dim() as u64);
    assert!(l.stride.is_multiple_of(4) && l.z_at.is_multiple_of(4), "float4 at {} of {} values", l.z_at, l.stride);
    let inside = |from: u32, count: u64| u64::from(from) >= channels && u64::from(from) + count <= l.stride.into();
    assert!(inside(l.z_at, width) && inside(l.gates_at, 2 * u64::from(values)), "z at {}, a at {}", l.z_at, l.gates_at);
    need(gpu, l.projections, batch * u64::from(l.stride), 4, "projections");
    // Past and next differ, so there are two slots at least.
    need(gpu, l.conv, 2 * 3 * channels, 4, "convolution state");
    need(gpu, l.state, 2 * width * 128, 4, "recurrent state");
    need(gpu, l.slots, 2 * batch, 4, "slots");
    need(gpu, l.weights, channels * 4, 2, "convolution weights");
    need(gpu, l.a_log, values.into(), 4, "A_log");
    need(gpu, l.dt_bias, values.into(), 4, "dt_bias");
    need(gpu, l.norm, 128, 4, "norm weight");
    need(gpu, l.y, batch * width, 4, "y");
    let args = LinearStepArgs {
        stride: l.stride,
        z: l.z_at,
        gates: l.gates_at,
        key_heads: keys,
        value_heads: values,
        eps: shape.norm_eps,
    };
    gpu.encode(&Launch {
        kernel: "linear_step",
        constants: &[],
        args: &[
            l.projections.arg(),
            l.conv.arg(),
            l.state.arg(),
            l.slots.arg(),
            l.weights.arg(),
            l.a_log.arg(),
            l.dt_bias.arg(),
            l.norm.arg(),
            l.y.arg(),
            Arg::Value(&args.to_bytes()),
        ],
        groups: [values, l.batch, 1],
        threads: [THREADS, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "linear_step_tests.rs"]
mod tests;
