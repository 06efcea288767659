//! RMS norm, alone or with the addition to the residual stream before it (`docs/model.md §4.1`).

use super::{Element, View, need};
use crate::args::NormArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Threads of a row, `NORM_THREADS` of the shader.
const THREADS: u32 = 256;

/// y `[rows × width]` = x `[rows × width]` normalised, times `weight` `[width]` F32.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn rms_norm<G: Gpu>(
    gpu: &mut G,
    x: View<'_, G::Buffer>,
    weight: View<'_, G::Buffer>,
    y: View<'_, G::Buffer>,
    output: Element,
    rows: u32,
    args: NormArgs,
) -> Result<(), GpuError> {
    shapes(gpu, x, weight, y, output, rows, args);
    let kernel = match output {
        Element::F32 => "rms_norm_f32",
        Element::Bf16 => "rms_norm_bf16",
    };
    gpu.encode(&Launch {
        kernel,
        constants: &[],
        args: &[x.arg(), weight.arg(), y.arg(), Arg::Value(&args.to_bytes())],
        groups: [rows, 1, 1],
        threads: [THREADS, 1, 1],
    })
}

/// x += delta, both `[rows × width]` F32; then y as of [`rms_norm`].
///
/// # Errors
/// Of [`Gpu::encode`].
#[allow(clippy::too_many_arguments)] // one a tensor
pub fn add_rms_norm<G: Gpu>(
    gpu: &mut G,
    x: View<'_, G::Buffer>,
    delta: View<'_, G::Buffer>,
    weight: View<'_, G::Buffer>,
    y: View<'_, G::Buffer>,
    output: Element,
    rows: u32,
    args: NormArgs,
) -> Result<(), GpuError> {
    shapes(gpu, x, weight, y, output, rows, args);
    need(gpu, delta, u64::from(rows) * u64::from(args.width), 4, "delta");
    let kernel = match output {
        Element::F32 => "add_rms_norm_f32",
        Element::Bf16 => "add_rms_norm_bf16",
    };
    gpu.encode(&Launch {
        kernel,
        constants: &[],
        args: &[x.arg(), delta.arg(), weight.arg(), y.arg(), Arg::Value(&args.to_bytes())],
        groups: [rows, 1, 1],
        threads: [THREADS, 1, 1],
    })
}

fn shapes<G: Gpu>(
    gpu: &G,
    x: View<'_, G::Buffer>,
    weight: View<'_, G::Buffer>,
    y: View<'_, G::Buffer>,
    output: Element,
    rows: u32,
    args: NormArgs,
) {
    assert!(args.width > 0 && args.width.is_multiple_of(4), "rows of {} values", args.width);
    let values = u64::from(rows) * u64::from(args.width);
    need(gpu, x, values, 4, "x");
    need(gpu, weight, args.width.into(), 4, "norm weight");
    need(gpu, y, values, output.size(), "y");
}

#[cfg(all(test, feature = "emulated"))]
#[path = "rms_norm_tests.rs"]
mod tests;
