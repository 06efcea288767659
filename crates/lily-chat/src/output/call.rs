use super::arguments::{convert, escape};
use super::schema::Kind;
use super::{OutputEvent, OutputMachine, State, Step, may_become};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const FUNCTION: &str = "<function=";
const CLOSE: &str = "</tool_call>";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";
/// What may follow a function's head and a parameter.
const FOLLOW: [&str; 3] = [PARAMETER, END_FUNCTION, CLOSE];
/// Longest name of a function or parameter, and longest run of blanks inside markup, in bytes. A name that never ends is
/// no name, and must not keep the stream silent.
const LONGEST_NAME: usize = 256;

/// A tool call being read (`docs/model.md` §7.3).
#[derive(Debug)]
pub(super) struct Call {
    stage: Stage,
    /// Text of the call that has been consumed.
    raw: String,
    /// Began inside the reasoning; the newlines before it are kept here until it is certain to be a call.
    from_reasoning: Option<String>,
    wrapped: bool,
    index: usize,
    name: String,
    has_arguments: bool,
}

#[derive(Debug)]
enum Stage {
    /// Up to the end of `<function=NAME>`; nothing has been emitted.
    Head,
    /// Between parameters. `stray` says that text which doesn't belong here has been passed on.
    Between { stray: bool },
    /// Inside a parameter.
    Value(Parameter),
    /// Behind `</function>`: the call is whole.
    After,
}

#[derive(Debug)]
struct Parameter {
    kind: Kind,
    /// The newline behind `>` was looked for; whether it was there.
    newline: Option<bool>,
    /// Some of the value was read.
    begun: bool,
    /// The value so far, unless it is passed on at once.
    value: String,
}

impl Call {
    fn new(wrapped: bool, from_reasoning: Option<String>) -> Self {
        let raw = if wrapped { OPEN.to_owned() } else { String::new() };
        Self { stage: Stage::Head, raw, from_reasoning, wrapped, index: 0, name: String::new(), has_arguments: false }
    }

    pub(super) fn wrapped() -> Self {
        Self::new(true, None)
    }

    pub(super) fn bare() -> Self {
        Self::new(false, None)
    }

    pub(super) fn in_reasoning(newlines: String) -> Self {
        Self::new(true, Some(newlines))
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Between { .. } | Stage::Value(_))
    }

    pub(super) fn raw(&self) -> &str {
        &self.raw
    }

    /// Nothing of this call has been emitted, and it began inside the reasoning.
    pub(super) fn is_doubtful(&self) -> bool {
        matches!(self.stage, Stage::Head) && self.from_reasoning.is_some()
    }

    /// All of this call has been emitted.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.stage, Stage::After)
    }
}

/// The start of a call.
enum Head {
    Wait,
    None,
    /// The function's name and the bytes up to what follows the head.
    Function(String, usize),
}

/// Reads `NAME>` with what must come before and after it.
fn head(text: &str, last: bool) -> Head {
    let wait = |held: &str| if last || held.len() > LONGEST_NAME { Head::None } else { Head::Wait };
    let start = text.trim_start();
    let Some(named) = start.strip_prefix(FUNCTION) else {
        return if may_become(start, FUNCTION) { wait(text) } else { Head::None };
    };
    let name = match name(named) {
        Name::Wait => return wait(named),
        Name::None => return Head::None,
        Name::Is(name) => name,
    };
    let behind = &named[name.len() + 1..];
    let follow = behind.trim_start();
    if FOLLOW.iter().any(|tag| follow.starts_with(tag)) {
        Head::Function(name.to_owned(), text.len() - follow.len())
    } else if FOLLOW.iter().any(|tag| may_become(follow, tag)) {
        wait(behind)
    } else {
        Head::None
    }
}

enum Name<'t> {
    Wait,
    None,
    Is(&'t str),
}

/// The text before `>`.
fn name(text: &str) -> Name<'_> {
    match text.find(['>', '<', '\n']) {
        Some(end) if end > 0 && end <= LONGEST_NAME && text[end..].starts_with('>') => Name::Is(&text[..end]),
        Some(_) => Name::None,
        None if text.len() > LONGEST_NAME => Name::None,
        None => Name::Wait,
    }
}

