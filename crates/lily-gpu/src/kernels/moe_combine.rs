//! Experts' outputs into the residual stream, and the norm after it (`docs/model.md §4.6`). Prefill.

use super::rms_norm::NORM_THREADS;
use super::{NormOutputs, View, need};
use crate::args::CombineArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Where everything lies.
#[derive(Debug)]
pub struct MoeCombine<'a, B> {
    /// The residual stream `[tokens × width]` F32, updated.
    pub x: View<'a, B>,
    /// Outputs of each token's experts, times their weights: `[tokens × chosen × width]` F32.
    pub experts: View<'a, B>,
    /// Output of the shared expert, `[tokens × width]` F32.
    pub shared: View<'a, B>,
    /// Logit of the shared expert's gate, `[tokens]` F32, `stride` values apart.
    pub shared_gate: View<'a, B>,
    /// Values from one gate logit to the next.
    pub stride: u32,
    /// The norm that follows: its weight `[width]` F32, and where its rows go.
    pub norm: Option<(View<'a, B>, NormOutputs<'a, B>)>,
    /// Rows.
    pub tokens: u32,
    /// Experts of a token.
    pub chosen: u32,
    /// Values in a row, a multiple of 4.
    pub width: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// x += Σ experts, in their order, + sigmoid(gate) · shared; then the norm of x.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn moe_combine<G: Gpu>(gpu: &mut G, c: &MoeCombine<'_, G::Buffer>) -> Result<(), GpuError> {
    assert!(c.width > 0 && c.width.is_multiple_of(4), "rows of {} values", c.width);
    let values = u64::from(c.tokens) * u64::from(c.width);
    need(gpu, c.x, values, 4, "x");
    need(gpu, c.experts, values * u64::from(c.chosen), 4, "experts' outputs");
    need(gpu, c.shared, values, 4, "shared expert's output");
    need(gpu, c.shared_gate, u64::from(c.tokens - 1) * u64::from(c.stride) + 1, 4, "shared expert's gate");
    let mut args = CombineArgs { width: c.width, chosen: c.chosen, stride: c.stride, eps: c.eps, outputs: 0 };
    let (mut weight, mut outputs) = (c.x, [c.x.arg(), c.x.arg()]);
    if let Some((of, to)) = c.norm {
        need(gpu, of, c.width.into(), 4, "norm weight");
        to.check(gpu, values);
        (args.outputs, weight, outputs) = (to.bits(), of, to.args(c.x));
    }
    gpu.encode(&Launch {
        kernel: "moe_combine",
        constants: &[],
        args: &[
            c.x.arg(),
            c.experts.arg(),
            c.shared.arg(),
            c.shared_gate.arg(),
            weight.arg(),
            outputs[0],
            outputs[1],
            Arg::Value(&args.to_bytes()),
        ],
        groups: [c.tokens, 1, 1],
        threads: [NORM_THREADS, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "moe_combine_tests.rs"]
mod tests;
