//! The OpenAI-compatible HTTP API: `POST /v1/chat/completions`, `POST /v1/messages`, `GET /v1/models`, `POST /tokenize`,
//! `POST /detokenize`, `GET /health`, `GET /ready`, `GET /metrics` (`docs/api.md`).
//!
//! - [`App`]: what the API serves (engine, chat, names, defaults); [`router`] makes an axum router of it, and [`serve`]
//!   answers a listener until it is told to stop.
//! - A request is validated whole before anything is computed; each error names its field and arrives before any byte
//!   of a stream. Streamed and unstreamed answers come from the same events, so they are the same text.
//! - [`Access`]: who may ask (keys, `Host`, `Origin`); [`Limits`]: how long connections may keep the server waiting, and how
//!   many there may be.
//! - A client that leaves drops its [`lily_engine::Answer`], which frees the engine.
//!
//! This room knows `lily-engine` and `lily-chat`. It knows nothing of models, checkpoints or devices, opens no outgoing
//! connection, and writes no prompt text to its logs.

mod access;
mod answers;
mod app;
mod body;
mod chat;
mod error;
mod fields;
mod gate;
mod info;
mod job;
mod layout;
mod messages;
mod metrics;
mod names;
mod params;
mod recall;
mod reply;
mod request_log;
mod serve;
mod shape;
mod stream;
mod text;

pub use access::{Access, AccessError};
pub use app::{App, Limits, SamplingDefaults};
pub use names::ModelNames;
pub use serve::{router, serve};
