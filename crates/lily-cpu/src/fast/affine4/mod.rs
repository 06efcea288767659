//! Products of 16-bit activations with 4-bit codes, straight from the checkpoint's layout.
//!
//! One arithmetic for every instruction set and every number of rows: for each group g of 64 columns, in order,
//!
//! ```text
//! acc = fma(f32(Σ xq · code), scale[o, g] · scale_x[t, g], acc)
//! acc = fma(bias[o, g], sum_x[t, g], acc)
//! ```
//!
//! with Σ exact in 32 bits (|Σ| ≤ 64 · 15 · 32,639). So decode (GEMV) and prefill (GEMM) give the same bits.
//!
//! Three kernels for each instruction set: `gemv8`, eight rows for one token; `pack`, which unpacks sixteen rows into a
//! [`Panel`]; and `tile`, a panel for a few tokens. [`portable`] defines what they compute.

#![allow(clippy::needless_range_loop, reason = "one index runs over several arrays")]
#![allow(clippy::too_many_arguments, reason = "kernels take their operands one by one")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use lily_checkpoint::Affine;

use super::quantise::{GROUP, Quantised};
use super::simd::Isa;

/// Output rows of a GEMM panel.
pub const PANEL_ROWS: usize = 16;
/// Groups of a panel: 16 rows × 512 columns as 16-bit codes are 16 KB, half of a small L1 cache.
pub const PANEL_GROUPS: usize = 8;
/// Tokens that pass over a panel before the next is unpacked. Their activations (256 KB for 2,048
/// columns) stay in the L2 cache meanwhile.
const STRIPE: usize = 64;
/// Tokens of a GEMM tile.
const TILE: usize = 4;
/// Tokens of a GEMM tile where there are 32 registers of 512 bits.
const WIDE_TILE: usize = 8;
/// From this many tokens on, unpacking a panel once is cheaper than unpacking codes for each token
/// (measured with `cargo bench -p lily-cpu --bench matmul`).
pub const GEMM_FROM: usize = 4;

/// Sixteen rows × up to eight groups, unpacked for the GEMM.
pub struct Panel {
    groups: usize,
    /// [groups][32 pairs][16 rows][2]: pair p holds the columns that stand at 2p and 2p + 1 in [`super::quantise::slot`]
    /// order, so that a 32-bit lane meets two columns of one row. NEON keeps [groups][64 columns][16 rows].
    codes: Box<[i16; PANEL_GROUPS * GROUP * PANEL_ROWS]>,
    /// [groups][16 rows].
    scales: [[f32; PANEL_ROWS]; PANEL_GROUPS],
    /// [groups][16 rows].
    biases: [[f32; PANEL_ROWS]; PANEL_GROUPS],
    /// Activations of a token as bytes, for the GEMV of AVX2 and AVX-512; [groups][high, low][even, odd columns][32].
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "x86-64 only"))]
    halves: Vec<i8>,
}

impl Default for Panel {
    fn default() -> Self {
        Self {
            groups: 0,
            codes: vec![0; PANEL_GROUPS * GROUP * PANEL_ROWS].try_into().expect("the length is that of the array"),
            scales: [[0.0; PANEL_ROWS]; PANEL_GROUPS],
            biases: [[0.0; PANEL_ROWS]; PANEL_GROUPS],
            halves: Vec::new(),
        }
    }
}

/// Which rows of the activations take part: row `i` of a product reads row `at(i)`.
#[derive(Clone, Copy)]
pub enum Pick<'a> {
    /// Rows 0..n.
    First(usize),
    /// These, in order.
    List(&'a [u32]),
}

impl Pick<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Pick::First(n) => *n,
            Pick::List(l) => l.len(),
        }
    }

    /// The row that number `i` reads.
    pub fn at(&self, i: usize) -> usize {
        match self {
            Pick::First(_) => i,
            Pick::List(l) => l[i] as usize,
        }
    }
}

/// Rows `first..first + rows` of `m` times the picked rows of x: out [picked × stride], of which the first `rows`
/// columns are written. `stride` ≥ `rows` rounded up to 16; the columns between are scratch.
pub fn block(
    isa: Isa,
    m: &Affine,
    first: usize,
    rows: usize,
    x: &Quantised,
    pick: Pick<'_>,
    stride: usize,
    panel: &mut Panel,
    out: &mut [f32],
) {
    assert!(m.bits == 4 && m.cols == x.cols && first + rows <= m.rows);
    assert!(stride >= rows.next_multiple_of(PANEL_ROWS) && out.len() >= pick.len() * stride);
    if pick.len() < GEMM_FROM {
        for i in 0..pick.len() {
            gemv(isa, m, first, rows, x.row(pick.at(i)), panel, &mut out[i * stride..(i + 1) * stride]);
        }
    } else {
        gemm(isa, m, first, rows, x, pick, stride, panel, out);
    }
}

