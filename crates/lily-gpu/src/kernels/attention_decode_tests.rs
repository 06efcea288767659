use proptest::prelude::*;

use super::*;
use crate::gpu::{Contents, Dispatched};
use crate::kernels::kv_testing::{Cache, D, attend};
use crate::testing::{
    Random, assert_close, counts, device, floats, output, read_f32, run, step_bodies, to_bf16, words,
};

struct Case {
    query_heads: usize,
    kv_heads: usize,
    kv: KvType,
    /// Positions of each sequence, its token's included.
    counts: Vec<usize>,
    /// Of the keys; queries are within ±1/16.
    scale: f32,
}

impl Case {
    fn real(kv: KvType, counts: Vec<usize>) -> Self {
        Self { query_heads: 16, kv_heads: 2, kv, counts, scale: 4.0 }
    }
}

/// What the kernels are given.
struct Inputs {
    cache: Cache,
    q: Vec<f32>,
    projections: Vec<f32>,
    stride: usize,
}

fn inputs(c: &Case, seed: u32) -> Inputs {
    let mut random = Random(u64::from(seed));
    let mut cache = Cache::new(&mut random, c.kv, c.kv_heads, &c.counts);
    for (sequence, &count) in c.counts.iter().enumerate() {
        cache.fill(&mut random, sequence, count, c.scale);
    }
    let stride = (2 * c.query_heads + 2 * c.kv_heads) * D + 4;
    let q = random.values(c.counts.len() * c.query_heads * D, 1.0 / 16.0);
    let projections = random.values(c.counts.len() * stride, 4.0);
    Inputs { cache, q, projections, stride }
}

/// Runs sequences `from..` of the inputs. `longest` may be more than the sequences have.
fn compute(
    body: Body,
    c: &Case,
    i: &Inputs,
    sequences: std::ops::Range<usize>,
    longest: usize,
    seed: u32,
) -> (Vec<f32>, Vec<Dispatched>) {
    let n = sequences.len() as u32;
    let mut gpu = device(seed);
    let on = i.cache.upload(&gpu);
    let row = c.query_heads * D;
    let q = floats(&gpu, &i.q[sequences.start * row..sequences.end * row], Contents::Activations);
    let projections =
        floats(&gpu, &i.projections[sequences.start * i.stride..sequences.end * i.stride], Contents::Activations);
    let positions: Vec<u32> = c.counts[sequences.clone()].iter().map(|&n| n as u32 - 1).collect();
    let positions = words(&gpu, &positions);
    let out = output(&gpu, sequences.len() * row);
    let scratch = attention_decode_scratch(body, c.kv, n, c.query_heads as u32, longest as u32);
    let scratch = gpu.allocate(scratch, Contents::Activations).unwrap();
    let mut kv = i.cache.pool(&on);
    kv.table.offset = sequences.start as u64 * u64::from(kv.table_stride) * 4;
    let a = AttentionDecode {
        body,
        q: View::of(&q),
        kv,
        positions: View::of(&positions),
        longest: longest as u32,
        projections: View::of(&projections),
        stride: i.stride as u32,
        out: View::of(&out),
        scratch: View::of(&scratch),
        sequences: n,
        query_heads: c.query_heads as u32,
        kv_heads: c.kv_heads as u32,
    };
    attention_decode(&mut gpu, &a).unwrap();
    let finished = run(&mut gpu).unwrap();
    (read_f32(&gpu, &out), finished.dispatches)
}

fn reference(c: &Case, i: &Inputs) -> Vec<f32> {
    let group = c.query_heads / c.kv_heads;
    let mut out = Vec::new();
    for (sequence, &count) in c.counts.iter().enumerate() {
        for h in 0..c.query_heads {
            let q = &i.q[(sequence * c.query_heads + h) * D..][..D];
            let gate = &i.projections[sequence * i.stride + (2 * h + 1) * D..][..D];
            out.extend(attend(&i.cache, sequence, h / group, count, q, gate));
        }
    }
    out
}

/// Loaded bytes of the pool in all dispatches.
fn cache_bytes(dispatches: &[Dispatched]) -> u64 {
    let traffic = dispatches.iter().flat_map(|d| &d.traffic).filter(|t| t.contents == Contents::Cache);
    traffic.map(|t| t.bytes()).sum()
}

