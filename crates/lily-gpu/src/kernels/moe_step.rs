//! Experts of one to eight decoded tokens (`docs/model.md §4.6`): two dispatches after the router's product.

use super::affine_gemv::{ROWS, STEP_COLUMNS, STEP_TILE, lanes_of_row};
use super::{Body, DeviceMatrix, StepNorm, View, need};
use crate::args::{DownStepArgs, GateUpStepArgs};
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Simdgroups of `moe_gate_up_step`, `STEP_SIMDGROUPS` of the shader.
const SIMDGROUPS: u32 = 4;

/// The first dispatch.
#[derive(Debug)]
pub struct MoeGateUpStep<'a, B> {
    /// With [`Body::Mma`] the matrix instructions of NVIDIA GPUs multiply where they can, as exactly as F32.
    pub body: Body,
    /// `[count · width × hidden]`, expert after expert; the same bits as `up`.
    pub gate: &'a DeviceMatrix<B>,
    /// `[count · width × hidden]`.
    pub up: &'a DeviceMatrix<B>,
    /// `[shared width × hidden]`; the same bits as `shared_up`.
    pub shared_gate: &'a DeviceMatrix<B>,
    /// `[shared width × hidden]`.
    pub shared_up: &'a DeviceMatrix<B>,
    /// The residual stream `[batch × hidden]` F32.
    pub x: View<'a, B>,
    /// Its norm.
    pub norm: StepNorm<'a, B>,
    /// Router logits and then the shared expert's gate logit, `[batch × stride]` F32, of the same normalised x.
    pub logits: View<'a, B>,
    /// Values from one row of logits to the next.
    pub stride: u32,
    /// Out: `[batch × chosen]` u32, in descending weight.
    pub experts: View<'a, B>,
    /// Out: `[batch × (chosen · width + shared width)]` F32: each expert's inner values times its weight, the shared one's
    /// times the sigmoid of its gate.
    pub act: View<'a, B>,
    /// Tokens, 1 to 8.
    pub batch: u32,
    /// Experts of the layer, at most 256.
    pub count: u32,
    /// Experts of a token, at most 8.
    pub chosen: u32,
}

/// The second dispatch.
#[derive(Debug)]
pub struct MoeDownStep<'a, B> {
    /// As of [`MoeGateUpStep`].
    pub body: Body,
    /// `[count · hidden × width]`, expert after expert.
    pub down: &'a DeviceMatrix<B>,
    /// `[hidden × shared width]`.
    pub shared_down: &'a DeviceMatrix<B>,
    /// `[batch × chosen]` u32, of the first dispatch.
    pub experts: View<'a, B>,
    /// Of the first dispatch.
    pub act: View<'a, B>,
    /// The residual stream `[batch × hidden]` F32, updated.
    pub x: View<'a, B>,
    /// Out: `[batch × moe_partials]` F32, its sums of squares.
    pub partials: View<'a, B>,
    /// Tokens, 1 to 8.
    pub batch: u32,
    /// Experts of the layer, at most 256.
    pub count: u32,
    /// Experts of a token, at most 8.
    pub chosen: u32,
}

fn check_counts(batch: u32, count: u32, chosen: u32) {
    assert!((1..=8).contains(&batch), "a batch of {batch}; more than 8 rows are prefill");
    assert!(count <= 256 && (1..=count.min(8)).contains(&chosen), "{chosen} of {count} experts");
}

fn check_pair<B>(a: &DeviceMatrix<B>, b: &DeviceMatrix<B>) {
    assert!(matches!(a.bits, 4 | 8 | 16), "{} bits", a.bits);
    assert_eq!((a.rows, a.cols, a.bits), (b.rows, b.cols, b.bits), "gate and up");
}

fn act_values(batch: u32, chosen: u32, width: u32, shared_width: u32) -> u64 {
    u64::from(batch) * (u64::from(chosen) * u64::from(width) + u64::from(shared_width))
}

fn matrix_args<B>(m: &DeviceMatrix<B>) -> [Arg<'_, B>; 3] {
    [Arg::Buffer(&m.codes, 0), Arg::Buffer(&m.scales, 0), Arg::Buffer(&m.biases, 0)]
}

