//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's Messages API. A request becomes one of chat
//! completions, so that both have the same checks, the same prompt and the same prefix.

mod request;
mod shape;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::body;
use crate::chat::conversation;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::job::{Job, answer, prepared};
use crate::layout::{Conversation, lay_out};
use crate::params::ChatParams;
use crate::reply::new_id;
use crate::serve::Stop;
use shape::MessageShape;

/// Paths below which errors have Anthropic's form.
const ROOT: &str = "/v1/messages";
static REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

pub(crate) async fn messages(
    State(app): State<Arc<App>>,
    State(stop): State<Stop>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(&app, stop, request, prepare).await
}

fn prepare(app: &App, bytes: &[u8]) -> Result<Job<MessageShape>, ApiError> {
    let body = body::parse(bytes)?;
    request::check(&body)?;
    let params = params(app, &body)?;
    drop(body);
    let id = new_id("msg_")?;
    let shape = MessageShape::new(id.clone(), app.names.id.clone());
    conversation(app, params, id, shape).map_err(|e| e.renamed(request::own_name))
}

pub(crate) async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let count = prepared(&app, request, |app, bytes| {
        let params = params(app, &body::parse(bytes)?)?;
        let ChatParams { messages, tools, kwargs, max_tokens, .. } = params;
        Ok(lay_out(app, Conversation { messages, tools, kwargs, max_tokens })?.prompt.tokens.len())
    });
    Ok(json_response(StatusCode::OK, &json!({"input_tokens": count.await?})))
}

fn params(app: &App, body: &Map<String, Value>) -> Result<ChatParams, ApiError> {
    if let Some(name) = Fields(body).string("model")? {
        app.names.check(name)?;
    }
    let chat = request::chat_body(body)?;
    let mut params = ChatParams::parse(&chat, app.defaults).map_err(|e| e.renamed(request::own_name))?;
    params.ignored = request::ignored(body);
    Ok(params)
}

/// Whether errors on this path have Anthropic's form.
pub(crate) fn owns(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A response on such a path: the id under Anthropic's name too, and an error in its form.
pub(crate) fn dress(response: &mut Response, id: &HeaderValue) {
    response.headers_mut().insert(REQUEST_ID.clone(), id.clone());
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let body = error_body(&error, id.to_str().ok()).to_string();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(body);
    }
}

/// An error's body in Anthropic's form.
pub(crate) fn error_body(error: &ApiError, request_id: Option<&str>) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    let mut body = json!({"type": "error", "error": {"type": kind, "message": error.message}});
    if let Some(id) = request_id {
        body["request_id"] = id.into();
    }
    body
}
