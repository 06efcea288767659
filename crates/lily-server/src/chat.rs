//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use lily_chat::OutputOptions;
use lily_engine::Request as EngineRequest;

use crate::app::App;
use crate::body;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::job::{Job, answer};
use crate::layout::{Conversation, lay_out};
use crate::params::ChatParams;
use crate::reply::{ChatShape, Head};
use crate::serve::Stop;

/// How many turns of the assistant were given back their reasoning.
static REATTACHED: HeaderName = HeaderName::from_static("x-lily-reattached-reasoning");

/// Names the fields of the request that mean nothing here.
static IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-lily-ignored-fields");

pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    State(stop): State<Stop>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(&app, stop, request, prepare).await
}

fn prepare(app: &App, bytes: &[u8]) -> Result<Job<ChatShape>, ApiError> {
    let body = body::parse(bytes)?;
    if let Some(name) = Fields(&body).string("model")? {
        app.names.check(name)?;
    }
    let params = ChatParams::parse(&body, app.defaults)?;
    drop(body);
    let head = Head::new("chatcmpl-", &app.names.id)?;
    let id = head.id.clone();
    let include_usage = params.include_usage;
    conversation(app, params, id, ChatShape { head, include_usage })
}

/// From the parameters of a conversation, whichever API they came by, to what the engine takes.
pub(crate) fn conversation<S>(app: &App, params: ChatParams, id: String, shape: S) -> Result<Job<S>, ApiError> {
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
    let reattached = (layout.reattached > 0).then(|| (REATTACHED.clone(), layout.reattached.into()));
    let ignored = ignored_header(&params.ignored).map(|names| (IGNORED_FIELDS.clone(), names));
    Ok(Job {
        id,
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
        note: layout.note,
        headers: reattached.into_iter().chain(ignored).collect(),
        shape,
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
