//! What one API makes of an answer: a JSON body, or server-sent events. How an answer is awaited, cancelled, logged and
//! kept alive is the same for all of them ([`crate::job`]).

use axum::response::sse::Event as SseEvent;
use lily_chat::OutputEvent;
use lily_engine::{Finished, Progress};
use serde_json::Value;

use crate::error::ApiError;
use crate::reply::Message;

/// One choice of an answer, whole.
pub(crate) struct Choice {
    pub(crate) message: Message,
    pub(crate) finished: Finished,
}

/// One answer in the form of one API. A stream calls `begin`, then `progress`, `started`, `output` and `finished` as things come,
/// then `end` or, wherever it may be, `failed`; an answer that is not streamed calls `whole` alone.
pub(crate) trait Shape: Send + 'static {
    /// The body; `total` sums up all choices.
    fn whole(&mut self, choices: Vec<Choice>, total: &Finished) -> Result<Value, ApiError>;

    /// Before anything is known of the answer, but that it will have so many choices.
    fn begin(&mut self, choices: usize) -> Result<Vec<SseEvent>, ApiError>;

    /// What a stream with nothing to say says from time to time.
    fn keep_alive(&self) -> SseEvent {
        SseEvent::default().comment("waiting")
    }

    /// The prompt of choice `choice` has been read.
    fn started(&mut self, _choice: usize, _prompt_tokens: usize, _cached_tokens: usize) -> Vec<SseEvent> {
        Vec::new()
    }

    /// How much of the prompt has been read, where the request asks for that.
    fn progress(&mut self, _choice: usize, _progress: &Progress) -> Vec<SseEvent> {
        Vec::new()
    }

    /// A part of choice `choice`.
    fn output(&mut self, choice: usize, event: OutputEvent) -> Result<Vec<SseEvent>, ApiError>;

    /// The end of choice `choice`.
    fn finished(&mut self, choice: usize, finished: &Finished) -> Result<Vec<SseEvent>, ApiError>;

    /// The end of all; `total` is their sum.
    fn end(&mut self, total: &Finished) -> Result<Vec<SseEvent>, ApiError>;

    /// The end where something went wrong after the status was sent.
    fn failed(&mut self, error: &ApiError) -> Vec<SseEvent>;
}

/// An event that is JSON and needs no name.
pub(crate) fn data(value: &Value) -> SseEvent {
    SseEvent::default().data(value.to_string())
}
