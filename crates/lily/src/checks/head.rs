//! What follows the logits, copies, and seeded weights.

use anyhow::Result;
use lily_checkpoint::synthetic::{Numbers, Stream, bf16_bits, bf16_round};
use lily_gpu::kernels::{
    ARGMAX_BLOCKS, Argmax, CopySlices, NO_TOKEN, RandomFill, TopK, View, argmax, copy_slices, random_fill, top_k,
    top_k_scratch,
};
use lily_gpu::{Contents, Gpu};

use super::lab::{Lab, Work, equal};

/// `argmax`, `top_k`, `copy_slices` and `random_fill`.
pub fn check<G: Gpu>(lab: &mut Lab<'_, G>) -> Result<()> {
    // Both sides of top_k's blocks of 4,096; behind `vocab` stands padding with larger logits.
    let mut shapes = vec![(1, 500, 512, 20), (2, 4096, 4160, 64), (2, 4097, 4160, 64)];
    if lab.full {
        shapes.push((1, 248_077, 248_320, 64));
        shapes.push((8, 248_077, 248_320, 64));
    }
    for (rows, vocab, stride, k) in shapes {
        tokens(lab, rows, vocab, stride, k)?;
    }
    copies(lab, if lab.full { 1 << 20 } else { 4112 })?;
    fills(lab, if lab.full { 1 << 20 } else { 1029 })
}

fn tokens<G: Gpu>(lab: &mut Lab<'_, G>, rows: usize, vocab: usize, stride: usize, k: usize) -> Result<()> {
    // Steps of an eighth: ties are many.
    let logits: Vec<f32> = (0..rows * stride)
        .map(|i| if i % stride < vocab { lab.random.below(512) as f32 / 8.0 - 40.0 } else { 100.0 })
        .collect();
    let (mut ids, mut values) = (Vec::new(), Vec::new());
    for row in logits.chunks_exact(stride) {
        let mut order: Vec<u32> = (0..vocab as u32).collect();
        order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
        order.truncate(k);
        values.extend(order.iter().map(|&i| row[i as usize]));
        ids.extend(order);
    }
    let best: Vec<u32> = ids.chunks_exact(k).map(|row| row[0]).collect();
    let logits = lab.input(&logits)?;
    let blocks = rows * ARGMAX_BLOCKS as usize;
    let (block_values, block_indices, out) = (lab.output(blocks)?, lab.output(2 * blocks)?, lab.output(2 * rows)?);
    let shape = format!("{rows} rows of {vocab}");
    let bytes = Work::Bytes(4 * (rows * vocab) as u64);
    lab.check(
        "argmax",
        shape.clone(),
        bytes,
        0.0,
        |gpu| {
            let a = Argmax {
                logits: View::of(&logits),
                stride: stride as u32,
                vocab: vocab as u32,
                block_values: View::of(&block_values),
                block_indices: View::of(&block_indices),
                tokens: View::of(&out),
                rows: rows as u32,
            };
            argmax(gpu, &a)
        },
        |lab| Ok(equal(&lab.read_words(&out)?, &[&best[..], &vec![NO_TOKEN; rows]].concat())),
    );
    let scratch = rows * top_k_scratch(vocab as u32, k as u32) as usize;
    let (block_values, block_ids) = (lab.output(scratch)?, lab.output(scratch)?);
    let (values_out, ids_out) = (lab.output(rows * k)?, lab.output(rows * k)?);
    lab.check(
        "top_k",
        format!("{shape}, {k}"),
        bytes,
        0.0,
        |gpu| {
            let t = TopK {
                logits: View::of(&logits),
                stride: stride as u32,
                vocab: vocab as u32,
                k: k as u32,
                block_values: View::of(&block_values),
                block_ids: View::of(&block_ids),
                values: View::of(&values_out),
                ids: View::of(&ids_out),
                rows: rows as u32,
            };
            top_k(gpu, &t)
        },
        |lab| Ok(equal(&lab.read_words(&ids_out)?, &ids).max(equal(&lab.read(&values_out)?, &values))),
    );
    Ok(())
}

/// Three slices of `bytes`, closer together at their new place.
fn copies<G: Gpu>(lab: &mut Lab<'_, G>, bytes: usize) -> Result<()> {
    let (apart, close) = (bytes + 64, bytes + 16);
    let data: Vec<u8> = (0..3 * apart).map(|_| lab.random.bits() as u8).collect();
    let mut want = vec![0; 3 * close];
    for i in 0..3 {
        want[i * close..i * close + bytes].copy_from_slice(&data[i * apart..i * apart + bytes]);
    }
    let from = lab.bytes(&data, Contents::State)?;
    let to = lab.bytes(&vec![0; want.len()], Contents::State)?;
    lab.check(
        "copy_slices",
        format!("3 × {bytes} bytes"),
        Work::Bytes(6 * bytes as u64),
        0.0,
        |gpu| {
            let c = CopySlices {
                from: View::of(&from),
                from_stride: apart as u64,
                to: View::of(&to),
                to_stride: close as u64,
                bytes: bytes as u64,
                count: 3,
            };
            copy_slices(gpu, &c)
        },
        |lab| {
            let mut got = vec![0; want.len()];
            lab.gpu.read(&to, 0, &mut got)?;
            Ok(equal(&got, &want))
        },
    );
    Ok(())
}

/// `words` scales of the seeded weights, and as many words of codes.
fn fills<G: Gpu>(lab: &mut Lab<'_, G>, words: usize) -> Result<()> {
    let stream = Stream::new(1, "doctor");
    let (step, factor, first) = (0.0123, -7.5, 5);
    let scale = |i: usize| bf16_bits(factor * bf16_round(step * stream.uniform(i as u64, 0.75, 1.25)));
    let scales = (4 * first..4 * (first + words)).flat_map(|i| scale(i).to_le_bytes()).collect::<Vec<_>>();
    let codes = (first..first + words).flat_map(|i| stream.get(i as u64).to_le_bytes()).collect::<Vec<_>>();
    for (shape, numbers, want) in [
        (format!("{words} words of codes"), Numbers::Bits(stream), codes),
        (format!("{words} words of scales"), Numbers::Scales { stream, step, factor }, scales),
    ] {
        let out = lab.bytes(&vec![0; want.len()], Contents::Weights)?;
        lab.check(
            "random_fill",
            shape,
            Work::Bytes(want.len() as u64),
            0.0,
            |gpu| {
                let fill = RandomFill { numbers, first: first as u64, out: View::of(&out), words: words as u64 };
                random_fill(gpu, &fill)
            },
            |lab| {
                let mut got = vec![0; want.len()];
                lab.gpu.read(&out, 0, &mut got)?;
                Ok(equal(&got, &want))
            },
        );
    }
    Ok(())
}
