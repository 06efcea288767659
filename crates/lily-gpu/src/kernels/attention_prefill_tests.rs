use lily_cpu::oracle::round_kv;
use lily_model::KvType;
use proptest::prelude::*;

use super::*;
use crate::gpu::Contents;
use crate::kernels::kv::{kv_unit, to_q8};
use crate::kernels::kv_testing::{Cache, D, attend, element_values, read_values};
use crate::testing::{self, Random, assert_close, bf16, device, floats, run, to_bf16, words};

struct Case {
    body: Body,
    query_heads: usize,
    kv_heads: usize,
    element: Element,
    kv: KvType,
    /// Positions before the first row, and rows.
    start: usize,
    rows: usize,
    /// Of the keys; queries are within ±1/16.
    scale: f32,
}

/// What the kernel is given, by row.
struct Inputs {
    cache: Cache,
    q: Vec<f32>,
    projections: Vec<f32>,
    stride: usize,
}

/// Bodies that have kernels of their own here, with the cache of their element; and with one of 8 bits, where the body of 8×8
/// matrices multiplies whichever is asked for.
fn bodies() -> Vec<(Body, Element, KvType)> {
    let bodies = testing::bodies().into_iter().filter(|b| b.0 != Body::Tensor).map(|(b, e)| (b, e, e.into()));
    bodies.chain([Element::F32, Element::Bf16].map(|e| (Body::Simdgroup, e, KvType::Q8))).collect()
}

fn inputs(c: &Case, seed: u32) -> Inputs {
    let mut random = Random(u64::from(seed));
    let mut cache = Cache::new(&mut random, c.kv, c.kv_heads, &[c.start + c.rows]);
    cache.fill(&mut random, 0, c.start + c.rows, c.scale);
    let stride = (2 * c.query_heads + 2 * c.kv_heads) * D + 4;
    let mut q = random.values(c.rows * c.query_heads * D, 1.0 / 16.0);
    if c.element == Element::Bf16 {
        q.iter_mut().for_each(|v| *v = bf16(*v));
    }
    let projections = random.values(c.rows * stride, 4.0);
    Inputs { cache, q, projections, stride }
}

/// Rows `from..to` of the case in one dispatch. Positions from `known` on are not in the cache yet: NaN.
fn compute(c: &Case, i: &Inputs, from: usize, to: usize, known: usize, seed: u32) -> Vec<f32> {
    let mut gpu = device(seed);
    let mut cache = Cache { values: i.cache.values.clone(), tables: i.cache.tables.clone(), ..i.cache };
    for p in known..c.start + c.rows {
        for (part, head) in (0..2).flat_map(|part| (0..c.kv_heads).map(move |h| (part, h))) {
            let row = cache.row(0, part, head, p);
            cache.values[row].fill(f32::NAN);
        }
    }
    let on = cache.upload(&gpu);
    let row = c.query_heads * D;
    let q = element_values(&gpu, &i.q[from * row..to * row], c.element);
    let projections = floats(&gpu, &i.projections[from * i.stride..to * i.stride], Contents::Activations);
    let out = gpu.allocate(((to - from) * row) as u64 * c.element.size(), Contents::Activations).unwrap();
    let a = AttentionPrefill {
        body: c.body,
        element: c.element,
        q: View::of(&q),
        kv: cache.pool(&on),
        projections: View::of(&projections),
        stride: i.stride as u32,
        out: View::of(&out),
        query_heads: c.query_heads as u32,
        kv_heads: c.kv_heads as u32,
        start: (c.start + from) as u32,
        rows: (to - from) as u32,
    };
    attention_prefill(&mut gpu, &a).unwrap();
    run(&mut gpu).unwrap();
    read_values(&gpu, &out, c.element)
}

fn reference(c: &Case, i: &Inputs) -> Vec<f32> {
    let mut cache = Cache { values: i.cache.values.clone(), tables: i.cache.tables.clone(), ..i.cache };
    // Values of 8 bits are multiplied as the element holds them.
    if c.element == Element::Bf16 {
        round_kv(KvType::Bf16, &mut cache.values);
    }
    let group = c.query_heads / c.kv_heads;
    let mut out = Vec::new();
    for t in 0..c.rows {
        for h in 0..c.query_heads {
            let q = &i.q[(t * c.query_heads + h) * D..][..D];
            let gate = &i.projections[t * i.stride + (2 * h + 1) * D..][..D];
            out.extend(attend(&cache, 0, h / group, c.start + t + 1, q, gate));
        }
    }
    out
}

fn check(c: &Case, seed: u32) {
    let i = inputs(c, seed);
    let got = compute(c, &i, 0, c.rows, c.start + c.rows, seed);
    // BF16: the weights and the result are rounded, each by 2^-9 at most.
    assert_close(&got, &reference(c, &i), if c.element == Element::F32 { 2e-5 } else { 6e-3 });
}

#[test]
fn the_real_heads() {
    for (body, element, kv) in bodies() {
        check(&Case { body, query_heads: 16, kv_heads: 2, element, kv, start: 0, rows: 41, scale: 4.0 }, 1);
    }
}

#[test]
fn both_sides_of_row_tiles_key_tiles_and_pages() {
    for (n, (start, rows)) in
        [(0, 1), (0, 8), (0, 9), (15, 1), (16, 2), (31, 2), (63, 1), (64, 1), (61, 7), (120, 10), (192, 3)]
            .into_iter()
            .enumerate()
    {
        for (body, element, kv) in bodies() {
            check(&Case { body, query_heads: 4, kv_heads: 2, element, kv, start, rows, scale: 4.0 }, n as u32 + 11);
        }
    }
}

