//! Ctrl-C stops the answer that is being written, and the program where there is none.

use tokio::sync::watch;

/// Exit status of a program that Ctrl-C stopped.
pub const INTERRUPTED: u8 = 130;

/// Listens for Ctrl-C.
pub struct Interrupt(watch::Sender<()>);

impl Interrupt {
    /// Take Ctrl-C over for the rest of the program. Call inside a runtime with a thread to spare.
    pub fn listen() -> Self {
        let (sender, _) = watch::channel(());
        let pressed = sender.clone();
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                if pressed.receiver_count() == 0 {
                    eprintln!();
                    std::process::exit(i32::from(INTERRUPTED));
                }
                pressed.send_replace(());
            }
        });
        Self(sender)
    }

    /// As long as the returned receiver lives, Ctrl-C changes it and does not end the program.
    pub fn catch(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}
