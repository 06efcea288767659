//! Ctrl-C stops the answer that is being written, and the program where there is none.

use anyhow::{Context, Result};
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
#[cfg(windows)]
use tokio::signal::windows::ctrl_c;
use tokio::sync::watch;

/// Exit status of a program that Ctrl-C stopped.
pub const INTERRUPTED: u8 = 130;

/// Listens for Ctrl-C.
pub struct Interrupt(watch::Sender<()>);

impl Interrupt {
    /// Take Ctrl-C over for the rest of the program. Call inside a runtime with a thread to spare.
    pub fn listen() -> Result<Self> {
        #[cfg(unix)]
        let keys = signal(SignalKind::interrupt());
        #[cfg(windows)]
        let keys = ctrl_c();
        let mut keys = keys.context("cannot listen for Ctrl-C")?;
        let (sender, _) = watch::channel(());
        let pressed = sender.clone();
        tokio::spawn(async move {
            while keys.recv().await.is_some() {
                if pressed.receiver_count() == 0 {
                    eprintln!();
                    std::process::exit(i32::from(INTERRUPTED));
                }
                pressed.send_replace(());
            }
        });
        Ok(Self(sender))
    }

    /// As long as the returned receiver lives, Ctrl-C changes it and does not end the program.
    pub fn catch(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}
