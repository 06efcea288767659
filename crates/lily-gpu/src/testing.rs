//! Seeded inputs and read-back for tests of kernels, on the emulator or another device.

mod device;

pub use device::{Buffer, TestGpu, bodies, body, counts, step_bodies};

use lily_checkpoint::{Affine, Bytes, Matrix};

use crate::gpu::{Contents, Finished, Gpu, GpuError};
use crate::kernels::{DeviceMatrix, Element};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// In ±scale.
    pub fn value(&mut self, scale: f32) -> f32 {
        ((self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
    }

    pub fn values(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.value(scale)).collect()
    }

    /// As [`Random::values`], each one exact in BF16.
    pub fn bf16_values(&mut self, n: usize, scale: f32) -> Vec<f32> {
        self.values(n, scale).into_iter().map(bf16).collect()
    }

    /// A matrix of 4, 8 or 16 bits.
    pub fn matrix(&mut self, rows: usize, cols: usize, bits: usize) -> Matrix {
        match bits {
            16 => {
                let data = to_bf16(&self.values(rows * cols, 0.1));
                Matrix::Bf16 { rows, cols, data: Bytes::new(Aligned::of(&data)) }
            }
            bits => Matrix::Affine(self.affine(rows, cols, bits)),
        }
    }

    /// A quantised matrix with scales of both signs.
    pub fn affine(&mut self, rows: usize, cols: usize, bits: usize) -> Affine {
        let codes = (0..rows * cols * bits / 8).map(|_| self.bits() as u8).collect::<Vec<_>>();
        let groups = rows * cols / Affine::GROUP;
        let step = if bits == 4 { 0.01 } else { 0.0006 };
        let scales = to_bf16(&self.values(groups, step));
        let biases = to_bf16(&self.values(groups, 0.05));
        Affine {
            rows,
            cols,
            bits,
            codes: Bytes::new(Aligned::of(&codes)),
            scales: Bytes::new(scales),
            biases: Bytes::new(biases),
        }
    }
}

/// A buffer of `values` as `element`.
pub fn elements<G: Gpu>(gpu: &G, values: &[f32], element: Element, contents: Contents) -> G::Buffer {
    match element {
        Element::F32 => floats(gpu, values, contents),
        Element::Bf16 => bytes(gpu, &to_bf16(values), contents),
    }
}

/// The weights as a product with inputs of `element` multiplies them, row by row.
pub fn multiplied(w: &Matrix, element: Element) -> Vec<f32> {
    match element {
        Element::F32 => dense(w),
        Element::Bf16 => dense(w).into_iter().map(bf16).collect(),
    }
}

/// Bytes that begin at a multiple of 16, as tensors in an aligned file do.
struct Aligned(Vec<u128>, usize);

impl Aligned {
    fn of(bytes: &[u8]) -> Self {
        let word = |c: &[u8]| {
            let mut word = [0; 16];
            word[..c.len()].copy_from_slice(c);
            u128::from_ne_bytes(word)
        };
        Self(bytes.chunks(16).map(word).collect(), bytes.len())
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the words hold at least `1` bytes, initialised, and live as long as self.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.1) }
    }
}

/// Rounded to BF16, ties to even.
pub fn bf16(v: f32) -> f32 {
    let u = v.to_bits();
    f32::from_bits((u + 0x7fff + (u >> 16 & 1)) & 0xffff_0000)
}

/// As BF16 bytes.
pub fn to_bf16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| ((bf16(v).to_bits() >> 16) as u16).to_ne_bytes()).collect()
}

/// The device that tests use: the emulator with one worker and threads in random order, unless another is asked for.
pub fn device(seed: u32) -> TestGpu {
    TestGpu::new(seed)
}

/// A buffer of F32 values.
pub fn floats<G: Gpu>(gpu: &G, values: &[f32], contents: Contents) -> G::Buffer {
    bytes(gpu, &values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>(), contents)
}

/// A buffer of u32 values.
pub fn words<G: Gpu>(gpu: &G, values: &[u32]) -> G::Buffer {
    bytes(gpu, &values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>(), Contents::Activations)
}

pub fn bytes<G: Gpu>(gpu: &G, data: &[u8], contents: Contents) -> G::Buffer {
    let buffer = gpu.allocate(data.len() as u64, contents).expect("memory");
    gpu.upload(&buffer, 0, data).expect("upload");
    buffer
}

/// A buffer for `n` values of 4 bytes.
pub fn output<G: Gpu>(gpu: &G, n: usize) -> G::Buffer {
    gpu.allocate(4 * n as u64, Contents::Activations).expect("memory")
}

pub fn share<G: Gpu>(gpu: &G, w: &Affine) -> DeviceMatrix<G::Buffer> {
    DeviceMatrix::share(gpu, &Matrix::Affine(w.clone())).expect("share")
}

pub fn share_matrix<G: Gpu>(gpu: &G, w: &Matrix) -> DeviceMatrix<G::Buffer> {
    DeviceMatrix::share(gpu, w).expect("share")
}

/// A matrix's values, row after row.
pub fn dense(w: &Matrix) -> Vec<f32> {
    match w {
        Matrix::Affine(a) => lily_checkpoint::quant::dequantize(a),
        Matrix::Bf16 { data, .. } => {
            let value = |c: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([c[0], c[1]])) << 16);
            data.chunks_exact(2).map(value).collect()
        }
    }
}

/// Runs what was encoded.
pub fn run<G: Gpu>(gpu: &mut G) -> Result<Finished, GpuError> {
    let ticket = gpu.commit()?;
    gpu.wait(ticket)
}

fn read_words<G: Gpu>(gpu: &G, buffer: &G::Buffer) -> Vec<u32> {
    let mut out = vec![0; gpu.bytes(buffer) as usize];
    gpu.read(buffer, 0, &mut out).expect("read");
    out.chunks_exact(4).map(|c| u32::from_ne_bytes(c.try_into().expect("4 bytes"))).collect()
}

pub fn read_u32<G: Gpu>(gpu: &G, buffer: &G::Buffer) -> Vec<u32> {
    read_words(gpu, buffer)
}

pub fn read_f32<G: Gpu>(gpu: &G, buffer: &G::Buffer) -> Vec<f32> {
    read_words(gpu, buffer).into_iter().map(f32::from_bits).collect()
}

/// A buffer of BF16 values.
pub fn read_bf16<G: Gpu>(gpu: &G, buffer: &G::Buffer) -> Vec<f32> {
    let mut out = vec![0; gpu.bytes(buffer) as usize];
    gpu.read(buffer, 0, &mut out).expect("read");
    out.chunks_exact(2).map(|c| f32::from_bits(u32::from(u16::from_ne_bytes([c[0], c[1]])) << 16)).collect()
}

/// Panics unless every value is within `tolerance` of the wanted one, relative to the largest wanted value.
#[track_caller]
pub fn assert_close(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1e-30f32, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g.is_finite() && (g - w).abs() <= tolerance * scale, "value {i}: {g}, wanted {w} (scale {scale})");
    }
}
