//! RMS norm, alone or with the addition to the residual stream before it (`docs/model.md §4.1`). Prefill.

use super::{View, need};
use crate::args::NormArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Threads of a row, `NORM_THREADS` of the shader.
pub(super) const NORM_THREADS: u32 = 256;

/// Where normalised rows go, each `[rows × width]`; one of the two at least, or both.
#[derive(Debug)]
pub struct NormOutputs<'a, B> {
    /// As F32.
    pub exact: Option<View<'a, B>>,
    /// Rounded to BF16.
    pub rounded: Option<View<'a, B>>,
}

impl<B> Clone for NormOutputs<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for NormOutputs<'_, B> {}

impl<'a, B> NormOutputs<'a, B> {
    /// The `outputs` of the shader.
    pub(super) fn bits(&self) -> u32 {
        u32::from(self.exact.is_some()) | u32::from(self.rounded.is_some()) << 1
    }

    /// Checks the buffers.
    pub(super) fn check<G: Gpu<Buffer = B>>(&self, gpu: &G, values: u64) {
        assert!(self.bits() != 0, "a norm that is not kept");
        if let Some(y) = self.exact {
            need(gpu, y, values, 4, "norm");
        }
        if let Some(y) = self.rounded {
            need(gpu, y, values, 2, "norm in BF16");
        }
    }

    /// Both arguments; `other` is bound in the place of one that is not there.
    pub(super) fn args(&self, other: View<'a, B>) -> [Arg<'a, B>; 2] {
        [self.exact.unwrap_or(other).arg(), self.rounded.unwrap_or(other).arg()]
    }
}

/// Where everything lies.
#[derive(Debug)]
pub struct RmsNorm<'a, B> {
    /// `[rows × width]` F32; updated where there is a `delta`.
    pub x: View<'a, B>,
    /// `[rows × width]` F32, added to x first.
    pub delta: Option<View<'a, B>>,
    /// `[width]` F32.
    pub weight: View<'a, B>,
    /// Out.
    pub outputs: NormOutputs<'a, B>,
    /// Rows.
    pub rows: u32,
    /// Values in a row, a multiple of 4.
    pub width: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// x += delta, then outputs = x / sqrt(mean(x²) + eps) · weight, row by row.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn rms_norm<G: Gpu>(gpu: &mut G, n: &RmsNorm<'_, G::Buffer>) -> Result<(), GpuError> {
    assert!(n.width > 0 && n.width.is_multiple_of(4), "rows of {} values", n.width);
    let values = u64::from(n.rows) * u64::from(n.width);
    need(gpu, n.x, values, 4, "x");
    need(gpu, n.weight, n.width.into(), 4, "norm weight");
    if let Some(delta) = n.delta {
        need(gpu, delta, values, 4, "delta");
    }
    n.outputs.check(gpu, values);
    let args = NormArgs { width: n.width, eps: n.eps, add: n.delta.is_some().into(), outputs: n.outputs.bits() };
    let [exact, rounded] = n.outputs.args(n.x);
    gpu.encode(&Launch {
        kernel: "rms_norm",
        constants: &[],
        args: &[n.x.arg(), n.delta.unwrap_or(n.x).arg(), n.weight.arg(), exact, rounded, Arg::Value(&args.to_bytes())],
        groups: [n.rows, 1, 1],
        threads: [NORM_THREADS, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "rms_norm_tests.rs"]
mod tests;
