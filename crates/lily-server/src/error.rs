//! Errors in OpenAI's shape.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lily_engine::{EngineError, SubmitError};
use serde_json::{Value, json};

/// A refused or failed request: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} {message}")]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) kind: &'static str,
    /// The field at fault, as `messages[0].role`.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<Cow<'static, str>>,
}

/// Seconds after which a client whose request found the queue full should try again.
const RETRY_AFTER: &str = "2";

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind, param: None, code: None }
    }

    /// 400 for the request as a whole.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 for one field; the message begins with its name.
    pub(crate) fn field(param: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let param = param.into();
        let mut error = Self::bad_request(format!("{param}: {message}"));
        error.param = Some(param);
        error
    }

    /// 400 for a field that asks for something Lily does not do.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl std::fmt::Display) -> Self {
        Self::field(param, message).code("unsupported_value")
    }

    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(Cow::Borrowed(code));
        self
    }

    /// The same error for an API that calls the field something else.
    pub(crate) fn renamed(mut self, name: impl Fn(&str) -> String) -> Self {
        if let Some(param) = &self.param {
            let own = name(param);
            if let Some(rest) = self.message.strip_prefix(param.as_str()) {
                self.message = format!("{own}{rest}");
            }
            self.param = Some(own);
        }
        self
    }

    pub(crate) fn model_not_found(message: String) -> Self {
        let mut error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("model_not_found");
        error.param = Some("model".into());
        error
    }

    pub(crate) fn not_found(path: &str) -> Self {
        let shown: String = path.chars().take(200).collect();
        let message = format!(
            "there is nothing at {shown}; there are /v1/chat/completions, /v1/messages, /v1/messages/count_tokens, /v1/models, /v1/models/{{id}}, \
             /tokenize, /detokenize, /health, /ready and /metrics"
        );
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("not_found")
    }

    pub(crate) fn wrong_method(method: &str, path: &str) -> Self {
        let shown: String = path.chars().take(200).collect();
        let message = format!("{shown} does not take {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message).code("method_not_allowed")
    }

    pub(crate) fn content_type(found: &str) -> Self {
        let shown: String = found.chars().take(100).collect();
        let message = format!("the body must be sent as application/json, not {shown}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message).code("unsupported_media_type")
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the body is larger than {limit} bytes, which is the limit");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message).code("request_too_large")
    }

    pub(crate) fn body_timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", "the body did not come in time")
            .code("request_timeout")
    }

    /// 401; `given` is whether there was a key at all. It is not repeated.
    pub(crate) fn no_key(given: bool) -> Self {
        let message = if given {
            "the API key is wrong"
        } else {
            "this server needs an API key, as Authorization: Bearer KEY or x-api-key: KEY"
        };
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message).code("invalid_api_key")
    }

    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message).code(code)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    pub(crate) fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the server is shutting down").code("shutting_down")
    }

    /// The JSON body, also what a stream sends when it fails half-way.
    pub(crate) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::EmptyPrompt => Self::field("messages", "the prompt is empty"),
            SubmitError::NothingToGenerate => Self::field("max_tokens", "must be at least 1"),
            SubmitError::PromptTooLong { prompt, context } => {
                // Clients know the error by "prompt is too long", which is what Anthropic says: not all read the code.
                let message = format!(
                    "the prompt is too long: it has {prompt} tokens, but the context is {context} and the answer needs \
                     at least one of them; shorten the messages or start the server with a larger --ctx"
                );
                Self::field("messages", message).code("context_length_exceeded")
            }
            SubmitError::NeverFits { .. } => {
                let message = format!(
                    "{error}; shorten the messages, set a smaller max_tokens, or give the server more memory (--memory)"
                );
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message).code("out_of_memory")
            }
            SubmitError::QueueFull { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", format!("{error}; try again later"))
                    .code("queue_full")
            }
            SubmitError::Closed => Self::stopping(),
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::ShutDown => Self::stopping(),
            other => Self::internal(other.to_string()).code("engine_error"),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.body());
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // For the gate, which knows whose form the path's errors have.
        response.extensions_mut().insert(self);
        response
    }
}

/// A JSON response.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_the_memory_never_holds_is_413_with_the_numbers() {
        let error = ApiError::from(SubmitError::NeverFits { tokens: 900, bytes: 77_000, memory: 66_000 });
        assert_eq!((error.status, error.code.as_deref()), (StatusCode::PAYLOAD_TOO_LARGE, Some("out_of_memory")));
        for number in ["900 tokens", "77000 bytes", "66000", "--memory"] {
            assert!(error.message.contains(number), "{}", error.message);
        }
    }
}
