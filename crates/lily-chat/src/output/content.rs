use super::call::{self, Call};
use super::{Ended, OutputEvent, OutputMachine, State, Step, may_become};

/// What is known about the visible text so far.
#[derive(Debug, Default)]
pub(super) struct Content {
    started: bool,
    /// Newlines at the start belong to the marker before.
    trim: bool,
    /// Whitespace that may turn out to belong to a marker behind it.
    held: String,
    /// Only whitespace has come since the last call.
    after_call: bool,
    /// The character before the pending text, if there is one.
    before: Option<char>,
    /// The pending text begins with what looked like a call and is none.
    no_call_here: bool,
}

impl Content {
    pub(super) fn after_marker() -> Self {
        Self { trim: true, ..Self::default() }
    }

    pub(super) fn is_blank(&self) -> bool {
        !self.started
    }

    /// A call begins: the whitespace before it belongs to its markup.
    pub(super) fn call_begins(&mut self) {
        self.held.clear();
    }

    /// A call is over.
    pub(super) fn call_ended(&mut self) {
        self.after_call = true;
        self.trim = !self.started;
        self.before = None;
    }

    pub(super) fn refuse_call(&mut self) {
        self.no_call_here = true;
    }
}

/// What lies first in the pending text.
enum Found {
    /// `<tool_call>` at this byte.
    Wrapped(usize),
    /// `<function=` of a declared tool at this byte, without its wrapper.
    Bare(usize),
    /// A stop string at this byte, by its number.
    Stop(usize, usize),
    /// Something at this byte that may become one of these.
    Undecided(usize),
    Nothing,
}

impl OutputMachine {
    pub(super) fn read_content(&mut self, last: bool) -> Step {
        match self.find(last) {
            Found::Wrapped(at) => {
                self.show(at);
                self.pending.drain(..call::OPEN.len());
                self.state = State::Call(Call::wrapped());
                Step::Again
            }
            Found::Bare(at) => {
                self.show(at);
                self.state = State::Call(Call::bare());
                Step::Again
            }
            Found::Stop(at, number) => {
                self.show(at);
                self.pending.clear();
                self.flush_content();
                self.ended = Some(Ended::StopString(self.stop[number].clone()));
                Step::Wait
            }
            Found::Undecided(at) => {
                self.show(at);
                Step::Wait
            }
            Found::Nothing => {
                self.show(self.pending.len());
                Step::Wait
            }
        }
    }

    /// The leftmost tag or stop string; of stop strings that begin at the same place, the longest.
    fn find(&self, last: bool) -> Found {
        let text = self.pending.as_str();
        let tools = !self.schemas.is_empty();
        let mut before = self.content.before;
        for (at, c) in text.char_indices() {
            let rest = &text[at..];
            if tools && c == '<' && !(at == 0 && self.content.no_call_here) {
                let line_start = before.is_none_or(|c| c == '\n');
                if rest.starts_with(call::OPEN) {
                    return Found::Wrapped(at);
                }
                if line_start && rest.starts_with(call::FUNCTION) {
                    return Found::Bare(at);
                }
                if !last && (may_become(rest, call::OPEN) || line_start && may_become(rest, call::FUNCTION)) {
                    return Found::Undecided(at);
                }
            }
            if !last && self.stop.iter().any(|stop| may_become(rest, stop)) {
                return Found::Undecided(at);
            }
            let whole = self.stop.iter().enumerate().filter(|(_, stop)| rest.starts_with(stop.as_str()));
            if let Some((number, _)) = whole.max_by_key(|(_, stop)| stop.len()) {
                return Found::Stop(at, number);
            }
            before = Some(c);
        }
        Found::Nothing
    }

    /// The first `len` bytes of the pending text are content.
    fn show(&mut self, len: usize) {
        if len == 0 {
            return;
        }
        let text: String = self.pending.drain(..len).collect();
        self.content.no_call_here = false;
        self.content.before = text.chars().next_back();
        self.show_text(&text);
    }

    /// Emits content, but for whitespace that may yet belong to a marker.
    pub(super) fn show_text(&mut self, text: &str) {
        let content = &mut self.content;
        content.held.push_str(text);
        if content.trim && !content.started {
            let newlines = content.held.len() - content.held.trim_start_matches('\n').len();
            content.held.drain(..newlines);
        }
        let known =
            if content.started && self.schemas.is_empty() { content.held.len() } else { content.held.trim_end().len() };
        if known > 0 {
            content.started = true;
            content.after_call = false;
            let shown = content.held.drain(..known).collect();
            self.emit(OutputEvent::Content(shown));
        }
    }

    /// Whitespace at the very end of the output is content, unless a call was the last thing.
    pub(super) fn flush_content(&mut self) {
        let held = std::mem::take(&mut self.content.held);
        if !held.is_empty() && !self.content.after_call && !matches!(self.state, State::Call(_)) {
            self.emit(OutputEvent::Content(held));
        }
    }
}
