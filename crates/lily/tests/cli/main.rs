//! The command, run as a person runs it.

mod command;
mod common;
mod memory;
mod terminal;
