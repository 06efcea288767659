//! An answer as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use lily_engine::Event;
use serde_json::Value;

use crate::answers::Answers;
use crate::error::ApiError;
use crate::reply::Head;
use crate::request_log::RequestLog;
use crate::serve::Stop;

/// Tells nginx and its like to pass events on at once.
static NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

struct Stream {
    answers: Answers,
    head: Head,
    log: RequestLog,
    include_usage: bool,
    stop: Stop,
    ready: VecDeque<SseEvent>,
    /// An event taken from the answer before the response began.
    early: Option<(usize, Event)>,
    ended: bool,
}

/// Begin the response. Waits up to `keep_alive` for the engine's first event, so that a failure in that time gets its
/// own status; a slower prompt gets 200 and comments until there is something to send.
pub(crate) async fn response(
    mut answers: Answers,
    head: Head,
    mut log: RequestLog,
    include_usage: bool,
    mut stop: Stop,
    keep_alive: Duration,
) -> Result<Response, ApiError> {
    let early = tokio::select! {
        event = tokio::time::timeout(keep_alive, answers.next()) => event.ok(),
        () = stop.now() => {
            log.failed(&"the server is shutting down");
            return Err(ApiError::stopping());
        }
    };
    let early = match early {
        Some(Some((_, Event::Failed(e)))) => {
            log.failed(&e);
            return Err(e.into());
        }
        Some(None) => return Err(ApiError::internal("the engine ended without an answer")),
        Some(early) => early,
        None => None,
    };
    let ready = (0..answers.len()).map(|i| data(&head.first_chunk(i))).collect();
    let state = Stream { answers, head, log, include_usage, stop, ready, early, ended: false };
    let events = stream::unfold(state, |mut state| async move {
        let event = state.next().await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    let keep_alive = KeepAlive::new().interval(keep_alive).text("waiting");
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(NO_BUFFERING.clone(), HeaderValue::from_static("no"));
    Ok(response)
}

fn data(value: &Value) -> SseEvent {
    SseEvent::default().data(value.to_string())
}

impl Stream {
    async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let event = match self.early.take() {
                Some(event) => Some(event),
                None => tokio::select! {
                    event = self.answers.next() => event,
                    () = self.stop.now() => {
                        self.fail(&ApiError::stopping());
                        continue;
                    }
                },
            };
            if let Err(e) = self.take(event) {
                self.fail(&e);
            }
        }
    }

    fn take(&mut self, event: Option<(usize, Event)>) -> Result<(), ApiError> {
        match event {
            Some((_, Event::Started { .. })) => {}
            Some((i, Event::Progress(progress))) => self.ready.push_back(data(&self.head.progress_chunk(i, &progress))),
            Some((i, Event::Output(event))) => self.ready.extend(self.head.delta_chunk(i, &event)?.as_ref().map(data)),
            Some((i, Event::Finished(finished))) => {
                self.ready.push_back(data(&self.head.last_chunk(i, &finished)));
                let Some(total) = self.answers.end(i, finished) else { return Ok(()) };
                if self.include_usage {
                    self.ready.push_back(data(&self.head.usage_chunk(&total)));
                }
                self.log.finished(&total);
                self.end();
            }
            Some((_, Event::Failed(e))) => return Err(e.into()),
            None => return Err(ApiError::internal("the engine ended without an answer")),
        }
        Ok(())
    }

    /// The status is long sent: the error is an event of its own.
    fn fail(&mut self, error: &ApiError) {
        self.log.failed(error);
        self.ready.push_back(data(&error.body()));
        self.end();
    }

    fn end(&mut self) {
        self.ready.push_back(SseEvent::default().data("[DONE]"));
        self.ended = true;
    }
}
