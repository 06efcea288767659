//! The answers of `POST /v1/chat/completions`: whole, or in chunks.

use axum::response::sse::Event as SseEvent;
use lily_chat::OutputEvent;
use lily_engine::{FinishReason, Finished, Progress};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::shape::{Choice, Shape, data};

/// What all parts of one answer carry.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    /// Unix seconds.
    pub(crate) created: u64,
    pub(crate) model: String,
}

const FINGERPRINT: &str = concat!("lily-", env!("CARGO_PKG_VERSION"));

/// `prefix` and 128 random bits.
pub(crate) fn new_id(prefix: &str) -> Result<String, ApiError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| ApiError::internal(format!("no random numbers: {e}")))?;
    Ok(format!("{prefix}{:032x}", u128::from_ne_bytes(bytes)))
}

impl Head {
    /// `prefix` begins the id.
    pub(crate) fn new(prefix: &str, model: &str) -> Result<Self, ApiError> {
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Ok(Self { id: new_id(prefix)?, created, model: model.to_owned() })
    }

    pub(crate) fn object(&self, object: &str, choices: Value) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".into(), self.id.clone().into());
        map.insert("object".into(), object.into());
        map.insert("created".into(), self.created.into());
        map.insert("model".into(), self.model.clone().into());
        map.insert("system_fingerprint".into(), FINGERPRINT.into());
        map.insert("choices".into(), choices);
        map
    }

    fn chunk(&self, index: usize, delta: Value, finish: Option<FinishReason>) -> Value {
        let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": finish.map(reason)});
        self.object("chat.completion.chunk", json!([choice])).into()
    }

    /// The first chunk of choice `index` of a stream.
    fn first_chunk(&self, index: usize) -> Value {
        self.chunk(index, json!({"role": "assistant", "content": ""}), None)
    }

    /// A chunk without text while the prompt is read, in llama.cpp's form.
    fn progress_chunk(&self, index: usize, progress: &Progress) -> Value {
        let mut chunk = self.chunk(index, json!({}), None);
        let &Progress { total, cached, processed, seconds } = progress;
        let time_ms = (seconds * 1e3).round() as u64;
        chunk["prompt_progress"] = json!({"total": total, "cache": cached, "processed": processed, "time_ms": time_ms});
        chunk
    }

    /// The chunk for one event of choice `choice`; `None` when the event has nothing to show.
    fn delta_chunk(&self, choice: usize, event: &OutputEvent) -> Result<Option<Value>, ApiError> {
        let call = |call: Value| json!({"tool_calls": [call]});
        let delta = match event {
            OutputEvent::Reasoning(text) => json!({"reasoning_content": text}),
            OutputEvent::Content(text) => json!({"content": text}),
            OutputEvent::ToolCallBegin { index, name } => {
                let function = json!({"name": name, "arguments": ""});
                call(json!({"index": index, "id": new_id("call_")?, "type": "function", "function": function}))
            }
            OutputEvent::ToolCallArguments { index, delta } => {
                call(json!({"index": index, "function": {"arguments": delta}}))
            }
            OutputEvent::ToolCallEnd { .. } => return Ok(None),
        };
        Ok(Some(self.chunk(choice, delta, None)))
    }

    /// The chunk that says why choice `index` ended.
    fn last_chunk(&self, index: usize, finished: &Finished) -> Value {
        let mut chunk = self.chunk(index, json!({}), Some(finished.reason));
        chunk["timings"] = timings(finished);
        chunk
    }

    /// The chunk after the last, for `stream_options.include_usage`.
    fn usage_chunk(&self, finished: &Finished) -> Value {
        let mut map = self.object("chat.completion.chunk", json!([]));
        map.insert("usage".into(), usage(finished));
        map.into()
    }

    /// All choices whole; `total` is their sum.
    fn completion(&self, choices: Vec<Choice>, total: &Finished) -> Value {
        let choice = |(i, c): (usize, Choice)| json!({"index": i, "message": c.message.json(), "logprobs": null, "finish_reason": reason(c.finished.reason)});
        let choices = choices.into_iter().enumerate().map(choice).collect();
        let mut map = self.object("chat.completion", choices);
        map.insert("usage".into(), usage(total));
        map.insert("timings".into(), timings(total));
        map.into()
    }
}

/// An answer as a chat completion.
pub(crate) struct ChatShape {
    pub(crate) head: Head,
    pub(crate) include_usage: bool,
}

impl Shape for ChatShape {
    fn whole(&mut self, choices: Vec<Choice>, total: &Finished) -> Result<Value, ApiError> {
        Ok(self.head.completion(choices, total))
    }

    fn begin(&mut self, choices: usize) -> Result<Vec<SseEvent>, ApiError> {
        Ok((0..choices).map(|i| data(&self.head.first_chunk(i))).collect())
    }

