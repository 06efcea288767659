//! `n`: several answers to one prompt.

use lily_engine::PrefixOptions;
use serde_json::{Value, json};

use crate::server::{Server, ask};

/// A line for each choice, in order.
const LINES: &str =
    "{\"pieces\": [\"one\", \" first\"]}\n{\"pieces\": [\"two\"], \"end\": \"length\"}\n{\"pieces\": [\"three\"]}";

#[tokio::test]
async fn each_choice_has_its_index_and_the_prompt_counts_once() {
    let server = Server::start(LINES).await;
    let body = server.post(&ask(json!({"n": 3, "max_tokens": 4}))).await.json();
    let choices = body["choices"].as_array().unwrap();
    let expected = [("one first", "stop"), ("twotwotwotwo", "length"), ("three", "stop")];
    assert_eq!(choices.len(), 3);
    for (i, (choice, (text, why))) in choices.iter().zip(expected).enumerate() {
        assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(i), &json!(why)));
        assert_eq!(choice["message"]["content"], text);
    }
    let usage = &body["usage"];
    // Each with its end token, where there is one.
    assert_eq!(usage["completion_tokens"], 3 + 4 + 2);
    let alone = server.post(&ask(json!({}))).await.json();
    assert_eq!(usage["prompt_tokens"], alone["usage"]["prompt_tokens"]);
    server.until_idle().await;
}

#[tokio::test]
async fn streams_carry_the_index_of_each_choice() {
    let server = Server::start(LINES).await;
    let body = ask(json!({"n": 3, "max_tokens": 4, "stream": true, "stream_options": {"include_usage": true}}));
    let chunks = server.post(&body).await.chunks();
    let of = |i: usize| {
        let mine = |c: &&Value| c["choices"][0]["index"] == json!(i);
        chunks.iter().filter(mine).map(|c| &c["choices"][0]).collect::<Vec<_>>()
    };
    for (i, (text, why)) in [("one first", "stop"), ("twotwotwotwo", "length"), ("three", "stop")].iter().enumerate() {
        let mine = of(i);
        assert_eq!(mine[0]["delta"]["role"], "assistant");
        let said: String = mine.iter().filter_map(|c| c["delta"]["content"].as_str()).collect();
        assert_eq!(said, *text);
        assert_eq!(mine.iter().filter(|c| !c["finish_reason"].is_null()).count(), 1);
        assert_eq!(mine.last().unwrap()["finish_reason"], *why);
    }
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens"], 9);
    assert_eq!(chunks.iter().filter(|c| !c["usage"].is_null()).count(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_takes_all_its_choices_along() {
    let server = Server::start(r#"{"pieces": ["word "], "delay_ms": 5, "end": "length"}"#).await;
    for stream in [true, false] {
        let socket = server.open(&ask(json!({"n": 3, "stream": stream}))).await;
        server.until("the fork", |load| load.running == 1 && load.waiting == 2).await;
        drop(socket);
        server.until_idle().await;
    }
    server.assert_alive().await;
}

#[tokio::test]
async fn one_that_fails_fails_the_request() {
    let script = "{\"pieces\": [\"fine\"]}\n{\"pieces\": [\"a\", \"b\", \"c\"], \"fail_after\": 2}";
    let server = Server::start(script).await;
    let reply = server.post(&ask(json!({"n": 2}))).await;
    assert_eq!((reply.status, &reply.error()["code"]), (500, &json!("engine_error")));
    server.until_idle().await;
}

#[tokio::test]
async fn another_answer_and_another_last_message_read_little() {
    let prefix = PrefixOptions { bytes: 1 << 20, exact: false };
    let server = Server::start_caching(r#"{"pieces": ["Yes", "."]}"#, 2, prefix, |_| {}).await;
    let long = "This goes on for longer than one block of tokens, and then for some more. ".repeat(12);
    let talk = |last: &str| {
        let user = |text: &str| json!({"role": "user", "content": text});
        ask(json!({"messages": [user(&long), {"role": "assistant", "content": "Yes."}, user(last)], "n": 2}))
    };
    let usage = async |last: &str| {
        let usage = server.post(&talk(last)).await.json()["usage"].clone();
        let count = |v: &Value| v.as_u64().unwrap();
        (count(&usage["prompt_tokens"]), count(&usage["prompt_tokens_details"]["cached_tokens"]))
    };
    let last = format!("First: {long}");
    let (prompt, cached) = usage(&last).await;
    assert_eq!(cached, 0);
    // Regenerated: the last multiple of 64 before the end.
    assert_eq!(usage(&last).await, (prompt, (prompt - 1) / 64 * 64));
    // Edited: every edit restarts from one place, the last multiple of 64 before the message that changed.
    let (_, place) = usage("Else.").await;
    assert!(place > 64 && place.is_multiple_of(64), "{place}");
    for edit in ["Something else.", &format!("Second: {long}")] {
        assert_eq!(usage(edit).await.1, place, "{edit}");
    }
}
