//! Seeded weights: the same numbers on every machine, without files.
//!
//! - [`Stream`] and [`uniform`]: one stream of numbers for each pair of seed and tensor name.
//! - [`blocks`]: single layers at the real dimensions in memory, for the goldens of `tests/fixtures/blocks`.
//! - [`write_mlx4`], [`mlx4_in_memory`]: a random 4-bit checkpoint of any size, for benchmarks and counts.
//! - [`SeededWeights`]: the same weights without a file, each made where it is needed.

mod blocks;
mod mlx4;
mod seeded;
mod stream;

pub use blocks::{Blocks, blocks, layer};
pub use mlx4::{full_shape, mlx4_in_memory, write_mlx4};
pub use seeded::{Numbers, SeededWeights};
pub use stream::{Stream, bf16_bits, bf16_round, fnv1a64, uniform, weight_range};
