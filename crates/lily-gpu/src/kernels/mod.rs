//! Every kernel: what it computes is in its `.metal`, how it is dispatched and which shapes it takes in its `.rs`.
//!
//! Functions append one dispatch (or as many as they say) to the open command buffer. They panic where shapes do not fit:
//! a bug of the layer program. All sizes are counted in values unless bytes are named.

mod affine_gemv;
mod argmax;
mod conv_silu;
mod embed_gather;
mod gated_delta_step;
mod moe_route;
mod rms_norm;

pub use affine_gemv::affine_gemv;
pub use argmax::{ARGMAX_BLOCKS, Argmax, argmax};
pub use conv_silu::{ConvSilu, conv_silu};
pub use embed_gather::embed_gather;
pub use gated_delta_step::{GatedDeltaStep, gated_delta_step};
pub use moe_route::{MoeRoute, moe_route};
pub use rms_norm::{NormOutput, add_rms_norm, rms_norm};

use lily_checkpoint::Affine;

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

/// A quantised matrix on the device: `[rows × cols]`, codes, scales and biases as in the checkpoint.
#[derive(Clone, Debug)]
pub struct DeviceAffine<B> {
    /// Outputs.
    pub rows: u32,
    /// Inputs, a multiple of 64.
    pub cols: u32,
    /// 4 or 8.
    pub bits: u32,
    /// rows × cols × bits / 8 bytes.
    pub codes: B,
    /// rows × cols / 64 BF16.
    pub scales: B,
    /// rows × cols / 64 BF16.
    pub biases: B,
}

impl<B> DeviceAffine<B> {
    /// Shares the checkpoint's bytes with the device.
    ///
    /// # Errors
    /// Of [`Gpu::share`].
    pub fn share<G: Gpu<Buffer = B>>(gpu: &G, w: &Affine) -> Result<Self, GpuError> {
        Ok(Self {
            rows: w.rows as u32,
            cols: w.cols as u32,
            bits: w.bits as u32,
            codes: gpu.share(&w.codes, Contents::Weights)?,
            scales: gpu.share(&w.scales, Contents::Weights)?,
            biases: gpu.share(&w.biases, Contents::Weights)?,
        })
    }
}
