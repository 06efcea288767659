//! The command `lily`. It knows all the other rooms: it opens a checkpoint, chooses a device, gives both to an engine,
//! and the engine to a server or a terminal. Each subcommand is one file; [`cli`] holds what can be typed, [`load`]
//! the way from `--model` to a running model, [`session`] what `run` and `chat` share.
//!
//! Exit status: 0, 1 after an error, 2 for wrong usage, 130 when Ctrl-C stopped it.

mod ablate;
mod bench;
mod chat;
#[cfg(any(target_os = "macos", target_os = "linux", feature = "emulated"))]
mod checks;
mod cli;
mod count;
mod device;
mod doctor;
mod eval;
mod inspect;
mod interrupt;
mod keep;
mod load;
mod memory;
mod plan;
mod run;
mod serve;
mod session;
mod synthetic;
mod term;

use std::io::{ErrorKind, IsTerminal};
use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command, LogFormat};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = if cli.verbose { tracing::Level::DEBUG } else { tracing::Level::WARN };
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    match cli.log_format {
        LogFormat::Text => log.with_ansi(colour).init(),
        LogFormat::Json => log.json().init(),
    }
    let done = match cli.command {
        Command::Serve(args) => serve::serve(args).map(|()| ExitCode::SUCCESS),
        Command::Chat(args) => chat::chat(args),
        Command::Run(args) => run::run(args),
        Command::Inspect(args) => inspect::inspect(args).map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => bench::bench(args).map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Eval(args) => eval::eval(args).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        // The reader of a pipe has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error.root_cause().downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(ErrorKind::BrokenPipe)
}
