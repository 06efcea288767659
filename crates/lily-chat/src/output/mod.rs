//! The output state machine: generated tokens in, reasoning, content and tool calls out.
//!
//! It is one machine because the parts depend on each other: stop strings count in content only, a call ends the
//! reasoning, whitespace around markers belongs to the markers, and whatever is held back must come out the same way as
//! everything else. What it does never depends on how text is cut into tokens; only the think markers, and a call that
//! starts inside the reasoning, are known by their token ids, since a model that quotes a user's `</think>` spells it in
//! ordinary tokens.

mod arguments;
mod call;
mod content;
mod schema;

use serde_json::Value;

use crate::{Tokenizer, Utf8Stream};
use call::Call;
use content::Content;
use schema::ToolSchemas;

/// How an [`OutputMachine`] reads its tokens.
#[derive(Debug, Clone, Default)]
pub struct OutputOptions {
    /// The output starts inside the reasoning: [`crate::Prompt::starts_in_thinking`].
    pub thinking: bool,
    /// Stop strings, matched in content only. Empty strings are ignored.
    pub stop: Vec<String>,
    /// The tools that the prompt declared. With none, tool markup is plain content.
    pub tools: Vec<Value>,
    /// Ids that end the output (`docs/model.md` §6.3).
    pub eos: Vec<u32>,
}

/// A piece of the output, in order. Consecutive pieces of the same kind are to be joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Reasoning, without its markers and the newlines next to them.
    Reasoning(String),
    /// Visible text.
    Content(String),
    /// A tool call starts; its head was well-formed.
    ToolCallBegin {
        /// Counts calls from 0.
        index: usize,
        /// The function's name as the model wrote it.
        name: String,
    },
    /// More of the call's arguments: the deltas of a call join to one JSON object, if the call ends.
    ToolCallArguments {
        /// The call.
        index: usize,
        /// A piece of JSON text.
        delta: String,
    },
    /// The call is whole. A call without this event was cut off, and its arguments are not valid JSON.
    ToolCallEnd {
        /// The call.
        index: usize,
    },
}

/// Why generation must stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The model wrote an end token.
    Eos,
    /// This stop string was written.
    StopString(String),
}

/// Reads generated tokens; see [`OutputOptions`] and [`OutputEvent`].
#[derive(Debug)]
pub struct OutputMachine {
    tokenizer: Tokenizer,
    eos: Vec<u32>,
    stop: Vec<String>,
    schemas: ToolSchemas,
    think: Option<u32>,
    end_think: Option<u32>,
    tool_call: Option<u32>,
    utf8: Utf8Stream,
    /// Text whose meaning is not known yet.
    pending: String,
    state: State,
    /// A block of reasoning has been begun; there is at most one.
    thought: bool,
    /// The reasoning was ended by a tool call, so a `</think>` may still come and means nothing.
    close_expected: bool,
    reasoning_started: bool,
    content: Content,
    calls: usize,
    reasoning_tokens: usize,
    ended: Option<Ended>,
    events: Vec<OutputEvent>,
}

#[derive(Debug)]
enum State {
    Thinking,
    Content,
    Call(Call),
}

/// What a step over the pending text came to.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// More text is needed.
    Wait,
    /// The state changed; the rest of the pending text is to be read again.
    Again,
}

