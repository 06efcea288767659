//! NEON, which every aarch64 machine has.
//!
//! `smlal` multiplies four 16-bit numbers with four others (or with one of them) and adds to 32-bit lanes. In [`gemv8`] a
//! lane is a column and lanes are added in the end; in [`tile`] a lane is a row, and the activation is one number of a
//! register that holds eight. That wants the sixteen rows of one column side by side, so the panel is kept as
//! [groups][64 columns][16 rows] here, not in pairs of columns.

use std::arch::aarch64::*;

use lily_checkpoint::Affine;

use super::super::quantise::{GROUP, Row};
use super::{PANEL_GROUPS, PANEL_ROWS, Panel, bf16};

/// Bytes of a group's codes.
const BYTES: usize = GROUP / 2;

/// Eight vectors of eight 16-bit lanes, transposed.
#[inline]
#[target_feature(enable = "neon")]
fn transpose(v: &[uint16x8_t; 8]) -> [uint16x8_t; 8] {
    let mut out = *v;
    // Blocks of 1, 2 and 4 lanes change places across the diagonal.
    for i in 0..4 {
        let (a, b) = (out[2 * i], out[2 * i + 1]);
        out[2 * i] = vtrn1q_u16(a, b);
        out[2 * i + 1] = vtrn2q_u16(a, b);
    }
    for i in [0, 1, 4, 5] {
        let (a, b) = (vreinterpretq_u32_u16(out[i]), vreinterpretq_u32_u16(out[i + 2]));
        out[i] = vreinterpretq_u16_u32(vtrn1q_u32(a, b));
        out[i + 2] = vreinterpretq_u16_u32(vtrn2q_u32(a, b));
    }
    for i in 0..4 {
        let (a, b) = (vreinterpretq_u64_u16(out[i]), vreinterpretq_u64_u16(out[i + 4]));
        out[i] = vreinterpretq_u16_u64(vtrn1q_u64(a, b));
        out[i + 4] = vreinterpretq_u16_u64(vtrn2q_u64(a, b));
    }
    out
}

/// Scales (or biases) of up to eight groups of eight rows, [groups][8 rows], as F32.
#[inline]
#[target_feature(enable = "neon")]
fn columns(bytes: &[u8], rows: &[usize; 8], groups: usize, g: usize, n: usize) -> [[f32; 8]; PANEL_GROUPS] {
    let mut out = [[0.0f32; 8]; PANEL_GROUPS];
    if n < PANEL_GROUPS {
        for (r, &row) in rows.iter().enumerate() {
            for j in 0..n {
                out[j][r] = bf16(bytes, row * groups + g + j);
            }
        }
        return out;
    }
    let mut eight = [vdupq_n_u16(0); 8];
    for r in 0..8 {
        let at = 2 * (rows[r] * groups + g);
        let row = &bytes[at..at + 16];
        // SAFETY: 16 bytes, checked by the slice; a load of bytes needs no alignment.
        eight[r] = vreinterpretq_u16_u8(unsafe { vld1q_u8(row.as_ptr()) });
    }
    for (out, column) in out.iter_mut().zip(transpose(&eight)) {
        let low = vshlq_n_u32::<16>(vmovl_u16(vget_low_u16(column)));
        let high = vshlq_n_u32::<16>(vmovl_high_u16(column));
        // SAFETY: four floats each, the two halves of the array of eight.
        unsafe {
            vst1q_f32(out.as_mut_ptr(), vreinterpretq_f32_u32(low));
            vst1q_f32(out.as_mut_ptr().add(4), vreinterpretq_f32_u32(high));
        }
    }
    out
}

/// The four planes of a group's codes: sixteen 16-bit numbers each, in two vectors.
#[inline]
#[target_feature(enable = "neon")]
fn planes(bytes: &[u8]) -> [[uint16x8_t; 2]; 4] {
    let bytes = &bytes[..BYTES];
    let mask = vdupq_n_u16(15);
    let mut out = [[mask; 2]; 4];
    for half in 0..2 {
        // SAFETY: 16 of the 32 bytes, checked by the slice; a load of bytes needs no alignment.
        let v = vreinterpretq_u16_u8(unsafe { vld1q_u8(bytes.as_ptr().add(16 * half)) });
        out[0][half] = vandq_u16(v, mask);
        out[1][half] = vandq_u16(vshrq_n_u16::<4>(v), mask);
        out[2][half] = vandq_u16(vshrq_n_u16::<8>(v), mask);
        out[3][half] = vshrq_n_u16::<12>(v);
    }
    out
}

