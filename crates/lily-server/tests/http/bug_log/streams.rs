//! Rows of sections 8 and 11: the shape of streams, what is counted, and sampling over HTTP.

use serde_json::{Value, json};

use super::{content, say, user};
use crate::server::{Server, ask};

#[tokio::test]
async fn b098_lemonade_2975_a_failure_in_a_stream_has_the_framing_of_events() {
    let server = Server::start(r#"{"pieces": ["a", "b", "c"], "fail_after": 2}"#).await;
    let reply = server.post(&ask(json!({"stream": true}))).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")));
    let (events, end) = reply.body.rsplit_once("data: [DONE]\n\n").expect(&reply.body);
    assert_eq!(end, "", "nothing follows the end");
    let events: Vec<&str> = events.split_terminator("\n\n").collect();
    for event in &events {
        let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event:?} has no framing"));
        assert!(!data.contains('\n'));
        serde_json::from_str::<Value>(data).unwrap_or_else(|e| panic!("{e}: {data}"));
    }
    assert_eq!(events.iter().filter(|event| event.starts_with("data: {\"error\":")).count(), 1, "{events:?}");
}

#[tokio::test]
async fn b102_vllm_8625_completion_tokens_are_those_that_were_sampled() {
    let thought = r#"{"pieces": ["Let", " me", " see.", {"token": "</think>"}, "\n\n", "Yes."]}"#;
    let stop = r#"{"pieces": ["one", " tw", "o th", "ree", " four"]}"#;
    for (script, body, content, tokens) in [
        // The end token counts.
        (stop, ask(json!({})), "one two three four", 6),
        // What comes after the token in which the stop string ends was never sampled; what it cuts off was.
        (stop, ask(json!({"stop": "two"})), "one ", 3),
        (stop, ask(json!({"stop": "th"})), "one two ", 3),
        (stop, ask(json!({"max_tokens": 2})), "one tw", 2),
        (thought, json!({"messages": [user("Is it?")]}), "Yes.", 7),
        (thought, json!({"messages": [user("Is it?")], "max_tokens": 4}), "", 4),
    ] {
        let seen = say(&Server::start(script).await, &body).await;
        assert_eq!((seen.content.as_str(), seen.completion_tokens), (content, tokens), "{body}");
    }
    let server = Server::start(&format!("{stop}\n{stop}\n{thought}")).await;
    let usage = server.post(&ask(json!({"n": 3, "stop": "two"}))).await.json()["usage"].clone();
    assert_eq!(usage["completion_tokens"], 3 + 3 + 7);
}

#[tokio::test]
async fn b103_mlx_vlm_1215_a_cut_answer_is_told_as_one() {
    let server = Server::start(r#"{"pieces": ["a", "b", "c"]}"#).await;
    // The end token is the fourth.
    for (max_tokens, finish) in [(1, "length"), (2, "length"), (3, "length"), (4, "stop"), (5, "stop")] {
        let seen = say(&server, &ask(json!({"max_tokens": max_tokens}))).await;
        assert_eq!(seen.finish, finish, "{max_tokens}");
    }
    // As much as the context holds.
    let server = Server::start(r#"{"pieces": ["a"], "end": "length"}"#).await;
    assert_eq!(say(&server, &ask(json!({}))).await.finish, "length");
}

#[tokio::test]
async fn b104_vllm_35705_the_chunk_with_the_reason_carries_no_text() {
    let server = Server::start(r#"{"pieces": ["a", "b", "c"]}"#).await;
    for (max_tokens, text, finish) in [(2, "ab", "length"), (9, "abc", "stop")] {
        let chunks = server.post(&ask(json!({"stream": true, "max_tokens": max_tokens}))).await.chunks();
        let (last, before) = chunks.split_last().unwrap();
        let choice = json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": finish});
        assert_eq!(last["choices"], json!([choice]));
        let said: String = before.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(said, text);
        assert!(before.iter().all(|c| c["choices"][0]["finish_reason"].is_null()), "{before:?}");
    }
}

/// With the demo model.
#[tokio::test]
async fn b128_obsidian_llm_wiki_423_a_seed_gives_one_answer() {
    let server = Server::start_demo().await;
    let body = |seed: i32| {
        let messages = json!([user("Tell me a story about a cat.")]);
        ask(json!({"messages": messages, "temperature": 1, "top_p": 1, "top_k": 0, "seed": seed, "max_tokens": 40}))
    };
    let first = content(&server, &body(42)).await;
    for _ in 0..2 {
        assert_eq!(content(&server, &body(42)).await, first);
    }
    assert_ne!(content(&server, &body(43)).await, first, "the seed is read");
}

#[tokio::test]
async fn b130_tensorrt_llm_17158_temperatures_outside_0_to_2_are_refused() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    for stream in [false, true] {
        for temperature in [json!(-1), json!(-0.01), json!(2.01), json!(3), json!(1e9), json!("1"), json!([1])] {
            let reply = server.post(&ask(json!({"temperature": temperature, "stream": stream}))).await;
            assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("temperature")), "{temperature}");
            assert_eq!(reply.error()["type"], "invalid_request_error");
        }
        for temperature in [json!(0), json!(2), json!(0.7), Value::Null] {
            let reply = server.post(&ask(json!({"temperature": temperature, "stream": stream}))).await;
            assert_eq!(reply.status, 200, "{temperature}");
        }
    }
}
