//! The gated delta rule in its recurrent form (`docs/model.md §4.4`).

use lily_model::Shape;

use super::{View, need};
use crate::args::DeltaArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Rows of the state that a simdgroup holds, `DELTA_ROWS` of the shader.
const ROWS: u32 = 4;
/// Simdgroups of a threadgroup.
const SIMDGROUPS: u32 = 4;

/// Where everything lies; all values F32.
pub struct GatedDeltaStep<'a, B> {
    /// Of `conv_silu`: `[sequences × tokens × channels]`.
    pub qkv: View<'a, B>,
    /// Of `conv_silu`: `[sequences × tokens × 2 × value heads]`.
    pub gates: View<'a, B>,
    /// `[slots × value heads × 128 values × 128 keys]`, updated: S transposed against the text.
    pub state: View<'a, B>,
    /// The slot of each sequence, `[sequences]` u32.
    pub slots: View<'a, B>,
    /// Out: `[sequences × tokens × value heads × 128]`.
    pub out: View<'a, B>,
    /// Sequences.
    pub sequences: u32,
    /// Tokens of each, one after another.
    pub tokens: u32,
}

/// # Errors
/// Of [`Gpu::encode`].
pub fn gated_delta_step<G: Gpu>(gpu: &mut G, shape: &Shape, d: &GatedDeltaStep<'_, G::Buffer>) -> Result<(), GpuError> {
    assert_eq!(shape.linear_head_dim, 128, "the kernel is written for heads of 128");
    let (keys, values) = (shape.linear_key_heads as u32, shape.linear_value_heads as u32);
    assert!(values.is_multiple_of(keys), "{values} value heads on {keys} key heads");
    let rows = u64::from(d.sequences) * u64::from(d.tokens);
    need(gpu, d.qkv, rows * shape.conv_dim() as u64, 4, "qkv");
    need(gpu, d.gates, rows * 2 * u64::from(values), 4, "gates");
    need(gpu, d.state, u64::from(values) * 128 * 128, 4, "recurrent state");
    need(gpu, d.slots, d.sequences.into(), 4, "slots");
    need(gpu, d.out, rows * shape.value_dim() as u64, 4, "out");
    gpu.encode(&Launch {
        kernel: "gated_delta_step",
        constants: &[],
        args: &[
            d.qkv.arg(),
            d.gates.arg(),
            d.state.arg(),
            d.slots.arg(),
            d.out.arg(),
            Arg::Value(&DeltaArgs { tokens: d.tokens, key_heads: keys, value_heads: values }.to_bytes()),
        ],
        groups: [128 / (ROWS * SIMDGROUPS), values, d.sequences],
        threads: [32 * SIMDGROUPS, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "gated_delta_step_tests.rs"]
mod tests;
