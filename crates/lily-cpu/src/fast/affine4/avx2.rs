//! AVX2 and FMA.
//!
//! A 256-bit register holds the 64 codes of one group as sixteen 16-bit words of four nibbles; shift and mask give four
//! registers of sixteen codes, which `vpmaddwd` multiplies with sixteen activations and adds in pairs. (Products of bytes,
//! as AVX-512 uses them, need fewer instructions here too, but were no faster: `docs/performance.md`.)

use std::arch::x86_64::*;

use lily_checkpoint::Affine;

use super::super::quantise::{GROUP, Row};
use super::{PANEL_GROUPS, PANEL_ROWS, Panel, bf16};

/// Bytes of a group's codes.
const BYTES: usize = GROUP / 2;

/// Asks for the cache line at `bytes[at]`, which may lie behind the end.
///
/// Eight rows are eight short runs of memory, over before the processor's own prefetcher has caught up with them, so the
/// GEMV asks for the next eight rows while it multiplies these (`docs/performance.md` has the gain).
#[inline(always)]
pub fn prefetch(bytes: &[u8], at: usize) {
    // SAFETY: a prefetch reads nothing that the program can see and cannot fault, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at).cast()) };
}

/// Scales (or biases) of up to eight groups of eight rows, [groups][8 rows], as F32. What stands behind the `n`th group is
/// not specified.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub fn columns(bytes: &[u8], rows: &[usize; 8], groups: usize, g: usize, n: usize) -> [[f32; 8]; PANEL_GROUPS] {
    let mut out = [[0.0f32; 8]; PANEL_GROUPS];
    let last = 2 * (rows.iter().max().expect("eight rows") * groups + g);
    if n < PANEL_GROUPS && last + 16 > bytes.len() {
        // Reading eight groups of the last row would leave the matrix.
        for (r, &row) in rows.iter().enumerate() {
            for j in 0..n {
                out[j][r] = bf16(bytes, row * groups + g + j);
            }
        }
        return out;
    }
    // Eight rows of eight 16-bit numbers, transposed.
    let mut row = [_mm_setzero_si128(); 8];
    for r in 0..8 {
        let at = 2 * (rows[r] * groups + g);
        let eight = &bytes[at..at + 16];
        prefetch(bytes, at + 8 * 2 * groups);
        // SAFETY: 16 bytes, checked by the slice; the load needs no alignment.
        row[r] = unsafe { _mm_loadu_si128(eight.as_ptr().cast()) };
    }
    let mut pairs = [_mm_setzero_si128(); 8];
    for i in 0..4 {
        pairs[i] = _mm_unpacklo_epi16(row[2 * i], row[2 * i + 1]);
        pairs[i + 4] = _mm_unpackhi_epi16(row[2 * i], row[2 * i + 1]);
    }
    for half in 0..2 {
        let p = &pairs[4 * half..4 * half + 4];
        let quads = [
            (_mm_unpacklo_epi32(p[0], p[1]), _mm_unpacklo_epi32(p[2], p[3])),
            (_mm_unpackhi_epi32(p[0], p[1]), _mm_unpackhi_epi32(p[2], p[3])),
        ];
        for (q, (low, high)) in quads.into_iter().enumerate() {
            let columns = [_mm_unpacklo_epi64(low, high), _mm_unpackhi_epi64(low, high)];
            for (c, column) in columns.into_iter().enumerate() {
                let wide = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(column));
                let out = &mut out[4 * half + 2 * q + c];
                // SAFETY: eight floats; the store needs no alignment.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_castsi256_ps(wide)) };
            }
        }
    }
    out
}

/// The four planes of a group's codes: sixteen 16-bit numbers each.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn planes(bytes: &[u8]) -> [__m256i; 4] {
    let bytes = &bytes[..BYTES];
    // SAFETY: 32 bytes, checked by the slice; the load needs no alignment.
    let v = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
    let mask = _mm256_set1_epi16(15);
    [
        _mm256_and_si256(v, mask),
        _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask),
        _mm256_and_si256(_mm256_srli_epi16::<8>(v), mask),
        _mm256_srli_epi16::<12>(v),
    ]
}