impl OutputMachine {
    pub(super) fn read_call(&mut self, last: bool) -> Step {
        let State::Call(call) = &mut self.state else { return Step::Wait };
        match call.stage {
            Stage::Head => self.read_head(last),
            Stage::Between { .. } => self.read_between(last),
            Stage::Value(_) => self.read_value(last),
            Stage::After => self.read_after(last),
        }
    }

    /// The call that is being read; only called while there is one.
    fn call(&mut self) -> &mut Call {
        match &mut self.state {
            State::Call(call) => call,
            _ => unreachable!("only the steps of a call ask for it"),
        }
    }

    /// Moves `len` bytes of the pending text into the call.
    fn consume(&mut self, len: usize) -> String {
        let text: String = self.pending.drain(..len).collect();
        self.call().raw.push_str(&text);
        text
    }

    fn delta(&mut self, delta: String) {
        let index = self.call().index;
        self.emit(OutputEvent::ToolCallArguments { index, delta });
    }

    fn read_head(&mut self, last: bool) -> Step {
        match head(&self.pending, last) {
            Head::Wait => Step::Wait,
            // Without its wrapper only a declared name makes a call.
            Head::Function(name, len) if self.call().wrapped || self.schemas.knows(&name) => {
                self.consume(len);
                let index = self.calls;
                self.calls += 1;
                self.content.call_begins();
                let call = self.call();
                call.index = index;
                call.name.clone_from(&name);
                call.stage = Stage::Between { stray: false };
                if call.from_reasoning.take().is_some() {
                    self.close_expected = true;
                }
                self.emit(OutputEvent::ToolCallBegin { index, name });
                Step::Again
            }
            Head::Function(..) | Head::None => {
                self.leave_call();
                Step::Again
            }
        }
    }

    /// Goes back to where the call came from. What was read of a call that didn't begin is text again.
    pub(super) fn leave_call(&mut self) {
        let State::Call(call) = std::mem::replace(&mut self.state, State::Content) else { return };
        if matches!(call.stage, Stage::After) {
            return;
        }
        match call.from_reasoning {
            Some(newlines) => {
                self.state = State::Thinking;
                self.pending.insert_str(0, &(newlines + &call.raw));
                // This text is known to be no call, so a marker behind it finds nothing but held newlines.
                self.read_reasoning(false);
            }
            None => {
                self.pending.insert_str(0, &call.raw);
                self.content.refuse_call();
            }
        }
    }

    fn read_between(&mut self, last: bool) -> Step {
        let text = self.pending.as_str();
        // A tag, or the start of one at the end of the text.
        let tag = text.match_indices('<').find_map(|(at, _)| {
            let rest = &text[at..];
            if let Some(named) = rest.strip_prefix(PARAMETER) {
                return match name(named) {
                    Name::Is(_) => Some((at, true)),
                    Name::Wait => Some((at, false)),
                    Name::None => None,
                };
            }
            let whole = rest.starts_with(END_FUNCTION) || rest.starts_with(CLOSE);
            let part = FOLLOW.iter().any(|tag| may_become(rest, tag));
            (whole || part).then_some((at, whole))
        });
        let strayed = text[..tag.map_or(text.len(), |(at, _)| at)].trim_end().len();
        if strayed > 0 {
            // It belongs to nothing in a call, but the model wrote it and it is not lost.
            let text = self.consume(strayed);
            let Stage::Between { stray } = &mut self.call().stage else { return Step::Wait };
            let text = if std::mem::replace(stray, true) { text.as_str() } else { text.trim_start() }.to_owned();
            self.show_text(&text);
            return Step::Again;
        }
        match tag {
            Some((at, true)) => self.read_tag(at),
            _ if last => {
                // Blanks or half a tag at the end of a call that was cut off.
                self.consume(self.pending.len());
                Step::Wait
            }
            _ => Step::Wait,
        }
    }

