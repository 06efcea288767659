//! A model that answers with written-down tokens: `lily serve --script FILE.jsonl`.
//!
//! Line k answers request k, the last line repeats:
//! `{"pieces": ["The ", {"bytes": [240, 159]}, {"token": "</think>"}], "delay_ms": 0, "prefill_ms": 0,
//! "fail_after": null, "end": "eos"}`. Only the model is scripted; template, queue, sampler masks, detokenizer, output
//! machine, usage and cancellation are those of every other model.

mod model;

use lily_chat::Tokenizer;
use serde_json::{Map, Value};

pub use model::ScriptedModel;

/// Why a script was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("script line {line}: {field}: {message}")]
pub struct ScriptError {
    /// Line of the file, from 1.
    pub line: usize,
    /// Field of the line, as `pieces[2].bytes`; `line` for the line itself.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

/// What ends a scripted answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// An end token after the pieces.
    Eos,
    /// Nothing: the pieces repeat until `max_tokens`.
    Length,
}

/// One token to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Bytes(Vec<u8>),
    Added(String),
}

#[derive(Clone, Debug)]
struct Line {
    /// Line of the file, for errors.
    number: usize,
    pieces: Vec<Piece>,
    delay_ms: u64,
    prefill_ms: u64,
    fail_after: Option<usize>,
    end: End,
}

/// A parsed script.
#[derive(Clone, Debug)]
pub struct Script {
    lines: Vec<Line>,
}

impl Script {
    /// Parse JSON lines; blank lines are skipped.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let lines: Vec<Line> = lines.map(|(i, line)| Line::parse(i + 1, line)).collect::<Result<_, _>>()?;
        if lines.is_empty() {
            let message = "the script has no lines; write one JSON object for each request".into();
            return Err(ScriptError { line: 1, field: "line".into(), message });
        }
        Ok(Self { lines })
    }

    /// The model that plays the script, and the tokenizer that knows its pieces: `tokenizer` with one more token for
    /// each piece that is none yet. `eos` ends answers whose `end` is `eos`; `context` is what the model claims to
    /// hold.
    ///
    /// # Errors
    /// When a `token` names no added token of `tokenizer`.
    pub fn model(
        &self,
        tokenizer: &Tokenizer,
        eos: u32,
        context: usize,
    ) -> Result<(ScriptedModel, Tokenizer), ScriptError> {
        let bytes: Vec<Vec<u8>> = self.lines.iter().flat_map(|l| &l.pieces).filter_map(Piece::bytes).collect();
        let (tokenizer, ids) = tokenizer.with_pieces(&bytes);
        let mut ids = ids.into_iter();
        let mut answers = Vec::new();
        for line in &self.lines {
            let mut tokens = Vec::new();
            for (i, piece) in line.pieces.iter().enumerate() {
                let error = |message: String| ScriptError { line: line.number, field: format!("pieces[{i}]"), message };
                tokens.push(match piece {
                    Piece::Bytes(_) => ids.next().ok_or_else(|| error("could not be made a token".into()))?,
                    Piece::Added(name) => tokenizer
                        .added_id(name)
                        .ok_or_else(|| error(format!("{name:?} is no added token of this tokenizer")))?,
                });
            }
            answers.push(model::ScriptedAnswer::new(line, tokens, eos));
        }
        Ok((ScriptedModel::new(answers, tokenizer.len(), context), tokenizer))
    }
}

impl Piece {
    fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Some(bytes.clone()),
            Self::Added(_) => None,
        }
    }

    fn parse(value: &Value) -> Result<Self, String> {
        const FORMS: &str = "must be a string, {\"bytes\": [0-255, …]} or {\"token\": \"NAME\"}";
        let piece = match value {
            Value::String(text) => Self::Bytes(text.clone().into_bytes()),
            Value::Object(map) if map.len() == 1 => match (map.get("bytes"), map.get("token")) {
                (Some(Value::Array(bytes)), _) => {
                    let bytes = bytes.iter().map(|b| b.as_u64().and_then(|b| u8::try_from(b).ok()));
                    Self::Bytes(bytes.collect::<Option<_>>().ok_or("bytes must be integers from 0 to 255")?)
                }
                (_, Some(Value::String(name))) => Self::Added(name.clone()),
                _ => return Err(FORMS.into()),
            },
            _ => return Err(FORMS.into()),
        };
        match &piece {
            Self::Bytes(bytes) if bytes.is_empty() => Err("must not be empty".into()),
            _ => Ok(piece),
        }
    }
}

