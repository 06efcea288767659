//! The API over real HTTP on loopback, with scripted answers in place of the model. Everything else is the real code.

mod answers;
mod choices;
mod errors;
mod leaving;
mod reuse;
mod server;
mod streams;
mod text;
