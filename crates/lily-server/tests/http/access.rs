//! Keys, `Host`, `Origin`, preflights, request ids, and connections that keep the server waiting.

use std::time::{Duration, Instant};

use lily_server::{Access, Limits};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::server::{CHAT, Reply, Server, ask, read_reply, send};

const SCRIPT: &str = r#"{"pieces": ["x"]}"#;
const PATHS: [&str; 5] = ["/v1/models", "/health", "/ready", "/metrics", "/nothing"];

fn access(keys: &[&str], hosts: &[&str], origins: &[&str]) -> Access {
    let own = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    Access::new(&own(keys), own(hosts), own(origins)).unwrap()
}

async fn server(access: Access) -> Server {
    Server::start_with(SCRIPT, 2, |app| app.access = access).await
}

/// A request whose head is written by hand.
async fn raw(server: &Server, method: &str, path: &str, headers: &str) -> Reply {
    let mut socket = TcpStream::connect(server.addr).await.unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    read_reply(&mut socket).await
}

fn assert_error(reply: &Reply, status: u16, code: &str) {
    assert_eq!((reply.status, reply.error()["code"].as_str()), (status, Some(code)), "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(!reply.error()["message"].as_str().unwrap().is_empty());
    assert!(reply.header("x-request-id").is_some());
}

#[tokio::test]
async fn a_key_opens_everything_and_nothing_else_does() {
    let server = server(access(&["sk-one", "sk-two"], &[], &[])).await;
    let body = ask(json!({})).to_string();
    for (name, value) in [
        ("Authorization", "Bearer sk-one"),
        ("authorization", "bearer sk-two"),
        ("x-api-key", "sk-one"),
        ("X-Api-Key", "sk-two"),
    ] {
        assert_eq!(
            send(server.addr, "POST", CHAT, &[(name, value)], body.as_bytes()).await.status,
            200,
            "{name} {value}"
        );
    }
    for (name, value) in [
        ("Authorization", "Bearer sk-on"),
        ("Authorization", "Bearer sk-one2"),
        ("Authorization", "Bearer sk-one,sk-two"),
        ("Authorization", "Bearer"),
        ("Authorization", "Basic sk-one"),
        ("Authorization", "sk-one"),
        ("x-api-key", ""),
        ("Cookie", "x-api-key=sk-one"),
    ] {
        let reply = send(server.addr, "POST", CHAT, &[(name, value)], body.as_bytes()).await;
        assert_error(&reply, 401, "invalid_api_key");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        assert!(!reply.body.contains("sk-"), "{}", reply.body);
    }
    for path in PATHS {
        let open = path == "/health" || path == "/ready";
        assert_eq!(server.get(path).await.status, if open { 200 } else { 401 }, "{path}");
    }
    // The key also protects from foreign names.
    assert_eq!(raw(&server, "GET", "/health", "Host: box.lan\r\n").await.status, 200);
}

/// DNS rebinding: a page's own name that was pointed at 127.0.0.1. llama-server answers it.
#[tokio::test]
async fn foreign_hosts_are_refused_on_loopback() {
    let server = server(Access::default()).await;
    for host in ["localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]:8080", "lily.localhost"] {
        assert_eq!(raw(&server, "GET", "/v1/models", &format!("Host: {host}\r\n")).await.status, 200, "{host}");
    }
    for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "192.168.0.7", "a@localhost", ""] {
        for path in PATHS {
            let reply = raw(&server, "GET", path, &format!("Host: {host}\r\n")).await;
            assert_error(&reply, 403, "host_not_allowed");
            assert!(reply.error()["message"].as_str().unwrap().contains("--allow-host"));
        }
    }
    // Neither of two, nor the one in the target.
    let two = raw(&server, "GET", "/ready", "Host: localhost\r\nHost: evil.example\r\n").await;
    assert!((400..=403).contains(&two.status), "{two:?}");
    let whole = raw(&server, "GET", "http://evil.example/ready", "Host: localhost\r\n").await;
    assert_error(&whole, 403, "host_not_allowed");
}

