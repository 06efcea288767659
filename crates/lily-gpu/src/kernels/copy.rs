//! Copies inside device memory: snapshots of state, pages of the cache.

use super::{View, need};
use crate::args::CopyArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Threads of a threadgroup, `COPY_THREADS` of the shader.
const THREADS: u32 = 256;
/// Words of a thread, `COPY_WORDS` of the shader.
const WORDS: u64 = 4;

/// `count` slices of `bytes` each, regularly spaced: one slot of every layer's pool, say. Nothing is read that is written.
/// All sizes are bytes, and multiples of 16.
#[derive(Debug)]
pub struct CopySlices<'a, B> {
    /// First slice.
    pub from: View<'a, B>,
    /// From one slice to the next.
    pub from_stride: u64,
    /// Place of the first slice.
    pub to: View<'a, B>,
    /// From one place to the next.
    pub to_stride: u64,
    /// Of a slice.
    pub bytes: u64,
    /// Slices, at most 65,535.
    pub count: u32,
}

/// One dispatch.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn copy_slices<G: Gpu>(gpu: &mut G, c: &CopySlices<'_, G::Buffer>) -> Result<(), GpuError> {
    assert!(c.bytes > 0 && (1..=65_535).contains(&c.count), "{} slices of {} bytes", c.count, c.bytes);
    for n in [c.bytes, c.from_stride, c.to_stride, c.from.offset, c.to.offset] {
        assert!(n.is_multiple_of(16), "{n} bytes");
    }
    let last = u64::from(c.count - 1);
    need(gpu, c.from, last * c.from_stride + c.bytes, 1, "slices");
    need(gpu, c.to, last * c.to_stride + c.bytes, 1, "places");
    let words = c.bytes / 16;
    let args = CopyArgs { from_stride: c.from_stride / 16, to_stride: c.to_stride / 16, words };
    let groups = words.div_ceil(u64::from(THREADS) * WORDS);
    gpu.encode(&Launch {
        kernel: "copy_slices",
        constants: &[],
        args: &[c.from.arg(), c.to.arg(), Arg::Value(&args.to_bytes())],
        groups: [u32::try_from(groups).expect("a slice of less than 64 TB"), c.count, 1],
        threads: [THREADS, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "copy_tests.rs"]
mod tests;
