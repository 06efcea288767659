//! `GET /v1/models`, `GET /v1/models/{id}`, `GET /health` and `GET /ready`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, json_response};
use crate::serve::Stop;

fn model(app: &App) -> Value {
    json!({
        "id": app.names.id,
        "object": "model",
        "created": app.created,
        "owned_by": "lily",
        "aliases": app.names.aliases,
        "context_length": app.engine.context(),
    })
}

pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    json_response(StatusCode::OK, &json!({"object": "list", "data": [model(&app)]}))
}

/// The id may hold slashes, as names of repositories do.
pub(crate) async fn one_model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    app.names.check(&id)?;
    Ok(json_response(StatusCode::OK, &model(&app)))
}

pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let load = app.engine.load();
    let body = json!({
        "status": "ok",
        "model": app.names.id,
        "device": app.engine.device(),
        "running": load.running,
        "waiting": load.waiting,
    });
    json_response(StatusCode::OK, &body)
}

/// Whether new requests are taken: 200, or 503 once the server is told to stop. A full queue is not counted: it is over in
/// seconds, and requests get a status of their own for it.
pub(crate) async fn ready(State(stop): State<Stop>) -> Result<Response, ApiError> {
    if stop.is_stopping() {
        return Err(ApiError::stopping());
    }
    Ok(json_response(StatusCode::OK, &json!({"status": "ready"})))
}
