//! Seeded weights, made on the device.

use lily_checkpoint::synthetic::Numbers;

use super::{View, need};
use crate::args::RandomFillArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Threads of a threadgroup, `FILL_THREADS` of the shader.
const THREADS: u64 = 256;
/// Words of a thread, `FILL_WORDS` of the shader.
const WORDS: u64 = 4;

/// Words `first..first + words` of a tensor of seeded numbers. A word is 8 bytes.
#[derive(Debug)]
pub struct RandomFill<'a, B> {
    /// The tensor's numbers.
    pub numbers: Numbers,
    /// The first word wanted.
    pub first: u64,
    /// Where it goes, at a multiple of 8 bytes.
    pub out: View<'a, B>,
    /// How many.
    pub words: u64,
}

/// One dispatch.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn random_fill<G: Gpu>(gpu: &mut G, f: &RandomFill<'_, G::Buffer>) -> Result<(), GpuError> {
    assert!(f.words > 0 && f.out.offset.is_multiple_of(8), "{} words to {}", f.words, f.out.offset);
    need(gpu, f.out, f.words, 8, "words");
    let (stream, step, factor) = match f.numbers {
        Numbers::Bits(stream) => (stream, 0.0, 0.0),
        Numbers::Scales { stream, step, factor } => (stream, step, factor),
    };
    let args = RandomFillArgs { base: stream.base(), first: f.first, words: f.words, step, factor };
    let groups = f.words.div_ceil(THREADS * WORDS);
    gpu.encode(&Launch {
        kernel: "random_fill",
        constants: &[],
        args: &[f.out.arg(), Arg::Value(&args.to_bytes())],
        groups: [u32::try_from(groups).expect("less than 32 TB"), 1, 1],
        threads: [THREADS as u32, 1, 1],
    })
}

#[cfg(all(test, feature = "emulated"))]
#[path = "random_fill_tests.rs"]
mod tests;
