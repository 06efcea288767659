//! Token ids go in, a stream of text events comes out.
//!
//! - [`Engine`]: one thread owns the model; a bounded queue of [`Request`]s waits for it.
//! - [`Answer`]: the events of one request. Dropping it cancels the request, wherever it stands.
//! - [`Sampler`]: greedy and sampled choice of the next token (`docs/model.md §7.5`).
//! - [`Script`]: a model that answers with written-down tokens, for tests and for people who write clients.
//!
//! This room knows `lily-model` (the contract, not the device behind it) and `lily-chat` (the tokenizer and the output
//! state machine). It knows nothing of HTTP, of message lists and templates, or of checkpoints and devices.

mod adjust;
mod engine;
mod prefix;
mod queue;
mod request;
mod run;
mod sampler;
mod schedule;
mod script;
mod worker;

pub use adjust::Adjust;
pub use engine::{Answer, Canceller, Engine, EngineOptions};
pub use prefix::{DiskOptions, PrefixOptions};
pub use queue::{CacheUse, Load};
pub use request::{EngineError, Event, FinishReason, Finished, Progress, Request, SubmitError, Timings, Usage};
pub use sampler::{Sampler, SamplerError, SamplingParams};
pub use script::{Script, ScriptError, ScriptedModel};

#[cfg(test)]
mod tests;