impl Line {
    fn parse(number: usize, text: &str) -> Result<Self, ScriptError> {
        let error = |field: &str, message: String| ScriptError { line: number, field: field.into(), message };
        let map: Map<String, Value> =
            serde_json::from_str(text).map_err(|e| error("line", format!("is no JSON object: {e}")))?;
        const FIELDS: [&str; 5] = ["pieces", "delay_ms", "prefill_ms", "fail_after", "end"];
        if let Some(unknown) = map.keys().find(|k| !FIELDS.contains(&k.as_str())) {
            return Err(error(unknown, format!("is no field of a script line; there are {}", FIELDS.join(", "))));
        }
        let Some(Value::Array(pieces)) = map.get("pieces") else {
            return Err(error("pieces", "must be an array".into()));
        };
        let pieces: Vec<Piece> = pieces
            .iter()
            .enumerate()
            .map(|(i, p)| Piece::parse(p).map_err(|m| error(&format!("pieces[{i}]"), m)))
            .collect::<Result<_, _>>()?;
        let number_at = |field: &str| match map.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                value.as_u64().map(Some).ok_or_else(|| error(field, format!("must be a whole number ≥ 0, not {value}")))
            }
        };
        let end = match map.get("end") {
            None => End::Eos,
            Some(Value::String(s)) if s == "eos" => End::Eos,
            Some(Value::String(s)) if s == "length" => End::Length,
            Some(other) => return Err(error("end", format!("must be \"eos\" or \"length\", not {other}"))),
        };
        if end == End::Length && pieces.is_empty() {
            return Err(error("pieces", "must not be empty when end is \"length\"".into()));
        }
        let fail_after = number_at("fail_after")?.map(|n| n as usize);
        if end == End::Eos && fail_after.is_some_and(|n| n > pieces.len()) {
            return Err(error("fail_after", format!("is beyond the {} pieces", pieces.len())));
        }
        let delay_ms = number_at("delay_ms")?.unwrap_or(0);
        let prefill_ms = number_at("prefill_ms")?.unwrap_or(0);
        Ok(Self { number, pieces, delay_ms, prefill_ms, fail_after, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Script::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_full_line_is_read() {
        let text = r#"
{"pieces": ["The ", {"bytes": [240, 159]}, {"token": "</think>"}], "delay_ms": 3, "prefill_ms": 4, "fail_after": 2, "end": "length"}

{"pieces": []}"#;
        let script = Script::parse(text).unwrap();
        let [a, b] = &script.lines[..] else { panic!("{script:?}") };
        let pieces = [Piece::Bytes(b"The ".into()), Piece::Bytes(vec![240, 159]), Piece::Added("</think>".into())];
        assert_eq!(a.pieces, pieces);
        assert_eq!((a.number, a.delay_ms, a.prefill_ms, a.fail_after, a.end), (2, 3, 4, Some(2), End::Length));
        assert_eq!((b.number, b.delay_ms, b.prefill_ms, b.fail_after, b.end), (4, 0, 0, None, End::Eos));
    }

    #[test]
    fn errors_name_line_and_field() {
        let cases = [
            ("", "script line 1: line: the script has no lines"),
            ("{\"pieces\": []}\n[1]", "script line 2: line: is no JSON object"),
            ("{", "script line 1: line: is no JSON object"),
            ("{}", "script line 1: pieces: must be an array"),
            (r#"{"pieces": "x"}"#, "script line 1: pieces: must be an array"),
            (r#"{"pieces": ["a", 3]}"#, "script line 1: pieces[1]: must be a string, {\"bytes\""),
            (r#"{"pieces": [{"bytes": [256]}]}"#, "script line 1: pieces[0]: bytes must be integers from 0 to 255"),
            (r#"{"pieces": [{"bytes": []}]}"#, "script line 1: pieces[0]: must not be empty"),
            (r#"{"pieces": [""]}"#, "script line 1: pieces[0]: must not be empty"),
            (r#"{"pieces": [{"token": 1}]}"#, "script line 1: pieces[0]: must be a string"),
            (r#"{"pieces": [], "delay_ms": -1}"#, "script line 1: delay_ms: must be a whole number ≥ 0, not -1"),
            (
                r#"{"pieces": [], "prefill_ms": "2"}"#,
                "script line 1: prefill_ms: must be a whole number ≥ 0, not \"2\"",
            ),
            (r#"{"pieces": [], "fail_after": 1.5}"#, "script line 1: fail_after: must be a whole number ≥ 0, not 1.5"),
            (r#"{"pieces": ["a"], "fail_after": 2}"#, "script line 1: fail_after: is beyond the 1 pieces"),
            (r#"{"pieces": [], "end": "stop"}"#, "script line 1: end: must be \"eos\" or \"length\", not \"stop\""),
            (r#"{"pieces": [], "end": "length"}"#, "script line 1: pieces: must not be empty when end is \"length\""),
            (r#"{"pieces": [], "delay": 1}"#, "script line 1: delay: is no field of a script line"),
        ];
        for (text, expected) in cases {
            let got = refused(text);
            assert!(got.starts_with(expected), "{text}\n  {got}\n  {expected}");
        }
    }
}