/// Chooses experts and computes their inner values.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn moe_gate_up_step<G: Gpu>(gpu: &mut G, s: &MoeGateUpStep<'_, G::Buffer>) -> Result<(), GpuError> {
    check_counts(s.batch, s.count, s.chosen);
    check_pair(s.gate, s.up);
    check_pair(s.shared_gate, s.shared_up);
    let hidden = s.gate.cols;
    assert_eq!(hidden, s.shared_gate.cols, "experts share their input");
    assert!(hidden >= 64 && hidden.is_multiple_of(64), "{hidden} columns");
    assert!(s.gate.rows.is_multiple_of(s.count), "{} rows of {} experts", s.gate.rows, s.count);
    let (width, shared_width) = (s.gate.rows / s.count, s.shared_gate.rows);
    assert!(s.count < s.stride, "{} experts and a gate every {} values", s.count, s.stride);
    need(gpu, s.x, u64::from(s.batch) * u64::from(hidden), 4, "x");
    s.norm.check(gpu, s.batch, hidden);
    need(gpu, s.logits, u64::from(s.batch - 1) * u64::from(s.stride) + u64::from(s.count) + 1, 4, "router logits");
    need(gpu, s.experts, u64::from(s.batch) * u64::from(s.chosen), 4, "experts");
    need(gpu, s.act, act_values(s.batch, s.chosen, width, shared_width), 4, "inner values");
    let lanes = lanes_of_row(hidden);
    let args = GateUpStepArgs {
        experts: s.count,
        chosen: s.chosen,
        stride: s.stride,
        hidden,
        width,
        shared_width,
        lanes,
        bits: s.gate.bits,
        shared_bits: s.shared_gate.bits,
        partials: s.norm.count,
        eps: s.norm.eps,
    }
    .to_bytes();
    let mut bound = Vec::with_capacity(19);
    for m in [s.gate, s.up, s.shared_gate, s.shared_up] {
        bound.extend(matrix_args(m));
    }
    bound.extend([s.x, s.norm.weight, s.norm.partials, s.logits, s.experts, s.act].map(|v| v.arg()));
    bound.push(Arg::Value(&args));
    let most = width.max(shared_width);
    let step = s.body == Body::Mma
        && (s.gate.bits, s.shared_gate.bits) == (4, 4)
        && hidden.is_multiple_of(STEP_COLUMNS)
        && hidden <= 8 * STEP_COLUMNS;
    let (kernel, rows, threads) = match step {
        true => ("step_gate_up_mma", most.div_ceil(STEP_TILE), hidden / STEP_COLUMNS * 32),
        false => ("moe_gate_up_step", most.div_ceil(SIMDGROUPS * ROWS * (32 / lanes)), 32 * SIMDGROUPS),
    };
    let groups = [rows, s.chosen + 1, s.batch];
    gpu.encode(&Launch { kernel, constants: &[], args: &bound, groups, threads: [threads, 1, 1] })
}

/// Lanes that share a row of either kind of expert.
fn down_lanes(width: u32, shared_width: u32) -> u32 {
    lanes_of_row(width.min(shared_width))
}

/// Simdgroups of `step_down_mma` for each expert, where it can run: at most 18 in all.
fn step_pieces<B>(body: Body, down: &DeviceMatrix<B>, shared_down: &DeviceMatrix<B>, chosen: u32) -> Option<u32> {
    let pieces = down.cols / STEP_COLUMNS;
    let fits = down.cols == shared_down.cols && down.cols.is_multiple_of(STEP_COLUMNS) && (chosen + 1) * pieces <= 18;
    (body == Body::Mma && (down.bits, shared_down.bits) == (4, 4) && fits).then_some(pieces)
}

/// Sums of squares that [`moe_down_step`] writes for a row of the residual stream.
pub fn moe_partials<B>(body: Body, down: &DeviceMatrix<B>, shared_down: &DeviceMatrix<B>, chosen: u32) -> u32 {
    let hidden = shared_down.rows;
    match step_pieces(body, down, shared_down, chosen) {
        Some(_) => hidden.div_ceil(STEP_TILE),
        None => hidden.div_ceil(ROWS * (32 / down_lanes(down.cols, shared_down.cols))),
    }
}

/// x += the chosen experts' outputs, in their order, and the shared one's.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn moe_down_step<G: Gpu>(gpu: &mut G, s: &MoeDownStep<'_, G::Buffer>) -> Result<(), GpuError> {
    check_counts(s.batch, s.count, s.chosen);
    let (hidden, width, shared_width) = (s.shared_down.rows, s.down.cols, s.shared_down.cols);
    assert_eq!(s.down.rows, hidden * s.count, "rows of {} experts", s.count);
    for m in [s.down, s.shared_down] {
        assert!(m.cols >= 64 && m.cols.is_multiple_of(64), "{} columns", m.cols);
        assert!(matches!(m.bits, 4 | 8 | 16), "{} bits", m.bits);
    }
    let groups = moe_partials(s.body, s.down, s.shared_down, s.chosen);
    need(gpu, s.experts, u64::from(s.batch) * u64::from(s.chosen), 4, "experts");
    need(gpu, s.act, act_values(s.batch, s.chosen, width, shared_width), 4, "inner values");
    need(gpu, s.x, u64::from(s.batch) * u64::from(hidden), 4, "x");
    need(gpu, s.partials, u64::from(s.batch) * u64::from(groups), 4, "sums of squares");
    let args = DownStepArgs {
        chosen: s.chosen,
        hidden,
        width,
        shared_width,
        lanes: down_lanes(width, shared_width),
        bits: s.down.bits,
        shared_bits: s.shared_down.bits,
    }
    .to_bytes();
    let mut bound = Vec::with_capacity(11);
    for m in [s.down, s.shared_down] {
        bound.extend(matrix_args(m));
    }
    bound.extend([s.experts, s.act, s.x, s.partials].map(|v| v.arg()));
    bound.push(Arg::Value(&args));
    let (kernel, simdgroups) = match step_pieces(s.body, s.down, s.shared_down, s.chosen) {
        Some(pieces) => ("step_down_mma", (s.chosen + 1) * pieces),
        None => ("moe_down_step", s.chosen + 1),
    };
    let (groups, threads) = ([groups, s.batch, 1], [32 * simdgroups, 1, 1]);
    gpu.encode(&Launch { kernel, constants: &[], args: &bound, groups, threads })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "moe_step_tests.rs"]
mod tests;
