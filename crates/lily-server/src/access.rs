//! Who may ask: keys, the names of this server, and web pages of other origins.
//!
//! A server on a loopback address is not private by itself. Every web page that a browser on this machine opens can send
//! requests to it: directly, with an `Origin` that tells on it, or after its own name was pointed at 127.0.0.1 (DNS
//! rebinding), with that name in `Host`. So both are checked unless the user allowed them.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::error::ApiError;

/// Chrome's question before a public page reaches a private address, and the answer to it.
static ASKS_PRIVATE: HeaderName = HeaderName::from_static("access-control-request-private-network");
static ALLOW_PRIVATE: HeaderName = HeaderName::from_static("access-control-allow-private-network");

const METHODS: &str = "GET, POST, OPTIONS";
/// What clients send beyond simple headers, where a preflight names none.
const HEADERS: &str = "authorization, content-type, x-api-key, x-request-id";
/// What pages may read of an answer.
const EXPOSED: &str = "x-request-id, request-id, retry-after, x-lily-ignored-fields, x-lily-reattached-reasoning";
/// Seconds for which a browser remembers a preflight.
const MAX_AGE: &str = "600";
/// Open without a key, for those who watch over the process.
const OPEN: [&str; 2] = ["/health", "/ready"];

/// Who may ask. The default: no key, the names of loopback only, no pages of other origins.
#[derive(Clone, Default)]
pub struct Access {
    /// SHA-256 of each key: what is compared has one length and tells nothing of a key by the time it takes.
    keys: Vec<[u8; 32]>,
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// Why an [`Access`] cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No header can carry such a key. It is not shown.
    #[error("an API key must be 1 or more visible ASCII characters")]
    Key,
    /// Not `scheme://host[:port]`.
    #[error("{0:?} is not an origin; it must be like https://example.org or http://localhost:3000, or *")]
    Origin(String),
    /// Not a name or address.
    #[error("{0:?} is not the name or address of a host, without a port, or *")]
    Host(String),
}

/// What becomes of a request.
pub(crate) enum Verdict {
    /// It goes on.
    Pass,
    /// A browser only asked whether it may.
    Preflight(Response),
}

impl Access {
    /// `keys`: one of them is needed if there are any. `hosts`: names in `Host` beside those of loopback, which matter only
    /// without keys; `*` is any. `origins`: of web pages that may read answers; `*` is any.
    ///
    /// # Errors
    /// For a key, host or origin that no request could match.
    pub fn new(keys: &[String], hosts: Vec<String>, origins: Vec<String>) -> Result<Self, AccessError> {
        if keys.iter().any(|key| key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(AccessError::Key);
        }
        let is_host = |host: &String| host == "*" || name(host).is_some_and(|name| name.len() == host.len());
        if let Some(host) = hosts.iter().find(|host| !is_host(host)) {
            return Err(AccessError::Host(host.clone()));
        }
        let is_origin = |origin: &String| {
            let rest = origin.split_once("://").map(|(_, rest)| rest);
            origin == "*" || rest.is_some_and(|rest| !rest.contains('/') && rest.parse::<Authority>().is_ok())
        };
        if let Some(origin) = origins.iter().find(|origin| !is_origin(origin)) {
            return Err(AccessError::Origin(origin.clone()));
        }
        let keys = keys.iter().map(|key| Sha256::digest(key).into()).collect();
        let lower = |list: Vec<String>| list.into_iter().map(|text| text.to_ascii_lowercase()).collect();
        Ok(Self { keys, hosts: lower(hosts), origins: lower(origins) })
    }

