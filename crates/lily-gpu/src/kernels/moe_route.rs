//! The experts of each token and their weights (`docs/model.md §4.6`).

use super::{View, need};
use crate::args::RouteArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Tokens of a threadgroup.
const SIMDGROUPS: u32 = 4;

/// Where everything lies.
pub struct MoeRoute<'a, B> {
    /// Router logits, `[tokens × stride]` F32, finite.
    pub logits: View<'a, B>,
    /// Values from one row to the next.
    pub stride: u32,
    /// Out: `[tokens × chosen]` u32, in descending weight.
    pub experts: View<'a, B>,
    /// Out: `[tokens × chosen]` F32, each row sums to 1.
    pub weights: View<'a, B>,
    /// Rows.
    pub tokens: u32,
    /// Experts of the layer, at most 256.
    pub count: u32,
    /// Experts of a token, at most 8.
    pub chosen: u32,
}

/// # Errors
/// Of [`Gpu::encode`].
pub fn moe_route<G: Gpu>(gpu: &mut G, r: &MoeRoute<'_, G::Buffer>) -> Result<(), GpuError> {
    assert!(r.count <= 256 && r.count <= r.stride, "{} experts every {} values", r.count, r.stride);
    assert!((1..=r.count.min(8)).contains(&r.chosen), "{} of {} experts", r.chosen, r.count);
    need(gpu, r.logits, u64::from(r.tokens - 1) * u64::from(r.stride) + u64::from(r.count), 4, "router logits");
    let chosen = u64::from(r.tokens) * u64::from(r.chosen);
    need(gpu, r.experts, chosen, 4, "experts");
    need(gpu, r.weights, chosen, 4, "expert weights");
    let args = RouteArgs { experts: r.count, chosen: r.chosen, stride: r.stride, tokens: r.tokens };
    gpu.encode(&Launch {
        kernel: "moe_route",
        constants: &[],
        args: &[r.logits.arg(), r.experts.arg(), r.weights.arg(), Arg::Value(&args.to_bytes())],
        groups: [r.tokens.div_ceil(SIMDGROUPS), 1, 1],
        threads: [32 * SIMDGROUPS, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "moe_route_tests.rs"]
mod tests;
