use lily_cpu::oracle::round_kv;
use lily_cpu::oracle::{inv_freq, rope};
use lily_model::{KvType, Shape};
use proptest::prelude::*;

use super::*;
use crate::gpu::Contents;
use crate::kernels::kv_testing::{Cache, D, read_cache, read_values};
use crate::testing::{Random, assert_close, bf16, device, floats, run, words};

struct Case {
    query_heads: usize,
    kv_heads: usize,
    q: Element,
    kv: KvType,
    /// One a row.
    positions: Vec<usize>,
    decode: bool,
}

/// The oracle's norm, rotation and scale of one head: f64 but for the angle, which is the oracle's.
fn head(x: &[f32], weight: &[f32], position: usize, scale: f32) -> Vec<f32> {
    let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / x.len() as f64;
    let norm = 1.0 / (mean + 1e-6).sqrt();
    let mut out: Vec<f32> = x.iter().zip(weight).map(|(&v, &w)| (f64::from(v) * norm * f64::from(w)) as f32).collect();
    rope(&Shape::qwen3_6_35b_a3b(), &mut out, 1, position);
    out.iter_mut().for_each(|v| *v *= scale);
    out
}

/// Rounding to BF16 may fall to the other side.
fn check_values(got: &[f32], want: &[f32], element: Element) {
    match element {
        Element::F32 => assert_close(got, want, 2e-6),
        Element::Bf16 => {
            let want: Vec<f32> = want.iter().copied().map(bf16).collect();
            for (g, w) in got.iter().zip(&want) {
                assert!((g - w).abs() <= w.abs() / 128.0 + 1e-5, "{g}, wanted {w}");
            }
            let exact = got.iter().zip(&want).filter(|(g, w)| g == w).count();
            assert!(exact * 100 >= got.len() * 98, "{exact} of {} as rounded", got.len());
        }
    }
}

/// Rows as they are kept, against the wanted ones before rounding. A key whose last bits differ may fall to the next code.
fn check_cache(got: &[f32], want: &[f32], kv: KvType) {
    match kv {
        KvType::F32 => check_values(got, want, Element::F32),
        KvType::Bf16 => check_values(got, want, Element::Bf16),
        KvType::Q8 => {
            let mut kept = want.to_vec();
            round_kv(kv, &mut kept);
            for ((got, kept), want) in got.chunks_exact(32).zip(kept.chunks_exact(32)).zip(want.chunks_exact(32)) {
                let largest = want.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                // Half a step off what was computed, and a step off the reference's code where that falls to the other side.
                for ((g, k), w) in got.iter().zip(kept).zip(want) {
                    assert!((g - w).abs() <= largest / 252.0, "{g}, computed {w}, largest {largest}");
                    assert!((g - k).abs() <= largest / 125.0, "{g}, kept {k}, largest {largest}");
                }
            }
            let exact = got.iter().zip(&kept).filter(|(g, k)| g == k).count();
            assert!(exact * 100 >= got.len() * 98, "{exact} of {} as rounded", got.len());
        }
    }
}

fn check(c: &Case, seed: u32) {
    let mut random = Random(u64::from(seed));
    let rows = c.positions.len();
    let values = (2 * c.query_heads + 2 * c.kv_heads) * D;
    let stride = values + 24;
    let x = random.values(rows * stride, 3.0);
    let (q_norm, k_norm) = (random.values(D, 2.0), random.values(D, 2.0));
    let frequencies: Vec<f32> = (0..32).map(|j| inv_freq(&Shape::qwen3_6_35b_a3b(), j)).collect();
    let longest = c.positions.iter().max().unwrap() + 1;
    let mut cache = if c.decode {
        Cache::only(&mut random, c.kv, c.kv_heads, &c.positions)
    } else {
        Cache::new(&mut random, c.kv, c.kv_heads, &[longest])
    };

    let mut gpu = device(seed);
    let x_buffer = floats(&gpu, &x, Contents::Activations);
    let (q_norm_buffer, k_norm_buffer) =
        (floats(&gpu, &q_norm, Contents::Weights), floats(&gpu, &k_norm, Contents::Weights));
    let frequencies = floats(&gpu, &frequencies, Contents::Weights);
    let positions = words(&gpu, &c.positions.iter().map(|&p| p as u32).collect::<Vec<_>>());
    let q_bytes = (rows * c.query_heads * D) as u64 * c.q.size();
    let q = gpu.allocate(q_bytes, Contents::Activations).unwrap();
    let on = cache.upload(&gpu);
    let n = QkNormRope {
        projections: View::of(&x_buffer),
        stride: stride as u32,
        q_norm: View::of(&q_norm_buffer),
        k_norm: View::of(&k_norm_buffer),
        inv_freq: View::of(&frequencies),
        q: View::of(&q),
        q_element: c.q,
        kv: cache.pool(&on),
        query_heads: c.query_heads as u32,
        kv_heads: c.kv_heads as u32,
        eps: 1e-6,
        rows: rows as u32,
        at: if c.decode {
            Rows::Decode { positions: View::of(&positions), longest: longest as u32 }
        } else {
            Rows::Prefill { start: c.positions[0] as u32 }
        },
    };
    qk_norm_rope(&mut gpu, &n).unwrap();
    run(&mut gpu).unwrap();

    let mut want_q = Vec::new();
    for (row, (x, &p)) in x.chunks_exact(stride).zip(&c.positions).enumerate() {
        for h in 0..c.query_heads {
            want_q.extend(head(&x[2 * h * D..][..D], &q_norm, p, 1.0 / 16.0));
        }
        let sequence = if c.decode { row } else { 0 };
        for h in 0..c.kv_heads {
            let at = (2 * c.query_heads + h) * D;
            let (k, v) = (cache.row(sequence, 0, h, p), cache.row(sequence, 1, h, p));
            cache.values[k].copy_from_slice(&head(&x[at..][..D], &k_norm, p, 1.0));
            cache.values[v].copy_from_slice(&x[at + c.kv_heads * D..][..D]);
        }
    }
    check_values(&read_values(&gpu, &q, c.q), &want_q, c.q);
    let got = read_cache(&gpu, &on.pool, c.kv);
    let written = |values: &[f32]| values.iter().copied().filter(|v| !v.is_nan()).collect::<Vec<_>>();
    assert!(
        got.iter().zip(&cache.values).all(|(g, w)| g.is_nan() == w.is_nan()),
        "a place of the cache is written that is no row's, or missed"
    );
    check_cache(&written(&got), &written(&cache.values), c.kv);
}