/// Several threadgroups of the warp-group body, several tiles of keys, and rows of it that stand for no position (3 heads).
#[test]
fn blocks_of_128_rows() {
    for (query_heads, kv_heads, start, rows) in
        [(4, 2, 0, 64), (4, 2, 0, 65), (4, 2, 190, 130), (8, 1, 500, 33), (3, 1, 60, 90)]
    {
        for (body, element, kv) in bodies().into_iter().filter(|b| b.0 == Body::Mma) {
            check(&Case { body, query_heads, kv_heads, element, kv, start, rows, scale: 9.0 }, rows as u32);
        }
    }
}

/// A prompt in one piece, and cut at multiples of 64 and elsewhere, where later positions are not written yet.
#[cfg_attr(sanitized, ignore = "large")]
#[test]
fn bits_do_not_depend_on_cuts() {
    for (body, element, kv) in bodies() {
        let c = Case { body, query_heads: 2, kv_heads: 1, element, kv, start: 0, rows: 150, scale: 4.0 };
        let i = inputs(&c, 31);
        let whole = compute(&c, &i, 0, 150, 150, 31);
        for cuts in [vec![0, 64, 128, 150], vec![0, 64, 150], vec![0, 128, 150], vec![0, 3, 70, 71, 150]] {
            let parts: Vec<f32> =
                cuts.windows(2).flat_map(|w| compute(&c, &i, w[0], w[1], w[1], 32 + w[0] as u32)).collect();
            assert!(
                whole.iter().zip(&parts).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{body:?}, {element:?}, {kv:?} cut at {cuts:?}"
            );
        }
    }
}

/// Gates up to ±200, and scores of a few thousand, far apart: one position takes nearly all the weight.
#[test]
fn large_scores() {
    let (body, element, kv) = (Body::Simdgroup, Element::F32, KvType::F32);
    let c = Case { body, query_heads: 2, kv_heads: 1, element, kv, start: 60, rows: 10, scale: 3000.0 };
    let mut i = inputs(&c, 41);
    i.projections.iter_mut().for_each(|v| *v *= 50.0);
    // Products of this size round by more than the softmax shows else.
    assert_close(&compute(&c, &i, 0, 10, 70, 41), &reference(&c, &i), 2e-3);
}

/// Keys and values far behind 2^32 values of a pool that takes memory only where it is touched.
#[test]
fn b132_omlx_841_pages_beyond_32_bit_indices() {
    for (body, element, kv) in bodies().into_iter().filter(|b| b.1 == Element::Bf16) {
        far_pages(&Case { body, query_heads: 1, kv_heads: 1, element, kv, start: 63, rows: 4, scale: 4.0 });
    }
}

fn far_pages(c: &Case) {
    let i = inputs(c, 51);
    let mut gpu = device(51);
    let bytes = c.kv.row_bytes(D);
    let page_stride = 2 * 64 * bytes;
    let pool = gpu.allocate(10 << 30, Contents::Cache).unwrap();
    let pages = [140_000u32, 70_000];
    let table = words(&gpu, &pages);
    for part in 0..2 {
        for p in 0..c.start + c.rows {
            let row = &i.cache.values[i.cache.row(0, part, 0, p)];
            let at = u64::from(pages[p / 64]) * page_stride + (part * 64 + p % 64) as u64 * bytes;
            let row = if c.kv == KvType::Q8 { to_q8(row) } else { to_bf16(row) };
            gpu.upload(&pool, at, &row).unwrap();
        }
    }
    let q = element_values(&gpu, &i.q, c.element);
    let projections = floats(&gpu, &i.projections, Contents::Activations);
    let out = gpu.allocate((c.rows * D * 2) as u64, Contents::Activations).unwrap();
    let a = AttentionPrefill {
        body: c.body,
        element: c.element,
        q: View::of(&q),
        kv: KvPool {
            pool: View::of(&pool),
            kv: c.kv,
            page_stride: page_stride / kv_unit(c.kv),
            table: View::of(&table),
            table_stride: 2,
        },
        projections: View::of(&projections),
        stride: i.stride as u32,
        out: View::of(&out),
        query_heads: 1,
        kv_heads: 1,
        start: c.start as u32,
        rows: c.rows as u32,
    };
    attention_prefill(&mut gpu, &a).unwrap();
    run(&mut gpu).unwrap();
    assert_close(&read_values(&gpu, &out, Element::Bf16), &reference(c, &i), 6e-3);
}

#[test]
#[should_panic(expected = "query heads on")]
fn query_heads_that_kv_heads_do_not_divide_are_refused() {
    let (body, element, kv) = (Body::Simdgroup, Element::F32, KvType::F32);
    check(&Case { body, query_heads: 3, kv_heads: 2, element, kv, start: 0, rows: 1, scale: 1.0 }, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..ProptestConfig::default() })]
    #[cfg_attr(sanitized, ignore = "large")]
    #[test]
    fn any_shape(group in 1usize..=8, kv_heads in 1usize..=2, start in 0usize..150, rows in 1usize..30,
                 body in 0usize..bodies().len(), seed in 1u32..1000) {
        let (body, element, kv) = bodies()[body];
        check(&Case { body, query_heads: group * kv_heads, kv_heads, element, kv, start, rows, scale: 5.0 }, seed);
    }
}
