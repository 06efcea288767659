//! A cache with shuffled pages for tests of attention.

use lily_cpu::oracle::round_kv;
use lily_model::KvType;

use super::kv::{HEAD, KV_PAGE, KvPool, from_q8, kv_unit, to_q8};
use super::{Element, View};
use crate::gpu::{Contents, Gpu};
use crate::testing::{Buffer, TestGpu};
use crate::testing::{Random, bytes, floats, to_bf16, words};

pub const D: usize = HEAD as usize;
const PAGE: usize = KV_PAGE as usize;

/// The pool has pages of `layers` layers; the tests work on one of them. Values not written are NaN.
pub struct Cache {
    pub kv: KvType,
    pub kv_heads: usize,
    pub layer: usize,
    pub page_stride: usize,
    /// Per sequence.
    pub tables: Vec<Vec<u32>>,
    pub values: Vec<f32>,
}

/// Its buffers.
pub struct OnDevice {
    pub pool: Buffer,
    pub table: Buffer,
}

impl Cache {
    /// Room for `lengths[i]` positions of sequence i, in pages drawn at random.
    pub fn new(random: &mut Random, kv: KvType, kv_heads: usize, lengths: &[usize]) -> Self {
        Self::with_pages(random, kv, kv_heads, lengths, |_, _| true)
    }

    /// Room for one position of each sequence; the table's entries for others are far outside.
    pub fn only(random: &mut Random, kv: KvType, kv_heads: usize, positions: &[usize]) -> Self {
        let lengths: Vec<usize> = positions.iter().map(|p| p + 1).collect();
        Self::with_pages(random, kv, kv_heads, &lengths, |sequence, page| positions[sequence] / PAGE == page)
    }

    fn with_pages(
        random: &mut Random,
        kv: KvType,
        kv_heads: usize,
        lengths: &[usize],
        has: impl Fn(usize, usize) -> bool,
    ) -> Self {
        let (layers, layer) = (2, 1);
        let pages = |n: &usize| n.div_ceil(PAGE);
        let wanted = lengths.iter().enumerate().flat_map(|(s, n)| (0..pages(n)).map(move |p| (s, p)));
        let wanted = wanted.filter(|&(s, p)| has(s, p)).count();
        let mut free: Vec<u32> = (0..wanted as u32 + 2).collect();
        let mut draw = || free.swap_remove(random.below(free.len() as u64) as usize);
        let tables = lengths
            .iter()
            .enumerate()
            .map(|(s, n)| (0..pages(n)).map(|p| if has(s, p) { draw() } else { u32::MAX }).collect())
            .collect();
        let page_stride = layers * 2 * kv_heads * PAGE * D;
        Self { kv, kv_heads, layer, page_stride, tables, values: vec![f32::NAN; (wanted + 2) * page_stride] }
    }

    fn layer_at(&self) -> usize {
        self.layer * 2 * self.kv_heads * PAGE * D
    }

    /// The row of keys (part 0) or values (part 1).
    pub fn row(&self, sequence: usize, part: usize, head: usize, position: usize) -> std::ops::Range<usize> {
        let page = self.tables[sequence][position / PAGE] as usize;
        let row = (part * self.kv_heads + head) * PAGE + position % PAGE;
        let at = page * self.page_stride + self.layer_at() + row * D;
        at..at + D
    }

    /// Random keys and values for the first `positions` of a sequence, rounded to the type.
    pub fn fill(&mut self, random: &mut Random, sequence: usize, positions: usize, scale: f32) {
        for p in 0..positions {
            for part in 0..2 {
                for head in 0..self.kv_heads {
                    let row = self.row(sequence, part, head, p);
                    let mut values = random.values(D, if part == 0 { scale } else { 1.0 });
                    round_kv(self.kv, &mut values);
                    self.values[row].copy_from_slice(&values);
                }
            }
        }
    }

    pub fn table_stride(&self) -> usize {
        self.tables.iter().map(Vec::len).max().unwrap_or(0) + 1
    }

    pub fn upload(&self, gpu: &TestGpu) -> OnDevice {
        let stride = self.table_stride();
        let mut table = vec![u32::MAX; self.tables.len() * stride];
        for (row, pages) in table.chunks_exact_mut(stride).zip(&self.tables) {
            row[..pages.len()].copy_from_slice(pages);
        }
        let pool = match self.kv {
            KvType::F32 => floats(gpu, &self.values, Contents::Cache),
            KvType::Bf16 => bytes(gpu, &to_bf16(&self.values), Contents::Cache),
            KvType::Q8 => bytes(gpu, &to_q8(&self.values), Contents::Cache),
        };
        OnDevice { pool, table: words(gpu, &table) }
    }

    pub fn pool<'a>(&self, on: &'a OnDevice) -> KvPool<'a, Buffer> {
        KvPool {
            pool: View::at(&on.pool, (self.layer_at() / D) as u64 * self.kv.row_bytes(D)),
            kv: self.kv,
            page_stride: (self.page_stride / D) as u64 * self.kv.row_bytes(D) / kv_unit(self.kv),
            table: View::of(&on.table),
            table_stride: self.table_stride() as u32,
        }
    }
}

/// Values of a pool.
pub fn read_cache(gpu: &TestGpu, buffer: &Buffer, kv: KvType) -> Vec<f32> {
    match kv {
        KvType::F32 => read_values(gpu, buffer, Element::F32),
        KvType::Bf16 => read_values(gpu, buffer, Element::Bf16),
        KvType::Q8 => {
            let mut out = vec![0; gpu.bytes(buffer) as usize];
            gpu.read(buffer, 0, &mut out).expect("read");
            from_q8(&out)
        }
    }
}

/// Values of a buffer of the element.
pub fn read_values(gpu: &TestGpu, buffer: &Buffer, element: Element) -> Vec<f32> {
    let mut out = vec![0; gpu.bytes(buffer) as usize];
    gpu.read(buffer, 0, &mut out).expect("read");
    match element {
        Element::F32 => out.chunks_exact(4).map(|c| f32::from_ne_bytes(c.try_into().expect("4 bytes"))).collect(),
        Element::Bf16 => out
            .chunks_exact(2)
            .map(|c| f32::from_bits(u32::from(u16::from_ne_bytes(c.try_into().expect("2 bytes"))) << 16))
            .collect(),
    }
}

/// A buffer of the element.
pub fn element_values(gpu: &TestGpu, values: &[f32], element: Element) -> Buffer {
    match element {
        Element::F32 => floats(gpu, values, Contents::Activations),
        Element::Bf16 => bytes(gpu, &to_bf16(values), Contents::Activations),
    }
}

/// The part of gated attention that the kernels compute, in f64 (`docs/model.md §4.2`): `q` of one head, already scaled, at
/// the last of `positions` positions; `gate` of that head.
pub fn attend(cache: &Cache, sequence: usize, kv_head: usize, positions: usize, q: &[f32], gate: &[f32]) -> Vec<f32> {
    let row = |part, p| &cache.values[cache.row(sequence, part, kv_head, p)];
    let dot = |k: &[f32]| q.iter().zip(k).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let scores: Vec<f64> = (0..positions).map(|p| dot(row(0, p))).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; D];
    for (p, w) in weights.iter().enumerate() {
        for (o, &v) in out.iter_mut().zip(row(1, p)) {
            *o += w / total * f64::from(v);
        }
    }
    out.iter().zip(gate).map(|(o, &g)| (o / (1.0 + (-f64::from(g)).exp())) as f32).collect()
}
