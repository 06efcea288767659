//! An answer as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use lily_engine::Event;

use crate::answers::Answers;
use crate::error::ApiError;
use crate::request_log::RequestLog;
use crate::serve::Stop;
use crate::shape::Shape;

/// Tells nginx and its like to pass events on at once.
static NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

struct Stream<S> {
    answers: Answers,
    shape: S,
    log: RequestLog,
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
    mut shape: impl Shape,
    mut log: RequestLog,
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
    let ready = shape.begin(answers.len())?.into();
    let keep_alive = KeepAlive::new().interval(keep_alive).event(shape.keep_alive());
    let state = Stream { answers, shape, log, stop, ready, early, ended: false };
    let events = stream::unfold(state, |mut state| async move {
        let event = state.next().await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(NO_BUFFERING.clone(), HeaderValue::from_static("no"));
    Ok(response)
}

impl<S: Shape> Stream<S> {
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
            Some((i, Event::Started { prompt_tokens, cached_tokens })) => {
                self.ready.extend(self.shape.started(i, prompt_tokens, cached_tokens));
            }
            Some((i, Event::Progress(progress))) => self.ready.extend(self.shape.progress(i, &progress)),
            Some((i, Event::Output(event))) => self.ready.extend(self.shape.output(i, event)?),
            Some((i, Event::Finished(finished))) => {
                self.ready.extend(self.shape.finished(i, &finished)?);
                let Some(total) = self.answers.end(i, finished) else { return Ok(()) };
                self.ready.extend(self.shape.end(&total)?);
                self.log.finished(&total);
                self.ended = true;
            }
            Some((_, Event::Failed(e))) => return Err(e.into()),
            None => return Err(ApiError::internal("the engine ended without an answer")),
        }
        Ok(())
    }

    /// The status is long sent: the error is an event of its own.
    fn fail(&mut self, error: &ApiError) {
        self.log.failed(error);
        self.ready.extend(self.shape.failed(error));
        self.ended = true;
    }
}
