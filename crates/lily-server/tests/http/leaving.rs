//! Clients that leave, and clients that wait.

use std::time::Duration;

use lily_engine::PrefixOptions;
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::server::{Server, ask};

const ENDLESS: &str = r#"{"pieces": ["word "], "delay_ms": 10, "end": "length"}"#;

#[tokio::test]
async fn b119_mlx_lm_677_leaving_a_stream_frees_the_engine() {
    let server = Server::start(ENDLESS).await;
    let mut socket = server.open(&ask(json!({"stream": true}))).await;
    let mut buffer = [0; 512];
    for _ in 0..3 {
        assert!(socket.read(&mut buffer).await.unwrap() > 0);
    }
    drop(socket);
    server.until_idle().await;
    server.assert_alive().await;
}

#[tokio::test]
async fn b121_vllm_mlx_457_leaving_a_plain_request_frees_the_engine() {
    let server = Server::start(ENDLESS).await;
    let socket = server.open(&ask(json!({}))).await;
    server.until("a running request", |load| load.running == 1).await;
    drop(socket);
    server.until_idle().await;
    server.assert_alive().await;
}

#[tokio::test]
async fn b120_ds4_333_leaving_during_prefill_frees_the_engine_within_a_chunk() {
    let server = Server::start("{\"pieces\": [\"x\"], \"prefill_ms\": 200}\n{\"pieces\": [\"y\"]}").await;
    let long = "word ".repeat(800);
    for stream in [true, false] {
        let body = ask(json!({"stream": stream, "messages": [{"role": "user", "content": long}]}));
        let socket = server.open(&body).await;
        server.until("a running request", |load| load.running == 1).await;
        let left = std::time::Instant::now();
        drop(socket);
        server.until_idle().await;
        // The whole prompt takes more than two seconds.
        assert!(left.elapsed() < Duration::from_millis(1200), "{:?}", left.elapsed());
    }
    server.assert_alive().await;
}

#[tokio::test]
async fn b122_pegainfer_642_leaving_the_queue_makes_room() {
    let server = Server::start_with(ENDLESS, 1, |_| {}).await;
    let running = server.open(&ask(json!({"stream": true}))).await;
    server.until("a running request", |load| load.running == 1).await;
    for stream in [true, false] {
        let waiting = server.open(&ask(json!({"stream": stream}))).await;
        server.until("a waiting request", |load| load.waiting == 1).await;
        assert_eq!(server.post(&ask(json!({}))).await.status, 429);
        drop(waiting);
        server.until("an empty queue", |load| load.waiting == 0).await;
    }
    drop(running);
    server.until_idle().await;
}

#[tokio::test]
async fn b123_rapid_mlx_1782_fifty_clients_that_leave_leave_nothing_behind() {
    let server = Server::start_with(ENDLESS, 100, |_| {}).await;
    for i in 0..50 {
        let mut socket = server.open(&ask(json!({"stream": i % 2 == 0}))).await;
        if i % 10 == 0 {
            let mut buffer = [0; 64];
            let _ = tokio::time::timeout(Duration::from_millis(50), socket.read(&mut buffer)).await;
        }
    }
    server.until_idle().await;
    let body = server.post(&ask(json!({"max_tokens": 2}))).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "word word ");
}

#[tokio::test]
async fn b125_basert_44_a_full_queue_is_429_with_a_time_to_come_back() {
    let server = Server::start_with(ENDLESS, 1, |_| {}).await;
    let running = server.open(&ask(json!({"stream": true}))).await;
    server.until("a running request", |load| load.running == 1).await;
    let waiting = server.open(&ask(json!({}))).await;
    server.until("a waiting request", |load| load.waiting == 1).await;
    for stream in [true, false] {
        let reply = server.post(&ask(json!({"stream": stream}))).await;
        assert_eq!(reply.status, 429);
        assert_eq!(reply.error()["code"], "queue_full");
        assert!(reply.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    }
    let health = server.get("/health").await.json();
    assert_eq!((&health["running"], &health["waiting"]), (&json!(1), &json!(1)));
    drop((running, waiting));
    server.until_idle().await;
    assert_eq!(server.post(&ask(json!({"max_tokens": 1}))).await.status, 200);
}

#[tokio::test]
async fn requests_wait_their_turn() {
    let script = "{\"pieces\": [\"one\"], \"delay_ms\": 50}\n{\"pieces\": [\"two\"]}\n{\"pieces\": [\"three\"]}";
    let server = Server::start(script).await;
    let mut answers = Vec::new();
    for i in 0..3 {
        answers.push(server.open(&ask(json!({"stream": i == 1}))).await);
        server.until("the request to be in", |load| load.running + load.waiting > i).await;
    }
    for (mut socket, text) in answers.into_iter().zip(["one", "two", "three"]) {
        let mut seen = String::new();
        while !seen.contains(&format!("\"content\":\"{text}\"")) {
            let mut buffer = [0; 4096];
            let n = socket.read(&mut buffer).await.unwrap();
            assert!(n > 0, "{seen}");
            seen += std::str::from_utf8(&buffer[..n]).unwrap();
        }
    }
}

#[tokio::test]
async fn what_was_read_before_the_client_left_is_read_once() {
    let prefix = PrefixOptions { bytes: 1 << 20, exact: false };
    let script = "{\"pieces\": [\"x\"], \"prefill_ms\": 50}";
    let server = Server::start_caching(script, 2, prefix, |_| {}).await;
    let body = ask(json!({"messages": [{"role": "user", "content": "word ".repeat(800)}]}));
    let socket = server.open(&body).await;
    server.until("a running request", |load| load.running == 1).await;
    tokio::time::sleep(Duration::from_millis(120)).await;
    drop(socket);
    server.until_idle().await;
    let usage = server.post(&body).await.json()["usage"].clone();
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 64 && cached < usage["prompt_tokens"].as_u64().unwrap(), "{usage}");
}
