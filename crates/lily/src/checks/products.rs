//! Matrix products: decode's GEMV and prefill's GEMM.

use anyhow::Result;
use lily_gpu::kernels::{
    AffineGemm, Body, Element, GemvInput, GemvOutput, StepNorm, View, affine_gemm, affine_gemv, gemv_partials,
};
use lily_gpu::{Contents, Gpu};

use super::lab::{Lab, TestMatrix, Work, difference, elements, named, normed, rounded};

const EPS: f32 = 1e-6;

/// `affine_gemv`: on both sides of each batch size that has a kernel and of the width from which a row fills a simdgroup.
pub fn check_decode<G: Gpu>(lab: &mut Lab<'_, G>) -> Result<()> {
    for batch in [1, 2, 3, 4, 5, 8] {
        gemv(lab, 128, &[(65, 4), (33, 8)], batch)?;
    }
    for cols in [512, 1024, 2048] {
        gemv(lab, cols, &[(70, 4), (1, 8), (9, 16)], 1)?;
    }
    if lab.full {
        gemv(lab, 2048, &[(8192, 4), (4096, 4), (32, 4), (32, 4)], 1)?;
        gemv(lab, 2048, &[(8192, 4), (4096, 4), (32, 4), (32, 4)], 8)?;
        gemv(lab, 2048, &[(256, 8), (1, 8)], 1)?;
        gemv(lab, 2048, &[(32768, 4)], 1)?;
    }
    residual(lab, if lab.full { 2048 } else { 128 }, if lab.full { 4096 } else { 512 }, 1)?;
    residual(lab, 130, 256, 3)
}

fn matrices<G: Gpu>(lab: &mut Lab<'_, G>, cols: usize, shapes: &[(usize, u32)]) -> Result<Vec<TestMatrix<G::Buffer>>> {
    shapes.iter().map(|&(rows, bits)| lab.matrix(rows, cols, bits)).collect()
}

/// Outputs of all matrices side by side, and the bytes of all matrices.
fn products<B>(all: &[TestMatrix<B>], element: Element, x: &[f32], rows: usize) -> (Vec<f32>, u64) {
    let each: Vec<Vec<f32>> = all.iter().map(|m| m.times(element, x)).collect();
    let mut want = Vec::new();
    for r in 0..rows {
        for (m, y) in all.iter().zip(&each) {
            let n = m.device.rows as usize;
            want.extend_from_slice(&y[r * n..(r + 1) * n]);
        }
    }
    (want, all.iter().map(TestMatrix::bytes).sum())
}

fn described(cols: usize, shapes: &[(usize, u32)]) -> String {
    let each: Vec<String> = shapes.iter().map(|(rows, bits)| format!("{rows}/{bits}")).collect();
    format!("{cols} → {}", each.join(" "))
}

/// Several matrices on a normalised input.
fn gemv<G: Gpu>(lab: &mut Lab<'_, G>, cols: usize, shapes: &[(usize, u32)], batch: usize) -> Result<()> {
    let all = matrices(lab, cols, shapes)?;
    let outputs: usize = shapes.iter().map(|s| s.0).sum();
    let x = lab.random.values(batch * cols, 2.0);
    let weight = lab.random.values(cols, 1.0);
    let (want, bytes) = products(&all, Element::F32, &normed(&x, &weight, EPS), batch);
    // Two sums of squares a row, as if two threadgroups had written it.
    let squares = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() as f32;
    let partials: Vec<f32> =
        x.chunks_exact(cols).flat_map(|r| [squares(&r[..cols / 2]), squares(&r[cols / 2..])]).collect();
    let (x, partials) = (lab.input(&x)?, lab.input(&partials)?);
    let weight = lab.input(&weight)?;
    let y = lab.output(batch * outputs)?;
    let body = lab.step;
    lab.check(
        lab.step_name("affine_gemv", "affine_gemv mma"),
        format!("{}, {batch} rows", described(cols, shapes)),
        Work::Bytes(bytes),
        5e-6,
        |gpu| {
            let norm = StepNorm { weight: View::of(&weight), partials: View::of(&partials), count: 2, eps: EPS };
            let devices: Vec<_> = all.iter().map(|m| &m.device).collect();
            let input = GemvInput::Normed { x: View::of(&x), norm };
            let output = GemvOutput::Rows { y: View::of(&y), stride: outputs as u32 };
            affine_gemv(gpu, body, &devices, &input, &output, batch as u32)
        },
        |lab| Ok(difference(&lab.read(&y)?, &want)),
    );
    Ok(())
}

