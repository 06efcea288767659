//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use lily_chat::OutputOptions;
use lily_engine::{Event, FinishReason, Request as EngineRequest};

use crate::answers::Answers;
use crate::app::App;
use crate::body;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::layout::{Conversation, lay_out};
use crate::params::ChatParams;
use crate::recall::Note;
use crate::reply::{Head, Message};
use crate::request_log::RequestLog;
use crate::serve::Stop;
use crate::stream;

/// How many turns of the assistant were given back their reasoning.
static REATTACHED: HeaderName = HeaderName::from_static("x-lily-reattached-reasoning");

/// Names the fields of the request that mean nothing here.
static IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-lily-ignored-fields");

pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    State(stop): State<Stop>,
    request: Request,
) -> Result<Response, ApiError> {
    if stop.is_stopping() {
        return Err(ApiError::stopping());
    }
    let (parts, body) = request.into_parts();
    body::check_content_type(&parts.headers)?;
    let bytes = body::read(&app, &parts.headers, body).await?;
    let prepared = Arc::clone(&app);
    // Parsing and encoding a long prompt takes a while; other connections should not wait for it.
    let prepared = tokio::task::spawn_blocking(move || prepare(&prepared, &bytes)).await;
    let Prepared { request, choices, stream, include_usage, ignored, reattached, note } =
        prepared.map_err(|e| ApiError::internal(format!("preparing the prompt failed: {e}")))??;

    let head = Head::new(&app.names.id)?;
    let prompt_tokens = request.prompt.len();
    let answers = Answers::new(app.engine.submit_choices(request, choices)?, note, Arc::clone(&app.metrics));
    let log = RequestLog::begin(&head.id, prompt_tokens, stream);
    let mut response = if stream {
        stream::response(answers, head, log, include_usage, stop, app.keep_alive).await?
    } else {
        whole(answers, &head, log, stop).await?
    };
    if reattached > 0 {
        response.headers_mut().insert(REATTACHED.clone(), reattached.into());
    }
    if let Some(ignored) = ignored {
        response.headers_mut().insert(IGNORED_FIELDS.clone(), ignored);
    }
    Ok(response)
}

struct Prepared {
    request: EngineRequest,
    choices: usize,
    stream: bool,
    include_usage: bool,
    ignored: Option<HeaderValue>,
    reattached: usize,
    note: Option<Note>,
}

/// From the body to what the engine takes. All that can be wrong with a request is found here or in `submit`.
fn prepare(app: &App, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let body = body::parse(bytes)?;
    if let Some(name) = Fields(&body).string("model")? {
        app.names.check(name)?;
    }
    let params = ChatParams::parse(&body, app.defaults)?;
    drop(body);
    if let (true, Some(name)) = (app.strict, params.ignored.first()) {
        let shown: String = name.chars().take(100).collect();
        let message = "is not a field of this API, and the server was started with --strict";
        return Err(ApiError::field(shown, message).code("unknown_parameter"));
    }
    let vocab = app.chat.tokenizer.len();
    if let Some((id, _)) = params.adjust.logit_bias.iter().find(|(id, _)| *id as usize >= vocab) {
        return Err(ApiError::field(format!("logit_bias.{id}"), format!("there are {vocab} tokens, from 0 on")));
    }
    let layout = lay_out(
        app,
        Conversation {
            messages: params.messages,
            tools: params.tools.clone(),
            kwargs: params.kwargs,
            max_tokens: params.max_tokens,
        },
    )?;
    let prompt = layout.prompt;
    let output = OutputOptions {
        thinking: prompt.starts_in_thinking,
        stop: params.stop,
        tools: params.tools.unwrap_or_default(),
        eos: app.eos.clone(),
    };
    Ok(Prepared {
        request: EngineRequest {
            prompt: prompt.tokens,
            boundaries: prompt.boundaries,
            sampling: params.sampling,
            adjust: params.adjust,
            max_tokens: params.max_tokens,
            output,
            progress: params.progress,
        },
        choices: params.choices,
        stream: params.stream,
        include_usage: params.include_usage,
        ignored: ignored_header(&params.ignored),
        reattached: layout.reattached,
        note: layout.note,
    })
}

/// Field names come from the client: only what a header can hold, and not without end.
fn ignored_header(names: &[String]) -> Option<HeaderValue> {
    if names.is_empty() {
        return None;
    }
    let mut text: String = names.join(", ").chars().map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect();
    text.truncate(500);
    HeaderValue::from_str(&text).ok()
}

/// Wait for all answers, whole. When the client leaves, this future is dropped, and the answers with it.
async fn whole(mut answers: Answers, head: &Head, mut log: RequestLog, mut stop: Stop) -> Result<Response, ApiError> {
    let mut choices: Vec<(Message, FinishReason)> =
        (0..answers.len()).map(|_| (Message::default(), FinishReason::Stop)).collect();
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
                choices[i].1 = finished.reason;
                let Some(total) = answers.end(i, finished) else { continue };
                log.finished(&total);
                return Ok(json_response(StatusCode::OK, &head.completion(choices, &total)));
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
