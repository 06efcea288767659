//! The way of a request that asks for an answer: read and prepared, submitted, and answered in the form of its API.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use lily_engine::{Event, Finished, Request as EngineRequest};

use crate::answers::Answers;
use crate::app::App;
use crate::body;
use crate::error::{ApiError, json_response};
use crate::recall::Note;
use crate::reply::Message;
use crate::request_log::RequestLog;
use crate::serve::Stop;
use crate::shape::{Choice, Shape};
use crate::stream;

/// What a handler made of a request: all that the engine needs, and what the response tells of it.
pub(crate) struct Job<S> {
    /// The answer's, for the log.
    pub(crate) id: String,
    pub(crate) request: EngineRequest,
    pub(crate) choices: usize,
    pub(crate) stream: bool,
    /// Remembers the answer's reasoning, where that is wanted.
    pub(crate) note: Option<Note>,
    /// Of the response.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) shape: S,
}

/// Read the body and make something of it, away from the threads that serve connections: parsing and encoding a long
/// prompt takes a while.
pub(crate) async fn prepared<T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    prepare: impl FnOnce(&App, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (parts, body) = request.into_parts();
    body::check_content_type(&parts.headers)?;
    let bytes = body::read(app, &parts.headers, body).await?;
    let app = Arc::clone(app);
    let prepared = tokio::task::spawn_blocking(move || prepare(&app, &bytes)).await;
    prepared.map_err(|e| ApiError::internal(format!("preparing the request failed: {e}")))?
}

/// The whole way: what `prepare` finds wrong, or `submit`, is all that can be wrong with a request.
pub(crate) async fn answer<S: Shape>(
    app: &Arc<App>,
    stop: Stop,
    request: Request,
    prepare: impl FnOnce(&App, &[u8]) -> Result<Job<S>, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    if stop.is_stopping() {
        return Err(ApiError::stopping());
    }
    let Job { id, request, choices, stream, note, headers, shape } = prepared(app, request, prepare).await?;
    let prompt_tokens = request.prompt.len();
    let answers = Answers::new(app.engine.submit_choices(request, choices)?, note, Arc::clone(&app.metrics));
    let log = RequestLog::begin(&id, prompt_tokens, stream);
    let mut response = if stream {
        stream::response(answers, shape, log, stop, app.keep_alive).await?
    } else {
        whole(answers, shape, log, stop).await?
    };
    response.headers_mut().extend(headers);
    Ok(response)
}

/// Wait for all answers, whole. When the client leaves, this future is dropped, and the answers with it.
async fn whole(
    mut answers: Answers,
    mut shape: impl Shape,
    mut log: RequestLog,
    mut stop: Stop,
) -> Result<Response, ApiError> {
    let mut choices: Vec<(Message, Option<Finished>)> = (0..answers.len()).map(|_| Default::default()).collect();
    loop {
        let event = tokio::select! {
            event = answers.next() => event,
            () = stop.now() => {
                log.failed(&"the server is shutting down");
                return Err(ApiError::stopping());
            }
        };
        match event {
            Some((_, Event::Started { .. } | Event::Progress(_))) => {}
            Some((i, Event::Output(event))) => choices[i].0.add(event)?,
            Some((i, Event::Finished(finished))) => {
                choices[i].1 = Some(finished.clone());
                let Some(total) = answers.end(i, finished) else { continue };
                log.finished(&total);
                let choices =
                    choices.into_iter().filter_map(|(message, finished)| Some(Choice { message, finished: finished? }));
                return Ok(json_response(StatusCode::OK, &shape.whole(choices.collect(), &total)?));
            }
            Some((_, Event::Failed(e))) => {
                log.failed(&e);
                return Err(e.into());
            }
            None => {
                log.failed(&"no end");
                return Err(ApiError::internal("the engine ended without an answer"));
            }
        }
    }
}
