//! `POST /tokenize` and `POST /detokenize`: the checkpoint's tokenizer over HTTP.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::body;
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, wrong_type};
use crate::job::prepared;
use crate::layout::{Conversation, lay_out};
use crate::params::ChatParams;

/// `content` (llama.cpp's name) or `prompt` (vLLM's) is a text; `messages` is a conversation as for chat completions and
/// gives the prompt that the model would read.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    answer(app, request, |app, body| {
        let tokens = ids(app, body)?;
        Ok(json!({"count": tokens.len(), "max_model_len": app.engine.context(), "tokens": tokens}))
    })
    .await
}

/// `tokens` are ids; the text comes back under both names that clients know. Bytes that are not UTF-8 become U+FFFD.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    answer(app, request, |app, body| {
        let list = Fields(body).array("tokens")?;
        let list = list.ok_or_else(|| ApiError::field("tokens", "is required: an array of token ids"))?;
        let id = |(i, value): (usize, &Value)| {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
            id.filter(|id| app.chat.tokenizer.token_bytes(*id).is_some())
                .ok_or_else(|| wrong_type(&format!("tokens[{i}]"), "the id of a token", value))
        };
        let tokens = list.iter().enumerate().map(id).collect::<Result<Vec<u32>, _>>()?;
        let text = app.chat.tokenizer.decode(&tokens);
        Ok(json!({"content": text, "prompt": text}))
    })
    .await
}

async fn answer(
    app: Arc<App>,
    request: Request,
    work: impl FnOnce(&App, &Map<String, Value>) -> Result<Value, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let value = prepared(&app, request, move |app, bytes| {
        let body = body::parse(bytes)?;
        if let Some(name) = Fields(&body).string("model")? {
            app.names.check(name)?;
        }
        work(app, &body)
    });
    let value = value.await?;
    Ok(json_response(StatusCode::OK, &value))
}

fn ids(app: &App, body: &Map<String, Value>) -> Result<Vec<u32>, ApiError> {
    let fields = Fields(body);
    let tokenizer = &app.chat.tokenizer;
    let (content, prompt) = (fields.string("content")?, fields.string("prompt")?);
    match (content.or(prompt), fields.get("messages")) {
        (Some(_), None) if content.is_some() && prompt.is_some() => {
            Err(ApiError::field("prompt", "is another name for content; send one of them"))
        }
        // As in a conversation, a text does not become control tokens unless that is asked for.
        (Some(text), None) if fields.bool("parse_special")?.unwrap_or(false) => Ok(tokenizer.encode_with_added(text)),
        (Some(text), None) => Ok(tokenizer.encode_text(text)),
        (None, Some(_)) => {
            let params = ChatParams::parse(body, app.defaults)?;
            let ChatParams { messages, tools, kwargs, max_tokens, .. } = params;
            Ok(lay_out(app, Conversation { messages, tools, kwargs, max_tokens })?.prompt.tokens)
        }
        (Some(_), Some(_)) => {
            Err(ApiError::field("messages", "cannot stand beside content or prompt; send one of them"))
        }
        (None, None) => Err(ApiError::field("content", "is required: a text; or send messages")),
    }
}
