//! Causal attention with the cache in blocks of 64 positions (`docs/model.md §4.2`).
//!
//! Blocks begin at multiples of 64 whatever the call, and a row that ends before a block passes it unchanged (its
//! maximum stays, its factor is exactly 1, its weights are exactly 0). So a row's bits depend neither on the rows that it
//! is computed with nor on how the prompt was cut.

use super::element::KvElement;
use super::kv::KvCache;
use super::simd::{dot4, exp, multiversion, sum_lanes};

/// Positions of a block.
pub const BLOCK: usize = 64;
/// Query rows that share one read of a key or a value.
const QUAD: usize = 4;
/// Widest head.
const MAX_HEAD: usize = 256;

/// Scratch of [`attend`]; kept between calls.
#[derive(Default)]
pub struct Scratch {
    scores: Vec<[f32; BLOCK]>,
    max: Vec<f32>,
    total: Vec<f32>,
}

/// Query rows against the cache of key/value head `head`.
///
/// q [rows × d], already scaled; row i sees positions 0..=positions[i]; out [rows × d].
pub fn attend<K: KvElement>(
    isa: super::simd::Isa,
    q: &[f32],
    positions: &[usize],
    cache: &KvCache<K>,
    head: usize,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let (rows, d, row) = (positions.len(), cache.d(), cache.row());
    let seen = positions.iter().max().map_or(0, |p| p + 1);
    scratch.scores.resize(rows, [0.0; BLOCK]);
    scratch.max.clear();
    scratch.max.resize(rows, f32::NEG_INFINITY);
    scratch.total.clear();
    scratch.total.resize(rows, 0.0);
    out.fill(0.0);
    for start in (0..seen).step_by(BLOCK) {
        let n = BLOCK.min(seen - start);
        let (k, v) = cache.block(start / BLOCK, head);
        let (k, v) = (&k[..n * row], &v[..n * row]);
        block(isa, q, positions, start, k, v, d, &mut scratch.scores, &mut scratch.max, &mut scratch.total, out);
    }
    for (out, total) in out.chunks_exact_mut(d).zip(&scratch.total) {
        out.iter_mut().for_each(|o| *o /= total);
    }
}