/// One token, 8 rows at a time.
pub fn gemv(
    isa: Isa,
    m: &Affine,
    first: usize,
    rows: usize,
    x: super::quantise::Row<'_>,
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "x86-64 only"))] panel: &mut Panel,
    out: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        // SAFETY: `Isa::runs_here` has seen AVX-512, which has AVX2.
        unsafe { avx512::split(x, &mut panel.halves) };
    }
    for start in (0..rows).step_by(8) {
        let eight: [usize; 8] = std::array::from_fn(|r| first + (start + r).min(rows - 1));
        let out: &mut [f32; 8] = (&mut out[start..start + 8]).try_into().expect("8 elements");
        match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Isa::runs_here` has seen AVX2 and FMA.
            Isa::Avx2 => unsafe { avx2::gemv8(m, &eight, x, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Isa::runs_here` has seen AVX-512 and VNNI.
            Isa::Avx512 => unsafe { avx512::gemv8(m, &eight, x, &panel.halves, out) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: NEON is part of aarch64.
            Isa::Neon => unsafe { neon::gemv8(m, &eight, x, out) },
            _ => portable::gemv8(m, &eight, x, out),
        }
    }
}

/// Many tokens: 16 rows are unpacked once and meet all of them.
pub fn gemm(
    isa: Isa,
    m: &Affine,
    first: usize,
    rows: usize,
    x: &Quantised,
    pick: Pick<'_>,
    stride: usize,
    panel: &mut Panel,
    out: &mut [f32],
) {
    for from in (0..pick.len()).step_by(STRIPE) {
        let stripe = from..pick.len().min(from + STRIPE);
        for start in (0..rows).step_by(PANEL_ROWS) {
            let sixteen: [usize; PANEL_ROWS] = std::array::from_fn(|r| first + (start + r).min(rows - 1));
            for i in stripe.clone() {
                out[i * stride + start..][..PANEL_ROWS].fill(0.0);
            }
            for g in (0..m.cols / GROUP).step_by(PANEL_GROUPS) {
                pack(isa, m, &sixteen, g, panel);
                let mut i = stripe.start;
                while i < stripe.end {
                    i += match stripe.end - i {
                        WIDE_TILE.. if isa == Isa::Avx512 => {
                            tile::<WIDE_TILE>(isa, panel, x, pick, i, g, stride, start, out)
                        }
                        TILE.. => tile::<TILE>(isa, panel, x, pick, i, g, stride, start, out),
                        3 => tile::<3>(isa, panel, x, pick, i, g, stride, start, out),
                        2 => tile::<2>(isa, panel, x, pick, i, g, stride, start, out),
                        _ => tile::<1>(isa, panel, x, pick, i, g, stride, start, out),
                    };
                }
            }
        }
    }
}

