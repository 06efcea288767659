//! Drives an output machine with pieces of text and control tokens.

use lily_chat::{Ended, OutputEvent, OutputMachine, OutputOptions, Tokenizer};
use serde_json::{Value, json};

use super::Random;

/// What a model writes: text, cut into tokens in some way, and control tokens.
#[derive(Debug, Clone)]
pub enum Out {
    Text(Vec<u8>),
    Control(&'static str),
}

pub fn text(text: &str) -> Out {
    Out::Text(text.as_bytes().to_vec())
}

/// Splits at `[think]`-like words, which stand for control tokens: `[think]`, `[/think]`, `[call]`, `[/call]`, `[end]`,
/// `[start]`.
pub fn script(script: &str) -> Vec<Out> {
    const WORDS: [(&str, &str); 6] = [
        ("[think]", "<think>"),
        ("[/think]", "</think>"),
        ("[call]", "<tool_call>"),
        ("[/call]", "</tool_call>"),
        ("[end]", "<|im_end|>"),
        ("[start]", "<|im_start|>"),
    ];
    let (mut out, mut rest) = (Vec::new(), script);
    while !rest.is_empty() {
        let next = WORDS.iter().filter_map(|(word, token)| Some((rest.find(word)?, *word, *token))).min();
        let Some((at, word, token)) = next else { break };
        out.extend([text(&rest[..at]), Out::Control(token)]);
        rest = &rest[at + word.len()..];
    }
    out.push(text(rest));
    out
}

#[derive(Debug, Default, Clone, PartialEq)]
pub struct Call {
    pub name: String,
    pub arguments: String,
    pub whole: bool,
}

#[derive(Debug, Default, Clone, PartialEq)]
pub struct Answer {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<Call>,
    pub ended: Option<Ended>,
    pub unfinished: Option<String>,
}

impl Answer {
    pub fn add(&mut self, events: Vec<OutputEvent>) {
        for event in events {
            match event {
                OutputEvent::Reasoning(more) => {
                    assert!(!more.is_empty());
                    self.reasoning += &more;
                }
                OutputEvent::Content(more) => {
                    assert!(!more.is_empty());
                    self.content += &more;
                }
                OutputEvent::ToolCallBegin { index, name } => {
                    assert_eq!(index, self.calls.len());
                    self.calls.push(Call { name, ..Call::default() });
                }
                OutputEvent::ToolCallArguments { index, delta } => {
                    assert!(index + 1 == self.calls.len() && !self.calls[index].whole);
                    self.calls[index].arguments += &delta;
                }
                OutputEvent::ToolCallEnd { index } => {
                    let arguments = &self.calls[index].arguments;
                    let value: Value = serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{e}: {arguments}"));
                    assert!(value.is_object());
                    self.calls[index].whole = true;
                }
            }
        }
    }
}

pub fn options(thinking: bool, stop: &[&str], tools: &[Value]) -> OutputOptions {
    let stop = stop.iter().map(|s| (*s).to_owned()).collect();
    OutputOptions { thinking, stop, tools: tools.to_vec(), eos: Vec::new() }
}

/// How text becomes tokens.
pub enum Cut<'r> {
    Whole,
    Bytes,
    Random(&'r mut Random),
}

pub fn run(base: &Tokenizer, options: &OutputOptions, outs: &[Out], mut cut: Cut<'_>) -> Answer {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let mut tokens: Vec<Result<usize, u32>> = Vec::new();
    for out in outs {
        match out {
            Out::Control(token) => tokens.push(Err(base.added_id(token).unwrap())),
            Out::Text(bytes) => {
                let mut rest = bytes.as_slice();
                while !rest.is_empty() {
                    let len = match &mut cut {
                        Cut::Whole => rest.len(),
                        Cut::Bytes => 1,
                        Cut::Random(random) => 1 + random.below(rest.len().min(7)),
                    };
                    tokens.push(Ok(pieces.len()));
                    pieces.push(rest[..len].to_vec());
                    rest = &rest[len..];
                }
            }
        }
    }
    let (tokenizer, ids) = base.with_pieces(&pieces);
    let options = OutputOptions { eos: vec![base.added_id("<|im_end|>").unwrap()], ..options.clone() };
    let mut machine = OutputMachine::new(&tokenizer, options);
    let mut answer = Answer::default();
    for token in tokens {
        answer.add(machine.push(token.map_or_else(|id| id, |piece| ids[piece])));
    }
    answer.add(machine.finish());
    assert_eq!(machine.tool_calls(), answer.calls.len());
    answer.ended = machine.ended();
    answer.unfinished = machine.unfinished_call().map(str::to_owned);
    answer
}

/// Runs a script whole, byte by byte and cut at random, and checks that all give the same.
pub fn all_cuts(base: &Tokenizer, options: &OutputOptions, outs: &[Out]) -> Answer {
    let whole = run(base, options, outs, Cut::Whole);
    assert_eq!(run(base, options, outs, Cut::Bytes), whole, "byte by byte: {outs:?}");
    for seed in 0..8 {
        let answer = run(base, options, outs, Cut::Random(&mut Random(seed)));
        assert_eq!(answer, whole, "seed {seed}: {outs:?}");
    }
    whole
}

/// A tool with parameters of all types.
pub fn tool() -> Value {
    json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": "boolean"}, "o": {"type": "object"},
        "a": {"type": "array"}, "m": {"type": ["string", "null"]}}}}})
}
