//! Every kernel: what it computes is in its `.metal`, how it is dispatched and which shapes it takes in its `.rs`.
//!
//! Functions append one dispatch (or as many as they say) to the open command buffer. They panic where shapes do not fit:
//! a bug of the layer program. All sizes are counted in values unless bytes are named.

mod affine_gemm;
mod affine_gemv;
mod argmax;
mod attention_decode;
mod attention_prefill;
mod conv_silu;
mod copy;
mod embed_gather;
mod gated_delta_chunk;
mod gated_norm;
mod grouped_gemm;
mod kv;
#[cfg(all(test, feature = "emulated"))]
mod kv_testing;
mod linear_step;
mod moe_combine;
mod moe_map;
mod moe_route;
mod moe_step;
mod qk_norm_rope;
mod random_fill;
mod rms_norm;
mod tensor_layout;
mod top_k;

pub use affine_gemm::{AffineGemm, affine_gemm};
pub use affine_gemv::{GemvInput, GemvOutput, StepNorm, affine_gemv, gemv_partials};
pub use argmax::{ARGMAX_BLOCKS, Argmax, NO_TOKEN, argmax};
pub use attention_decode::{ATTENTION_BLOCK, AttentionDecode, attention_decode, attention_decode_scratch};
pub use attention_prefill::{AttentionPrefill, attention_prefill};
pub use conv_silu::{ConvSilu, conv_silu};
pub use copy::{CopySlices, copy_slices};
pub use embed_gather::{EMBED_PARTIALS, embed_gather};
pub use gated_delta_chunk::{GatedDeltaChunk, gated_delta_chunk, gated_delta_chunk_scratch};
pub use gated_norm::{GatedNorm, gated_norm};
pub use grouped_gemm::{ExpertMap, GroupedDown, GroupedGateUp, grouped_blocks, grouped_down, grouped_gate_up};
pub use kv::{KV_PAGE, KvPool, from_q8, kv_unit, to_q8};
pub use linear_step::{LinearStep, linear_step};
pub use moe_combine::{MoeCombine, moe_combine};
pub use moe_map::{MoeMap, moe_map};
pub use moe_route::{MoeRoute, moe_route};
pub use moe_step::{MoeDownStep, MoeGateUpStep, moe_down_step, moe_gate_up_step, moe_partials};
pub use qk_norm_rope::{QkNormRope, Rows, qk_norm_rope};
pub use random_fill::{RandomFill, random_fill};
pub use rms_norm::{NormOutputs, RmsNorm, rms_norm};
pub use tensor_layout::{tensor_layout, tensor_parity};
pub use top_k::{TOP_K, TopK, top_k, top_k_scratch};

use lily_checkpoint::{Bytes, Matrix};
use lily_model::KvType;

use crate::gpu::{Arg, Contents, Gpu, GpuError};

/// A place in device memory.
#[derive(Debug)]
pub struct View<'a, B> {
    /// The buffer.
    pub buffer: &'a B,
    /// In bytes.
    pub offset: u64,
}

impl<B> Clone for View<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for View<'_, B> {}

impl<'a, B> View<'a, B> {
    /// The whole buffer.
    pub fn of(buffer: &'a B) -> Self {
        Self { buffer, offset: 0 }
    }

    /// From a byte offset on.
    pub fn at(buffer: &'a B, offset: u64) -> Self {
        Self { buffer, offset }
    }

    fn arg(&self) -> Arg<'a, B> {
        Arg::Buffer(self.buffer, self.offset)
    }
}

/// Panics unless `count` values of `size` bytes lie in the buffer from the view on.
fn need<G: Gpu>(gpu: &G, view: View<'_, G::Buffer>, count: u64, size: u64, what: &str) {
    let (bytes, has) = (count * size, gpu.bytes(view.buffer));
    assert!(view.offset + bytes <= has, "{what}: {bytes} bytes at {} of a buffer of {has}", view.offset);
}

/// Type of the inputs of matrix products, and of cached keys and values that are not of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Exact; for tests, the router and gates, and decode's activations.
    F32,
    /// As shipped.
    Bf16,
}

impl Element {
    /// Bytes of a value.
    pub fn size(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// The cache that keeps values as they are.
impl From<Element> for KvType {
    fn from(element: Element) -> Self {
        match element {
            Element::F32 => Self::F32,
            Element::Bf16 => Self::Bf16,
        }
    }
}

/// What multiplies in prefill's matrix products. Rows come out the same up to the rounding of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// `simdgroup_matrix` 8×8, on every device.
    Simdgroup,
    /// Metal 4 tensor operations, where the device has them; inputs of [`Element::F32`] are left to [`Body::Simdgroup`].
    Tensor,
    /// The matrix instructions of NVIDIA GPUs, on CUDA only. Inputs of [`Element::F32`] are multiplied as two parts of 11
    /// bits each by [`affine_gemm`], and left to [`Body::Simdgroup`] by the grouped products.
    Mma,
}

impl Body {
    /// What multiplies inputs of `element`.
    fn of(self, element: Element) -> Self {
        match element {
            Element::F32 => Self::Simdgroup,
            Element::Bf16 => self,
        }
    }

