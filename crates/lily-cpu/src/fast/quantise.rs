//! Activations as 16-bit integers, for products with 4-bit codes.
//!
//! Each group of 64 columns gets its own scale, so a value is off by at most 2⁻¹⁶ of the largest in its group: closer than
//! BF16 by a factor of 128. Products with codes are then exact in 32-bit integers, which is why every instruction set
//! and every number of rows gives the same bits.

use super::memory::grow;
use super::simd::{multiversion, sum_lanes};

/// Columns that share a scale, the same as in the weights.
pub const GROUP: usize = 64;
/// The largest code: 127 · 256 + 127, so that a code is also two signed bytes, 256 · high + low.
const LARGEST: f32 = 32_639.0;

/// Rows of activations [tokens × cols].
#[derive(Default)]
pub struct Quantised {
    /// Columns of a row.
    pub cols: usize,
    /// tokens × [`Quantised::stride`]. Inside a group the order is [`slot`]'s.
    pub codes: Vec<i16>,
    /// tokens × groups.
    pub scales: Vec<f32>,
    /// tokens × groups: sum of the group's (quantised) values.
    pub sums: Vec<f32>,
}

/// One row of [`Quantised`].
#[derive(Clone, Copy)]
pub struct Row<'a> {
    /// [cols].
    pub codes: &'a [i16],
    /// [groups].
    pub scales: &'a [f32],
    /// [groups].
    pub sums: &'a [f32],
}

impl<'a> Row<'a> {
    /// Groups `g..g + n`.
    pub fn groups(self, g: usize, n: usize) -> Row<'a> {
        Row {
            codes: &self.codes[g * GROUP..(g + n) * GROUP],
            scales: &self.scales[g..g + n],
            sums: &self.sums[g..g + n],
        }
    }
}

/// Where column `i` of a group is kept. A 16-bit word of packed codes holds four columns, 4w … 4w+3; keeping first
/// all the columns 4w, then all 4w + 1, … lets a kernel take a nibble of 16 words at once.
pub fn slot(i: usize) -> usize {
    i % 4 * 16 + i / 4
}

impl Quantised {
    /// Bytes that it holds.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        (2 * self.codes.capacity() + 4 * (self.scales.capacity() + self.sums.capacity())) as u64
    }

    /// Room for `tokens` rows of `cols` columns.
    pub fn reset(&mut self, tokens: usize, cols: usize) {
        assert_eq!(cols % GROUP, 0);
        self.cols = cols;
        let stride = self.stride();
        grow(&mut self.codes, tokens * stride);
        grow(&mut self.scales, tokens * cols / GROUP);
        grow(&mut self.sums, tokens * cols / GROUP);
    }

    /// From one row's codes to the next: two cache lines more than the columns, because rows a multiple of 4 KB apart
    /// would share a few sets of the L1 cache.
    pub fn stride(&self) -> usize {
        self.cols + GROUP
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> Row<'_> {
        let groups = self.cols / GROUP;
        Row {
            codes: &self.codes[i * self.stride()..i * self.stride() + self.cols],
            scales: &self.scales[i * groups..(i + 1) * groups],
            sums: &self.sums[i * groups..(i + 1) * groups],
        }
    }
}

multiversion! {
    /// Quantises a row: x [cols] → codes [cols], scales and sums [groups]. Infinite or NaN values make their group NaN.
    pub fn quantise_row(x: &[f32], codes: &mut [i16], scales: &mut [f32], sums: &mut [f32]) {
        // Adding 1.5 · 2²³ rounds to the nearest integer, ties to even, and leaves it in the low bits.
        const ROUND: f32 = 12_582_912.0;
        for (((x, codes), scale), sum) in
            x.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP)).zip(scales).zip(sums)
        {
            let mut lanes = [0.0f32; 16];
            for part in x.chunks_exact(16) {
                for i in 0..16 {
                    lanes[i] = if part[i].abs() > lanes[i] { part[i].abs() } else { lanes[i] };
                }
            }
            let max = lanes.iter().copied().fold(0.0f32, f32::max);
            let inverse = if max > 0.0 { LARGEST / max } else { 0.0 };
            let mut rounded = [0i32; GROUP];
            let mut total = 0i32;
            for i in 0..GROUP {
                let bits = x[i].mul_add(inverse, ROUND).to_bits();
                rounded[i] = bits.wrapping_sub(ROUND.to_bits()) as i32;
                total = total.wrapping_add(rounded[i]);
            }
            for j in 0..4 {
                for w in 0..16 {
                    codes[16 * j + w] = rounded[4 * w + j] as i16;
                }
            }
            // Zero for finite values, NaN for others (which comparisons above pass over).
            let mut poison = [0.0f32; 16];
            for part in x.chunks_exact(16) {
                for i in 0..16 {
                    poison[i] += part[i] * 0.0;
                }
            }
            *scale = max / LARGEST + sum_lanes(poison);
            *sum = total as f32 * *scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast::simd::Isa;
    use crate::testing::noise;

    #[test]
    fn values_come_back_within_half_a_step_and_all_versions_agree() {
        let mut x = noise(1, 256);
        x[64..128].fill(0.0);
        x[130] = 1e6;
        let mut first: Option<(Vec<i16>, Vec<f32>, Vec<f32>)> = None;
        for isa in Isa::available() {
            let (mut codes, mut scales, mut sums) = (vec![0; 256], vec![0.0; 4], vec![0.0; 4]);
            quantise_row(isa, &x, &mut codes, &mut scales, &mut sums);
            for (g, x) in x.chunks_exact(64).enumerate() {
                let back: Vec<f32> = (0..64).map(|i| f32::from(codes[g * 64 + slot(i)]) * scales[g]).collect();
                for (x, b) in x.iter().zip(&back) {
                    assert!((x - b).abs() <= scales[g] * 0.5001, "{x} {b}");
                }
                assert!((back.iter().sum::<f32>() - sums[g]).abs() <= 64.0 * scales[g].max(1e-30));
            }
            let all = (codes, scales, sums);
            assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{isa:?}");
        }
    }

    #[test]
    fn what_is_not_finite_stays_visible() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = noise(2, 64);
            x[7] = bad;
            let (mut codes, mut scales, mut sums) = (vec![0; 64], vec![0.0; 1], vec![0.0; 1]);
            quantise_row(Isa::detect(), &x, &mut codes, &mut scales, &mut sums);
            assert!(scales[0].is_nan());
        }
    }
}
