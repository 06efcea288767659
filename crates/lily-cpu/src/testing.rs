//! Seeded inputs for unit tests.

use lily_checkpoint::{Affine, Bytes, Matrix};

/// `n` values in ±1.7, the same for the same seed.
pub fn noise(seed: u64, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((bits(seed, i as u64) >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 3.4).collect()
}

/// SplitMix64.
pub fn bits(seed: u64, i: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x2545_F491_4F6C_DD1D).wrapping_add((i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A random quantised matrix with scales of both signs.
pub fn affine(seed: u64, rows: usize, cols: usize, bits_per_code: usize) -> Affine {
    let codes = (0..rows * cols * bits_per_code / 8).map(|i| bits(seed, i as u64) as u8).collect::<Vec<_>>();
    let bf16 = |seed, scale: f32| {
        noise(seed, rows * cols / Affine::GROUP)
            .iter()
            .flat_map(|v| (((v * scale).to_bits() >> 16) as u16).to_le_bytes())
            .collect::<Vec<_>>()
    };
    Affine {
        rows,
        cols,
        bits: bits_per_code,
        codes: Bytes::new(codes),
        scales: Bytes::new(bf16(seed + 1, 0.01)),
        biases: Bytes::new(bf16(seed + 2, 0.05)),
    }
}

/// A random BF16 matrix.
pub fn bf16(seed: u64, rows: usize, cols: usize) -> Matrix {
    let data =
        noise(seed, rows * cols).iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect::<Vec<_>>();
    Matrix::Bf16 { rows, cols, data: Bytes::new(data) }
}
