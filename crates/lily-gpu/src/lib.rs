//! The model on a GPU.
//!
//! - [`Gpu`]: buffers, named kernels, command buffers; [`device`] holds what implements it: Metal, CUDA, and the same
//!   kernels emulated on the CPU (feature `emulated`).
//! - [`GpuModel`]: the model as the engine sees it; [`program`](mod@program) is the layer program behind it.
//! - [`kernels`]: one `.metal` beside the `.rs` that dispatches it and checks shapes, named by what it does.
//! - [`msl`]: the source pass: kernel signatures, and the kernels for other compilers.
//! - [`ablate`](mod@ablate): the program without one of its ideas, to measure what the idea brings.
//! - [`args`]: argument structs, one definition for host and shader.
//! - [`count`]: dispatches and bytes beside the least bytes possible.
//!
//! This room knows `lily-model` and `lily-checkpoint`. It does not know tokenizers, chat, sampling or HTTP. What has run
//! where is in `docs/metal.md`.

pub mod ablate;
pub mod args;
mod check;
pub mod count;
pub mod device;
mod footprint;
mod gpu;
pub mod kernels;
mod model;
pub mod msl;
pub mod program;
mod shader;
#[cfg(all(test, feature = "emulated"))]
mod testing;
mod weights;

pub use check::{check, program};
pub use footprint::footprint;
pub use gpu::{Arg, Contents, Dispatched, Finished, Gpu, GpuError, Launch, Ticket, Traffic, check_range};
pub use model::GpuModel;
pub use program::Options;
pub use shader::{ablate_source, is_ablate, is_mma, is_tensor, mma_source, source, tensor_source};
