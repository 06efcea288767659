//! AVX-512 with VNNI.
//!
//! `vpdpwssd` multiplies pairs of 16-bit numbers and adds both products to a 32-bit lane, `vpdpbusd` does it with four
//! pairs of bytes: one instruction each where AVX2 takes two or three, over registers twice as wide. Sums stay within 26
//! bits, so that any order gives the same.
//!
//! [`gemv8`] puts two groups of a row side by side in one register; [`tile`] keeps one pair of all sixteen rows in one.
//! Unpacking is [`super::avx2::pack`]'s work: its cost is shared by all the tokens of a stripe.

use std::arch::x86_64::*;

use lily_checkpoint::Affine;

use super::super::quantise::{GROUP, Row};
use super::avx2::{columns, prefetch};
use super::{PANEL_GROUPS, PANEL_ROWS, Panel};

/// Bytes of a group's codes.
const BYTES: usize = GROUP / 2;

/// Activations as signed bytes, x = 256 · high + low: for each group 32 bytes of high halves of the even columns, 32 of the
/// odd ones, then the low halves likewise. In this order they meet the low and the high nibbles of a group's 32 bytes.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn split(x: Row<'_>, halves: &mut Vec<i8>) {
    halves.resize(2 * x.codes.len(), 0);
    let byte = _mm256_set1_epi16(0xFF);
    for (codes, halves) in x.codes.chunks_exact(GROUP).zip(halves.chunks_exact_mut(2 * GROUP)) {
        for odd in 0..2 {
            // SAFETY: 16 of the group's 64 numbers and 32 of its 128 bytes each; no alignment needed.
            unsafe {
                // Columns 4w and 4w + 2 (or 4w + 1 and 4w + 3) are neighbours in the output.
                let a = _mm256_loadu_si256(codes.as_ptr().add(16 * odd).cast());
                let b = _mm256_loadu_si256(codes.as_ptr().add(16 * odd + 32).cast());
                let join = |a, b| _mm256_or_si256(_mm256_and_si256(a, byte), _mm256_slli_epi16::<8>(b));
                let high = |v| _mm256_srai_epi16::<8>(_mm256_add_epi16(v, _mm256_set1_epi16(128)));
                let at = halves.as_mut_ptr().add(32 * odd);
                _mm256_storeu_si256(at.cast(), join(high(a), high(b)));
                _mm256_storeu_si256(at.add(64).cast(), join(a, b));
            }
        }
    }
}

/// Eight vectors whose lower half belongs to one group and whose upper half to the next → the eight sums of each half's
/// lanes: first those of the lower halves, then those of the upper ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
fn sums_of_halves(v: &[__m512i; 8]) -> __m512i {
    // As in AVX2: interleave and add, twice. Every 128-bit quarter then holds four rows.
    let add32 = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let add64 = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    let low = add64(add32(v[0], v[1]), add32(v[2], v[3]));
    let high = add64(add32(v[4], v[5]), add32(v[6], v[7]));
    // Quarters 0, 2 and 1, 3 of each: their sums are [rows 0–3 of both groups, rows 4–7 of both groups].
    let even = _mm512_shuffle_i64x2::<0b10_00_10_00>(low, high);
    let odd = _mm512_shuffle_i64x2::<0b11_01_11_01>(low, high);
    let sums = _mm512_add_epi32(even, odd);
    _mm512_shuffle_i64x2::<0b11_01_10_00>(sums, sums)
}

