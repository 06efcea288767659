//! Runs the built command, always with a time limit.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that one run may take, in a debug build on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A path inside the repository.
pub fn repo(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The command, with an environment that the machine's own settings do not reach.
pub fn lily(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in [
        "LILY_MODEL",
        "LILY_HOST",
        "LILY_PORT",
        "LILY_API_KEY",
        "LILY_LOG_FORMAT",
        "NO_COLOR",
        "HF_HUB_CACHE",
        "HF_HOME",
    ] {
        command.env_remove(name);
    }
    command
}

/// What a finished run left behind.
#[derive(Debug)]
pub struct Done {
    /// Exit status; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Run to the end with `input` on standard input.
pub fn finish(mut command: Command, input: &str) -> Done {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // A command that never reads its input is fine.
    let writer = thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let out = collect(child.stdout.take().unwrap());
    let err = collect(child.stderr.take().unwrap());
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("still running after {LIMIT:?}: {command:?}");
        }
        thread::sleep(Duration::from_millis(5));
    };
    writer.join().unwrap();
    Done { code: status.code(), out: out.join().unwrap(), err: err.join().unwrap() }
}

/// Run with these arguments and no input.
pub fn run(args: &[&str]) -> Done {
    finish(lily(args), "")
}

fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    })
}

/// A copy of a checkpoint folder without the files named.
pub fn copy_without(folder: &str, left_out: &[&str]) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(repo(folder)).unwrap() {
        let entry = entry.unwrap();
        if !left_out.iter().any(|name| entry.file_name() == *name) {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}
