//! Projections of one to eight rows: decode (`docs/model.md §3.2`).

use super::{DeviceMatrix, View, need};
use crate::args::GemvArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Rows that a lane sums at once, `GEMV_ROWS` of the shader.
const ROWS: u32 = 4;
/// Simdgroups of a threadgroup.
const SIMDGROUPS: u32 = 2;
/// Matrices of a dispatch.
const MATRICES: usize = 4;

/// y `[batch × Σ rows]` F32 = x `[batch × cols]` F32 times each matrix transposed, one after another in a row of y. One to four
/// matrices of equal width, 4 or 8 bits each; batch 1 to 8. Rows of y are `y_stride` values apart.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn affine_gemv<G: Gpu>(
    gpu: &mut G,
    matrices: &[&DeviceMatrix<G::Buffer>],
    x: View<'_, G::Buffer>,
    y: View<'_, G::Buffer>,
    batch: u32,
    y_stride: u32,
) -> Result<(), GpuError> {
    assert!((1..=MATRICES).contains(&matrices.len()), "{} matrices", matrices.len());
    let columns = matrices[0].cols;
    let rows: u32 = matrices.iter().map(|m| m.rows).sum();
    assert!(columns >= 64 && columns.is_multiple_of(64), "{columns} columns");
    assert!(rows <= y_stride || batch == 1, "{rows} rows every {y_stride} values");
    need(gpu, x, u64::from(batch) * u64::from(columns), 4, "x");
    need(gpu, y, u64::from(batch - 1) * u64::from(y_stride) + u64::from(rows), 4, "y");
    let (kernel, _) = [("affine_gemv_1", 1), ("affine_gemv_2", 2), ("affine_gemv_4", 4), ("affine_gemv_8", 8)]
        .into_iter()
        .find(|k| batch >= 1 && batch <= k.1)
        .unwrap_or_else(|| panic!("a batch of {batch}; more than 8 rows are prefill"));

    // The largest power of two that the chunks of 32 columns fill at least once.
    let lanes = 1 << (columns / 32).min(32).ilog2();
    let rows_of_group = SIMDGROUPS * ROWS * (32 / lanes);
    let mut args = GemvArgs { columns, lanes, batch, x_stride: columns, y_stride, ..GemvArgs::default() };
    let mut groups = 0;
    let mut first = [u32::MAX; MATRICES];
    let mut counts = [0; MATRICES];
    for (i, m) in matrices.iter().enumerate() {
        assert_eq!(m.cols, columns, "matrices of one dispatch share their input");
        assert!(m.rows > 0 && (m.bits == 4 || m.bits == 8), "{} rows, {} bits", m.rows, m.bits);
        args.eight_bit |= u32::from(m.bits == 8) << i;
        (first[i], counts[i]) = (groups, m.rows);
        groups += m.rows.div_ceil(rows_of_group);
    }
    [args.rows0, args.rows1, args.rows2, args.rows3] = counts;
    [_, args.group1, args.group2, args.group3] = first;

    let args = args.to_bytes();
    let mut bound = Vec::with_capacity(15);
    for i in 0..MATRICES {
        // Where there is no matrix its arguments are bound but not read.
        let m = matrices.get(i).unwrap_or(&matrices[0]);
        bound.extend([Arg::Buffer(&m.codes, 0), Arg::Buffer(&m.scales, 0), Arg::Buffer(&m.biases, 0)]);
    }
    bound.extend([x.arg(), y.arg(), Arg::Value(&args)]);
    gpu.encode(&Launch {
        kernel,
        constants: &[],
        args: &bound,
        groups: [groups, 1, 1],
        threads: [32 * SIMDGROUPS, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "affine_gemv_tests.rs"]
mod tests;
