//! The model on any CPU.
//!
//! - [`Oracle`]: every formula of `docs/model.md §4` in plain F32, one after another, easy to read beside the text.
//!   Everything faster in this project is tested against it.
//! - [`oracle::chunked`]: the chunk-parallel delta rule (`docs/model.md §4.5`), a second oracle for the GPU kernels.
//! - [`Fast`]: the same model on all cores, with SIMD on the quantised weights, chosen at run time.
//! - [`Local`]: turns either into a [`lily_model::Model`].
//!
//! This room knows `lily-model` and `lily-checkpoint`. It does not know tokenizers, chat, sampling or HTTP.

mod fast;
mod local;
pub mod oracle;
#[cfg(test)]
mod testing;

#[doc(hidden)]
pub use fast::bench;
pub use fast::{Bf16, Fast, Isa, KvElement, Q8};
pub use local::{Forward, Local};
pub use oracle::Oracle;
