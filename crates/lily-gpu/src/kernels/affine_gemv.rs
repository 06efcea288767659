//! Projections of one to eight rows: decode (`docs/model.md §3.2`).

use super::{Body, DeviceMatrix, View, need};
use crate::args::GemvArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Rows that a lane sums at once, `GEMV_ROWS` of the shader.
pub(super) const ROWS: u32 = 4;
/// Simdgroups of a threadgroup, `GEMV_SIMDGROUPS` of the shader.
const SIMDGROUPS: u32 = 4;
/// Matrices of a dispatch.
const MATRICES: usize = 4;
/// Columns of a simdgroup of `step_gemv*_mma`, `STEP_COLUMNS` of the shader.
pub(super) const STEP_COLUMNS: u32 = 256;
/// Rows of a tile of it, `STEP_TILE` of the shader.
pub(super) const STEP_TILE: u32 = 16;
/// Threadgroups of `step_gemv4_mma`, at most: two on each of an H200's 132 multiprocessors, which take more tiles in turn.
const STEP_GROUPS: u32 = 264;

/// RMS norm of rows whose sums of squares are known: scale = 1 / sqrt(Σ partials / columns + eps).
#[derive(Debug)]
pub struct StepNorm<'a, B> {
    /// `[columns]` F32. Every threadgroup reads it, so it counts as an activation, once a dispatch.
    pub weight: View<'a, B>,
    /// `[batch × count]` F32.
    pub partials: View<'a, B>,
    /// Sums of squares of a row, at least 1.
    pub count: u32,
    /// Added to the mean square.
    pub eps: f32,
}

impl<B> Clone for StepNorm<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for StepNorm<'_, B> {}

impl<B> StepNorm<'_, B> {
    /// Checks the buffers for `batch` rows of `columns` values.
    pub(super) fn check<G: Gpu<Buffer = B>>(&self, gpu: &G, batch: u32, columns: u32) {
        assert!(self.count > 0, "a norm without sums of squares");
        need(gpu, self.weight, columns.into(), 4, "norm weight");
        need(gpu, self.partials, u64::from(batch) * u64::from(self.count), 4, "sums of squares");
    }
}

/// What is multiplied.
#[derive(Debug)]
pub enum GemvInput<'a, B> {
    /// `[batch × columns]` F32, rows `stride` values apart, a multiple of 4.
    Rows {
        /// First row.
        x: View<'a, B>,
        /// Values from one row to the next.
        stride: u32,
    },
    /// The residual stream `[batch × columns]` F32, normalised on the way.
    Normed {
        /// First row; rows follow one another.
        x: View<'a, B>,
        /// How.
        norm: StepNorm<'a, B>,
    },
}

/// Where products go.
#[derive(Debug)]
pub enum GemvOutput<'a, B> {
    /// `[batch × Σ rows]` F32, one matrix after another, rows `stride` values apart.
    Rows {
        /// First row.
        y: View<'a, B>,
        /// Values from one row to the next.
        stride: u32,
    },
    /// One matrix: added to the residual stream `[batch × rows]` F32, which is not the input. `partials`
    /// `[batch × gemv_partials]` F32 become its sums of squares.
    Residual {
        /// First row; rows follow one another.
        x: View<'a, B>,
        /// Written.
        partials: View<'a, B>,
    },
}

/// Lanes that share a row of `columns`: the largest power of two that its chunks of 32 columns fill at least once.
pub(super) fn lanes_of_row(columns: u32) -> u32 {
    1 << (columns / 32).min(32).ilog2()
}

fn groups(rows: u32, columns: u32) -> u32 {
    rows.div_ceil(SIMDGROUPS * ROWS * (32 / lanes_of_row(columns)))
}

/// What a dispatch runs.
enum Choice {
    /// By batch.
    Any,
    /// The twin for matrix instructions, of this name.
    Step(&'static str),
}

impl Choice {
    /// Of matrices of one width. The twin takes codes of one size and a bounded number of whole pieces of 256 columns; what a row gets
    /// does not depend on the batch.
    fn of<'a, B: 'a>(body: Body, mut matrices: impl Iterator<Item = &'a DeviceMatrix<B>>) -> Self {
        let Some(first) = matrices.next().filter(|_| body == Body::Mma) else { return Self::Any };
        let (pieces, bits) = (first.cols / STEP_COLUMNS, first.bits);
        if !first.cols.is_multiple_of(STEP_COLUMNS) || matrices.any(|m| m.bits != bits) {
            return Self::Any;
        }
        match (bits, pieces) {
            (4, 1..=8) => Self::Step("step_gemv4_mma"),
            (4, 9..=16) => Self::Step("step_gemv4_wide_mma"),
            (8, 1..=8) => Self::Step("step_gemv8_mma"),
            _ => Self::Any,
        }
    }

