//! The API over real HTTP on loopback, with scripted answers in place of the model. Everything else is the real code.

mod access;
mod agents;
mod answers;
mod bug_log;
mod choices;
mod errors;
mod leaving;
mod messages;
mod metrics;
mod reuse;
mod server;
mod soak;
mod streams;
mod text;