#[tokio::test]
async fn hosts_can_be_allowed() {
    let server = server(access(&[], &["Box.lan"], &[])).await;
    for (host, status) in [("box.lan:8080", 200), ("BOX.LAN", 200), ("localhost", 200), ("x.box.lan", 403)] {
        assert_eq!(raw(&server, "GET", "/ready", &format!("Host: {host}\r\n")).await.status, status, "{host}");
    }
    let any = Server::start_with(SCRIPT, 2, |app| app.access = access(&[], &["*"], &[])).await;
    assert_eq!(raw(&any, "GET", "/ready", "Host: whatever.example\r\n").await.status, 200);
}

/// llama-server reflects any origin.
#[tokio::test]
async fn pages_of_other_origins_are_refused() {
    let server = server(Access::default()).await;
    for origin in ["https://evil.example", "http://localhost.evil.example", "http://localhost:3000", "null", "file://"]
    {
        for method in ["GET", "OPTIONS"] {
            let headers = format!("Host: localhost\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n");
            let reply = raw(&server, method, CHAT, &headers).await;
            assert_error(&reply, 403, "origin_not_allowed");
            assert_eq!(reply.header("access-control-allow-origin"), None);
        }
    }
    // A page of the server itself.
    let own = raw(&server, "GET", "/ready", "Host: localhost:8080\r\nOrigin: http://localhost:8080\r\n").await;
    assert_eq!(own.status, 200);
    assert_eq!(own.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn b038_llama_swap_42_preflights_name_methods_and_headers() {
    let origin = "https://app.example:3000";
    for (allowed, answer) in [(origin, origin), ("*", "*")] {
        let server = server(access(&["k"], &[], &[allowed])).await;
        let asked = "authorization,content-type,x-stainless-lang";
        let headers = format!(
            "Host: localhost\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
             Access-Control-Request-Headers: {asked}\r\nAccess-Control-Request-Private-Network: true\r\n"
        );
        // Browsers send no key with it.
        for path in [CHAT, "/v1/models", "/metrics"] {
            let reply = raw(&server, "OPTIONS", path, &headers).await;
            assert_eq!((reply.status, reply.body.as_str()), (204, ""), "{reply:?}");
            assert_eq!(reply.header("access-control-allow-origin"), Some(answer));
            assert!(reply.header("access-control-allow-methods").unwrap().contains("POST"));
            assert_eq!(reply.header("access-control-allow-headers"), Some(asked));
            assert_eq!(reply.header("access-control-allow-private-network"), Some("true"));
            assert_eq!(reply.header("access-control-allow-credentials"), None);
            assert!(reply.head.to_ascii_lowercase().contains("vary: origin"), "{}", reply.head);
        }
        // Errors can be read by the page too.
        let refused = raw(&server, "GET", "/v1/models", &format!("Host: localhost\r\nOrigin: {origin}\r\n")).await;
        assert_eq!((refused.status, refused.header("access-control-allow-origin")), (401, Some(answer)));
        let headers = format!("Host: localhost\r\nOrigin: {origin}\r\nx-api-key: k\r\n");
        let reply = raw(&server, "GET", "/v1/models", &headers).await;
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some(answer)));
        assert!(reply.header("access-control-expose-headers").unwrap().contains("x-request-id"));
        let other =
            raw(&server, "GET", "/v1/models", "Host: localhost\r\nx-api-key: k\r\nOrigin: https://b.example\r\n");
        assert_eq!(other.await.status, if allowed == "*" { 200 } else { 403 });
    }
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let server = server(Access::default()).await;
    let mut made = Vec::new();
    for path in PATHS {
        made.push(server.get(path).await.header("x-request-id").unwrap().to_owned());
    }
    let stream = server.post(&ask(json!({"stream": true}))).await;
    made.push(stream.header("x-request-id").unwrap().to_owned());
    made.push(server.post_raw(b"{").await.header("x-request-id").unwrap().to_owned());
    made.sort();
    made.dedup();
    assert_eq!(made.len(), PATHS.len() + 2);
    assert!(made.iter().all(|id| id.starts_with("req_") && id.len() == 36), "{made:?}");
    let long = "a".repeat(129);
    for (id, kept) in
        [("abc-1.2:3/4", true), (&long[1..], true), (&long, false), ("a b", false), ("<x>", false), ("", false)]
    {
        let reply = send(server.addr, "GET", "/ready", &[("x-request-id", id)], b"").await;
        assert_eq!(reply.header("x-request-id") == Some(id), kept, "{id:?} {reply:?}");
    }
}

