//! Full attention: norm and rotation, the paged cache, prefill and decode.

use anyhow::Result;
use lily_cpu::oracle::{inv_freq, rope, round_kv};
use lily_gpu::kernels::{
    ATTENTION_BLOCK, AttentionDecode, AttentionPrefill, Body, Element, KV_PAGE, KvPool, QkNormRope, Rows, View,
    attention_decode, attention_decode_scratch, attention_prefill, from_q8, kv_unit, qk_norm_rope, to_q8,
};
use lily_gpu::{Contents, Gpu, GpuError};
use lily_model::{KvType, Shape};

use super::lab::{Lab, Work, difference, dot, elements, normed, rounded, sigmoid};

const HEAD: usize = 256;
const PAGE: usize = KV_PAGE as usize;

/// Keys and values of some sequences on the device, pages in a shuffled order.
struct Cache<B> {
    kv: KvType,
    kv_heads: usize,
    table: Vec<u32>,
    /// Pages of a sequence.
    stride: usize,
    /// The pool's values: page, keys or values, head, position, dim.
    values: Vec<f32>,
    pool: B,
    table_on_device: B,
}

impl<B> Cache<B> {
    fn new<G: Gpu<Buffer = B>>(
        lab: &mut Lab<'_, G>,
        kv: KvType,
        kv_heads: usize,
        sequences: usize,
        positions: usize,
    ) -> Result<Self> {
        let stride = positions.div_ceil(PAGE);
        let pages = (sequences * stride) as u32;
        let mut table: Vec<u32> = (0..pages).collect();
        for i in (1..table.len()).rev() {
            table.swap(i, lab.random.below(i as u64 + 1) as usize);
        }
        let count = pages as usize * 2 * kv_heads * PAGE * HEAD;
        let mut values = lab.random.values(count, 1.0);
        round_kv(kv, &mut values);
        let pool = match kv {
            KvType::F32 => lab.elements(Element::F32, &values, Contents::Cache)?,
            KvType::Bf16 => lab.elements(Element::Bf16, &values, Contents::Cache)?,
            KvType::Q8 => lab.bytes(&to_q8(&values), Contents::Cache)?,
        };
        let table_on_device = lab.words(&table)?;
        Ok(Self { kv, kv_heads, table, stride, values, pool, table_on_device })
    }

    fn view(&self) -> KvPool<'_, B> {
        KvPool {
            pool: View::of(&self.pool),
            kv: self.kv,
            page_stride: (2 * self.kv_heads * PAGE) as u64 * self.kv.row_bytes(HEAD) / kv_unit(self.kv),
            table: View::of(&self.table_on_device),
            table_stride: self.stride as u32,
        }
    }

    /// Where the 256 values begin; `what`: 0 keys, 1 values.
    fn at(&self, sequence: usize, position: usize, what: usize, head: usize) -> usize {
        let page = self.table[sequence * self.stride + position / PAGE] as usize;
        (((page * 2 + what) * self.kv_heads + head) * PAGE + position % PAGE) * HEAD
    }

    /// What the pool holds now.
    fn read<G: Gpu<Buffer = B>>(&self, lab: &Lab<'_, G>) -> Result<Vec<f32>, GpuError> {
        match self.kv {
            KvType::F32 => lab.read_elements(Element::F32, &self.pool),
            KvType::Bf16 => lab.read_elements(Element::Bf16, &self.pool),
            KvType::Q8 => {
                let words = lab.read_words(&self.pool)?;
                Ok(from_q8(&words.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>()))
            }
        }
    }

    /// Attention of one scaled query over positions 0 to `last`.
    fn attend(&self, sequence: usize, head: usize, q: &[f32], last: usize) -> Vec<f32> {
        let row = |p: usize, what: usize| &self.values[self.at(sequence, p, what, head)..][..HEAD];
        let scores: Vec<f32> = (0..=last).map(|p| dot(q, row(p, 0))).collect();
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> = scores.iter().map(|s| f64::from(s - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0f64; HEAD];
        for (p, w) in weights.iter().enumerate() {
            for (o, v) in out.iter_mut().zip(row(p, 1)) {
                *o += w / total * f64::from(*v);
            }
        }
        out.into_iter().map(|v| v as f32).collect()
    }
}