/// See [`super::portable::gemv8`].
///
/// # Safety
/// The machine has NEON.
#[target_feature(enable = "neon")]
pub unsafe fn gemv8(m: &Affine, rows: &[usize; 8], x: Row<'_>, out: &mut [f32; 8]) {
    let groups = m.cols / GROUP;
    let (all_codes, scales, biases): (&[u8], &[u8], &[u8]) = (&m.codes, &m.scales, &m.biases);
    let mut codes: [&[u8]; 8] = [&[]; 8];
    for r in 0..8 {
        codes[r] = &all_codes[rows[r] * groups * BYTES..(rows[r] + 1) * groups * BYTES];
    }
    let mask = vdupq_n_u16(15);
    let mut acc = [vdupq_n_f32(0.0); 2];
    for g in (0..groups).step_by(PANEL_GROUPS) {
        let n = PANEL_GROUPS.min(groups - g);
        let scales = columns(scales, rows, groups, g, n);
        let biases = columns(biases, rows, groups, g, n);
        for j in 0..n {
            let mut v = [[vdupq_n_u16(0); 2]; 8];
            for r in 0..8 {
                let bytes = &codes[r][(g + j) * BYTES..(g + j + 1) * BYTES];
                for half in 0..2 {
                    // SAFETY: 16 of the 32 bytes, checked by the slice; a load of bytes needs no alignment.
                    v[r][half] = vreinterpretq_u16_u8(unsafe { vld1q_u8(bytes.as_ptr().add(16 * half)) });
                }
            }
            let x_codes = &x.codes[(g + j) * GROUP..(g + j + 1) * GROUP];
            let mut sums = [vdupq_n_s32(0); 8];
            // Rows inside, so that eight sums grow side by side. (With the planes inside, the compiler widens the
            // activations once for all rows and then has to widen the codes too, at twice the instructions.)
            for p in 0..4 {
                for half in 0..2 {
                    // SAFETY: 8 of the 64 numbers, checked by the slice.
                    let x = unsafe { vld1q_s16(x_codes.as_ptr().add(16 * p + 8 * half)) };
                    for r in 0..8 {
                        let w = vreinterpretq_s16_u16(vandq_u16(v[r][half], mask));
                        sums[r] = vmlal_s16(sums[r], vget_low_s16(w), vget_low_s16(x));
                        sums[r] = vmlal_high_s16(sums[r], w, x);
                        v[r][half] = vshrq_n_u16::<4>(v[r][half]);
                    }
                }
            }
            let (x_scale, x_sum) = (vdupq_n_f32(x.scales[g + j]), vdupq_n_f32(x.sums[g + j]));
            for half in 0..2 {
                let s = &sums[4 * half..4 * half + 4];
                // Adding neighbours twice leaves the sums of the four vectors, in order.
                let sum = vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3])));
                // SAFETY: four of the eight floats in each array.
                let (scale, bias) = unsafe {
                    (vld1q_f32(scales[j].as_ptr().add(4 * half)), vld1q_f32(biases[j].as_ptr().add(4 * half)))
                };
                acc[half] = vfmaq_f32(acc[half], sum, vmulq_f32(scale, x_scale));
                acc[half] = vfmaq_f32(acc[half], bias, x_sum);
            }
        }
    }
    // SAFETY: four floats each, the two halves of the array of eight.
    unsafe {
        vst1q_f32(out.as_mut_ptr(), acc[0]);
        vst1q_f32(out.as_mut_ptr().add(4), acc[1]);
    }
}