/// One matrix, added to the residual stream.
fn residual<G: Gpu>(lab: &mut Lab<'_, G>, rows: usize, cols: usize, batch: usize) -> Result<()> {
    let m = lab.matrix(rows, cols, 4)?;
    let (input, stream) = (lab.random.values(batch * cols, 1.0), lab.random.values(batch * rows, 1.0));
    let want: Vec<f32> = m.times(Element::F32, &input).iter().zip(&stream).map(|(a, b)| a + b).collect();
    let squares: Vec<f32> =
        want.chunks_exact(rows).map(|r| r.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() as f32).collect();
    let count = gemv_partials(lab.step, &m.device);
    let (input, stream) = (lab.input(&input)?, lab.input(&stream)?);
    let partials = lab.output(batch * count as usize)?;
    let body = lab.step;
    lab.check(
        lab.step_name("affine_gemv", "affine_gemv mma"),
        format!("{cols} → {rows}/4 added to the stream, {batch} rows"),
        Work::Bytes(m.bytes()),
        5e-6,
        |gpu| {
            let from = GemvInput::Rows { x: View::of(&input), stride: cols as u32 };
            let to = GemvOutput::Residual { x: View::of(&stream), partials: View::of(&partials) };
            affine_gemv(gpu, body, &[&m.device], &from, &to, batch as u32)
        },
        |lab| {
            let sums: Vec<f32> = lab.read(&partials)?.chunks_exact(count as usize).map(|p| p.iter().sum()).collect();
            Ok(difference(&lab.read(&stream)?, &want).max(difference(&sums, &squares)))
        },
    );
    Ok(())
}

/// `affine_gemm`: rows on both sides of a block and of the kernel for few rows, and weights of every width.
pub fn check_prefill<G: Gpu>(lab: &mut Lab<'_, G>, body: Body) -> Result<()> {
    // The mma body has a kernel for F32 too: of router and gates.
    let elements = elements(if body == Body::Mma { Body::Simdgroup } else { body });
    for &element in elements {
        for rows in [1, 32, 33, 64, 65] {
            gemm(lab, body, element, 128, &[(65, 4), (130, 8)], rows)?;
        }
        gemm(lab, body, element, 192, &[(1, 8), (70, 16)], 40)?;
        gemm(lab, body, element, 256, &[(130, 4), (7, 4)], 65)?;
        if lab.full {
            gemm(lab, body, element, 2048, &[(8192, 4), (4096, 4)], 256)?;
            gemm(lab, body, element, 4096, &[(2048, 4)], 256)?;
        }
    }
    Ok(())
}

fn gemm<G: Gpu>(
    lab: &mut Lab<'_, G>,
    body: Body,
    element: Element,
    cols: usize,
    shapes: &[(usize, u32)],
    rows: usize,
) -> Result<()> {
    let all = matrices(lab, cols, shapes)?;
    let outputs: usize = shapes.iter().map(|s| s.0).sum();
    let x = rounded(element, &lab.random.values(rows * cols, 1.0));
    let (want, _) = products(&all, element, &x, rows);
    let x = lab.elements(element, &x, Contents::Activations)?;
    let y = lab.output(rows * outputs)?;
    lab.check(
        named(body, ["affine_gemm", "affine_gemm tensor", "affine_gemm mma"]),
        format!("{}, {rows} rows {element:?}", described(cols, shapes)),
        Work::Products((rows * cols * outputs) as u64),
        // Long sums in another order; NVIDIA's matrix units also cut them off.
        if body == Body::Mma { 2e-5 } else { 5e-6f32.max(4e-9 * cols as f32) },
        |gpu| {
            let devices: Vec<_> = all.iter().map(|m| &m.device).collect();
            let a = AffineGemm {
                body,
                matrices: &devices,
                x: View::of(&x),
                element,
                y: View::of(&y),
                rows: rows as u32,
                x_stride: cols as u32,
                y_stride: outputs as u32,
            };
            affine_gemm(gpu, &a)
        },
        |lab| Ok(difference(&lab.read(&y)?, &want)),
    );
    Ok(())
}
