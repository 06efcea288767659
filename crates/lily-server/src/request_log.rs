//! One log line for each request, also for those whose client left.

use std::time::Instant;

use lily_engine::Finished;

/// Logs on drop unless an end was logged: then the client has left.
pub(crate) struct RequestLog {
    id: String,
    /// The HTTP request, whose id stands before each line: streams end after its handler has.
    span: tracing::Span,
    began: Instant,
    ended: bool,
}

impl RequestLog {
    /// Numbers only: prompts and answers are nobody's business.
    pub(crate) fn begin(id: &str, prompt_tokens: usize, stream: bool) -> Self {
        tracing::debug!(id, prompt_tokens, stream, "request");
        Self { id: id.to_owned(), span: tracing::Span::current(), began: Instant::now(), ended: false }
    }

    pub(crate) fn finished(&mut self, f: &Finished) {
        let _span = self.span.enter();
        self.ended = true;
        let ms = |seconds: f64| (seconds * 1e3).round();
        tracing::info!(
            id = self.id,
            reason = ?f.reason,
            prompt_tokens = f.usage.prompt_tokens,
            completion_tokens = f.usage.completion_tokens,
            cached_tokens = f.usage.cached_tokens,
            queue_ms = ms(f.timings.queue),
            prefill_ms = ms(f.timings.prefill),
            decode_ms = ms(f.timings.decode),
            "answered"
        );
    }

    pub(crate) fn failed(&mut self, error: &dyn std::fmt::Display) {
        let _span = self.span.enter();
        self.ended = true;
        tracing::error!(id = self.id, %error, "failed");
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        if !self.ended {
            let _span = self.span.enter();
            tracing::info!(id = self.id, after_ms = self.began.elapsed().as_millis() as u64, "the client left");
        }
    }
}
