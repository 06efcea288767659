//! What every request passes before its handler, and its answer after it: an id, the rules of [`Access`], a count.
//!
//! [`Access`]: crate::Access

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::Instrument;

use crate::access::Verdict;
use crate::app::App;
use crate::messages;
use crate::metrics::Metrics;
use crate::reply::new_id;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_ID: usize = 128;

/// As nginx counts requests whose client left before there was a status.
const CLIENT_LEFT: u16 = 499;

/// Counts a request when it is dropped, however that comes.
struct Count {
    metrics: Arc<Metrics>,
    endpoint: String,
    status: u16,
}

impl Drop for Count {
    fn drop(&mut self) {
        self.metrics.answered(std::mem::take(&mut self.endpoint), self.status);
    }
}

/// The client's own id where it is one that a log can hold, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let fits = |id: &&HeaderValue| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.:+/=".contains(&b);
        (1..=MAX_ID).contains(&id.len()) && id.as_bytes().iter().all(|&b| allowed(b))
    };
    if let Some(id) = headers.get(&REQUEST_ID).filter(fits) {
        return id.clone();
    }
    let id = new_id("req_").ok().and_then(|id| HeaderValue::from_str(&id).ok());
    id.unwrap_or(HeaderValue::from_static("req_unknown"))
}

pub(crate) async fn gate(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let endpoint = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let mut count = Count { metrics: Arc::clone(&app.metrics), endpoint, status: CLIENT_LEFT };
    let anthropic = messages::owns(request.uri().path());
    let origin = request.headers().get(header::ORIGIN).cloned();
    // Of the highest level, so that lines of every level carry the id.
    let span = tracing::error_span!("request", id = id.to_str().unwrap_or_default());
    let answer = async {
        match app.access.check(&request) {
            Ok(Verdict::Pass) => next.run(request).await,
            Ok(Verdict::Preflight(response)) => response,
            Err(error) => {
                tracing::debug!(status = error.status.as_u16(), code = error.code.as_deref(), "refused");
                error.into_response()
            }
        }
    };
    let mut response = answer.instrument(span).await;
    if anthropic {
        messages::dress(&mut response, &id);
    }
    count.status = response.status().as_u16();
    app.access.mark(origin.as_ref(), response.headers_mut());
    response.headers_mut().insert(REQUEST_ID.clone(), id);
    response
}
