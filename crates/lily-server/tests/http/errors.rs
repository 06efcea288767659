//! Bad requests: a status, the field, and a server that goes on.

use serde_json::{Value, json};

use crate::server::{CHAT, Server, ask, send};

/// Assert that `body` is refused in OpenAI's shape, streamed or not, and that the server goes on.
async fn refused(server: &Server, body: Value, status: u16, param: Option<&str>, code: Option<&str>) {
    for stream in [false, true] {
        let mut body = body.clone();
        if body.get("stream").is_none() {
            body["stream"] = json!(stream);
        }
        let reply = server.post(&body).await;
        assert_eq!(reply.status, status, "{body}: {reply:?}");
        assert_eq!(reply.header("content-type"), Some("application/json"), "{body}");
        let error = reply.error();
        assert_eq!(error["type"], "invalid_request_error", "{body}");
        assert_eq!(error["param"].as_str(), param, "{body}: {error}");
        if code.is_some() {
            assert_eq!(error["code"].as_str(), code, "{body}");
        }
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
}

#[tokio::test]
async fn bad_fields_are_named() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let image = json!([{"type": "text", "text": "what"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]);
    for (extra, param) in [
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": 3}), "messages"),
        (json!({"messages": ["hi"]}), "messages[0]"),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (json!({"messages": user(image)}), "messages[0].content[1]"),
        (json!({"messages": user(json!([{"type": "text", "text": 5}]))}), "messages[0].content[0]"),
        (json!({"temperature": 3}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -5}), "max_tokens"),
        (json!({"n": 0}), "n"),
        (json!({"n": 17}), "n"),
        (json!({"stop": ""}), "stop"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"tool_choice": "required"}), "tool_choice"),
    ] {
        let body = ask(extra);
        let reply = server.post(&body).await;
        let found = reply.error()["param"].as_str().map(str::to_owned).unwrap_or_default();
        assert!(found.starts_with(param), "{body}: {reply:?}");
        refused(&server, body, 400, Some(&found), None).await;
    }
    refused(&server, ask(json!({"stream": "yes"})), 400, Some("stream"), None).await;
    refused(&server, ask(json!({"model": 5})), 400, Some("model"), None).await;
    server.assert_alive().await;
    assert_eq!(server.post(&ask(json!({}))).await.json()["choices"][0]["message"]["content"], "x");
}

#[tokio::test]
async fn broken_json_is_400() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    for body in ["", "{", "[]", "nope", "{\"messages\": [", "\u{0}", "{\"messages\": [],}"] {
        let reply = server.post_raw(body.as_bytes()).await;
        assert_eq!((reply.status, reply.error()["type"].as_str()), (400, Some("invalid_request_error")), "{body}");
    }
    for (value, field) in [("NaN", "temperature"), ("Infinity", "top_p"), ("-Infinity", "min_p")] {
        let body = format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"a: b\"}}], \"{field}\": {value}}}");
        let reply = server.post_raw(body.as_bytes()).await;
        assert_eq!((reply.status, reply.error()["param"].as_str()), (400, Some(field)), "{reply:?}");
    }
    server.assert_alive().await;
}

#[tokio::test]
async fn other_content_types_are_415() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    let body = ask(json!({})).to_string();
    for (kind, status) in [
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
    ] {
        let reply = send(server.addr, "POST", CHAT, &[("Content-Type", kind)], body.as_bytes()).await;
        assert_eq!(reply.status, status, "{kind}");
        if status == 415 {
            assert!(reply.error()["message"].as_str().unwrap().contains("application/json"));
        }
    }
    assert_eq!(send(server.addr, "POST", CHAT, &[], body.as_bytes()).await.status, 200);
}

#[tokio::test]
async fn large_bodies_are_413() {
    let server = Server::start_with(r#"{"pieces": ["x"]}"#, 2, |app| app.max_body = 10_000).await;
    let big = vec![b' '; 3_000_000];
    let reply = server.post_raw(&big).await;
    assert_eq!((reply.status, reply.error()["code"].as_str()), (413, Some("request_too_large")));
    let mut chunked = Vec::new();
    for part in big.chunks(100_000) {
        chunked.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        chunked.extend_from_slice(part);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let headers = [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")];
    assert_eq!(send(server.addr, "POST", CHAT, &headers, &chunked).await.status, 413);
    // The limit itself is allowed.
    let mut body = ask(json!({})).to_string().into_bytes();
    body.resize(10_000, b' ');
    assert_eq!(server.post_raw(&body).await.status, 200);
    body.push(b' ');
    assert_eq!(server.post_raw(&body).await.status, 413);
}

#[tokio::test]
async fn paths_and_methods_are_json_errors() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/v1/nope", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", CHAT, 405),
        ("DELETE", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("POST", "/health", 405),
    ] {
        let reply = send(server.addr, method, path, &[], b"").await;
        assert_eq!(reply.status, status, "{method} {path}");
        assert_eq!(reply.error()["type"], "invalid_request_error", "{method} {path}");
        if status == 405 {
            assert!(reply.header("allow").is_some(), "{reply:?}");
        }
    }
}

#[tokio::test]
async fn refused_requests_use_no_line_of_the_script() {
    let server = Server::start("{\"pieces\": [\"one\"]}\n{\"pieces\": [\"two\"]}").await;
    for bad in [json!({"n": 17}), json!({"model": "x"}), json!({"messages": []})] {
        assert!(server.post(&ask(bad)).await.status >= 400);
    }
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(5000)}]});
    assert_eq!(server.post(&ask(long)).await.status, 400);
    for text in ["one", "two", "two"] {
        assert_eq!(server.post(&ask(json!({}))).await.json()["choices"][0]["message"]["content"], text);
    }
}
