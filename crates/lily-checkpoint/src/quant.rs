//! Affine quantisation in groups of 64 (`docs/model.md §3.2`): the encoder that gives MLX's codes, and its inverse.

use crate::Bytes;
use crate::synthetic::bf16_bits;
use crate::weights::{Affine, Matrix};

/// Quantise a row-major matrix [rows × cols] to 4 or 8 bits.
///
/// # Panics
/// Where the sizes do not fit, `cols` is not a multiple of 64 or `bits` is neither 4 nor 8.
pub fn quantize(rows: usize, cols: usize, bits: usize, values: &[f32]) -> Affine {
    assert_eq!(values.len(), rows * cols, "{rows} × {cols} values");
    assert!(cols.is_multiple_of(Affine::GROUP) && (bits == 4 || bits == 8), "{cols} columns, {bits} bits");
    let groups = values.len() / Affine::GROUP;
    let mut codes = Vec::with_capacity(values.len() * bits / 8);
    let (mut scales, mut biases) = (Vec::with_capacity(2 * groups), Vec::with_capacity(2 * groups));
    for group in values.chunks_exact(Affine::GROUP) {
        let (scale, bias) = grid(group, bits);
        let top = ((1u32 << bits) - 1) as f32;
        let code = |w: f32| ((w - bias) / scale).round_ties_even().clamp(0.0, top) as u8;
        if bits == 4 {
            codes.extend(group.chunks_exact(2).map(|pair| code(pair[0]) | code(pair[1]) << 4));
        } else {
            codes.extend(group.iter().map(|&w| code(w)));
        }
        // Rounded only now: the codes are those of the F32 grid.
        scales.extend(bf16_bits(scale).to_le_bytes());
        biases.extend(bf16_bits(bias).to_le_bytes());
    }
    Affine { rows, cols, bits, codes: Bytes::new(codes), scales: Bytes::new(scales), biases: Bytes::new(biases) }
}

/// Scale and bias of a group, in F32. The edge of larger magnitude lies on the grid exactly, and so does zero where
/// that edge is not zero itself.
fn grid(group: &[f32], bits: usize) -> (f32, f32) {
    let lo = group.iter().copied().fold(f32::INFINITY, f32::min);
    let hi = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let top = ((1u32 << bits) - 1) as f32;
    let mut scale = ((hi - lo) / top).max(1e-7);
    let edge = if lo.abs() > hi.abs() {
        lo
    } else {
        scale = -scale;
        hi
    };
    let zero = (edge / scale).round_ties_even();
    if zero == 0.0 { (scale, 0.0) } else { (edge / zero, edge) }
}

/// All values, row-major [rows × cols].
pub fn dequantize(matrix: &Affine) -> Vec<f32> {
    let mut out = vec![0.0; matrix.rows * matrix.cols];
    let matrix = Matrix::Affine(matrix.clone());
    for (r, row) in out.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.row_f32(r, row);
    }
    out
}