impl OutputMachine {
    /// A machine at the start of an answer.
    pub fn new(tokenizer: &Tokenizer, options: OutputOptions) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            eos: options.eos,
            stop: options.stop.into_iter().filter(|s| !s.is_empty()).collect(),
            schemas: ToolSchemas::new(&options.tools),
            think: tokenizer.added_id("<think>"),
            end_think: tokenizer.added_id("</think>"),
            tool_call: tokenizer.added_id(call::OPEN),
            utf8: Utf8Stream::new(),
            pending: String::new(),
            state: if options.thinking { State::Thinking } else { State::Content },
            thought: options.thinking,
            close_expected: false,
            reasoning_started: false,
            content: Content::default(),
            calls: 0,
            reasoning_tokens: 0,
            ended: None,
            events: Vec::new(),
        }
    }

    /// Takes the next generated token, an end token included, and says what it made known. After the end, nothing.
    pub fn push(&mut self, id: u32) -> Vec<OutputEvent> {
        if self.ended.is_some() {
            return Vec::new();
        }
        if matches!(self.state, State::Thinking) {
            self.reasoning_tokens += 1;
        }
        if self.eos.contains(&id) {
            let events = self.finish();
            self.ended.get_or_insert(Ended::Eos);
            return events;
        }
        if self.tokenizer.is_added(id) {
            // A control token is no part of a character: what is held can't become whole any more.
            self.utf8.finish(&mut self.pending);
            self.advance(false);
            if self.ended.is_none() && !self.tokenizer.is_special(id) {
                self.marker(id);
            }
        } else if let Some(bytes) = self.tokenizer.token_bytes(id) {
            self.utf8.push(bytes, &mut self.pending);
        }
        self.advance(false);
        std::mem::take(&mut self.events)
    }

    /// Ends the output at a length limit or a cancellation: everything held back comes out, bytes of an unfinished
    /// character as U+FFFD. A call whose head was complete stays without its [`OutputEvent::ToolCallEnd`]; what looked
    /// like the start of a call becomes content.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        if self.ended.is_none() {
            self.utf8.finish(&mut self.pending);
            self.advance(true);
            self.flush_content();
        }
        std::mem::take(&mut self.events)
    }

    /// Why generation must stop, once it must.
    pub fn ended(&self) -> Option<Ended> {
        self.ended.clone()
    }

    /// Tokens read inside the reasoning, its closing marker included.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Tool calls begun.
    pub fn tool_calls(&self) -> usize {
        self.calls
    }

    /// Whether the next token is read as reasoning.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Thinking)
    }

    /// The text, as the model wrote it, of a call that was begun but is not whole; after [`Self::finish`], of the call
    /// that was cut off.
    pub fn unfinished_call(&self) -> Option<&str> {
        match &self.state {
            State::Call(call) if call.is_open() => Some(call.raw()),
            _ => None,
        }
    }

    /// A token that the tokenizer knows as an added one and that is not special.
    fn marker(&mut self, id: u32) {
        let is = |other: Option<u32>| other == Some(id);
        // A call that began inside the reasoning and turns out to be none must not swallow the next marker, nor must the
        // end of a whole one swallow the end of the reasoning.
        let thinks = is(self.think) || is(self.end_think);
        if matches!(&self.state, State::Call(call) if call.is_doubtful() || thinks && call.is_whole()) {
            self.leave_call();
        }
        match self.state {
            State::Thinking if is(self.end_think) => return self.close_thinking(),
            State::Thinking if is(self.think) && !self.reasoning_started => return,
            State::Thinking if is(self.tool_call) && !self.schemas.is_empty() => {
                self.state = State::Call(Call::in_reasoning(std::mem::take(&mut self.pending)));
                return;
            }
            State::Content if is(self.end_think) && (self.close_expected || self.may_think()) => {
                return self.close_thinking();
            }
            State::Content if is(self.think) && self.may_think() => {
                self.pending.clear();
                self.content = Content::default();
                self.state = State::Thinking;
                self.thought = true;
                return;
            }
            _ => {}
        }
        let text = self.tokenizer.token_bytes(id).map(String::from_utf8_lossy).unwrap_or_default();
        self.pending.push_str(&text);
    }

    /// Whether a block of reasoning may still begin: nothing but whitespace has been written.
    fn may_think(&self) -> bool {
        !self.thought && self.calls == 0 && self.content.is_blank() && self.pending.trim().is_empty()
    }

    fn close_thinking(&mut self) {
        // What is pending here are the newlines before the marker, or blanks before a stray one.
        if !self.close_expected {
            self.pending.clear();
            self.content = Content::after_marker();
        }
        self.close_expected = false;
        self.thought = true;
        self.state = State::Content;
    }

    /// Reads the pending text as far as its meaning is certain; with `last`, all of it.
    fn advance(&mut self, last: bool) {
        loop {
            let step = match self.state {
                State::Thinking => self.read_reasoning(last),
                State::Content => self.read_content(last),
                State::Call(_) => self.read_call(last),
            };
            if step == Step::Wait || self.ended.is_some() {
                break;
            }
        }
    }

    fn read_reasoning(&mut self, last: bool) -> Step {
        if !self.reasoning_started {
            let newlines = self.pending.len() - self.pending.trim_start_matches('\n').len();
            self.pending.drain(..newlines);
        }
        let known = if last { self.pending.len() } else { self.pending.trim_end_matches('\n').len() };
        if known > 0 {
            self.reasoning_started = true;
            let text = self.pending.drain(..known).collect();
            self.emit(OutputEvent::Reasoning(text));
        }
        Step::Wait
    }

    /// Adds an event, joined to the one before where both are pieces of the same thing.
    fn emit(&mut self, event: OutputEvent) {
        use OutputEvent::{Content, Reasoning, ToolCallArguments};
        match (self.events.last_mut(), &event) {
            (Some(Reasoning(text)), Reasoning(more)) | (Some(Content(text)), Content(more)) => text.push_str(more),
            (Some(ToolCallArguments { index, delta }), ToolCallArguments { index: same, delta: more })
                if index == same =>
            {
                delta.push_str(more);
            }
            _ => self.events.push(event),
        }
    }
}

/// Whether `text`, which ends here for now, may still become `whole` (or already is longer and begins with it).
fn may_become(text: &str, whole: &str) -> bool {
    text.len() < whole.len() && whole.starts_with(text)
}
