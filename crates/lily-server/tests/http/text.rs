//! Tokens of texts and conversations, and back; strictness; readiness.

use serde_json::{Value, json};

use crate::server::{Reply, Server, ask, send};

async fn post(server: &Server, path: &str, body: Value) -> Reply {
    send(server.addr, "POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes()).await
}

#[tokio::test]
async fn texts_go_to_tokens_and_back() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    for text in ["", "Hello, world!", "héllo\n用户 👩‍👩‍👧", "<|im_end|> and </think>"] {
        for (name, special) in [("content", false), ("prompt", false), ("content", true)] {
            let reply = post(&server, "/tokenize", json!({name: text, "parse_special": special})).await.json();
            assert_eq!(reply["count"], reply["tokens"].as_array().unwrap().len(), "{text}");
            let back = post(&server, "/detokenize", json!({"tokens": reply["tokens"]})).await.json();
            assert_eq!(back, json!({"content": text, "prompt": text}));
        }
    }
    let marker = |special: bool| json!({"content": "<|im_end|>", "parse_special": special});
    assert_eq!(post(&server, "/tokenize", marker(true)).await.json()["tokens"], json!([8185]));
    let plain = post(&server, "/tokenize", marker(false)).await.json();
    assert!(plain["count"].as_u64().unwrap() > 1, "{plain}");
    assert!(!plain["tokens"].as_array().unwrap().contains(&json!(8185)));
}

#[tokio::test]
async fn a_conversation_has_the_tokens_that_its_answer_reports() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    let body = ask(json!({}));
    let tokens = post(&server, "/tokenize", body.clone()).await.json();
    let usage = server.post(&body).await.json()["usage"].clone();
    assert_eq!(tokens["count"], usage["prompt_tokens"]);
    assert_eq!(tokens["max_model_len"], crate::server::CONTEXT);
    let text = post(&server, "/detokenize", json!({"tokens": tokens["tokens"]})).await.json();
    assert!(text["content"].as_str().unwrap().contains("<|im_start|>user\nSay something.<|im_end|>"));
}

#[tokio::test]
async fn bad_texts_and_tokens_are_named() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    for (path, body, param) in [
        ("/tokenize", json!({}), "content"),
        ("/tokenize", json!({"content": 5}), "content"),
        ("/tokenize", json!({"content": "a", "prompt": "b"}), "prompt"),
        ("/tokenize", json!({"content": "a", "messages": []}), "messages"),
        ("/tokenize", json!({"messages": []}), "messages"),
        ("/tokenize", json!({"content": "a", "parse_special": "no"}), "parse_special"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": [1, -1]}), "tokens[1]"),
        ("/detokenize", json!({"tokens": ["1"]}), "tokens[0]"),
        ("/detokenize", json!({"tokens": [4_000_000_000_u32]}), "tokens[0]"),
        ("/detokenize", json!({"tokens": [u64::MAX]}), "tokens[0]"),
    ] {
        let reply = post(&server, path, body.clone()).await;
        assert_eq!((reply.status, reply.error()["param"].as_str()), (400, Some(param)), "{path} {body}");
    }
    let reply = post(&server, "/tokenize", json!({"content": "a", "model": "gpt-4"})).await;
    assert_eq!(reply.status, 404);
    assert_eq!(server.get("/tokenize").await.status, 405);
}

#[tokio::test]
async fn a_strict_server_refuses_fields_without_meaning() {
    let server = Server::start_with(r#"{"pieces": ["x"]}"#, 2, |app| app.strict = true).await;
    for stream in [false, true] {
        let reply = server.post(&ask(json!({"frobnicate": 1, "stream": stream}))).await;
        assert_eq!((reply.status, reply.error()["param"].as_str()), (400, Some("frobnicate")));
        assert_eq!(reply.error()["code"], "unknown_parameter");
    }
    let known = json!({"user": "me", "metadata": {"a": "b"}, "store": false, "top_p": 0.9});
    assert_eq!(server.post(&ask(known)).await.status, 200);
}

#[tokio::test]
async fn a_serving_server_is_ready() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    let reply = server.get("/ready").await;
    assert_eq!((reply.status, reply.json()), (200, json!({"status": "ready"})));
}
