//! Products in F32 for matrices that are not 4-bit: BF16 weights (the HF layout) and the 8-bit gates, whose products
//! must stay F32 because they select experts.

use lily_checkpoint::{Affine, Matrix};

use super::affine4::Pick;
use super::simd::{Isa, dot, multiversion};

multiversion! {
    /// BF16 bytes → F32.
    fn expand_bf16(bytes: &[u8], out: &mut [f32]) {
        for (b, o) in bytes.chunks_exact(2).zip(out) {
            *o = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
        }
    }
}

multiversion! {
    /// One group of 8-bit codes → F32.
    fn expand_codes(codes: &[u8], scale: f32, bias: f32, out: &mut [f32]) {
        for (c, o) in codes.iter().zip(out) {
            *o = scale * f32::from(*c) + bias;
        }
    }
}

multiversion! {
    /// Row `w` times each picked row of x [tokens × cols], to out[i × stride].
    fn dots(w: &[f32], x: &[f32], pick: Pick<'_>, stride: usize, out: &mut [f32]) {
        for i in 0..pick.len() {
            out[i * stride] = dot(w, &x[pick.at(i) * w.len()..(pick.at(i) + 1) * w.len()]);
        }
    }
}

multiversion! {
    /// Row `r` of `m` as F32, [cols].
    pub fn expand_row(m: &Matrix, r: usize, out: &mut [f32], isa: Isa) {
        match m {
            Matrix::Bf16 { cols, data, .. } => expand_bf16(isa, &data[r * cols * 2..(r + 1) * cols * 2], out),
            Matrix::Affine(a) if a.bits == 8 => {
                let groups = a.cols / Affine::GROUP;
                let (codes, scales, biases): (&[u8], &[u8], &[u8]) = (&a.codes, &a.scales, &a.biases);
                let bf16 = |b: &[u8], i: usize| {
                    f32::from_bits(u32::from(u16::from_le_bytes([b[2 * i], b[2 * i + 1]])) << 16)
                };
                for (g, out) in out.chunks_exact_mut(Affine::GROUP).enumerate() {
                    let at = r * groups + g;
                    let codes = &codes[at * Affine::GROUP..(at + 1) * Affine::GROUP];
                    expand_codes(isa, codes, bf16(scales, at), bf16(biases, at), out);
                }
            }
            Matrix::Affine(_) => m.row_f32(r, out),
        }
    }
}

/// Rows `first..first + rows` of `m` times the picked rows of x, to out [picked × stride].
pub fn block(
    isa: Isa,
    m: &Matrix,
    first: usize,
    rows: usize,
    x: &[f32],
    pick: Pick<'_>,
    stride: usize,
    out: &mut [f32],
) {
    let mut w = vec![0.0; m.cols()];
    for r in 0..rows {
        expand_row(isa, m, first + r, &mut w, isa);
        dots(isa, &w, x, pick, stride, &mut out[r..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{affine, bf16, noise};

    #[test]
    fn products_do_not_depend_on_the_instruction_set_or_the_number_of_rows() {
        for m in [bf16(1, 9, 192), Matrix::Affine(affine(2, 9, 192, 8)), Matrix::Affine(affine(3, 9, 192, 4))] {
            let x = noise(4, 5 * 192);
            let mut expected = vec![0.0; 5 * 9];
            let mut w = vec![0.0; 192];
            for r in 0..9 {
                m.row_f32(r, &mut w);
                for t in 0..5 {
                    expected[t * 9 + r] = dot(&w, &x[t * 192..(t + 1) * 192]);
                }
            }
            for isa in Isa::available() {
                let mut out = vec![0.0; 5 * 9];
                block(isa, &m, 0, 9, &x, Pick::First(5), 9, &mut out);
                assert_eq!(out, expected, "{isa:?}");
                let mut one = vec![0.0; 4];
                block(isa, &m, 5, 4, &x, Pick::List(&[3]), 4, &mut one);
                assert_eq!(one, expected[3 * 9 + 5..3 * 9 + 9], "{isa:?}");
            }
        }
    }
}