/// `qk_norm_rope` and `attention_decode`.
pub fn check<G: Gpu>(lab: &mut Lab<'_, G>) -> Result<()> {
    let (heads, kv_heads) = heads(lab);
    for kv in [KvType::F32, KvType::Bf16, KvType::Q8] {
        qk(lab, kv, heads, kv_heads, None)?;
        qk(lab, kv, heads, kv_heads, Some(&[0, 63, 64, 1000]))?;
        check_decode(lab, kv)?;
    }
    Ok(())
}

/// `attention_decode` on both sides of its blocks.
pub fn check_decode<G: Gpu>(lab: &mut Lab<'_, G>, kv: KvType) -> Result<()> {
    let (heads, kv_heads) = heads(lab);
    let block = if lab.step == Body::Mma && kv == KvType::Bf16 { 32 } else { ATTENTION_BLOCK as usize };
    for counts in [&[1][..], &[block - 1], &[block], &[block + 1], &[3, 2 * block + 5, 64]] {
        decode(lab, kv, heads, kv_heads, counts)?;
    }
    if lab.full && kv != KvType::F32 {
        // Both sides of lengths from which blocks are longer.
        for count in [4096, 4097, 16384, 16385] {
            decode(lab, kv, heads, kv_heads, &[count])?;
        }
    }
    Ok(())
}

/// `attention_prefill`.
pub fn check_prefill<G: Gpu>(lab: &mut Lab<'_, G>, body: Body) -> Result<()> {
    let (heads, kv_heads) = heads(lab);
    for &element in elements(body) {
        // Both sides of a row tile, a key tile and a page.
        for (start, rows) in [(0, 1), (0, 8), (0, 9), (63, 2), (64, 17)] {
            prefill(lab, body, element, element.into(), heads, kv_heads, (start, rows))?;
            // Whatever multiplies elsewhere, these are left to the matrices of 8×8.
            if body == Body::Simdgroup {
                prefill(lab, body, element, KvType::Q8, heads, kv_heads, (start, rows))?;
            }
        }
    }
    if lab.full {
        prefill(lab, body, Element::Bf16, KvType::Bf16, heads, kv_heads, (1024, 128))?;
    }
    Ok(())
}

/// Query heads and kv heads.
fn heads<G: Gpu>(lab: &Lab<'_, G>) -> (usize, usize) {
    if lab.full { (16, 2) } else { (4, 2) }
}