multiversion! {
    /// One block of positions from `start` on, onto the running maximum, total and output of each row.
    fn block<K: KvElement>(q: &[f32], positions: &[usize], start: usize, k: &[K], v: &[K], d: usize, scores: &mut [[f32; BLOCK]], max: &mut [f32], total: &mut [f32], out: &mut [f32]) {
        let (rows, row_units) = (positions.len(), d / K::VALUES);
        let n = k.len() / row_units;
        // A key is widened once for all the rows that meet it.
        let mut wide = [0.0f32; MAX_HEAD];
        let wide = &mut wide[..d];
        for (j, key) in k.chunks_exact(row_units).enumerate() {
            K::load(key, wide);
            for first in (0..rows).step_by(QUAD) {
                // The last quad repeats its last row rather than being a case of its own.
                let quad = [0, 1, 2, 3].map(|r| (first + r).min(rows - 1));
                let dots = dot4(quad.map(|r| &q[r * d..(r + 1) * d]), wide);
                for r in 0..QUAD {
                    scores[quad[r]][j] = dots[r];
                }
            }
        }
        for r in 0..rows {
            let row = &mut scores[r];
            let valid = (positions[r] + 1).saturating_sub(start).min(n);
            row[valid..].fill(f32::NEG_INFINITY);
            let mut best = max[r];
            for s in row[..valid].iter() {
                best = if *s > best { *s } else { best };
            }
            // Position 0 is visible to every row, so `best` is finite from the first block on.
            let factor = exp(max[r] - best);
            let mut lanes = [0.0f32; 16];
            for (i, s) in row.iter_mut().enumerate() {
                *s = exp(*s - best);
                lanes[i % 16] += *s;
            }
            total[r] = total[r].mul_add(factor, sum_lanes(lanes));
            max[r] = best;
            if factor != 1.0 {
                out[r * d..(r + 1) * d].iter_mut().for_each(|o| *o *= factor);
            }
        }
        for first in (0..rows).step_by(QUAD) {
            let count = QUAD.min(rows - first);
            let quad: [usize; QUAD] = [0, 1, 2, 3].map(|r| (first + r).min(rows - 1));
            for c in (0..d).step_by(16) {
                let mut acc = [[0.0f32; 16]; QUAD];
                for r in 0..QUAD {
                    acc[r].copy_from_slice(&out[quad[r] * d + c..quad[r] * d + c + 16]);
                }
                for (j, value) in v.chunks_exact(row_units).enumerate() {
                    let wide = K::load16(value, c);
                    for r in 0..QUAD {
                        let weight = scores[quad[r]][j];
                        for l in 0..16 {
                            acc[r][l] = weight.mul_add(wide[l], acc[r][l]);
                        }
                    }
                }
                for r in 0..count {
                    out[quad[r] * d + c..quad[r] * d + c + 16].copy_from_slice(&acc[r]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast::element::{Bf16, Q8};
    use crate::fast::simd::Isa;
    use crate::oracle::round_kv;
    use crate::testing::noise;

    const D: usize = 256;

    fn run<K: KvElement>(isa: Isa, q: &[f32], positions: &[usize], k: &[f32], v: &[f32]) -> Vec<f32> {
        let mut cache = KvCache::<K>::new(1, D);
        k.chunks_exact(D).zip(v.chunks_exact(D)).for_each(|(k, v)| cache.append(k, v));
        let mut out = vec![f32::NAN; q.len()];
        attend(isa, q, positions, &cache, 0, &mut Scratch::default(), &mut out);
        out
    }

    /// Softmax attention in F64.
    fn exact(q: &[f32], positions: &[usize], k: &[f32], v: &[f32]) -> Vec<f64> {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let mut out = Vec::new();
        for (q, &p) in q.chunks_exact(D).zip(positions) {
            let s: Vec<f64> = (0..=p).map(|j| dot(q, &k[j * D..(j + 1) * D])).collect();
            let max = s.iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = s.iter().map(|s| (s - max).exp()).sum();
            let weighted =
                |c: usize| s.iter().enumerate().map(|(j, s)| (s - max).exp() * f64::from(v[j * D + c])).sum::<f64>();
            out.extend((0..D).map(|c| weighted(c) / total));
        }
        out
    }

    fn worst(out: &[f32], exact: &[f64]) -> f64 {
        out.iter().zip(exact).map(|(o, e)| (f64::from(*o) - e).abs()).fold(0.0, f64::max)
    }

    /// Against the values as they are kept, and against those that were given.
    fn equals_a_plain_softmax<K: KvElement>(bound: f64, cost: f64) {
        let (k, v) = (noise(1, 200 * D), noise(2, 200 * D));
        let kept = |x: &[f32]| {
            let mut x = x.to_vec();
            round_kv(K::TYPE, &mut x);
            x
        };
        let positions = [0, 1, 62, 63, 64, 65, 127, 128, 199];
        let q: Vec<f32> = noise(3, positions.len() * D).iter().map(|x| x / 16.0).collect();
        let (kept, given) = (exact(&q, &positions, &kept(&k), &kept(&v)), exact(&q, &positions, &k, &v));
        for isa in Isa::available() {
            let out = run::<K>(isa, &q, &positions, &k, &v);
            let (kept, given) = (worst(&out, &kept), worst(&out, &given));
            println!("{} {isa:?}: {kept:.1e} from the kept values, {given:.1e} from the given ones", K::TYPE.name());
            assert!(kept < bound && given < cost, "{} {isa:?}: {kept:e} {given:e}", K::TYPE.name());
        }
    }

    #[test]
    fn equals_a_plain_softmax_around_block_borders() {
        equals_a_plain_softmax::<f32>(3e-6, 3e-6);
        equals_a_plain_softmax::<Bf16>(3e-6, 8e-3);
        equals_a_plain_softmax::<Q8>(3e-6, 1.4e-2);
    }

    fn a_row_is_its_own<K: KvElement>() {
        let (k, v) = (noise(1, 150 * D), noise(2, 150 * D));
        let positions: Vec<usize> = (0..150).step_by(7).collect();
        let q = noise(3, positions.len() * D);
        let together = run::<K>(Isa::Portable, &q, &positions, &k, &v);
        for isa in Isa::available() {
            assert_eq!(run::<K>(isa, &q, &positions, &k, &v), together, "{isa:?}");
            for (r, &p) in positions.iter().enumerate() {
                let (k, v) = (&k[..(p + 1) * D], &v[..(p + 1) * D]);
                let alone = run::<K>(isa, &q[r * D..(r + 1) * D], &[p], k, v);
                assert_eq!(alone, together[r * D..(r + 1) * D], "{isa:?} position {p}");
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_company_or_on_the_instruction_set() {
        a_row_is_its_own::<Bf16>();
        a_row_is_its_own::<Q8>();
    }
}