    fn progress(&mut self, choice: usize, progress: &Progress) -> Vec<SseEvent> {
        vec![data(&self.head.progress_chunk(choice, progress))]
    }

    fn output(&mut self, choice: usize, event: OutputEvent) -> Result<Vec<SseEvent>, ApiError> {
        Ok(self.head.delta_chunk(choice, &event)?.iter().map(data).collect())
    }

    fn finished(&mut self, choice: usize, finished: &Finished) -> Result<Vec<SseEvent>, ApiError> {
        Ok(vec![data(&self.head.last_chunk(choice, finished))])
    }

    fn end(&mut self, total: &Finished) -> Result<Vec<SseEvent>, ApiError> {
        let usage = self.include_usage.then(|| data(&self.head.usage_chunk(total)));
        Ok(usage.into_iter().chain([done()]).collect())
    }

    fn failed(&mut self, error: &ApiError) -> Vec<SseEvent> {
        vec![data(&error.body()), done()]
    }
}

/// What ends each stream of OpenAI's older APIs.
pub(crate) fn done() -> SseEvent {
    SseEvent::default().data("[DONE]")
}

/// The message of an answer that is not streamed, as it grows.
#[derive(Default)]
pub(crate) struct Message {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
    /// In which order these came, with the bytes of each text.
    order: Vec<Span>,
}

enum Span {
    Reasoning(usize),
    Content(usize),
    Call,
}

/// A part of a message, between two of another kind.
pub(crate) enum Block<'a> {
    Reasoning(&'a str),
    Content(&'a str),
    Call(&'a Call),
}

/// A whole tool call; the arguments are JSON.
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

impl Message {
    pub(crate) fn add(&mut self, event: OutputEvent) -> Result<(), ApiError> {
        match event {
            OutputEvent::Reasoning(text) => {
                self.reasoning.push_str(&text);
                match self.order.last_mut() {
                    Some(Span::Reasoning(bytes)) => *bytes += text.len(),
                    _ => self.order.push(Span::Reasoning(text.len())),
                }
            }
            OutputEvent::Content(text) => {
                self.content.push_str(&text);
                match self.order.last_mut() {
                    Some(Span::Content(bytes)) => *bytes += text.len(),
                    _ => self.order.push(Span::Content(text.len())),
                }
            }
            OutputEvent::ToolCallBegin { name, .. } => {
                self.order.push(Span::Call);
                self.calls.push(Call { id: new_id("call_")?, name, arguments: String::new() });
            }
            OutputEvent::ToolCallArguments { index, delta } => {
                let call = self.calls.get_mut(index);
                call.ok_or_else(|| ApiError::internal("arguments without a call"))?.arguments.push_str(&delta);
            }
            OutputEvent::ToolCallEnd { .. } => {}
        }
        Ok(())
    }

    /// The parts in their order.
    pub(crate) fn blocks(&self) -> Vec<Block<'_>> {
        let (mut reasoning, mut content, mut calls) =
            (self.reasoning.as_str(), self.content.as_str(), self.calls.iter());
        let mut blocks = Vec::with_capacity(self.order.len());
        for span in &self.order {
            match *span {
                Span::Reasoning(bytes) => {
                    let (text, rest) = reasoning.split_at(bytes);
                    reasoning = rest;
                    blocks.push(Block::Reasoning(text));
                }
                Span::Content(bytes) => {
                    let (text, rest) = content.split_at(bytes);
                    content = rest;
                    blocks.push(Block::Content(text));
                }
                Span::Call => blocks.extend(calls.next().map(Block::Call)),
            }
        }
        blocks
    }

    fn json(self) -> Value {
        let content = if self.content.is_empty() && !self.calls.is_empty() { Value::Null } else { self.content.into() };
        let mut message = json!({"role": "assistant", "content": content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            let call = |c: Call| json!({"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}});
            message["tool_calls"] = self.calls.into_iter().map(call).collect();
        }
        message
    }
}

pub(crate) fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
    }
}

pub(crate) fn usage(finished: &Finished) -> Value {
    let u = &finished.usage;
    json!({
        "prompt_tokens": u.prompt_tokens,
        "completion_tokens": u.completion_tokens,
        "total_tokens": u.prompt_tokens + u.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": u.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": u.reasoning_tokens},
    })
}

/// An extension: where the time went. The first token belongs to prefill, so decode made one token fewer.
pub(crate) fn timings(finished: &Finished) -> Value {
    let (t, u) = (&finished.timings, &finished.usage);
    let rate = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    json!({
        "queue_ms": t.queue * 1e3,
        "prompt_ms": t.prefill * 1e3,
        "prompt_per_second": rate(u.prompt_tokens - u.cached_tokens, t.prefill),
        "predicted_ms": t.decode * 1e3,
        "predicted_per_second": rate(u.completion_tokens.saturating_sub(1), t.decode),
    })
}