/// Rows from position 5 on, or one row a sequence at `positions`.
fn qk<G: Gpu>(lab: &mut Lab<'_, G>, kv: KvType, heads: usize, kv_heads: usize, decode: Option<&[usize]>) -> Result<()> {
    let start = 5;
    let positions: Vec<usize> = decode.map_or_else(|| (start..start + 70).collect(), <[usize]>::to_vec);
    let (rows, longest) = (positions.len(), positions.iter().max().map_or(1, |p| p + 1));
    let sequences = if decode.is_some() { rows } else { 1 };
    let q_element = if decode.is_some() || kv == KvType::F32 { Element::F32 } else { Element::Bf16 };
    let stride = (2 * heads + 2 * kv_heads) * HEAD;
    let mut cache = Cache::new(lab, kv, kv_heads, sequences, longest)?;
    let x = lab.random.values(rows * stride, 2.0);
    let (q_norm, k_norm) = (lab.random.values(HEAD, 1.5), lab.random.values(HEAD, 1.5));
    let shape = Shape::qwen3_6_35b_a3b();
    let frequencies: Vec<f32> = (0..32).map(|j| inv_freq(&shape, j)).collect();

    let mut want = Vec::new();
    for (t, (row, &position)) in x.chunks_exact(stride).zip(&positions).enumerate() {
        for h in 0..heads {
            let mut head = normed(&row[2 * h * HEAD..][..HEAD], &q_norm, shape.norm_eps);
            rope(&shape, &mut head, 1, position);
            want.extend(head.iter().map(|v| v / 16.0));
        }
        for h in 0..kv_heads {
            let mut key = normed(&row[(2 * heads + h) * HEAD..][..HEAD], &k_norm, shape.norm_eps);
            rope(&shape, &mut key, 1, position);
            let sequence = if decode.is_some() { t } else { 0 };
            let (k, v) = (cache.at(sequence, position, 0, h), cache.at(sequence, position, 1, h));
            let mut value = row[(2 * heads + kv_heads + h) * HEAD..][..HEAD].to_vec();
            round_kv(kv, &mut key);
            round_kv(kv, &mut value);
            cache.values[k..k + HEAD].copy_from_slice(&key);
            cache.values[v..v + HEAD].copy_from_slice(&value);
        }
    }
    let want = rounded(q_element, &want);
    let x = lab.input(&x)?;
    let q_norm = lab.floats(&q_norm, Contents::Weights)?;
    let k_norm = lab.floats(&k_norm, Contents::Weights)?;
    let frequencies = lab.floats(&frequencies, Contents::Weights)?;
    let at = lab.words(&positions.iter().map(|&p| p as u32).collect::<Vec<_>>())?;
    let q = lab.elements(q_element, &vec![0.0; want.len()], Contents::Activations)?;
    let stored = 2 * (rows * kv_heads) as u64 * kv.row_bytes(HEAD);
    let moved = (rows * (heads + 2 * kv_heads) * 4 * HEAD) as u64 + stored;
    lab.check(
        "qk_norm_rope",
        format!("{rows} rows, {}, {}", if decode.is_some() { "decode" } else { "prefill" }, kv.name()),
        Work::Bytes(moved + want.len() as u64 * q_element.size()),
        // A value may round to its other neighbour in BF16, and to the next code in 8 bits.
        if kv == KvType::F32 { 5e-6 } else { 0.008 },
        |gpu| {
            let n = QkNormRope {
                projections: View::of(&x),
                stride: stride as u32,
                q_norm: View::of(&q_norm),
                k_norm: View::of(&k_norm),
                inv_freq: View::of(&frequencies),
                q: View::of(&q),
                q_element,
                kv: cache.view(),
                query_heads: heads as u32,
                kv_heads: kv_heads as u32,
                eps: shape.norm_eps,
                rows: rows as u32,
                at: match decode {
                    Some(_) => Rows::Decode { positions: View::of(&at), longest: longest as u32 },
                    None => Rows::Prefill { start: start as u32 },
                },
            };
            qk_norm_rope(gpu, &n)
        },
        |lab| {
            let q = difference(&lab.read_elements(q_element, &q)?, &want);
            Ok(q.max(difference(&cache.read(lab)?, &cache.values)))
        },
    );
    Ok(())
}

/// The gates of rows of projections, and attention's outputs times their sigmoids.
fn gated(out: Vec<f32>, projections: &[f32], stride: usize, heads: usize) -> Vec<f32> {
    let gate = |i: usize| {
        let (row, head, d) = (i / (heads * HEAD), i / HEAD % heads, i % HEAD);
        projections[row * stride + (2 * head + 1) * HEAD + d]
    };
    out.iter().enumerate().map(|(i, o)| o * sigmoid(gate(i))).collect()
}

