//! Checkpoints on disk (or embedded in the binary) become typed views of weights, without a copy.
//!
//! - [`Checkpoint`]: a folder in the MLX 4-bit or the official HF BF16 layout, checked whole when it is opened.
//! - [`Weights`]: every tensor of the model with its shape in its doc comment (`docs/model.md §2, §3`).
//! - [`Matrix`]: affine-quantised (4 or 8 bit) or BF16, a view of the memory map.
//! - [`inspect`]: what is in a folder, complete or not.
//! - [`hub`]: a repository's name to its folder in the Hugging Face cache, offline.
//! - [`synthetic`], [`quant`]: seeded weights and the affine encoder, for tests and benchmarks.
//!
//! This room knows `lily-model` and files; it does not know devices, tokenizers or chat.

mod assemble;
mod bytes;
mod checkpoint;
mod config;
mod error;
mod fingerprint;
mod generation;
mod header;
pub mod hub;
mod inspection;
mod keys;
mod plan;
pub mod quant;
mod source;
mod survey;
pub mod synthetic;
mod verify;
mod weights;

pub use bytes::Bytes;
pub use checkpoint::Checkpoint;
pub use config::{ARCHITECTURE, Config, MODEL_TYPE, Quantization};
pub use error::CheckpointError;
pub use generation::GenerationDefaults;
pub use inspection::{FileStatus, Inspection, PartSize, Tally, inspect};
pub use plan::{Layout, Part};
pub use weights::{Affine, ExpertStack, FullAttention, Layer, LinearAttention, Matrix, Mixer, Moe, Weights};