/// See [`super::portable::pack`]; the codes are kept as [groups][64 columns][16 rows].
///
/// # Safety
/// The machine has NEON.
#[target_feature(enable = "neon")]
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
            let mut group = [[[vdupq_n_u16(0); 8]; 2]; 4];
            for r in 0..8 {
                let four = planes(&codes[(rows[r] * groups + g + j) * BYTES..]);
                for (plane, [first, last]) in four.into_iter().enumerate() {
                    group[plane][0][r] = first;
                    group[plane][1][r] = last;
                }
            }
            for (eight, rows) in group.as_flattened().iter().enumerate() {
                for (c, column) in transpose(rows).into_iter().enumerate() {
                    let at = (j * GROUP + 8 * eight + c) * PANEL_ROWS + 8 * half;
                    let place = &mut panel.codes[at..at + 8];
                    // SAFETY: 8 numbers, checked by the slice.
                    unsafe { vst1q_s16(place.as_mut_ptr(), vreinterpretq_s16_u16(column)) };
                }
            }
        }
    }
}

/// Column `C` of the eight in `x`: onto the sums of sixteen rows, for each token.
#[inline]
#[target_feature(enable = "neon")]
fn column<const C: i32, const N: usize>(
    sums: &mut [[int32x4_t; 4]; N],
    codes: &[i16; 8 * PANEL_ROWS],
    x: &[int16x8_t; N],
) {
    // SAFETY: 16 of the 128 numbers, as C < 8.
    let w = unsafe {
        let at = codes.as_ptr().add(C as usize * PANEL_ROWS);
        [vld1q_s16(at), vld1q_s16(at.add(8))]
    };
    for t in 0..N {
        for half in 0..2 {
            sums[t][2 * half] = vmlal_laneq_s16::<C>(sums[t][2 * half], vget_low_s16(w[half]), x[t]);
            sums[t][2 * half + 1] = vmlal_high_laneq_s16::<C>(sums[t][2 * half + 1], w[half], x[t]);
        }
    }
}

/// See [`super::portable::tile`]. Four tokens take 16 of the 32 registers for sums, 4 for activations and 2 for codes.
///
/// # Safety
/// The machine has NEON.
#[target_feature(enable = "neon")]
pub unsafe fn tile<const N: usize>(panel: &Panel, x: &[Row<'_>; N], acc: &mut [[f32; PANEL_ROWS]; N]) {
    for g in 0..panel.groups {
        let mut sums = [[vdupq_n_s32(0); 4]; N];
        let (codes, _) = panel.codes[g * GROUP * PANEL_ROWS..(g + 1) * GROUP * PANEL_ROWS].as_chunks();
        for (eight, codes) in codes.iter().enumerate() {
            let mut xs = [vdupq_n_s16(0); N];
            for t in 0..N {
                let x_codes = &x[t].codes[g * GROUP + 8 * eight..g * GROUP + 8 * eight + 8];
                // SAFETY: 8 numbers, checked by the slice.
                xs[t] = unsafe { vld1q_s16(x_codes.as_ptr()) };
            }
            column::<0, N>(&mut sums, codes, &xs);
            column::<1, N>(&mut sums, codes, &xs);
            column::<2, N>(&mut sums, codes, &xs);
            column::<3, N>(&mut sums, codes, &xs);
            column::<4, N>(&mut sums, codes, &xs);
            column::<5, N>(&mut sums, codes, &xs);
            column::<6, N>(&mut sums, codes, &xs);
            column::<7, N>(&mut sums, codes, &xs);
        }
        for t in 0..N {
            let (x_scale, x_sum) = (vdupq_n_f32(x[t].scales[g]), vdupq_n_f32(x[t].sums[g]));
            for quarter in 0..4 {
                // SAFETY: four of the sixteen floats in each array.
                unsafe {
                    let scale = vld1q_f32(panel.scales[g].as_ptr().add(4 * quarter));
                    let bias = vld1q_f32(panel.biases[g].as_ptr().add(4 * quarter));
                    let at = acc[t].as_mut_ptr().add(4 * quarter);
                    let sum = vcvtq_f32_s32(sums[t][quarter]);
                    let a = vfmaq_f32(vld1q_f32(at), sum, vmulq_f32(scale, x_scale));
                    vst1q_f32(at, vfmaq_f32(a, bias, x_sum));
                }
            }
        }
    }
}
