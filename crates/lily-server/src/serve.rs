//! Routes, and answering a listener until told to stop.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRef, Request};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::App;
use crate::error::ApiError;
use crate::gate::gate;
use crate::{chat, info, messages, metrics, text};

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
        .route("/v1/messages", post(messages::messages))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::one_model))
        .route("/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .route("/health", get(info::health))
        .route("/ready", get(info::ready))
        .route("/metrics", get(metrics::metrics))
        .fallback(async |request: Request| ApiError::not_found(request.uri().path()))
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), gate))
        .with_state(AppState { app, stop })
}

async fn wrong_method(request: Request) -> Response {
    ApiError::wrong_method(request.method().as_str(), request.uri().path()).into_response()
}

/// The API as a router, for those who bring their own server.
pub fn router(app: App) -> Router {
    routes(Arc::new(app), Stop(watch::channel(Phase::Serving).1))
}

/// After answers had to end: for what still sends a request or does not read its answer.
const LAST: Duration = Duration::from_secs(2);
/// After a failure to accept, as where all file descriptors are in use.
const PAUSE: Duration = Duration::from_millis(500);

/// Answer `listener` until `shutdown` is done. Then no new connection and no new request is taken; running answers may
/// go on for [`App::grace`] and are ended with an error after that, and connections that hang are closed. The caller
/// chooses the address; beyond loopback, [`App::access`] should have keys.
/// A listener that fails to accept is tried again.
pub async fn serve(listener: TcpListener, app: App, shutdown: impl Future<Output = ()> + Send + 'static) {
    let (grace, limits) = (app.grace, app.limits);
    let (phase, stop) = watch::channel(Phase::Serving);
    let router = routes(Arc::new(app), Stop(stop.clone()));
    let slots = Arc::new(Semaphore::new(limits.connections.max(1)));
    let mut connections = JoinSet::new();
    {
        let mut shutdown = pin!(shutdown);
        loop {
            let next = async {
                // Never closed.
                let slot = Arc::clone(&slots).acquire_owned().await.ok();
                (accept(&listener).await, slot)
            };
            let (socket, slot) = tokio::select! {
                next = next => next,
                () = &mut shutdown => break,
            };
            while connections.try_join_next().is_some() {}
            let (router, stop) = (router.clone(), stop.clone());
            connections.spawn(async move {
                connection(socket, router, limits.head, stop).await;
                drop(slot);
            });
        }
    }
    drop(listener);
    phase.send_replace(Phase::Stopping);
    tracing::info!("stopping");
    let ended = async { while connections.join_next().await.is_some() {} };
    let mut ended = pin!(ended);
    if tokio::time::timeout(grace, &mut ended).await.is_err() {
        phase.send_replace(Phase::Now);
        // What is left then is dropped with the set.
        let _ = tokio::time::timeout(LAST, ended).await;
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => return socket,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Serve one connection until it closes or, once the server stops, its answer has ended.
async fn connection(socket: TcpStream, router: Router, head: Duration, mut stop: watch::Receiver<Phase>) {
    // Each token is a packet of its own, which should not wait for the next.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let service = TowerToHyperService::new(router);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let stopping = async move { drop(stop.wait_for(|phase| *phase >= Phase::Stopping).await) };
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = stopping => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection ended");
    }
}