/// Eight vectors of eight lanes → the eight sums of lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sums_of_lanes(v: &[__m256i; 8]) -> __m256i {
    // Interleave and add halves the lanes of two vectors into one, twice; the last step crosses the 128-bit halves.
    let add32 = |a, b| _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let add64 = |a, b| _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let low = add64(add32(v[0], v[1]), add32(v[2], v[3]));
    let high = add64(add32(v[4], v[5]), add32(v[6], v[7]));
    _mm256_add_epi32(_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high))
}

/// See [`super::portable::gemv8`].
///
/// # Safety
/// The machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn gemv8(m: &Affine, rows: &[usize; 8], x: Row<'_>, out: &mut [f32; 8]) {
    let groups = m.cols / GROUP;
    let (all_codes, scales, biases): (&[u8], &[u8], &[u8]) = (&m.codes, &m.scales, &m.biases);
    let mut codes: [&[u8]; 8] = [&[]; 8];
    for r in 0..8 {
        codes[r] = &all_codes[rows[r] * groups * BYTES..(rows[r] + 1) * groups * BYTES];
    }
    let mut acc = _mm256_setzero_ps();
    for g in (0..groups).step_by(PANEL_GROUPS) {
        let n = PANEL_GROUPS.min(groups - g);
        let scales = columns(scales, rows, groups, g, n);
        let biases = columns(biases, rows, groups, g, n);
        for j in 0..n {
            let x_codes = &x.codes[(g + j) * GROUP..(g + j + 1) * GROUP];
            let mut xs = [_mm256_setzero_si256(); 4];
            for p in 0..4 {
                // SAFETY: 16 of the 64 numbers, checked by the slice; the load needs no alignment.
                xs[p] = unsafe { _mm256_loadu_si256(x_codes.as_ptr().add(16 * p).cast()) };
            }
            let mut sums = [_mm256_setzero_si256(); 8];
            for r in 0..8 {
                if j % 2 == 0 {
                    prefetch(codes[r], (8 * groups + g + j) * BYTES);
                }
                let w = planes(&codes[r][(g + j) * BYTES..]);
                let even = _mm256_add_epi32(_mm256_madd_epi16(w[0], xs[0]), _mm256_madd_epi16(w[1], xs[1]));
                let odd = _mm256_add_epi32(_mm256_madd_epi16(w[2], xs[2]), _mm256_madd_epi16(w[3], xs[3]));
                sums[r] = _mm256_add_epi32(even, odd);
            }
            let sum = _mm256_cvtepi32_ps(sums_of_lanes(&sums));
            // SAFETY: eight floats each; the loads need no alignment.
            let (scale, bias) = unsafe { (_mm256_loadu_ps(scales[j].as_ptr()), _mm256_loadu_ps(biases[j].as_ptr())) };
            acc = _mm256_fmadd_ps(sum, _mm256_mul_ps(scale, _mm256_set1_ps(x.scales[g + j])), acc);
            acc = _mm256_fmadd_ps(bias, _mm256_set1_ps(x.sums[g + j]), acc);
        }
    }
    // SAFETY: eight floats; the store needs no alignment.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), acc) };
}

