//! From the bytes of a request to a JSON object.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde_json::{Map, Value};

use crate::app::App;
use crate::error::ApiError;

/// How much of a refused body is still read, and for how long: a client that writes while the answer comes would see
/// its connection reset instead of the error.
const DRAIN_BYTES: usize = 256 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Refuse bodies that say that they are not JSON. A web page of another origin can post `text/plain` to a local server
/// without asking the browser first, so that too is refused.
pub(crate) fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
    let kind = text.split(';').next().unwrap_or("").trim();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        Ok(())
    } else {
        Err(ApiError::content_type(kind))
    }
}

/// Read at most [`App::max_body`] bytes, within the time of [`crate::Limits::body`].
pub(crate) async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<Vec<u8>, ApiError> {
    let whole = tokio::time::timeout(app.limits.body * 10, read_all(app, headers, body)).await;
    whole.unwrap_or_else(|_| Err(ApiError::body_timeout()))
}

async fn read_all(app: &App, headers: &HeaderMap, body: Body) -> Result<Vec<u8>, ApiError> {
    let limit = app.max_body;
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let mut chunks = body.into_data_stream();
    let mut bytes = Vec::new();
    let mut fits = declared.is_none_or(|n| n <= limit as u64);
    while fits {
        let chunk = tokio::time::timeout(app.limits.body, chunks.next()).await;
        match chunk.map_err(|_| ApiError::body_timeout())? {
            None => return Ok(bytes),
            Some(Err(e)) => return Err(ApiError::bad_request(format!("the body could not be read: {e}"))),
            Some(Ok(chunk)) if bytes.len() + chunk.len() > limit => fits = false,
            Some(Ok(chunk)) => bytes.extend_from_slice(&chunk),
        }
    }
    drop(bytes);
    let drain = async {
        let mut drained = 0;
        while let Some(Ok(chunk)) = chunks.next().await {
            drained += chunk.len();
            if drained > DRAIN_BYTES {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIME, drain).await;
    Err(ApiError::too_large(limit))
}

/// Parse the body as one JSON object.
pub(crate) fn parse(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::bad_request("the body is empty; send a JSON object with at least messages"));
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(ApiError::bad_request("the body must be a JSON object")),
        Err(e) => Err(bad_number(bytes, &e)
            .unwrap_or_else(|| ApiError::bad_request(format!("the body is not valid JSON: {e}")).code("invalid_json"))),
    }
}

/// The error for `"temperature": NaN` and the like, which JSON cannot say but some clients write: names the key.
fn bad_number(bytes: &[u8], error: &serde_json::Error) -> Option<ApiError> {
    let before: usize =
        bytes.split_inclusive(|&b| b == b'\n').take(error.line().checked_sub(1)?).map(<[u8]>::len).sum();
    let at = (before + error.column()).min(bytes.len());
    let colon = bytes[..at].iter().rposition(|&b| b == b':')?;
    let value = bytes[colon + 1..].trim_ascii_start();
    let end = value.iter().position(|b| b",}] \r\n\t".contains(b)).unwrap_or(value.len());
    let value = std::str::from_utf8(&value[..end]).ok()?;
    let literal = value.trim_start_matches(['-', '+']).to_ascii_lowercase();
    if !matches!(literal.as_str(), "nan" | "infinity" | "inf") && !error.to_string().starts_with("number out of range")
    {
        return None;
    }
    let key = bytes[..colon].trim_ascii_end().strip_suffix(b"\"")?;
    let key = &key[key.iter().rposition(|&b| b == b'"')? + 1..];
    let shown: String = value.chars().take(40).collect();
    Some(ApiError::field(std::str::from_utf8(key).ok()?, format!("{shown} is no number")).code("invalid_json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_bodies_are_named() {
        for (body, message, param) in [
            ("", "the body is empty", None),
            (" \n", "the body is empty", None),
            ("[1]", "the body must be a JSON object", None),
            ("\"x\"", "the body must be a JSON object", None),
            ("{\"messages\": [", "the body is not valid JSON: EOF", None),
            ("{\"a\": nul}", "the body is not valid JSON", None),
            ("{\"a\": \"NaN\", }", "the body is not valid JSON", None),
            ("{\"temperature\": NaN}", "temperature: NaN is no number", Some("temperature")),
            ("{\n \"seed\": 1,\n \"top_p\" : -Infinity\n}", "top_p: -Infinity is no number", Some("top_p")),
            ("{\"min_p\":1e999,\"x\":1}", "min_p: 1e999 is no number", Some("min_p")),
        ] {
            let e = parse(body.as_bytes()).unwrap_err();
            assert!(e.message.starts_with(message), "{body}: {}", e.message);
            assert_eq!(e.param.as_deref(), param, "{body}");
        }
        assert!(parse(&[b'{', b'"', 0xff, b'"', b':', b'1', b'}']).is_err());
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
        assert!(parse(deep.as_bytes()).unwrap_err().message.contains("recursion limit"));
    }
}