    fn read_tag(&mut self, at: usize) -> Step {
        self.consume(at);
        if self.pending.starts_with(PARAMETER) {
            let end = self.pending.find('>').expect("a whole tag ends");
            let tag = self.consume(end + 1);
            let key = &tag[PARAMETER.len()..tag.len() - 1];
            let function = self.call().name.clone();
            let kind = self.schemas.kind(&function, key);
            let first = !std::mem::replace(&mut self.call().has_arguments, true);
            let quote = if kind == Kind::Text { "\"" } else { "" };
            self.delta(format!("{}\"{}\":{quote}", if first { "{" } else { "," }, escape(key)));
            self.call().stage = Stage::Value(Parameter { kind, newline: None, begun: false, value: String::new() });
            return Step::Again;
        }
        let end = if self.pending.starts_with(END_FUNCTION) { END_FUNCTION } else { CLOSE };
        self.consume(end.len());
        let call = self.call();
        let (index, brackets) = (call.index, if call.has_arguments { "}" } else { "{}" });
        call.stage = Stage::After;
        self.delta(brackets.to_owned());
        self.emit(OutputEvent::ToolCallEnd { index });
        self.content.call_ended();
        if end == CLOSE {
            self.leave_call();
        }
        Step::Again
    }

    fn read_after(&mut self, last: bool) -> Step {
        let rest = self.pending.trim_start();
        if rest.starts_with(CLOSE) {
            let len = self.pending.len() - rest.len() + CLOSE.len();
            self.pending.drain(..len);
        } else if may_become(rest, CLOSE) {
            if !last {
                return Step::Wait;
            }
            // The output ends within the closing tag.
            self.pending.clear();
        }
        self.leave_call();
        Step::Again
    }

    fn read_value(&mut self, last: bool) -> Step {
        if self.pending.is_empty() {
            if last {
                self.value_cut();
            }
            return Step::Wait;
        }
        let cut = self.pending.starts_with('\n');
        let Stage::Value(parameter) = &mut self.call().stage else { return Step::Wait };
        if parameter.newline.is_none() {
            parameter.newline = Some(cut);
            if cut {
                self.consume(1);
                return Step::Again;
            }
        }
        let empty = parameter.newline == Some(true) && !parameter.begun;
        let (len, end) = value_end(&self.pending, empty, last);
        if len > 0 {
            let text = self.consume(len);
            self.value_text(&text);
        }
        match end {
            Some(tag) => {
                self.consume(tag);
                self.value_ends();
                Step::Again
            }
            None if last => {
                self.value_cut();
                Step::Wait
            }
            None => Step::Wait,
        }
    }

    fn value_text(&mut self, text: &str) {
        let Stage::Value(parameter) = &mut self.call().stage else { return };
        parameter.begun = true;
        if parameter.kind == Kind::Text {
            self.delta(escape(text));
        } else {
            parameter.value.push_str(text);
        }
    }

    fn value_ends(&mut self) {
        let stage = std::mem::replace(&mut self.call().stage, Stage::Between { stray: false });
        let Stage::Value(parameter) = stage else { return };
        match parameter.kind {
            Kind::Text => self.delta("\"".into()),
            Kind::Typed(types) => self.delta(convert(&parameter.value, types)),
        }
    }

    /// The output ends inside a value: what was held of it comes out as it is.
    fn value_cut(&mut self) {
        let Stage::Value(parameter) = &mut self.call().stage else { return };
        let value = std::mem::take(&mut parameter.value);
        if !value.is_empty() {
            self.delta(value);
        }
    }
}

/// How many bytes of `text` certainly belong to the value, and the length of the closing tag (with its newline) behind
/// them if that is there.
///
/// `\n</parameter>` always closes. A `</parameter>` inside a line closes only if a tag of the call follows, because
/// values may contain any text; `empty` says that the newline behind `<parameter=…>` is all there was before `text`, so
/// that it serves both ends.
fn value_end(text: &str, empty: bool, last: bool) -> (usize, Option<usize>) {
    for (at, tag) in text.match_indices(END_PARAMETER) {
        if at == 0 && empty {
            return (0, Some(tag.len()));
        }
        if text[..at].ends_with('\n') {
            return (at - 1, Some(tag.len() + 1));
        }
        let follow = text[at + tag.len()..].trim_start();
        if FOLLOW.iter().any(|tag| follow.starts_with(tag)) {
            return (at, Some(tag.len()));
        }
        if FOLLOW.iter().any(|tag| may_become(follow, tag)) {
            return (at, last.then_some(tag.len()));
        }
    }
    if last {
        return (text.len(), None);
    }
    let held = text.char_indices().map(|(at, _)| at).find(|&at| {
        let rest = &text[at..];
        may_become(rest.strip_prefix('\n').unwrap_or(rest), END_PARAMETER)
    });
    (held.unwrap_or(text.len()), None)
}