fn check(c: &Case, seed: u32) {
    let i = inputs(c, seed);
    let longest = *c.counts.iter().max().unwrap();
    let want = reference(c, &i);
    for body in step_bodies() {
        let (got, dispatches) = compute(body, c, &i, 0..c.counts.len(), longest, seed);
        assert_close(&got, &want, 2e-5);
        let rows: usize = c.counts.iter().sum();
        // The four lanes that have a group of 32 values in 8 bits read its scale together.
        let shared = if c.kv == KvType::Q8 { 3 * 2 * D / 32 } else { 0 };
        let minimum = (rows * 2 * c.kv_heads) as u64 * (c.kv.row_bytes(D) + shared as u64);
        assert!(!counts() || cache_bytes(&dispatches) == minimum, "each key and value once");
        let block = if (body, c.kv) == (Body::Mma, KvType::Bf16) { 32 } else { 256 };
        assert_eq!(dispatches.len(), if longest > block { 2 } else { 1 });
    }
}

#[test]
fn b134_mlx_lm_844_contexts_on_both_sides_of_page_tile_and_block() {
    for (n, count) in [1, 2, 63, 64, 65, 129, 255, 256, 257, 511, 512, 513, 700].into_iter().enumerate() {
        let kv = if n % 2 == 0 { KvType::Bf16 } else { KvType::F32 };
        check(&Case::real(KvType::Q8, vec![count]), n as u32 + 1);
        check(&Case::real(kv, vec![count]), n as u32 + 1);
    }
}

#[test]
fn sequences_of_very_different_lengths() {
    for kv in [KvType::F32, KvType::Bf16, KvType::Q8] {
        let counts = vec![1, 900, 64, 257, 3, 256, 30, 320];
        check(&Case { query_heads: 4, kv_heads: 2, kv, counts, scale: 4.0 }, 21);
    }
}

#[cfg_attr(sanitized, ignore = "large")]
#[test]
fn both_sides_of_longer_spans() {
    for (n, count) in [16384, 16385].into_iter().enumerate() {
        for kv in [KvType::Bf16, KvType::Q8] {
            let counts = vec![count, 40];
            check(&Case { query_heads: 2, kv_heads: 1, kv, counts, scale: 6.0 }, 31 + n as u32);
        }
    }
}

/// Scores of a few thousand, far apart, and gates up to ±200.
#[test]
fn large_scores() {
    for count in [200, 600] {
        let c = Case { query_heads: 8, kv_heads: 1, kv: KvType::F32, counts: vec![count], scale: 3000.0 };
        let mut i = inputs(&c, 41);
        i.projections.iter_mut().for_each(|v| *v *= 50.0);
        // Products of this size round by more than a softmax may show: compare with F32's own error of the scores.
        let (got, _) = compute(Body::Simdgroup, &c, &i, 0..1, count, 41);
        assert_close(&got, &reference(&c, &i), 2e-3);
    }
}

/// The whole traffic beside the keys and values of the real heads.
#[test]
fn bytes_at_256_and_at_4096_positions() {
    for (count, most) in [(256, 1.15), (4096, 1.08)] {
        let c = Case::real(KvType::Bf16, vec![count]);
        let i = inputs(&c, 51);
        let (_, dispatches) = compute(Body::Simdgroup, &c, &i, 0..1, count, 51);
        if !counts() {
            return;
        }
        let minimum = (count * 2 * 2 * D * 2) as u64;
        assert_eq!(cache_bytes(&dispatches), minimum);
        let all: u64 = dispatches.iter().flat_map(|d| &d.traffic).map(|t| t.bytes()).sum();
        let ratio = all as f64 / minimum as f64;
        assert!(ratio <= most, "{all} bytes, {ratio:.3} of the cache's at {count} positions");
    }
}

/// A sequence alone, with others, and with a longer bound gives the same bits.
#[cfg_attr(sanitized, ignore = "large")]
#[test]
fn bits_do_not_depend_on_the_batch() {
    for kv in [KvType::Bf16, KvType::Q8] {
        alone_and_together(kv);
    }
}

fn alone_and_together(kv: KvType) {
    let c = Case::real(kv, vec![100, 1000, 256, 257, 31]);
    let i = inputs(&c, 61);
    let row = c.query_heads * D;
    for body in step_bodies() {
        let (all, _) = compute(body, &c, &i, 0..5, 1000, 61);
        for s in 0..5 {
            let (alone, _) = compute(body, &c, &i, s..s + 1, c.counts[s], 62);
            assert!(alone.iter().zip(&all[s * row..]).all(|(a, b)| a.to_bits() == b.to_bits()), "sequence {s}");
            let (bound, _) = compute(body, &c, &i, s..s + 1, c.counts[s] + 20, 63);
            assert!(alone.iter().zip(&bound).all(|(a, b)| a.to_bits() == b.to_bits()), "sequence {s}, a longer bound");
        }
    }
}