    /// Outputs of a threadgroup, `columns()` of the body in the shader.
    fn columns(self) -> u32 {
        match self {
            Self::Simdgroup => 64,
            Self::Tensor | Self::Mma => 128,
        }
    }

    /// Threads of a threadgroup, `PRODUCT_THREADS` of the shader.
    fn threads(self) -> u32 {
        match self {
            Self::Simdgroup | Self::Tensor => 128,
            Self::Mma => 256,
        }
    }

    /// Rows of a block where rows are many.
    fn rows(self) -> u32 {
        match self {
            Self::Simdgroup | Self::Tensor => 64,
            Self::Mma => 128,
        }
    }

    /// Sorted rows of a block of the grouped products of inputs of `element`, `GROUPED_ROWS` of the shader.
    pub fn grouped_rows(self, element: Element) -> u32 {
        match self.of(element) {
            Self::Simdgroup | Self::Tensor => 32,
            Self::Mma => 128,
        }
    }

    /// Whether it has a kernel of its own for inputs of `element` and `columns` 4-bit weights a row.
    fn four_bit(self, element: Element, bits: u32, columns: u32) -> bool {
        self == Self::Mma && element == Element::Bf16 && bits == 4 && columns.is_multiple_of(256)
    }

    /// A kernel's name by body and element.
    fn kernel(self, element: Element, [f32, bf16, tensor, mma]: [&'static str; 4]) -> &'static str {
        match (self, element) {
            (_, Element::F32) => f32,
            (Self::Simdgroup, Element::Bf16) => bf16,
            (Self::Tensor, Element::Bf16) => tensor,
            (Self::Mma, Element::Bf16) => mma,
        }
    }
}

/// A weight matrix on the device, `[rows × cols]`: codes, scales and biases as in the checkpoint, or BF16 values.
#[derive(Clone, Debug)]
pub struct DeviceMatrix<B> {
    /// Outputs.
    pub rows: u32,
    /// Inputs, a multiple of 64.
    pub cols: u32,
    /// 4 or 8: codes of an affine matrix. 16: BF16 values.
    pub bits: u32,
    /// rows × cols × bits / 8 bytes.
    pub codes: B,
    /// rows × cols / 64 BF16; with 16 bits the codes once more, bound and not read.
    pub scales: B,
    /// rows × cols / 64 BF16; with 16 bits the codes once more, bound and not read.
    pub biases: B,
}

impl<B: Clone> DeviceMatrix<B> {
    /// Shares the checkpoint's bytes with the device.
    ///
    /// # Errors
    /// Of [`Gpu::share`].
    pub fn share<G: Gpu<Buffer = B>>(gpu: &G, w: &Matrix) -> Result<Self, GpuError> {
        let (rows, cols) = (w.rows() as u32, w.cols() as u32);
        Ok(match w {
            Matrix::Affine(a) => Self {
                rows,
                cols,
                bits: a.bits as u32,
                codes: gpu.share(&a.codes, Contents::Weights)?,
                scales: gpu.share(&a.scales, Contents::Weights)?,
                biases: gpu.share(&a.biases, Contents::Weights)?,
            },
            Matrix::Bf16 { data, .. } => {
                let codes = gpu.share(data, Contents::Weights)?;
                Self { rows, cols, bits: 16, scales: codes.clone(), biases: codes.clone(), codes }
            }
        })
    }

    /// As [`DeviceMatrix::share`]; seeded numbers that are not in host memory are made on the device, by commands that are appended
    /// to the open command buffer.
    ///
    /// # Errors
    /// Of [`Gpu::share`], [`Gpu::allocate`] and [`Gpu::encode`].
    pub fn place<G: Gpu<Buffer = B>>(gpu: &mut G, w: &Matrix) -> Result<Self, GpuError> {
        match w {
            Matrix::Affine(a) => Ok(Self {
                rows: a.rows as u32,
                cols: a.cols as u32,
                bits: a.bits as u32,
                codes: place(gpu, &a.codes)?,
                scales: place(gpu, &a.scales)?,
                biases: place(gpu, &a.biases)?,
            }),
            Matrix::Bf16 { .. } => Self::share(gpu, w),
        }
    }
}

fn place<G: Gpu>(gpu: &mut G, bytes: &Bytes) -> Result<G::Buffer, GpuError> {
    let (length, word) = (bytes.len() as u64, 8);
    match bytes.numbers() {
        Some((numbers, at)) if length.is_multiple_of(word) && at.is_multiple_of(8) => {
            let buffer = gpu.allocate(length, Contents::Weights)?;
            let (first, words) = (at as u64 / word, length / word);
            random_fill(gpu, &RandomFill { numbers, first, out: View::of(&buffer), words })?;
            Ok(buffer)
        }
        _ => gpu.share(bytes, Contents::Weights),
    }
}