/// See [`super::portable::gemv8`]; `halves` holds x as [`split`] makes it.
///
/// # Safety
/// The machine has AVX-512 F, BW, VL, DQ and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
pub unsafe fn gemv8(m: &Affine, rows: &[usize; 8], x: Row<'_>, halves: &[i8], out: &mut [f32; 8]) {
    let groups = m.cols / GROUP;
    let (all_codes, scales, biases): (&[u8], &[u8], &[u8]) = (&m.codes, &m.scales, &m.biases);
    let mut codes: [&[u8]; 8] = [&[]; 8];
    for r in 0..8 {
        codes[r] = &all_codes[rows[r] * groups * BYTES..(rows[r] + 1) * groups * BYTES];
    }
    let mask = _mm512_set1_epi8(15);
    let mut acc = _mm256_setzero_ps();
    for g in (0..groups).step_by(PANEL_GROUPS) {
        let n = PANEL_GROUPS.min(groups - g);
        let scales = columns(scales, rows, groups, g, n);
        let biases = columns(biases, rows, groups, g, n);
        for j in (0..n).step_by(2) {
            // An odd last group stands alone, with codes of zero above it.
            let width = 2.min(n - j);
            let (load, upper): (__mmask8, usize) = if width == 2 { (0xFF, 2 * GROUP) } else { (0x0F, 0) };
            let bytes = &halves[(g + j) * 2 * GROUP..(g + j + width) * 2 * GROUP];
            let mut xs = [_mm512_setzero_si512(); 4];
            for p in 0..4 {
                // SAFETY: 32 of the first and 32 of the last group's 128 bytes, both checked by the slice; the loads
                // need no alignment.
                xs[p] = unsafe {
                    let first = _mm256_loadu_si256(bytes.as_ptr().add(32 * p).cast());
                    let last = _mm256_loadu_si256(bytes.as_ptr().add(upper + 32 * p).cast());
                    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), last)
                };
            }
            let mut sums = [_mm512_setzero_si512(); 8];
            for r in 0..8 {
                prefetch(codes[r], (8 * groups + g + j) * BYTES);
                let bytes = &codes[r][(g + j) * BYTES..(g + j + width) * BYTES];
                // SAFETY: the mask lets through 32 bytes for each group, checked by the slice; the load needs no
                // alignment.
                let v = unsafe { _mm512_maskz_loadu_epi64(load, bytes.as_ptr().cast()) };
                let (even, odd) = (_mm512_and_si512(v, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask));
                let high = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), even, xs[0]), odd, xs[1]);
                let high = _mm512_slli_epi32::<8>(high);
                sums[r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(high, even, xs[2]), odd, xs[3]);
            }
            let sums = _mm512_cvtepi32_ps(sums_of_halves(&sums));
            let halves = [_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps::<1>(sums)];
            for k in 0..width {
                let at = g + j + k;
                // SAFETY: eight floats each; the loads need no alignment.
                let (scale, bias) =
                    unsafe { (_mm256_loadu_ps(scales[j + k].as_ptr()), _mm256_loadu_ps(biases[j + k].as_ptr())) };
                acc = _mm256_fmadd_ps(halves[k], _mm256_mul_ps(scale, _mm256_set1_ps(x.scales[at])), acc);
                acc = _mm256_fmadd_ps(bias, _mm256_set1_ps(x.sums[at]), acc);
            }
        }
    }
    // SAFETY: eight floats; the store needs no alignment.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), acc) };
}

/// See [`super::portable::tile`].
///
/// The activations are broadcast straight from memory by the multiplication. Two sums for each token, over even and odd
/// pairs: one `vpdpwssd` takes five cycles and two can begin in each, so that eight tokens alone would leave gaps; and
/// more tokens would need more addresses than there are registers for them.
///
/// # Safety
/// The machine has AVX-512 F, BW, VL, DQ and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
pub unsafe fn tile<const N: usize>(panel: &Panel, x: &[Row<'_>; N], acc: &mut [[f32; PANEL_ROWS]; N]) {
    let groups = panel.groups.min(PANEL_GROUPS);
    // Lengths are checked here, once: checks inside the loop over groups make the compiler write it many times over.
    let (mut x_codes, mut x_scales, mut x_sums) =
        ([std::ptr::null::<i16>(); N], [std::ptr::null(); N], [std::ptr::null(); N]);
    for t in 0..N {
        x_codes[t] = x[t].codes[..groups * GROUP].as_ptr();
        x_scales[t] = x[t].scales[..groups].as_ptr();
        x_sums[t] = x[t].sums[..groups].as_ptr();
    }
    for g in 0..groups {
        let codes = panel.codes[g * GROUP * PANEL_ROWS..(g + 1) * GROUP * PANEL_ROWS].as_ptr();
        let mut sums = [[_mm512_setzero_si512(); 2]; N];
        for pairs in (0..GROUP / 2).step_by(2) {
            for odd in 0..2 {
                let pair = pairs + odd;
                // SAFETY: each step reads 32 of the group's 1,024 codes and two of each token's 64 numbers of the
                // group, all checked by the slices above; no load needs alignment.
                unsafe {
                    let w = _mm512_loadu_si512(codes.add(2 * PANEL_ROWS * pair).cast());
                    for t in 0..N {
                        let two = x_codes[t].add(g * GROUP + 2 * pair).cast::<i32>().read_unaligned();
                        sums[t][odd] = _mm512_dpwssd_epi32(sums[t][odd], w, _mm512_set1_epi32(two));
                    }
                }
            }
        }
        // SAFETY: the sixteen floats of each array; no alignment needed.
        let (scale, bias) =
            unsafe { (_mm512_loadu_ps(panel.scales[g].as_ptr()), _mm512_loadu_ps(panel.biases[g].as_ptr())) };
        for t in 0..N {
            // SAFETY: g < groups, and the slices above have so many.
            let (x_scale, x_sum) = unsafe { (_mm512_set1_ps(*x_scales[t].add(g)), _mm512_set1_ps(*x_sums[t].add(g))) };
            let sum = _mm512_cvtepi32_ps(_mm512_add_epi32(sums[t][0], sums[t][1]));
            // SAFETY: the sixteen floats of the array, read and written; no alignment needed.
            unsafe {
                let a = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, x_scale), _mm512_loadu_ps(acc[t].as_ptr()));
                _mm512_storeu_ps(acc[t].as_mut_ptr(), _mm512_fmadd_ps(bias, x_sum, a));
            }
        }
    }
}
