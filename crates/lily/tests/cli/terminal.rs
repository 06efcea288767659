//! `lily chat` in a terminal: line editing, dimmed reasoning, Ctrl-C.
#![cfg(all(unix, feature = "demo"))]

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{LIMIT, copy_without, lily};
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const DIM: &str = "\x1b[2m";

/// A command that believes it runs in a terminal.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// Everything that was shown so far.
    shown: String,
    /// Up to where [`Terminal::wait_for`] has read it.
    read: usize,
}

impl Terminal {
    fn start(mut command: Command) -> Self {
        let pty = openpty(None, None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm").spawn().unwrap();
        // The command holds copies of its own end; dropping them here lets the screen end with the program.
        drop(command);
        drop(pty.slave);
        let keyboard = File::from(pty.master);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, screen) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keyboard, screen, shown: String::new(), read: 0 }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// What was shown since the last wait, up to and including `text`.
    fn wait_for(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(at) = self.shown[self.read..].find(text) {
                let until = self.read + at + text.len();
                let new = self.shown[self.read..until].to_owned();
                self.read = until;
                return new;
            }
            let left = LIMIT.saturating_sub(start.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(e) => panic!("{e} while waiting for {text:?}; the screen shows:\n{}", self.shown),
            }
        }
    }

    fn interrupt(&self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).unwrap();
    }

    fn status(mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < LIMIT, "the program does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

#[test]
fn reasoning_is_dimmed_and_the_answer_is_not() {
    let mut terminal = Terminal::start(lily(&["chat", "--greedy"]));
    terminal.wait_for("> ");
    terminal.press("Who are you?\r");
    terminal.wait_for(DIM);
    assert!(terminal.wait_for("\x1b[0m").len() > 10, "there is reasoning between the two");
    terminal.wait_for("> ");
    terminal.press("/quit\r");
    assert_eq!(terminal.status(), Some(0));
}

#[test]
fn no_color_is_respected() {
    let mut command = lily(&["chat", "--greedy"]);
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::start(command);
    terminal.wait_for("> ");
    terminal.press("Who are you?\r");
    terminal.wait_for("[thinking] ");
    terminal.wait_for("[/thinking]");
    terminal.wait_for("> ");
    assert!(!terminal.shown.contains(DIM), "{}", terminal.shown);
    terminal.press("\x04"); // Ctrl-D
    assert_eq!(terminal.status(), Some(0));
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    // Without its end token the model talks until the context is full.
    let endless = copy_without("demo/4bit", &["generation_config.json"]);
    std::fs::write(endless.path().join("generation_config.json"), r#"{"eos_token_id": [8191]}"#).unwrap();
    let folder = endless.path().to_str().unwrap();
    let mut terminal = Terminal::start(lily(&["chat", "--greedy", "--no-thinking", "--model", folder]));
    terminal.wait_for("> ");
    terminal.press("Hello!\r");
    terminal.wait_for("How can I");
    terminal.interrupt();
    terminal.wait_for("(stopped)");
    terminal.wait_for("> ");

    terminal.press("\x03");
    terminal.wait_for("Ctrl-C again leaves.");
    terminal.wait_for("> ");
    terminal.press("/think\r");
    terminal.wait_for("Thinking is off.");
    terminal.wait_for("> ");
    terminal.press("\x03");
    terminal.wait_for("Ctrl-C again leaves.");
    terminal.wait_for("> ");
    terminal.press("\x03");
    assert_eq!(terminal.status(), Some(130));
}