    /// Threadgroups, or tiles, of a matrix.
    fn parts(&self, rows: u32, columns: u32) -> u32 {
        match self {
            Self::Any => groups(rows, columns),
            Self::Step(_) => rows.div_ceil(STEP_TILE),
        }
    }
}

/// Sums of squares that a row of the residual stream gets from a matrix.
pub fn gemv_partials<B>(body: Body, m: &DeviceMatrix<B>) -> u32 {
    Choice::of(body, std::iter::once(m)).parts(m.rows, m.cols)
}

/// x `[batch × columns]` F32 times each matrix transposed. One to four matrices of equal width, of 4, 8 or 16 bits each; batch
/// 1 to 8. Each byte of the matrices is loaded once. With [`Body::Mma`] the matrix instructions of NVIDIA GPUs multiply where they
/// can, as exactly as F32.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn affine_gemv<G: Gpu>(
    gpu: &mut G,
    body: Body,
    matrices: &[&DeviceMatrix<G::Buffer>],
    input: &GemvInput<'_, G::Buffer>,
    output: &GemvOutput<'_, G::Buffer>,
    batch: u32,
) -> Result<(), GpuError> {
    assert!((1..=MATRICES).contains(&matrices.len()), "{} matrices", matrices.len());
    let (by_batch, _) = [("affine_gemv_1", 1), ("affine_gemv_2", 2), ("affine_gemv_4", 4), ("affine_gemv_8", 8)]
        .into_iter()
        .find(|k| batch >= 1 && batch <= k.1)
        .unwrap_or_else(|| panic!("a batch of {batch}; more than 8 rows are prefill"));
    let columns = matrices[0].cols;
    assert!(columns >= 64 && columns.is_multiple_of(64), "{columns} columns");
    let choice = Choice::of(body, matrices.iter().copied());
    let rows: u32 = matrices.iter().map(|m| m.rows).sum();
    let mut args = GemvArgs { columns, lanes: lanes_of_row(columns), batch, ..GemvArgs::default() };

    let last = u64::from(batch - 1);
    let (x, norm) = match *input {
        GemvInput::Rows { x, stride } => {
            assert!(stride.is_multiple_of(4) && (columns <= stride || batch == 1), "{columns} values every {stride}");
            args.x_stride = stride;
            (x, None)
        }
        GemvInput::Normed { x, norm } => {
            norm.check(gpu, batch, columns);
            (args.x_stride, args.partials, args.eps) = (columns, norm.count, norm.eps);
            (x, Some(norm))
        }
    };
    need(gpu, x, last * u64::from(args.x_stride) + u64::from(columns), 4, "x");
    let (y, sums) = match *output {
        GemvOutput::Rows { y, stride } => {
            assert!(rows <= stride || batch == 1, "{rows} rows every {stride} values");
            args.y_stride = stride;
            (y, None)
        }
        GemvOutput::Residual { x, partials } => {
            assert_eq!(matrices.len(), 1, "one matrix is added to the residual stream");
            (args.y_stride, args.sums) = (rows, choice.parts(rows, columns));
            need(gpu, partials, u64::from(batch) * u64::from(args.sums), 4, "sums of squares");
            (x, Some(partials))
        }
    };
    need(gpu, y, last * u64::from(args.y_stride) + u64::from(rows), 4, "y");

    let mut total = 0;
    let mut first = [u32::MAX; MATRICES];
    let mut counts = [0; MATRICES];
    for (i, m) in matrices.iter().enumerate() {
        assert_eq!(m.cols, columns, "matrices of one dispatch share their input");
        assert!(m.rows > 0 && matches!(m.bits, 4 | 8 | 16), "{} rows, {} bits", m.rows, m.bits);
        args.bits |= m.bits << (8 * i);
        (first[i], counts[i]) = (total, m.rows);
        total += choice.parts(m.rows, columns);
    }
    [args.rows0, args.rows1, args.rows2, args.rows3] = counts;
    [_, args.group1, args.group2, args.group3] = first;

    let args = args.to_bytes();
    let mut bound = Vec::with_capacity(18);
    // What is not there is bound but not read.
    for i in 0..MATRICES {
        let m = matrices.get(i).unwrap_or(&matrices[0]);
        bound.extend([Arg::Buffer(&m.codes, 0), Arg::Buffer(&m.scales, 0), Arg::Buffer(&m.biases, 0)]);
    }
    let (weight, partials) = norm.map_or((x, x), |n| (n.weight, n.partials));
    bound.extend([x.arg(), weight.arg(), partials.arg(), y.arg(), sums.unwrap_or(y).arg(), Arg::Value(&args)]);
    let (kernel, groups, threads) = match choice {
        Choice::Any => (by_batch, total, 32 * SIMDGROUPS),
        Choice::Step(kernel) => {
            let most = if kernel == "step_gemv4_mma" { STEP_GROUPS } else { u32::MAX };
            (kernel, total.min(most), columns / STEP_COLUMNS * 32)
        }
    };
    gpu.encode(&Launch { kernel, constants: &[], args: &bound, groups: [groups, 1, 1], threads: [threads, 1, 1] })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "affine_gemv_tests.rs"]
mod tests;