fn prefill<G: Gpu>(
    lab: &mut Lab<'_, G>,
    body: Body,
    element: Element,
    kv: KvType,
    heads: usize,
    kv_heads: usize,
    (start, rows): (usize, usize),
) -> Result<()> {
    let mut cache = Cache::new(lab, kv, kv_heads, 1, start + rows)?;
    // Values of 8 bits are multiplied as the element holds them.
    cache.values = rounded(element, &cache.values);
    let stride = 2 * heads * HEAD;
    let q = rounded(element, &lab.random.values(rows * heads * HEAD, 0.3));
    let projections = lab.random.values(rows * stride, 2.0);
    let mut out = Vec::new();
    for (i, q) in q.chunks_exact(HEAD).enumerate() {
        out.extend(cache.attend(0, i % heads / (heads / kv_heads), q, start + i / heads));
    }
    let want = gated(out, &projections, stride, heads);
    let q = lab.elements(element, &q, Contents::Activations)?;
    let projections = lab.input(&projections)?;
    let out = lab.elements(element, &vec![0.0; want.len()], Contents::Activations)?;
    let pairs: usize = (0..rows).map(|t| start + t + 1).sum();
    lab.check(
        if body == Body::Mma { "attention mma" } else { "attention_prefill" },
        format!("{rows} rows from {start}, {heads}/{kv_heads} heads, {element:?} on {}", kv.name()),
        Work::Products((2 * pairs * heads * HEAD) as u64),
        // BF16: weights and outputs are rounded.
        if element == Element::Bf16 { 0.008 } else { 2e-5 },
        |gpu| {
            let a = AttentionPrefill {
                body,
                element,
                q: View::of(&q),
                kv: cache.view(),
                projections: View::of(&projections),
                stride: stride as u32,
                out: View::of(&out),
                query_heads: heads as u32,
                kv_heads: kv_heads as u32,
                start: start as u32,
                rows: rows as u32,
            };
            attention_prefill(gpu, &a)
        },
        |lab| Ok(difference(&lab.read_elements(element, &out)?, &want)),
    );
    Ok(())
}

/// One row a sequence, which has so many positions with it.
fn decode<G: Gpu>(lab: &mut Lab<'_, G>, kv: KvType, heads: usize, kv_heads: usize, counts: &[usize]) -> Result<()> {
    let body = lab.step;
    let longest = counts.iter().copied().max().unwrap_or(1);
    let cache = Cache::new(lab, kv, kv_heads, counts.len(), longest)?;
    let stride = 2 * heads * HEAD;
    let q = lab.random.values(counts.len() * heads * HEAD, 0.3);
    let projections = lab.random.values(counts.len() * stride, 2.0);
    let mut out = Vec::new();
    for (i, q) in q.chunks_exact(HEAD).enumerate() {
        out.extend(cache.attend(i / heads, i % heads / (heads / kv_heads), q, counts[i / heads] - 1));
    }
    let want = gated(out, &projections, stride, heads);
    let (q, projections) = (lab.input(&q)?, lab.input(&projections)?);
    let positions = lab.words(&counts.iter().map(|&n| n as u32 - 1).collect::<Vec<_>>())?;
    let out = lab.output(want.len())?;
    let scratch = attention_decode_scratch(body, kv, counts.len() as u32, heads as u32, longest as u32);
    let scratch = lab.gpu.allocate(scratch.max(16), Contents::Activations)?;
    let read = (counts.iter().sum::<usize>() * 2 * kv_heads) as u64 * kv.row_bytes(HEAD);
    lab.check(
        lab.step_name("attention_decode", "attention_d. mma"),
        format!("contexts {counts:?}, {heads}/{kv_heads} heads, {}", kv.name()),
        Work::Bytes(read),
        2e-5,
        |gpu| {
            let a = AttentionDecode {
                body,
                q: View::of(&q),
                kv: cache.view(),
                positions: View::of(&positions),
                longest: longest as u32,
                projections: View::of(&projections),
                stride: stride as u32,
                out: View::of(&out),
                scratch: View::of(&scratch),
                sequences: counts.len() as u32,
                query_heads: heads as u32,
                kv_heads: kv_heads as u32,
            };
            attention_decode(gpu, &a)
        },
        |lab| Ok(difference(&lab.read(&out)?, &want)),
    );
    Ok(())
}
