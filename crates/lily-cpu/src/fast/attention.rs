//! Causal attention with the cache in blocks of 64 positions (`docs/model.md §4.2`).
//!
//! Blocks begin at multiples of 64 whatever the call, and a row that ends before a block passes it unchanged (its
//! maximum stays, its factor is exactly 1, its weights are exactly 0). So a row's bits depend neither on the rows that it
//! is computed with nor on how the prompt was cut.

use super::kv::KvCache;
use super::simd::{dot, exp, multiversion, sum_lanes};
use crate::local::{read_floats, write_floats};

/// Positions of a block.
pub const BLOCK: usize = 64;
/// Query rows that share one read of a value.
const QUAD: usize = 4;
/// Widest head.
const MAX_HEAD: usize = 256;

/// What a cached key or value is kept as.
pub trait KvElement: Copy + Send + Sync + 'static {
    /// For people.
    const NAME: &'static str;
    /// Rounds to nearest, ties to even.
    fn from_f32(x: f32) -> Self;
    /// Exact.
    fn to_f32(self) -> f32;
    /// Appends the bytes of `values`, little-endian.
    fn write(values: &[Self], to: &mut Vec<u8>);
    /// The values that [`Self::write`] gave bytes of.
    fn read(bytes: &[u8]) -> Box<[Self]>;
}

/// The upper half of an F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bf16(u16);

impl KvElement for f32 {
    const NAME: &'static str = "F32";

    fn from_f32(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    fn write(values: &[Self], to: &mut Vec<u8>) {
        write_floats(values, to);
    }

    fn read(bytes: &[u8]) -> Box<[Self]> {
        read_floats(bytes).into()
    }
}

impl KvElement for Bf16 {
    const NAME: &'static str = "BF16";

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        if x.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x40);
        }
        Bf16(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    fn write(values: &[Self], to: &mut Vec<u8>) {
        let from = to.len();
        to.resize(from + 2 * values.len(), 0);
        to[from..].as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, v)| *to = v.0.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Box<[Self]> {
        bytes.as_chunks().0.iter().map(|b| Self(u16::from_le_bytes(*b))).collect()
    }
}

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
    let (rows, d) = (positions.len(), cache.d());
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
        let (k, v) = (&k[..n * d], &v[..n * d]);
        block(isa, q, positions, start, k, v, d, &mut scratch.scores, &mut scratch.max, &mut scratch.total, out);
    }
    for (out, total) in out.chunks_exact_mut(d).zip(&scratch.total) {
        out.iter_mut().for_each(|o| *o /= total);
    }
}

multiversion! {
    /// One block of positions from `start` on, onto the running maximum, total and output of each row.
    fn block<K: KvElement>(q: &[f32], positions: &[usize], start: usize, k: &[K], v: &[K], d: usize, scores: &mut [[f32; BLOCK]], max: &mut [f32], total: &mut [f32], out: &mut [f32]) {
        let (rows, n) = (positions.len(), k.len() / d);
        // A key is widened once for all the rows that meet it.
        let mut wide = [0.0f32; MAX_HEAD];
        let wide = &mut wide[..d];
        for (j, key) in k.chunks_exact(d).enumerate() {
            for (wide, key) in wide.iter_mut().zip(key) {
                *wide = key.to_f32();
            }
            for (q, scores) in q.chunks_exact(d).zip(scores.iter_mut()) {
                scores[j] = dot(q, wide);
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
            // The last quad repeats its last row rather than being a case of its own.
            let quad: [usize; QUAD] = [0, 1, 2, 3].map(|r| (first + r).min(rows - 1));
            for c in (0..d).step_by(16) {
                let mut acc = [[0.0f32; 16]; QUAD];
                for r in 0..QUAD {
                    acc[r].copy_from_slice(&out[quad[r] * d + c..quad[r] * d + c + 16]);
                }
                for (j, value) in v.chunks_exact(d).enumerate() {
                    let mut wide = [0.0f32; 16];
                    for l in 0..16 {
                        wide[l] = value[c + l].to_f32();
                    }
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
    use crate::fast::simd::Isa;
    use crate::testing::noise;

    const D: usize = 256;

    fn run<K: KvElement>(isa: Isa, q: &[f32], positions: &[usize], k: &[f32], v: &[f32]) -> Vec<f32> {
        let mut cache = KvCache::<K>::new(1, D);
        k.chunks_exact(D).zip(v.chunks_exact(D)).for_each(|(k, v)| cache.append(k, v));
        let mut out = vec![f32::NAN; q.len()];
        attend(isa, q, positions, &cache, 0, &mut Scratch::default(), &mut out);
        out
    }

    #[test]
    fn equals_a_plain_softmax_around_block_borders() {
        let (k, v) = (noise(1, 200 * D), noise(2, 200 * D));
        let positions = [0, 1, 62, 63, 64, 65, 127, 128, 199];
        let q: Vec<f32> = noise(3, positions.len() * D).iter().map(|x| x / 16.0).collect();
        for isa in Isa::available() {
            let out = run::<f32>(isa, &q, &positions, &k, &v);
            for (r, &p) in positions.iter().enumerate() {
                let q = &q[r * D..(r + 1) * D];
                let dot =
                    |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                let s: Vec<f64> = (0..=p).map(|j| dot(q, &k[j * D..(j + 1) * D])).collect();
                let max = s.iter().copied().fold(f64::MIN, f64::max);
                let total: f64 = s.iter().map(|s| (s - max).exp()).sum();
                for c in 0..D {
                    let exact: f64 =
                        s.iter().enumerate().map(|(j, s)| (s - max).exp() / total * f64::from(v[j * D + c])).sum();
                    assert!((f64::from(out[r * D + c]) - exact).abs() < 3e-6, "{isa:?} row {r} column {c}");
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_company_or_on_the_instruction_set() {
        let (k, v) = (noise(1, 150 * D), noise(2, 150 * D));
        let positions: Vec<usize> = (0..150).step_by(7).collect();
        let q = noise(3, positions.len() * D);
        let together = run::<Bf16>(Isa::Portable, &q, &positions, &k, &v);
        for isa in Isa::available() {
            assert_eq!(run::<Bf16>(isa, &q, &positions, &k, &v), together, "{isa:?}");
            for (r, &p) in positions.iter().enumerate() {
                let (k, v) = (&k[..(p + 1) * D], &v[..(p + 1) * D]);
                let alone = run::<Bf16>(isa, &q[r * D..(r + 1) * D], &[p], k, v);
                assert_eq!(alone, together[r * D..(r + 1) * D], "{isa:?} position {p}");
            }
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for (x, bits) in [(1.0f32, 0x3F80), (1.003_906_2, 0x3F80), (1.011_718_8, 0x3F82), (-0.1, 0xBDCD)] {
            assert_eq!(Bf16::from_f32(x), Bf16(bits), "{x}");
        }
        assert!(Bf16::from_f32(f32::NAN).to_f32().is_nan());
        assert_eq!(Bf16::from_f32(f32::INFINITY).to_f32(), f32::INFINITY);
    }
}