/// On both sides of the lengths from which the spans of the matrix body are longer.
#[cfg_attr(sanitized, ignore = "large")]
#[test]
fn every_length_of_a_step() {
    if step_bodies().len() == 1 {
        return; // the body is of one device
    }
    for (n, count) in [32, 33, 1024, 1025, 4096, 4097, 8192, 8193, 32_768, 32_769, 40_001].into_iter().enumerate() {
        check(
            &Case { query_heads: 8, kv_heads: 1, kv: KvType::Bf16, counts: vec![count, 70], scale: 5.0 },
            81 + n as u32,
        );
    }
}

/// Keys and values far behind 2^32 values of a pool that takes memory only where it is touched.
#[test]
fn b132_omlx_841_pages_beyond_32_bit_indices() {
    let mut random = Random(71);
    let mut gpu = device(71);
    let (count, page_stride) = (70usize, 2 * 64 * D);
    let pool = gpu.allocate(10 << 30, Contents::Cache).unwrap();
    let pages = [140_000u32, 70_000];
    let table = words(&gpu, &pages);
    let mut cache = Cache::new(&mut random, KvType::Bf16, 1, &[count]);
    cache.fill(&mut random, 0, count, 4.0);
    for part in 0..2 {
        for p in 0..count {
            let row = &cache.values[cache.row(0, part, 0, p)];
            let at = pages[p / 64] as u64 * page_stride as u64 + ((part * 64 + p % 64) * D) as u64;
            gpu.upload(&pool, at * 2, &to_bf16(row)).unwrap();
        }
    }
    let q_values = random.values(D, 1.0 / 16.0);
    let gates = random.values(4 * D, 4.0);
    let q = floats(&gpu, &q_values, Contents::Activations);
    let projections = floats(&gpu, &gates, Contents::Activations);
    let (positions, out) = (words(&gpu, &[count as u32 - 1]), output(&gpu, D));
    let a = AttentionDecode {
        body: Body::Simdgroup,
        q: View::of(&q),
        kv: KvPool {
            pool: View::of(&pool),
            kv: KvType::Bf16,
            page_stride: page_stride as u64,
            table: View::of(&table),
            table_stride: 2,
        },
        positions: View::of(&positions),
        longest: count as u32,
        projections: View::of(&projections),
        stride: 4 * D as u32,
        out: View::of(&out),
        scratch: View::of(&out),
        sequences: 1,
        query_heads: 1,
        kv_heads: 1,
    };
    attention_decode(&mut gpu, &a).unwrap();
    run(&mut gpu).unwrap();
    assert_close(&read_f32(&gpu, &out), &attend(&cache, 0, 0, count, &q_values, &gates[D..2 * D]), 2e-5);
}

#[test]
fn scratch_is_wanted_for_more_than_one_block() {
    let scratch = |body, positions| attention_decode_scratch(body, KvType::Bf16, 3, 16, positions);
    assert_eq!(scratch(Body::Simdgroup, 256), 0);
    assert_eq!(scratch(Body::Simdgroup, 257), 3 * 16 * 2 * 258 * 4);
    assert_eq!(scratch(Body::Mma, 32), 0);
    assert_eq!(scratch(Body::Mma, 33), 3 * 16 * 2 * 258 * 4);
}

/// Positions that a threadgroup takes of a sequence with `count` positions.
fn span(cut: Cut, count: u32) -> u32 {
    cut.steps().iter().find(|s| count <= s.0).map_or(0, |s| s.1)
}

/// The grid is made for the longest sequence; no shorter one has more spans.
#[test]
fn no_shorter_sequence_has_more_spans() {
    for (cut, at_the_end) in [(Cut::Blocks, 512), (Cut::Steps, 256)] {
        let mut most = 0;
        for count in 1..=262_144u32 {
            most = most.max(count.div_ceil(span(cut, count)));
            assert_eq!(cut.spans(count), most, "{count} positions");
        }
        assert_eq!(most, at_the_end);
    }
}

#[test]
#[should_panic(expected = "query heads on")]
fn more_query_heads_than_a_group_holds_are_refused() {
    let c = Case { query_heads: 9, kv_heads: 1, kv: KvType::F32, counts: vec![1], scale: 1.0 };
    check(&c, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_shape(group in 1usize..=8, kv_heads in 1usize..=2, counts in prop::collection::vec(1usize..600, 1..4), kv in 0usize..3,
                 seed in 1u32..1000) {
        let kv = [KvType::F32, KvType::Bf16, KvType::Q8][kv];
        check(&Case { query_heads: group * kv_heads, kv_heads, kv, counts, scale: 5.0 }, seed);
    }
}
