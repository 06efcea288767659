//! The gated norm after the delta rule (end of `docs/model.md §4.4`), for prefill.

use lily_model::Shape;

use super::{Element, View, need};
use crate::args::GatedNormArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Heads of a threadgroup.
const SIMDGROUPS: u32 = 8;

/// Where everything lies. All values F32 but those of `y`.
pub struct GatedNorm<'a, B> {
    /// Of the delta rule: `[rows × value heads × 128]`.
    pub o: View<'a, B>,
    /// z of the first row, inside the projections.
    pub z: View<'a, B>,
    /// Values from z of one row to z of the next, a multiple of 4.
    pub stride: u32,
    /// `[128]`, a plain multiplier, the same for all heads.
    pub weight: View<'a, B>,
    /// Out: `[rows × value heads × 128]`.
    pub y: View<'a, B>,
    /// Type of `y`.
    pub output: Element,
    /// Tokens.
    pub rows: u32,
}

/// # Errors
/// Of [`Gpu::encode`].
pub fn gated_norm<G: Gpu>(gpu: &mut G, shape: &Shape, n: &GatedNorm<'_, G::Buffer>) -> Result<(), GpuError> {
    assert_eq!(shape.linear_head_dim, 128, "the kernel is written for heads of 128");
    let (heads, width) = (shape.linear_value_heads as u32, shape.value_dim() as u64);
    let rows = u64::from(n.rows);
    assert!(n.stride.is_multiple_of(4) && u64::from(n.stride) >= width, "rows of {} values", n.stride);
    assert!(n.z.offset.is_multiple_of(16), "z at byte {}", n.z.offset);
    need(gpu, n.o, rows * width, 4, "o");
    need(gpu, n.z, (rows - 1) * u64::from(n.stride) + width, 4, "z");
    need(gpu, n.weight, 128, 4, "norm weight");
    need(gpu, n.y, rows * width, n.output.size(), "y");
    let kernel = match n.output {
        Element::F32 => "gated_norm_f32",
        Element::Bf16 => "gated_norm_bf16",
    };
    let args = GatedNormArgs { stride: n.stride, value_heads: heads, eps: shape.norm_eps };
    gpu.encode(&Launch {
        kernel,
        constants: &[],
        args: &[n.o.arg(), n.z.arg(), n.weight.arg(), n.y.arg(), Arg::Value(&args.to_bytes())],
        groups: [heads.div_ceil(SIMDGROUPS), n.rows, 1],
        threads: [32 * SIMDGROUPS, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "gated_norm_tests.rs"]
mod tests;