fn limits(head: u64, body: u64, connections: usize) -> Limits {
    Limits { head: Duration::from_millis(head), body: Duration::from_millis(body), connections }
}

/// Read until the server closes, and how long that took.
async fn closed(socket: &mut TcpStream) -> (String, Duration) {
    let (began, mut text) = (Instant::now(), String::new());
    tokio::time::timeout(Duration::from_secs(20), socket.read_to_string(&mut text)).await.expect("an end").unwrap();
    (text, began.elapsed())
}

#[tokio::test]
async fn slow_heads_and_idle_connections_are_closed() {
    let server = Server::start_with(SCRIPT, 2, |app| app.limits = limits(300, 60_000, 512)).await;
    let mut silent = TcpStream::connect(server.addr).await.unwrap();
    closed(&mut silent).await;
    let mut slow = TcpStream::connect(server.addr).await.unwrap();
    slow.write_all(b"GET /health HTTP/1.1\r\nHost: loc").await.unwrap();
    closed(&mut slow).await;
    let mut idle = TcpStream::connect(server.addr).await.unwrap();
    idle.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let (text, time) = closed(&mut idle).await;
    assert!(text.starts_with("HTTP/1.1 200") && time >= Duration::from_millis(250), "{text} {time:?}");
    server.assert_alive().await;
}

#[tokio::test]
async fn slow_bodies_are_408() {
    let server = Server::start_with(SCRIPT, 2, |app| app.limits = limits(60_000, 200, 512)).await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{{");
    let mut socket = TcpStream::connect(server.addr).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    assert_error(&read_reply(&mut socket).await, 408, "request_timeout");
    // A byte now and then does not keep it waiting for ever.
    let mut drip = TcpStream::connect(server.addr).await.unwrap();
    drip.write_all(head.as_bytes()).await.unwrap();
    let (mut read, mut write) = drip.into_split();
    let dripping = tokio::spawn(async move {
        while write.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let mut first = [0; 12];
    tokio::time::timeout(Duration::from_secs(8), read.read_exact(&mut first)).await.expect("an answer").unwrap();
    assert_eq!(&first, b"HTTP/1.1 408");
    dripping.abort();
    server.assert_alive().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let server = Server::start_with(SCRIPT, 2, |app| app.limits = limits(60_000, 60_000, 2)).await;
    let held = [TcpStream::connect(server.addr).await.unwrap(), TcpStream::connect(server.addr).await.unwrap()];
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut third = TcpStream::connect(server.addr).await.unwrap();
    third.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut byte = [0];
    let early = tokio::time::timeout(Duration::from_millis(200), third.read(&mut byte)).await;
    assert!(early.is_err(), "answered beyond the limit");
    drop(held);
    assert_eq!(read_reply_after(&mut third).await, 200);
}

async fn read_reply_after(socket: &mut TcpStream) -> u16 {
    read_reply(socket).await.status
}

/// Half a request does not keep the server from stopping.
#[tokio::test]
async fn connections_that_hang_do_not_hold_up_the_stop() {
    let mut server = Server::start_with(SCRIPT, 2, |app| app.grace = Duration::from_millis(100)).await;
    let mut socket = TcpStream::connect(server.addr).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{");
    socket.write_all(head.as_bytes()).await.unwrap();
    let _idle = TcpStream::connect(server.addr).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.stop();
    tokio::time::timeout(Duration::from_secs(10), &mut server.task).await.expect("the server to stop").unwrap();
}
