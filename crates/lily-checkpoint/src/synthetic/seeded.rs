//! Random weights that take no memory until somebody reads them.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lily_model::Shape;

use super::mlx4::{Tensor, tensors};
use super::stream::Stream;
use crate::assemble::Assembler;
use crate::bytes::Backing;
use crate::header::Dtype;
use crate::plan::{Form, Layout, slots};
use crate::survey::{Planned, Stored};
use crate::{Bytes, Quantization, Weights};

/// Numbers of a matrix: element i depends on nothing but i, so that a device makes them itself, in any order.
#[derive(Clone, Copy, Debug)]
pub enum Numbers {
    /// Little-endian word i of 8 bytes is element i.
    Bits(Stream),
    /// BF16 value i is `factor` · bf16(`step` · u), u being element i in 0.75..1.25.
    Scales {
        /// Of u.
        stream: Stream,
        /// Of the scales.
        step: f32,
        /// From scales to biases; 1 for the scales themselves.
        factor: f32,
    },
}

/// The weights that [`super::write_mlx4`] writes. A matrix is in host memory from its first read on; one that a device makes for
/// itself ([`Bytes::numbers`]) never is.
pub struct SeededWeights {
    /// All of them.
    pub weights: Weights,
    /// Bytes of all tensors.
    pub bytes: u64,
    matrices: Vec<Bytes>,
}

/// A tensor that is made by the first who reads it.
struct Later {
    tensor: Tensor,
    seed: u64,
    made: OnceLock<Vec<u8>>,
}

impl Backing for Later {
    fn all(&self) -> &[u8] {
        self.made.get_or_init(|| self.tensor.make(self.seed, 0..self.tensor.bytes()))
    }

    fn numbers(&self) -> Option<Numbers> {
        if self.made.get().is_some() { None } else { self.tensor.numbers(self.seed) }
    }
}

impl SeededWeights {
    /// Of a model of this shape. Small vectors are made at once.
    pub fn new(shape: &Shape, seed: u64) -> Self {
        let quantization = Quantization::mlx_4bit(shape.layers.len());
        let plan: Vec<Planned> = slots(shape, Layout::Mlx)
            .into_iter()
            .map(|slot| {
                let bits = if slot.form == Form::Matrix { quantization.of(&slot.module, true) } else { None };
                Planned { slot, bits }
            })
            .collect();
        let mut matrices = Vec::new();
        let mut total = 0;
        let mut stored = |tensor: Tensor| {
            total += tensor.bytes();
            let (name, len) = (tensor.name.clone(), tensor.bytes() as usize);
            let dtype = if tensor.dtype == "U32" { Dtype::U32 } else { Dtype::Bf16 };
            let (shape, is_matrix) = (tensor.shape.clone(), tensor.numbers(seed).is_some());
            let bytes = Bytes::later(Later { tensor, seed, made: OnceLock::new() }, len);
            if is_matrix {
                matrices.push(bytes.clone());
            }
            (name, Stored { file: "memory".into(), dtype, shape, start: 0, len, bytes: Some(bytes) })
        };
        let tensors: HashMap<String, Stored> = tensors(shape, &quantization).into_iter().map(&mut stored).collect();
        let weights = Assembler::new(shape, Layout::Mlx, &tensors, &plan).weights();
        Self { weights, bytes: total, matrices }
    }

    /// Makes all of them in host memory, on so many threads. `progress` is told bytes made and bytes in total.
    pub fn make(&self, threads: usize, progress: &(dyn Fn(u64, u64) + Sync)) {
        let total = self.matrices.iter().map(|b| b.len() as u64).sum();
        let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    while let Some(bytes) = self.matrices.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let made = bytes[..].len() as u64;
                        progress(done.fetch_add(made, Ordering::Relaxed) + made, total);
                    }
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::mlx4_in_memory;
    use super::*;
    use crate::{Affine, Matrix, Mixer};

    fn affine(m: &Matrix) -> &Affine {
        match m {
            Matrix::Affine(a) => a,
            Matrix::Bf16 { .. } => panic!("not quantised"),
        }
    }

    #[test]
    fn they_are_those_of_the_file_and_made_when_read() {
        let full = super::super::full_shape(4);
        let shape = Shape { vocab: 256, hidden: 128, experts: 8, expert_width: 64, shared_width: 64, ..full };
        let file = mlx4_in_memory(&shape, 1).unwrap();
        let seeded = SeededWeights::new(&shape, 1);
        let of = |w: &Weights| {
            let Mixer::Linear(linear) = &w.layers[0].mixer else { panic!("layer 0 is linear") };
            let expert = w.layers[3].moe.up.expert(2).clone();
            let matrices = vec![w.embed.clone(), linear.in_a.clone(), w.layers[1].moe.router.clone(), expert];
            (matrices, linear.conv.clone(), linear.a_log.clone())
        };
        let ((got, conv, a_log), want) = (of(&seeded.weights), of(file.weights()));
        assert_eq!((conv, a_log), (want.1, want.2));
        for (got, want) in got.iter().zip(&want.0) {
            let (got, want) = (affine(got), affine(want));
            assert_eq!(
                (got.rows, got.cols, got.bits, got.codes.len()),
                (want.rows, want.cols, want.bits, want.codes.len())
            );
            assert!(got.codes.numbers().is_some() && want.codes.numbers().is_none());
            assert!(got.codes[..] == want.codes[..]);
            assert!(got.scales[..] == want.scales[..] && got.biases[..] == want.biases[..]);
            assert!(got.codes.numbers().is_none(), "it is there now");
        }

        // All of them together, and experts are still one matrix.
        let most = AtomicU64::new(0);
        seeded.make(2, &|done, total| {
            assert!(done <= total);
            most.fetch_max(done, Ordering::Relaxed);
        });
        assert_eq!(most.into_inner(), seeded.matrices.iter().map(|b| b.len() as u64).sum::<u64>());
        assert_eq!(seeded.weights.layers[0].moe.gate.stacked().unwrap().rows(), 8 * 64);
    }
}
