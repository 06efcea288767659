//! Small pieces of `docs/model.md §4.1`.

use lily_checkpoint::Matrix;

/// Sum of products. Sixteen partial sums, so that the compiler can use vector registers; the order is fixed.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut lanes = [0.0f32; 16];
    let (a16, b16) = (a.chunks_exact(16), b.chunks_exact(16));
    let tail: f32 = a16.remainder().iter().zip(b16.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a16.zip(b16) {
        for i in 0..16 {
            lanes[i] += x[i] * y[i];
        }
    }
    lanes.iter().sum::<f32>() + tail
}

/// y = x · Wᵀ: x [T × cols] → [T × rows].
pub fn linear(x: &[f32], w: &Matrix) -> Vec<f32> {
    let (rows, cols) = (w.rows(), w.cols());
    let mut y = vec![0.0; x.len() / cols * rows];
    let mut row = vec![0.0; cols];
    for r in 0..rows {
        w.row_f32(r, &mut row);
        for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(rows)) {
            y[r] = dot(x, &row);
        }
    }
    y
}

/// a += b.
pub fn add(a: &mut [f32], b: &[f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a += b;
    }
}

/// Each row divided by its root mean square, times `weight` [width].
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut y = x.to_vec();
    for row in y.chunks_exact_mut(weight.len()) {
        let scale = 1.0 / (dot(row, row) / row.len() as f32 + eps).sqrt();
        for (v, w) in row.iter_mut().zip(weight) {
            *v = *v * scale * w;
        }
    }
    y
}

/// 1 / (1 + e⁻ˣ).
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// x · sigmoid(x).
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// ln(1 + eˣ) without overflow.
pub fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
