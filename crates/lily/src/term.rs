//! What goes to the terminal: dimmed text, and the loading bar.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Escape sequences, or nothing where they are not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Begin text that matters less.
    pub dim: &'static str,
    /// Back to normal.
    pub reset: &'static str,
}

impl Style {
    const PLAIN: Self = Self { dim: "", reset: "" };
    const ANSI: Self = Self { dim: "\x1b[2m", reset: "\x1b[0m" };

    /// Styled only for a terminal that understands it, and never under `NO_COLOR` (<https://no-color.org>).
    pub fn of(stream: &impl IsTerminal) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if stream.is_terminal() && !set("NO_COLOR") && !dumb { Self::ANSI } else { Self::PLAIN }
    }

    /// Whether nothing is styled.
    pub fn is_plain(self) -> bool {
        self == Self::PLAIN
    }
}

/// A spinner on standard error that says what is going on and vanishes when it is dropped. Not drawn where standard
/// error is no terminal.
pub struct Progress(ProgressBar);

impl Progress {
    /// Begin with `message`.
    pub fn start(message: impl Into<String>) -> Self {
        let bar = ProgressBar::new_spinner().with_message(message.into());
        bar.set_style(ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect("a constant template"));
        if std::io::stderr().is_terminal() {
            bar.enable_steady_tick(Duration::from_millis(100));
        } else {
            bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        }
        Self(bar)
    }

    /// Turn the spinner into a bar: `done` of `total`.
    pub fn count(&self, done: u64, total: u64) {
        self.bar(done, total, "{msg} [{bar:30}] {pos}/{len} {eta}");
    }

    /// Turn the spinner into a bar: `done` of `total` bytes.
    pub fn bytes(&self, done: u64, total: u64) {
        self.bar(done, total, "{msg} [{bar:30}] {bytes}/{total_bytes} {eta}");
    }

    fn bar(&self, done: u64, total: u64, template: &str) {
        if self.0.length() != Some(total) {
            let style = ProgressStyle::with_template(template).expect("a constant template");
            self.0.set_style(style.progress_chars("=> "));
            self.0.set_length(total);
        }
        self.0.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Text that the model wrote, fit for a terminal: control characters, which could move the cursor or worse, become
/// visible. Pipes (`plain`) get what the model wrote.
pub fn printable(text: &str, plain: bool) -> Cow<'_, str> {
    let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    if plain || text.chars().all(harmless) {
        return text.into();
    }
    text.chars().map(|c| if harmless(c) { c } else { char::REPLACEMENT_CHARACTER }).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(printable("a\n\tb", false), "a\n\tb");
        assert_eq!(printable("\x1b[2Jx\u{9b}y\r", false), "\u{fffd}[2Jx\u{fffd}y\u{fffd}");
        assert_eq!(printable("\x1b[2J", true), "\x1b[2J");
    }
}