/// Eight vectors of eight 32-bit lanes, transposed.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn transpose(v: &[__m256i; 8]) -> [__m256i; 8] {
    let mut a = [_mm256_setzero_si256(); 8];
    for i in 0..4 {
        a[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    let mut b = [_mm256_setzero_si256(); 8];
    for i in 0..2 {
        for j in 0..2 {
            b[4 * i + 2 * j] = _mm256_unpacklo_epi64(a[4 * i + j], a[4 * i + 2 + j]);
            b[4 * i + 2 * j + 1] = _mm256_unpackhi_epi64(a[4 * i + j], a[4 * i + 2 + j]);
        }
    }
    let mut c = [_mm256_setzero_si256(); 8];
    for i in 0..4 {
        c[i] = _mm256_permute2x128_si256::<0x20>(b[i], b[i + 4]);
        c[i + 4] = _mm256_permute2x128_si256::<0x31>(b[i], b[i + 4]);
    }
    c
}

/// See [`super::portable::pack`].
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn pack(m: &Affine, rows: &[usize; PANEL_ROWS], g: usize, n: usize, panel: &mut Panel) {
    let groups = m.cols / GROUP;
    panel.groups = n;
    let (codes, scales, biases): (&[u8], &[u8], &[u8]) = (&m.codes, &m.scales, &m.biases);
    for half in 0..2 {
        let rows: &[usize; 8] = rows[8 * half..8 * half + 8].try_into().expect("8 elements");
        let (scales, biases) = (columns(scales, rows, groups, g, n), columns(biases, rows, groups, g, n));
        for j in 0..n {
            panel.scales[j][8 * half..8 * half + 8].copy_from_slice(&scales[j]);
            panel.biases[j][8 * half..8 * half + 8].copy_from_slice(&biases[j]);
            let mut group = [[_mm256_setzero_si256(); 8]; 4];
            for r in 0..8 {
                let four = planes(&codes[(rows[r] * groups + g + j) * BYTES..]);
                for plane in 0..4 {
                    group[plane][r] = four[plane];
                }
            }
            for (plane, rows) in group.iter().enumerate() {
                let pairs = transpose(rows);
                for (p, pair) in pairs.into_iter().enumerate() {
                    let at = ((j * GROUP / 2 + plane * 8 + p) * PANEL_ROWS + 8 * half) * 2;
                    let place = &mut panel.codes[at..at + 16];
                    // SAFETY: 16 numbers, checked by the slice; the store needs no alignment.
                    unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), pair) };
                }
            }
        }
    }
}

/// See [`super::portable::tile`].
///
/// # Safety
/// The machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn tile<const N: usize>(panel: &Panel, x: &[Row<'_>; N], acc: &mut [[f32; PANEL_ROWS]; N]) {
    for g in 0..panel.groups {
        let mut codes = panel.codes[g * GROUP * PANEL_ROWS..(g + 1) * GROUP * PANEL_ROWS].as_ptr();
        let mut x_codes = [std::ptr::null::<i16>(); N];
        for t in 0..N {
            x_codes[t] = x[t].codes[g * GROUP..(g + 1) * GROUP].as_ptr();
        }
        let mut sums = [[_mm256_setzero_si256(); 2]; N];
        for pair in 0..GROUP / 2 {
            // SAFETY: each step reads 32 of the group's 1,024 codes and two of each token's 64 numbers, all checked
            // by the slices above; no load needs alignment.
            unsafe {
                let w = [_mm256_loadu_si256(codes.cast()), _mm256_loadu_si256(codes.add(16).cast())];
                codes = codes.add(2 * PANEL_ROWS);
                for t in 0..N {
                    let two = _mm256_set1_epi32(x_codes[t].add(2 * pair).cast::<i32>().read_unaligned());
                    sums[t][0] = _mm256_add_epi32(sums[t][0], _mm256_madd_epi16(w[0], two));
                    sums[t][1] = _mm256_add_epi32(sums[t][1], _mm256_madd_epi16(w[1], two));
                }
            }
        }
        for t in 0..N {
            let (x_scale, x_sum) = (_mm256_set1_ps(x[t].scales[g]), _mm256_set1_ps(x[t].sums[g]));
            for half in 0..2 {
                // SAFETY: eight of the sixteen floats in each array; no alignment needed.
                unsafe {
                    let scale = _mm256_loadu_ps(panel.scales[g].as_ptr().add(8 * half));
                    let bias = _mm256_loadu_ps(panel.biases[g].as_ptr().add(8 * half));
                    let at = acc[t].as_mut_ptr().add(8 * half);
                    let sum = _mm256_cvtepi32_ps(sums[t][half]);
                    let a = _mm256_fmadd_ps(sum, _mm256_mul_ps(scale, x_scale), _mm256_loadu_ps(at));
                    _mm256_storeu_ps(at, _mm256_fmadd_ps(bias, x_sum, a));
                }
            }
        }
    }
}