/// Unpacks up to [`PANEL_GROUPS`] groups from `g` on.
fn pack(isa: Isa, m: &Affine, rows: &[usize; PANEL_ROWS], g: usize, panel: &mut Panel) {
    let n = PANEL_GROUPS.min(m.cols / GROUP - g);
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::runs_here` has seen AVX2.
        Isa::Avx2 | Isa::Avx512 => unsafe { avx2::pack(m, rows, g, n, panel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: NEON is part of aarch64.
        Isa::Neon => unsafe { neon::pack(m, rows, g, n, panel) },
        _ => portable::pack(m, rows, g, n, panel),
    }
}

/// N tokens from number `i` on, through the panel's groups from `g` on. Returns N.
fn tile<const N: usize>(
    isa: Isa,
    panel: &Panel,
    x: &Quantised,
    pick: Pick<'_>,
    i: usize,
    g: usize,
    stride: usize,
    start: usize,
    out: &mut [f32],
) -> usize {
    let rows: [_; N] = std::array::from_fn(|t| x.row(pick.at(i + t)).groups(g, panel.groups));
    let mut acc: [[f32; PANEL_ROWS]; N] =
        std::array::from_fn(|t| out[(i + t) * stride + start..][..PANEL_ROWS].try_into().expect("16 elements"));
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::runs_here` has seen AVX2 and FMA.
        Isa::Avx2 => unsafe { avx2::tile(panel, &rows, &mut acc) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::runs_here` has seen AVX-512 and VNNI.
        Isa::Avx512 => unsafe { avx512::tile(panel, &rows, &mut acc) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: NEON is part of aarch64.
        Isa::Neon => unsafe { neon::tile(panel, &rows, &mut acc) },
        _ => portable::tile(panel, &rows, &mut acc),
    }
    for (t, acc) in acc.iter().enumerate() {
        out[(i + t) * stride + start..][..PANEL_ROWS].copy_from_slice(acc);
    }
    N
}

/// BF16 number `i` of little-endian bytes.
#[inline(always)]
fn bf16(bytes: &[u8], i: usize) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast::quantise::{quantise_row, slot};
    use crate::testing::{affine, noise};
    use lily_checkpoint::Matrix;

    fn quantised(isa: Isa, x: &[f32], cols: usize) -> Quantised {
        let (tokens, groups) = (x.len() / cols, cols / GROUP);
        let mut q = Quantised::default();
        q.reset(tokens, cols);
        let stride = q.stride();
        for t in 0..tokens {
            quantise_row(
                isa,
                &x[t * cols..(t + 1) * cols],
                &mut q.codes[t * stride..t * stride + cols],
                &mut q.scales[t * groups..(t + 1) * groups],
                &mut q.sums[t * groups..(t + 1) * groups],
            );
        }
        q
    }

    /// Shapes that do and do not divide 8, 16, the panel and the tile.
    const SHAPES: [(usize, usize); 6] = [(16, 64), (1, 64), (37, 192), (32, 576), (24, 2048), (5, 4096)];

    #[test]
    fn every_instruction_set_and_every_row_count_gives_the_same_bits() {
        for (rows, cols) in SHAPES {
            let m = affine(7, rows, cols, 4);
            for tokens in [1, 2, GEMM_FROM - 1, GEMM_FROM, GEMM_FROM + 1, 7, 23, STRIPE + 3] {
                let x = noise(9, tokens * cols);
                let q = quantised(Isa::Portable, &x, cols);
                let stride = rows.next_multiple_of(16);
                let mut expected = vec![0.0; tokens * stride];
                for t in 0..tokens {
                    gemv(
                        Isa::Portable,
                        &m,
                        0,
                        rows,
                        q.row(t),
                        &mut Panel::default(),
                        &mut expected[t * stride..(t + 1) * stride],
                    );
                }
                let same = |what: &str, out: &[f32]| {
                    for t in 0..tokens {
                        let at = t * stride..t * stride + rows;
                        assert_eq!(out[at.clone()], expected[at], "{what} {rows}×{cols}, {tokens} tokens, row {t}");
                    }
                };
                for isa in Isa::available() {
                    let (mut panel, mut out) = (Panel::default(), vec![f32::NAN; tokens * stride]);
                    gemm(isa, &m, 0, rows, &q, Pick::First(tokens), stride, &mut panel, &mut out);
                    same("gemm", &out);
                    out.fill(f32::NAN);
                    block(isa, &m, 0, rows, &q, Pick::First(tokens), stride, &mut panel, &mut out);
                    same("block", &out);
                }
            }
        }
    }

    #[test]
    fn products_are_those_of_the_dequantised_matrix() {
        for (rows, cols) in SHAPES {
            let m = affine(3, rows, cols, 4);
            let x = noise(5, 6 * cols);
            let q = quantised(Isa::detect(), &x, cols);
            let picked = [5u32, 0, 3, 3, 1];
            let stride = rows.next_multiple_of(16);
            let (mut panel, mut out) = (Panel::default(), vec![0.0; picked.len() * stride]);
            block(Isa::detect(), &m, 0, rows, &q, Pick::List(&picked), stride, &mut panel, &mut out);
            let matrix = Matrix::Affine(m);
            let mut w = vec![0.0; cols];
            for r in 0..rows {
                matrix.row_f32(r, &mut w);
                for (i, &t) in picked.iter().enumerate() {
                    let x = &x[t as usize * cols..][..cols];
                    let exact: f64 = x.iter().zip(&w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    let size: f64 = x.iter().zip(&w).map(|(x, w)| (f64::from(*x) * f64::from(*w)).abs()).sum();
                    let error = (f64::from(out[i * stride + r]) - exact).abs();
                    assert!(error <= 3e-5 * size, "{rows}×{cols} row {r}: off by {error} of {size}");
                }
            }
        }
    }

    #[test]
    fn the_order_inside_a_group_is_a_permutation() {
        let mut seen = [false; GROUP];
        (0..GROUP).for_each(|i| seen[slot(i)] = true);
        assert!(seen.iter().all(|&s| s));
    }
}
