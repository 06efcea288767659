//! Embedding and norms.

use anyhow::Result;
use lily_gpu::kernels::{EMBED_PARTIALS, Element, NormOutputs, RmsNorm, View, embed_gather, rms_norm};
use lily_gpu::{Contents, Gpu};

use super::lab::{Lab, Work, difference, normed};

const EPS: f32 = 1e-6;

/// `embed_gather` and `rms_norm`.
pub fn check<G: Gpu>(lab: &mut Lab<'_, G>) -> Result<()> {
    let widths: &[usize] = if lab.full { &[2048] } else { &[128, 2048] };
    for &width in widths {
        for bits in [4, 16] {
            embed(lab, width, bits)?;
        }
        for (rows, add) in [(1, false), (5, true), (if lab.full { 512 } else { 16 }, true)] {
            norm(lab, rows, width, add)?;
        }
    }
    Ok(())
}

fn embed<G: Gpu>(lab: &mut Lab<'_, G>, width: usize, bits: u32) -> Result<()> {
    let table = lab.matrix(100, width, bits)?;
    let ids = [99u32, 0, 17, 17, 63];
    let mut want = Vec::new();
    for &id in &ids {
        want.extend_from_slice(&table.values[id as usize * width..][..width]);
    }
    let sums: Vec<f32> =
        want.chunks_exact(width).map(|r| r.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() as f32).collect();
    let (ids_buffer, out) = (lab.words(&ids)?, lab.output(ids.len() * width)?);
    let partials = lab.output(ids.len() * EMBED_PARTIALS as usize)?;
    let bytes = table.bytes() / 100 * ids.len() as u64 + 4 * want.len() as u64;
    lab.check(
        "embed_gather",
        format!("{} rows of {width}, {bits} bit", ids.len()),
        Work::Bytes(bytes),
        2e-6,
        |gpu| {
            let partials = Some(View::of(&partials));
            embed_gather(gpu, &table.device, View::of(&ids_buffer), View::of(&out), partials, ids.len() as u32)
        },
        |lab| Ok(difference(&lab.read(&out)?, &want).max(difference(&lab.read(&partials)?, &sums))),
    );
    Ok(())
}

fn norm<G: Gpu>(lab: &mut Lab<'_, G>, rows: usize, width: usize, add: bool) -> Result<()> {
    let (x, delta) = (lab.random.values(rows * width, 3.0), lab.random.values(rows * width, 1.0));
    let weight = lab.random.values(width, 1.5);
    let sum: Vec<f32> = if add { x.iter().zip(&delta).map(|(a, b)| a + b).collect() } else { x.clone() };
    let want = normed(&sum, &weight, EPS);
    let (x_buffer, delta) = (lab.input(&x)?, lab.input(&delta)?);
    let weight = lab.floats(&weight, Contents::Weights)?;
    let (exact, rounded) = (lab.output(rows * width)?, lab.output(rows * width / 2)?);
    lab.check(
        "rms_norm",
        format!("{rows} × {width}{}", if add { ", after an addition" } else { "" }),
        Work::Bytes((rows * width * if add { 18 } else { 10 }) as u64),
        2e-6,
        |gpu| {
            let n = RmsNorm {
                x: View::of(&x_buffer),
                delta: add.then(|| View::of(&delta)),
                weight: View::of(&weight),
                outputs: NormOutputs { exact: Some(View::of(&exact)), rounded: Some(View::of(&rounded)) },
                rows: rows as u32,
                width: width as u32,
                eps: EPS,
            };
            rms_norm(gpu, &n)
        },
        |lab| {
            // A BF16 value is the F32 one of the same dispatch, rounded.
            let exact = lab.read(&exact)?;
            let as_bf16 = super::lab::rounded(Element::Bf16, &exact);
            let same = super::lab::equal(&lab.read_elements(Element::Bf16, &rounded)?, &as_bf16);
            Ok(difference(&exact, &want).max(same).max(difference(&lab.read(&x_buffer)?, &sum)))
        },
    );
    Ok(())
}
