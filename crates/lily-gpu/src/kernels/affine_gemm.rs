//! Projections of prefill: any number of rows, one included (`docs/model.md §3.2`).

use super::{Body, DeviceMatrix, Element, View, need};
use crate::args::GemmArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Up to how many rows the kernels with smaller blocks take, which are of so many rows.
const SHORT_ROWS: u32 = 32;
/// Matrices of a dispatch.
const MATRICES: usize = 4;

/// Where everything lies.
pub struct AffineGemm<'a, B> {
    /// What multiplies.
    pub body: Body,
    /// One to four matrices of equal width, 4, 8 or 16 bits each.
    pub matrices: &'a [&'a DeviceMatrix<B>],
    /// `[rows × x_stride]` of `element`, at a multiple of 16 bytes.
    pub x: View<'a, B>,
    /// Type of x. With [`Element::Bf16`] a dequantised weight is rounded to BF16 too; sums are F32 in any case.
    pub element: Element,
    /// Out: `[rows × y_stride]` F32; a row holds the outputs of the matrices one after another.
    pub y: View<'a, B>,
    /// Rows, at least 1.
    pub rows: u32,
    /// Values from one row of x to the next; a row begins at a multiple of 16 bytes.
    pub x_stride: u32,
    /// Values from one row of y to the next.
    pub y_stride: u32,
}

/// y = x times each matrix transposed. With one body a row of y is the same, bit for bit, whatever `rows` is.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn affine_gemm<G: Gpu>(gpu: &mut G, a: &AffineGemm<'_, G::Buffer>) -> Result<(), GpuError> {
    let matrices = a.matrices;
    assert!((1..=MATRICES).contains(&matrices.len()), "{} matrices", matrices.len());
    assert!(a.rows > 0, "no rows");
    let columns = matrices[0].cols;
    let outputs: u32 = matrices.iter().map(|m| m.rows).sum();
    assert!(columns >= 64 && columns.is_multiple_of(64), "{columns} columns");
    assert!(a.rows == 1 || columns <= a.x_stride && outputs <= a.y_stride, "rows of x or y overlap");
    need_rows(gpu, a.x, a.rows, a.x_stride, columns, a.element);
    need(gpu, a.y, u64::from(a.rows - 1) * u64::from(a.y_stride) + u64::from(outputs), 4, "y");

    let blocks = Blocks::new(a);
    let mut args =
        GemmArgs { columns, rows: a.rows, x_stride: a.x_stride, y_stride: a.y_stride, ..GemmArgs::default() };
    let mut groups = 0;
    let mut first = [u32::MAX; MATRICES];
    let mut counts = [0; MATRICES];
    for (i, m) in matrices.iter().enumerate() {
        assert_eq!(m.cols, columns, "matrices of one dispatch share their input");
        assert!(m.rows > 0 && matches!(m.bits, 4 | 8 | 16), "{} rows, {} bits", m.rows, m.bits);
        args.bits |= m.bits << (8 * i);
        (first[i], counts[i]) = (groups, m.rows);
        groups += m.rows.div_ceil(blocks.columns);
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
    bound.extend([a.x.arg(), a.y.arg(), Arg::Value(&args)]);
    gpu.encode(&Launch {
        kernel: blocks.kernel,
        constants: &[],
        args: &bound,
        groups: [groups, a.rows.div_ceil(blocks.rows), 1],
        threads: [blocks.threads, 1, 1],
    })
}

/// A kernel, and what a threadgroup of it takes.
struct Blocks {
    kernel: &'static str,
    rows: u32,
    columns: u32,
    threads: u32,
}

impl Blocks {
    fn new<B>(a: &AffineGemm<'_, B>) -> Self {
        if a.body == Body::Mma && a.element == Element::F32 {
            return Self { kernel: "affine_gemm_f32_mma", rows: 16, columns: 32, threads: a.body.threads() };
        }
        let body = a.body.of(a.element);
        if a.matrices.iter().all(|m| a.body.four_bit(a.element, m.bits, m.cols)) {
            let kernel = "affine_gemm_w4_mma";
            return Self { kernel, rows: body.rows(), columns: body.columns(), threads: body.threads() };
        }
        let (names, rows) = if a.rows <= SHORT_ROWS {
            let names = [
                "affine_gemm_short_f32",
                "affine_gemm_short_bf16",
                "affine_gemm_short_bf16_tensor",
                "affine_gemm_short_bf16_mma",
            ];
            (names, SHORT_ROWS)
        } else {
            (["affine_gemm_f32", "affine_gemm_bf16", "affine_gemm_bf16_tensor", "affine_gemm_bf16_mma"], body.rows())
        };
        Self { kernel: a.body.kernel(a.element, names), rows, columns: body.columns(), threads: body.threads() }
    }
}

/// Panics unless `rows` rows of `columns` values lie in the buffer, each at a multiple of 16 bytes.
pub(super) fn need_rows<G: Gpu>(
    gpu: &G,
    x: View<'_, G::Buffer>,
    rows: u32,
    stride: u32,
    columns: u32,
    element: Element,
) {
    let size = element.size();
    assert!(x.offset.is_multiple_of(16), "x at byte {}", x.offset);
    assert!(rows == 1 || (u64::from(stride) * size).is_multiple_of(16), "rows of x every {stride} values");
    need(gpu, x, u64::from(rows - 1) * u64::from(stride) + u64::from(columns), size, "x");
}

#[cfg(all(test, feature = "emulated"))]
#[path = "affine_gemm_tests.rs"]
mod tests;
