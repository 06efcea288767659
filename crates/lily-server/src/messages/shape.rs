//! Answers as Anthropic's messages: content blocks, whole or as events.

use axum::response::sse::Event as SseEvent;
use lily_chat::OutputEvent;
use lily_engine::{FinishReason, Finished};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::reply::{Block, new_id};
use crate::shape::{Choice, Shape};

/// Clients keep reasoning only where it is signed, and send the signature back. Nothing is checked by it.
const SIGNATURE: &str = "lily";

/// The block that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    ToolUse,
}

pub(super) struct MessageShape {
    id: String,
    model: String,
    open: Option<Open>,
    /// Blocks begun.
    blocks: usize,
    end: Value,
}

impl MessageShape {
    pub(super) fn new(id: String, model: String) -> Self {
        Self { id, model, open: None, blocks: 0, end: Value::Null }
    }

    fn message(&self, content: Value, end: &Value, usage: Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": end["stop_reason"], "stop_sequence": end["stop_sequence"], "usage": usage,
        })
    }

    /// End the open block, if there is one.
    fn close(&mut self) -> Vec<SseEvent> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let index = self.blocks - 1;
        let mut events = Vec::new();
        if open == Open::Thinking {
            let delta = json!({"type": "signature_delta", "signature": SIGNATURE});
            events.push(event("content_block_delta", json!({"index": index, "delta": delta})));
        }
        events.push(event("content_block_stop", json!({"index": index})));
        events
    }

    /// Begin a block, after the end of the one before it.
    fn start(&mut self, open: Open, block: Value) -> Vec<SseEvent> {
        let mut events = self.close();
        events.push(event("content_block_start", json!({"index": self.blocks, "content_block": block})));
        self.open = Some(open);
        self.blocks += 1;
        events
    }

    fn delta(&self, delta: Value) -> SseEvent {
        event("content_block_delta", json!({"index": self.blocks.saturating_sub(1), "delta": delta}))
    }
}

/// An event whose name is also its type.
fn event(name: &str, fields: Value) -> SseEvent {
    let mut data = Map::new();
    data.insert("type".into(), name.into());
    if let Value::Object(fields) = fields {
        data.extend(fields);
    }
    SseEvent::default().event(name).data(Value::Object(data).to_string())
}

/// `input` counts only what was read anew; whatever is read is also kept, and kept things cost nothing more.
fn usage(prompt: usize, cached: usize, output: usize) -> Value {
    json!({
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    })
}

fn usage_of(finished: &Finished) -> Value {
    let u = &finished.usage;
    usage(u.prompt_tokens, u.cached_tokens, u.completion_tokens)
}

fn end(finished: &Finished) -> Value {
    let reason = match finished.reason {
        FinishReason::Stop if finished.stop_string.is_some() => "stop_sequence",
        FinishReason::Stop => "end_turn",
        FinishReason::Length => "max_tokens",
        FinishReason::ToolCalls => "tool_use",
    };
    json!({"stop_reason": reason, "stop_sequence": finished.stop_string})
}

fn block(block: Block<'_>) -> Result<Value, ApiError> {
    Ok(match block {
        Block::Reasoning(text) => json!({"type": "thinking", "thinking": text, "signature": SIGNATURE}),
        Block::Content(text) => json!({"type": "text", "text": text}),
        Block::Call(call) => {
            // Of a call that was cut off there are no arguments to run it with.
            let input = serde_json::from_str::<Value>(&call.arguments).ok().filter(Value::is_object);
            json!({"type": "tool_use", "id": new_id("toolu_")?, "name": call.name, "input": input.unwrap_or(json!({}))})
        }
    })
}

impl Shape for MessageShape {
    fn whole(&mut self, choices: Vec<Choice>, total: &Finished) -> Result<Value, ApiError> {
        let blocks = choices.iter().flat_map(|choice| choice.message.blocks()).map(block);
        let content: Vec<Value> = blocks.collect::<Result<_, _>>()?;
        Ok(self.message(content.into(), &end(total), usage_of(total)))
    }

    /// The first event tells how much of the prompt was cached, which nobody knows yet.
    fn begin(&mut self, _choices: usize) -> Result<Vec<SseEvent>, ApiError> {
        Ok(Vec::new())
    }

    fn keep_alive(&self) -> SseEvent {
        event("ping", json!({}))
    }

    fn started(&mut self, _choice: usize, prompt_tokens: usize, cached_tokens: usize) -> Vec<SseEvent> {
        let message = self.message(json!([]), &Value::Null, usage(prompt_tokens, cached_tokens, 0));
        vec![event("message_start", json!({"message": message}))]
    }

    fn output(&mut self, _choice: usize, output: OutputEvent) -> Result<Vec<SseEvent>, ApiError> {
        let mut events = Vec::new();
        match output {
            OutputEvent::Reasoning(text) => {
                if self.open != Some(Open::Thinking) {
                    let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                    events = self.start(Open::Thinking, block);
                }
                events.push(self.delta(json!({"type": "thinking_delta", "thinking": text})));
            }
            OutputEvent::Content(text) => {
                if self.open != Some(Open::Text) {
                    events = self.start(Open::Text, json!({"type": "text", "text": ""}));
                }
                events.push(self.delta(json!({"type": "text_delta", "text": text})));
            }
            OutputEvent::ToolCallBegin { name, .. } => {
                let block = json!({"type": "tool_use", "id": new_id("toolu_")?, "name": name, "input": {}});
                events = self.start(Open::ToolUse, block);
            }
            OutputEvent::ToolCallArguments { delta, .. } => {
                events.push(self.delta(json!({"type": "input_json_delta", "partial_json": delta})));
            }
            OutputEvent::ToolCallEnd { .. } => events = self.close(),
        }
        Ok(events)
    }

    fn finished(&mut self, _choice: usize, finished: &Finished) -> Result<Vec<SseEvent>, ApiError> {
        self.end = end(finished);
        Ok(self.close())
    }

    fn end(&mut self, total: &Finished) -> Result<Vec<SseEvent>, ApiError> {
        let delta = event("message_delta", json!({"delta": self.end, "usage": usage_of(total)}));
        Ok(vec![delta, event("message_stop", json!({}))])
    }

    fn failed(&mut self, error: &ApiError) -> Vec<SseEvent> {
        vec![SseEvent::default().event("error").data(super::error_body(error, None).to_string())]
    }
}
