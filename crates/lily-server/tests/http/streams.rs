//! Server-sent events.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::server::{Server, Sse, ask, read_reply};

fn join(chunks: &[Value], field: &str) -> String {
    chunks.iter().filter_map(|c| c["choices"][0]["delta"][field].as_str()).collect()
}

#[tokio::test]
async fn b105_tensorrt_llm_12758_a_stream_has_openai_shape() {
    let server = Server::start(r#"{"pieces": ["Hello", " there", "."]}"#).await;
    let reply = server.post(&ask(json!({"stream": true}))).await;
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    let chunks = reply.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(join(&chunks, "content"), "Hello there.");
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!((&chunk["id"], &chunk["created"]), (&chunks[0]["id"], &chunks[0]["created"]));
        assert_eq!(chunk["model"], "org/Lily-Test");
        assert!(chunk.get("usage").is_none());
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
    }
    let ends: Vec<_> = chunks.iter().map(|c| &c["choices"][0]["finish_reason"]).filter(|r| !r.is_null()).collect();
    assert_eq!(ends, [&json!("stop")]);
    let last = &chunks.last().unwrap()["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("stop")));
}

#[tokio::test]
async fn b100_vllm_swift_19_and_b101_tt_inference_server_632_usage_comes_last_and_only_when_asked_for() {
    let server = Server::start(r#"{"pieces": ["a", "b"]}"#).await;
    let plain = server.post(&ask(json!({}))).await.json();
    let options = json!({"include_usage": true});
    let chunks = server.post(&ask(json!({"stream": true, "stream_options": options}))).await.chunks();
    let (last, before) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"], plain["usage"]);
    assert_eq!(before.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert!(before.iter().all(|c| c.get("usage").is_none()));
    for options in [json!({"include_usage": false}), json!({}), json!(null)] {
        let chunks = server.post(&ask(json!({"stream": true, "stream_options": options}))).await.chunks();
        assert!(chunks.iter().all(|c| c.get("usage").is_none()));
    }
}

#[tokio::test]
async fn streamed_text_is_the_text_that_is_not_streamed() {
    let scripts = [
        r#"{"pieces": ["Hello", " wor", "ld ", {"bytes": [240, 159]}, {"bytes": [145, 169, 226]}, {"bytes": [128, 141]}, "!"]}"#,
        r#"{"pieces": ["think", "ing ", {"token": "</think>"}, "\n\n", "and ", "text "]}"#,
        r#"{"pieces": ["no", " end"], "end": "length"}"#,
        r#"{"pieces": [" lead", "\n", "\n trail ", "\n"]}"#,
        r#"{"pieces": ["one ", "STO", "P two"]}"#,
        r#"{"pieces": ["ST", "ST", "STOX", "STO"]}"#,
        r#"{"pieces": []}"#,
    ];
    for script in scripts {
        for thinking in [true, false] {
            let server = Server::start(script).await;
            let request = json!({"max_tokens": 9, "enable_thinking": thinking, "stop": "STOP"});
            let whole = server.post(&ask(request.clone())).await.json();
            let mut request = ask(request);
            request["stream"] = json!(true);
            let chunks = server.post(&request).await.chunks();
            let message = &whole["choices"][0]["message"];
            assert_eq!(join(&chunks, "content"), message["content"].as_str().unwrap(), "{script}");
            let reasoning = message["reasoning_content"].as_str().unwrap_or("");
            assert_eq!(join(&chunks, "reasoning_content"), reasoning, "{script}");
            assert_eq!(
                chunks.last().unwrap()["choices"][0]["finish_reason"],
                whole["choices"][0]["finish_reason"],
                "{script}"
            );
            assert!(!join(&chunks, "content").contains("STOP"));
        }
    }
}

#[tokio::test]
async fn tokens_are_sent_as_they_come() {
    let server = Server::start(r#"{"pieces": ["a", "b", "c", "d"], "delay_ms": 100}"#).await;
    let mut socket = server.open(&ask(json!({"stream": true}))).await;
    let began = Instant::now();
    let mut seen = String::new();
    while !seen.contains("\"content\":\"a\"") {
        let mut buffer = [0; 4096];
        let n = socket.read(&mut buffer).await.unwrap();
        assert!(n > 0, "{seen}");
        seen += std::str::from_utf8(&buffer[..n]).unwrap();
    }
    assert!(!seen.contains("\"content\":\"d\""), "the first token came with the last, after {:?}", began.elapsed());
}

#[tokio::test]
async fn b125_basert_44_a_slow_prompt_is_bridged_by_comments() {
    let script = r#"{"pieces": ["x"], "prefill_ms": 400}"#;
    let server = Server::start_with(script, 2, |app| app.keep_alive = Duration::from_millis(50)).await;
    let events = server.post(&ask(json!({"stream": true}))).await.events();
    let comments = events.iter().filter(|e| **e == Sse::Comment).count();
    assert!(comments >= 2, "{events:?}");
    assert_eq!(events.last(), Some(&Sse::Done));
}

#[tokio::test]
async fn b099_minisearch_2339_a_failure_before_the_first_token_has_its_own_status() {
    let server = Server::start(
        "{\"pieces\": [\"x\"], \"fail_after\": 0}\n{\"pieces\": [\"x\"], \"fail_after\": 0}\n{\"pieces\": [\"good\"]}",
    )
    .await;
    for stream in [true, false] {
        let reply = server.post(&ask(json!({"stream": stream}))).await;
        assert_eq!(reply.status, 500);
        assert_eq!(reply.error()["type"], "server_error");
        assert_eq!(reply.error()["code"], "engine_error");
    }
    assert_eq!(server.post(&ask(json!({}))).await.json()["choices"][0]["message"]["content"], "good");
}

#[tokio::test]
async fn b097_vllm_mlx_302_a_failure_in_mid_stream_is_an_event_and_an_end() {
    let bad = r#"{"pieces": ["a", "b", "c"], "fail_after": 2}"#;
    let server = Server::start(&format!("{bad}\n{bad}\n{{\"pieces\": [\"good\"]}}")).await;
    let chunks = server.post(&ask(json!({"stream": true}))).await.chunks();
    assert_eq!(join(&chunks, "content"), "ab");
    let error = &chunks.last().unwrap()["error"];
    assert_eq!(error["type"], "server_error", "{chunks:?}");
    assert!(error["message"].as_str().unwrap().contains("after 2 pieces"));
    assert!(chunks.iter().all(|c| c["choices"][0]["finish_reason"].is_null()));
    assert_eq!(server.post(&ask(json!({}))).await.status, 500);
    let chunks = server.post(&ask(json!({"stream": true}))).await.chunks();
    assert_eq!(join(&chunks, "content"), "good");
}

#[tokio::test]
async fn stopping_lets_short_answers_finish() {
    let mut server = Server::start(r#"{"pieces": ["a", "b", "c"], "delay_ms": 60}"#).await;
    let mut socket = server.open(&ask(json!({"stream": true}))).await;
    server.until("a running request", |load| load.running == 1).await;
    server.stop();
    let reply = read_reply(&mut socket).await;
    assert_eq!(join(&reply.chunks(), "content"), "abc");
    server.task.await.unwrap();
}

#[tokio::test]
async fn stopping_ends_long_answers_after_the_grace() {
    let script = r#"{"pieces": ["a"], "delay_ms": 20, "end": "length"}"#;
    let mut server = Server::start_with(script, 2, |app| app.grace = Duration::from_millis(150)).await;
    let mut stream = server.open(&ask(json!({"stream": true}))).await;
    server.until("a running request", |load| load.running == 1).await;
    let mut plain = server.open(&ask(json!({}))).await;
    server.until("a waiting request", |load| load.waiting == 1).await;
    let began = Instant::now();
    server.stop();
    let chunks = read_reply(&mut stream).await.chunks();
    assert_eq!(chunks.last().unwrap()["error"]["code"], "shutting_down");
    let reply = read_reply(&mut plain).await;
    assert_eq!((reply.status, reply.error()["code"].as_str()), (503, Some("shutting_down")));
    tokio::time::timeout(Duration::from_secs(10), &mut server.task).await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
    server.until_idle().await;
}

/// As llama.cpp tells it; not unless asked for.
#[tokio::test]
async fn the_reading_of_a_prompt_is_told_on_request() {
    let prefix = lily_engine::PrefixOptions { bytes: 1 << 30, ..lily_engine::PrefixOptions::default() };
    let server = Server::start_caching(r#"{"pieces": ["x"]}"#, 2, prefix, |_| {}).await;
    let body = |extra: Value| {
        let mut body = ask(extra);
        body["messages"] = json!([{"role": "user", "content": "word ".repeat(400)}]);
        body
    };
    let progress = |chunks: &[Value]| -> Vec<[u64; 3]> {
        let told = chunks.iter().filter(|chunk| chunk["prompt_progress"].is_object());
        told.map(|chunk| ["total", "cache", "processed"].map(|name| chunk["prompt_progress"][name].as_u64().unwrap()))
            .collect()
    };
    let chunks = server.post(&body(json!({"stream": true}))).await.chunks();
    assert!(progress(&chunks).is_empty());
    for extra in [
        json!({"stream": true, "return_progress": true}),
        json!({"stream": true, "stream_options": {"include_progress": true, "include_usage": true}}),
    ] {
        let chunks = server.post(&body(extra)).await.chunks();
        let told = progress(&chunks);
        let &[total, cached, read] = told.last().unwrap();
        assert!(cached > 0 && read == total, "{told:?}");
        assert!(
            told.is_sorted_by_key(|told| told[2])
                && told.iter().all(|t| t[0] == total && t[1] == cached && t[2] > cached)
        );
        let text = chunks.iter().position(|chunk| chunk["choices"][0]["delta"]["content"] == "x").unwrap();
        assert!(chunks[text..].iter().all(|chunk| chunk["prompt_progress"].is_null()));
    }
    let whole = server.post(&body(json!({"return_progress": true}))).await;
    assert_eq!((whole.status, whole.header("x-lily-ignored-fields")), (200, None));
    for (extra, param) in [
        (json!({"stream": true, "return_progress": 1}), "return_progress"),
        (json!({"stream": true, "stream_options": {"include_progress": "yes"}}), "stream_options.include_progress"),
        (json!({"stream_options": {"include_progress": true}}), "stream_options"),
    ] {
        let reply = server.post(&body(extra)).await;
        assert_eq!((reply.status, reply.error()["param"].as_str()), (400, Some(param)), "{reply:?}");
    }
}
