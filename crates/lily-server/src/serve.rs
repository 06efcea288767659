//! Routes, and answering a listener until told to stop.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::App;
use crate::error::ApiError;
use crate::{chat, info, text};

/// How far the server is on its way to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// New requests are refused, running ones go on.
    Stopping,
    /// Running ones end now.
    Now,
}

/// What request handlers see of the server's stop.
#[derive(Clone)]
pub(crate) struct Stop(watch::Receiver<Phase>);

impl Stop {
    pub(crate) fn is_stopping(&self) -> bool {
        *self.0.borrow() >= Phase::Stopping
    }

    /// Returns when running answers have to end.
    pub(crate) async fn now(&mut self) {
        if self.0.wait_for(|phase| *phase == Phase::Now).await.is_err() {
            // A router without a server is never stopped.
            std::future::pending::<()>().await;
        }
    }
}

#[derive(Clone)]
struct AppState {
    app: Arc<App>,
    stop: Stop,
}

impl FromRef<AppState> for Arc<App> {
    fn from_ref(state: &AppState) -> Self {
        Arc::clone(&state.app)
    }
}

impl FromRef<AppState> for Stop {
    fn from_ref(state: &AppState) -> Self {
        state.stop.clone()
    }
}

fn routes(app: Arc<App>, stop: Stop) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::one_model))
        .route("/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .route("/health", get(info::health))
        .route("/ready", get(info::ready))
        .fallback(async |request: Request| ApiError::not_found(request.uri().path()))
        .method_not_allowed_fallback(wrong_method)
        .with_state(AppState { app, stop })
}

async fn wrong_method(request: Request) -> Response {
    ApiError::wrong_method(request.method().as_str(), request.uri().path()).into_response()
}

/// The API as a router, for those who bring their own server.
pub fn router(app: App) -> Router {
    routes(Arc::new(app), Stop(watch::channel(Phase::Serving).1))
}

/// Answer `listener` until `shutdown` is done. Then no new connection and no new request is taken; running answers may
/// go on for [`App::grace`] and are ended with an error after that. The caller chooses the address; Lily has no
/// authentication, so it should be a loopback one unless the user asked for another.
///
/// # Errors
/// Those of the listener.
pub async fn serve(
    listener: TcpListener,
    app: App,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let grace = app.grace;
    let (phase, stop) = watch::channel(Phase::Serving);
    let phase = Arc::new(phase);
    let signal = {
        let phase = Arc::clone(&phase);
        async move {
            shutdown.await;
            phase.send_replace(Phase::Stopping);
            tracing::info!("stopping");
            tokio::spawn(async move {
                tokio::time::sleep(grace).await;
                phase.send_replace(Phase::Now);
            });
        }
    };
    let router = routes(Arc::new(app), Stop(stop));
    axum::serve(listener, router).with_graceful_shutdown(signal).await
}
