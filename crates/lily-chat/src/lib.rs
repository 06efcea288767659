//! Everything between a list of chat messages and token ids, and between token ids and what a person reads.
//!
//! On the way in: [`messages::normalise`] checks OpenAI-style messages, [`Template`] renders the checkpoint's own chat
//! template, and [`Chat::prompt`] encodes the result so that text from people and tools never becomes a control token.
//! On the way out: [`Utf8Stream`] joins bytes to characters, and [`OutputMachine`] is the one state machine for thinking,
//! content, tool calls and stop strings.
//!
//! This room knows no model, no device, no queue and no HTTP: tokens come in as numbers and leave as [`OutputEvent`]s.
//! The chat protocol it follows is `docs/model.md` §6 and §7.

mod error;
pub mod messages;
mod output;
mod prompt;
mod python_json;
mod template;
mod tokenizer;
mod utf8;

pub use error::ChatError;
pub use messages::MessageError;
pub use output::{Ended, OutputEvent, OutputMachine, OutputOptions};
pub use prompt::{Chat, Prompt};
pub use template::{PromptInput, Template};
pub use tokenizer::Tokenizer;
pub use utf8::Utf8Stream;