#[test]
fn decode_at_the_real_heads() {
    for (i, kv) in [KvType::Bf16, KvType::F32, KvType::Q8].into_iter().enumerate() {
        let positions = vec![0, 63, 64, 200];
        check(&Case { query_heads: 16, kv_heads: 2, q: Element::F32, kv, positions, decode: true }, 1 + i as u32);
    }
}

#[test]
fn prefill_over_a_page_border() {
    for q in [Element::F32, Element::Bf16] {
        for kv in [q.into(), KvType::Q8] {
            let positions = (59..70).collect();
            check(&Case { query_heads: 4, kv_heads: 2, q, kv, positions, decode: false }, 5);
        }
    }
}

/// Groups of 32 that are zero, too small for a scale, or of one large value: the codes and scales of the oracle.
#[test]
fn eight_bit_rows_of_extreme_values() {
    let mut gpu = device(3);
    let mut row = Random(3).values(4 * D, 1.0);
    let value = &mut row[3 * D..];
    value[..32].fill(0.0);
    value[32..64].fill(1e-38);
    value[70] = 1e30;
    value[96..128].iter_mut().for_each(|v| *v *= 1e-20);
    value[130] = 3e38;
    value[160..192].fill(-2.5);
    let mut kept = value.to_vec();
    round_kv(KvType::Q8, &mut kept);
    let mut cache = Cache::new(&mut Random(4), KvType::Q8, 1, &[1]);
    let at = cache.row(0, 1, 0, 0);
    cache.values[at.clone()].fill(0.0);
    let on = cache.upload(&gpu);
    let x = floats(&gpu, &row, Contents::Activations);
    let ones = floats(&gpu, &[1.0; D], Contents::Weights);
    let q = gpu.allocate(4 * D as u64, Contents::Activations).unwrap();
    let n = QkNormRope {
        projections: View::of(&x),
        stride: 4 * D as u32,
        q_norm: View::of(&ones),
        k_norm: View::of(&ones),
        inv_freq: View::of(&ones),
        q: View::of(&q),
        q_element: Element::F32,
        kv: cache.pool(&on),
        query_heads: 1,
        kv_heads: 1,
        eps: 1e-6,
        rows: 1,
        at: Rows::Prefill { start: 0 },
    };
    qk_norm_rope(&mut gpu, &n).unwrap();
    run(&mut gpu).unwrap();
    assert_eq!(read_cache(&gpu, &on.pool, KvType::Q8)[at], kept);
}

/// The angle reaches 262,143 rad.
#[test]
fn the_last_position_that_the_model_was_made_for() {
    let positions = vec![262_143, 131_072, 70_001];
    check(&Case { query_heads: 1, kv_heads: 1, q: Element::F32, kv: KvType::Bf16, positions, decode: true }, 8);
}

#[test]
#[should_panic(expected = "positions in")]
fn a_table_too_short_is_refused() {
    let mut gpu = device(1);
    let cache = Cache::new(&mut Random(1), KvType::F32, 1, &[64]);
    let on = cache.upload(&gpu);
    let some = floats(&gpu, &[0.0; 4 * D], Contents::Activations);
    let view = View::of(&some);
    let n = QkNormRope {
        projections: view,
        stride: 4 * D as u32,
        q_norm: view,
        k_norm: view,
        inv_freq: view,
        q: view,
        q_element: Element::F32,
        kv: cache.pool(&on),
        query_heads: 1,
        kv_heads: 1,
        eps: 1e-6,
        rows: 1,
        at: Rows::Prefill { start: 128 },
    };
    let _ = qk_norm_rope(&mut gpu, &n);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_shape(group in 1usize..=8, kv_heads in 1usize..=3, rows in 1usize..6, start in 0usize..300, decode: bool,
                 seed in 1u32..1000) {
        let positions = (0..rows).map(|t| if decode { (start * (t + 3)) % 331 } else { start + t }).collect();
        let (prefill, kv) = [(Element::F32, KvType::F32), (Element::Bf16, KvType::Bf16), (Element::F32, KvType::Q8),
                             (Element::Bf16, KvType::Q8)][seed as usize % 4];
        let q = if decode { Element::F32 } else { prefill };
        check(&Case { query_heads: group * kv_heads, kv_heads, q, kv, positions, decode }, seed);
    }
}