    /// Whether a key is needed.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<Verdict, ApiError> {
        let headers = request.headers();
        let hosts = hosts(request);
        if !self.has_keys() {
            self.check_hosts(&hosts)?;
        }
        let origin = headers.get(header::ORIGIN);
        if let Some(origin) = origin {
            self.check_origin(origin, &hosts)?;
            if request.method() == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
                return Ok(Verdict::Preflight(preflight(headers)));
            }
        }
        if self.has_keys() && !OPEN.contains(&request.uri().path()) && !self.knows(headers) {
            return Err(ApiError::no_key(
                headers.contains_key(header::AUTHORIZATION) || headers.contains_key("x-api-key"),
            ));
        }
        Ok(Verdict::Pass)
    }

    fn check_hosts(&self, hosts: &[String]) -> Result<(), ApiError> {
        let allowed = |host: &&String| {
            name(host).is_some_and(|name| is_loopback(&name) || self.hosts.iter().any(|h| h == "*" || *h == name))
        };
        match hosts.iter().find(|host| !allowed(host)) {
            None => Ok(()),
            Some(host) => Err(ApiError::forbidden(
                "host_not_allowed",
                format!(
                    "Host is {}, which is not a name of this machine's loopback; start the server with --allow-host \
                     NAME to answer to it, or with --api-key",
                    shown(host)
                ),
            )),
        }
    }

    fn check_origin(&self, origin: &HeaderValue, hosts: &[String]) -> Result<(), ApiError> {
        let text = String::from_utf8_lossy(origin.as_bytes()).to_ascii_lowercase();
        // A page of the server itself.
        let own = |host: &String| text.split_once("://").is_some_and(|(_, rest)| rest == host);
        if self.allows(&text) || hosts.iter().any(own) {
            return Ok(());
        }
        let message = format!(
            "pages of the origin {} may not use this server; start it with --cors-origin ORIGIN to allow them",
            shown(&text)
        );
        Err(ApiError::forbidden("origin_not_allowed", message))
    }

    /// `origin` in lower case.
    fn allows(&self, origin: &str) -> bool {
        self.origins.iter().any(|o| o == "*" || o == origin)
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
        });
        let given = bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii()));
        given.is_some_and(|given| {
            let given: [u8; 32] = Sha256::digest(given).into();
            // All keys and all bytes, whatever matches.
            self.keys.iter().fold(false, |found, key| {
                let differ = key.iter().zip(&given).fold(0, |differ, (a, b)| differ | (a ^ b));
                found | (differ == 0)
            })
        })
    }

    /// Say in an answer which origins may read it.
    pub(crate) fn mark(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if self.origins.is_empty() {
            return;
        }
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        let Some(origin) = origin else { return };
        if self.allows(&String::from_utf8_lossy(origin.as_bytes()).to_ascii_lowercase()) {
            let any = self.origins.iter().any(|o| o == "*");
            let value = if any { HeaderValue::from_static("*") } else { origin.clone() };
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, value);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
    }
}

/// The origin is allowed. Which headers it will send is then its own affair: clients add some of their own to each request.
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    let names = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.unwrap_or(HeaderValue::from_static(HEADERS)));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    let vary = "access-control-request-method, access-control-request-headers";
    headers.append(header::VARY, HeaderValue::from_static(vary));
    if asked.get(&ASKS_PRIVATE).is_some_and(|value| value == "true") {
        headers.insert(ALLOW_PRIVATE.clone(), HeaderValue::from_static("true"));
    }
    response
}

/// What the request calls this server, in lower case with the port; nothing in some requests of HTTP/1.0.
fn hosts<B>(request: &Request<B>) -> Vec<String> {
    let headers = request.headers().get_all(header::HOST).iter();
    let named = headers.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let whole = request.uri().authority().map(ToString::to_string);
    named.chain(whole).map(|host| host.to_ascii_lowercase()).collect()
}

/// A host without its port, an IPv6 address in its brackets; `None` for what is no host.
fn name(host: &str) -> Option<String> {
    let authority: Authority = host.parse().ok()?;
    let plain = !host.contains('@') && !authority.host().is_empty();
    plain.then(|| authority.host().to_ascii_lowercase())
}

fn is_loopback(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let address = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name).parse::<IpAddr>();
    name == "localhost" || name.ends_with(".localhost") || address.is_ok_and(|ip| ip.is_loopback())
}

/// What a stranger wrote, short and printable.
fn shown(text: &str) -> String {
    text.chars().take(100).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_loopback() {
        for host in
            ["localhost", "LOCALHOST:8080", "127.0.0.1:80", "127.9.9.9", "[::1]:8080", "lily.localhost", "localhost."]
        {
            assert!(name(host).is_some_and(|n| is_loopback(&n)), "{host}");
        }
        let others =
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "notlocalhost", "0.0.0.0", "[::]"];
        for host in others.into_iter().chain(["192.168.1.5", "a@localhost", "localhost@evil.example", "", ":80", "a b"])
        {
            assert!(!name(host).is_some_and(|n| is_loopback(&n)), "{host}");
        }
    }

    #[test]
    fn what_no_request_could_match_is_refused() {
        let new = |key: &str, host: &str, origin: &str| {
            Access::new(&[key.to_owned()], vec![host.to_owned()], vec![origin.to_owned()]).err()
        };
        assert_eq!(new("k", "box.lan", "http://a.example:3000"), None);
        assert_eq!(new("k", "*", "*"), None);
        for key in ["", "a b", "a\n", "ü"] {
            assert_eq!(new(key, "box.lan", "*"), Some(AccessError::Key));
        }
        for host in ["", "box.lan:80", "http://box.lan"] {
            assert_eq!(new("k", host, "*"), Some(AccessError::Host(host.into())));
        }
        for origin in ["", "a.example", "http://", "http://a.example/", "null"] {
            assert_eq!(new("k", "*", origin), Some(AccessError::Origin(origin.into())));
        }
    }
}
