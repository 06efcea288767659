//! Rows of section 2: limits and fields of requests.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Said, content, refused, say, script, user};
use crate::server::{CHAT, CONTEXT, Server, ask, send};

#[tokio::test]
async fn b022_atom_2188_a_limit_below_one_token_is_refused() {
    let server = Server::start(&script(json!(["x"]))).await;
    for field in ["max_tokens", "max_completion_tokens"] {
        for bad in [json!(0), json!(-1), json!(1.5), json!("5"), json!(true), json!([5])] {
            assert_eq!(refused(&server, &ask(json!({field: bad}))).await["param"], field, "{bad}");
        }
        assert_eq!(content(&server, &ask(json!({field: null}))).await, "x");
    }
}

#[tokio::test]
async fn b023_mistral_inference_122_one_token_is_an_answer() {
    let server = Server::start(&script(json!(["one", "two"]))).await;
    let said = say(&server, &ask(json!({"max_tokens": 1}))).await;
    assert_eq!((said.content.as_str(), said.finish.as_str(), said.completion_tokens), ("one", "length", 1));
}

#[tokio::test]
async fn b024_ik_llama_cpp_2321_both_names_of_the_limit_hold() {
    let server = Server::start(r#"{"pieces": ["a"], "end": "length"}"#).await;
    for (limits, tokens) in [
        (json!({"max_completion_tokens": 3}), 3),
        (json!({"max_tokens": 3}), 3),
        (json!({"max_tokens": 5, "max_completion_tokens": 3}), 3),
        (json!({"max_tokens": 3, "max_completion_tokens": 5}), 3),
        (json!({"max_tokens": null, "max_completion_tokens": 3}), 3),
    ] {
        let said = say(&server, &ask(limits.clone())).await;
        assert_eq!((said.completion_tokens, said.finish.as_str()), (tokens, "length"), "{limits}");
    }
}

#[tokio::test]
async fn b025_modular_6673_a_limit_beyond_the_room_ends_with_length_and_true_numbers() {
    let server = Server::start(r#"{"pieces": ["a"], "end": "length"}"#).await;
    for limit in [CONTEXT as u64, 1_000_000, i64::MAX as u64] {
        let said = say(&server, &ask(json!({"max_tokens": limit}))).await;
        assert_eq!(said.finish, "length");
        assert_eq!((said.prompt_tokens + said.completion_tokens) as usize, CONTEXT, "{limit}");
        assert_eq!(said.content.len() as u64, said.completion_tokens);
    }
}

/// A prompt of so many tokens.
async fn prompt_of(server: &Server, tokens: usize) -> Value {
    let of = |words: usize| ask(json!({"messages": [user(&"word ".repeat(words))]}));
    let (a, b) = (server.tokens(&of(100)).await.len(), server.tokens(&of(101)).await.len());
    assert_eq!(b, a + 1, "the test needs a word of one token");
    of(100 + tokens - a)
}

#[tokio::test]
async fn b026_lmstudio_bug_tracker_2339_a_prompt_beyond_the_context_is_no_stream() {
    let server = Server::start(&script(json!(["x"]))).await;
    let error = refused(&server, &prompt_of(&server, 5000).await).await;
    assert_eq!((&error["param"], &error["code"]), (&json!("messages"), &json!("context_length_exceeded")));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&format!("context is {CONTEXT}")) && message.contains("5000"), "{message}");
}

#[tokio::test]
async fn b027_ollama_17889_a_prompt_is_never_cut() {
    let server = Server::start(&script(json!(["x"]))).await;
    for tokens in [200, CONTEXT - 2] {
        let body = prompt_of(&server, tokens).await;
        assert_eq!(say(&server, &body).await.prompt_tokens as usize, tokens);
    }
    // Old turns are not dropped either.
    let turn = |i: usize| user(&format!("{i}: {}", "word ".repeat(300)));
    let body = ask(json!({"messages": (0..5).map(turn).collect::<Vec<_>>()}));
    assert_eq!(refused(&server, &body).await["code"], "context_length_exceeded");
}

#[tokio::test]
async fn b028_sglang_3910_prompts_around_the_limit_are_answered_or_refused() {
    let server = Server::start(r#"{"pieces": ["a"], "end": "length"}"#).await;
    for (tokens, room) in [(CONTEXT - 2, 2), (CONTEXT - 1, 1)] {
        let said = say(&server, &prompt_of(&server, tokens).await).await;
        assert_eq!((said.completion_tokens, said.finish.as_str()), (room, "length"), "{tokens}");
    }
    for tokens in [CONTEXT, CONTEXT + 1, CONTEXT + 64] {
        let error = refused(&server, &prompt_of(&server, tokens).await).await;
        assert_eq!(error["code"], "context_length_exceeded", "{tokens}");
    }
    server.until_idle().await;
    server.assert_alive().await;
}

#[tokio::test]
async fn b029_mlx_serve_66_a_body_of_50_megabytes_is_413() {
    let server = Server::start(&script(json!(["x"]))).await;
    let mut body = ask(json!({})).to_string().into_bytes();
    body.resize(50_000_000, b' ');
    let reply = server.post_raw(&body).await;
    assert_eq!((reply.status, reply.error()["code"].as_str()), (413, Some("request_too_large")));
    // As many tokens as such a body may have are counted and refused.
    let error = refused(&server, &prompt_of(&server, 200_000).await).await;
    assert_eq!(error["code"], "context_length_exceeded");
    server.assert_alive().await;
}

#[tokio::test]
async fn b030_mistral_rs_1874_no_choices_is_no_stream() {
    let server = Server::start(&script(json!(["x"]))).await;
    for n in [json!(0), json!(-1), json!("1")] {
        let body = ask(json!({"n": n, "stream": true}));
        // The connection is kept alive: the answer must be known to be whole without its close.
        let reply = tokio::time::timeout(Duration::from_secs(2), server.post(&body)).await.expect("an answer");
        assert_eq!((reply.status, reply.error()["param"].as_str()), (400, Some("n")), "{n}");
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
}

#[tokio::test]
async fn b031_sendnn_inference_542_any_top_k_is_answered() {
    let server = Server::start(&script(json!(["x"]))).await;
    for k in [json!(-1), json!(0), json!(1), json!(8192), json!(1_u64 << 31), json!(i64::MAX)] {
        assert_eq!(content(&server, &ask(json!({"top_k": k, "temperature": 1}))).await, "x", "{k}");
    }
    for bad in [json!(-2), json!(1.5), json!("20")] {
        assert_eq!(refused(&server, &ask(json!({"top_k": bad}))).await["param"], "top_k");
    }
}

/// With the demo model, as the scripted one would say the same at any temperature.
#[tokio::test]
async fn b033_dynamo_3914_greedy_choices_are_identical() {
    let server = Server::start_demo().await;
    let ask = |n: usize| ask(json!({"n": n, "temperature": 0, "max_tokens": 12}));
    let two = server.post(&ask(2)).await.json();
    let contents: Vec<&Value> = (0..2).map(|i| &two["choices"][i]["message"]["content"]).collect();
    assert!(contents[0].as_str().is_some_and(|text| !text.is_empty()), "{two}");
    assert_eq!(contents[0], contents[1]);
    assert_eq!(*contents[0], server.post(&ask(1)).await.json()["choices"][0]["message"]["content"]);
}

/// What is reasoning and what is content when `fields` are sent.
async fn with_fields(server: &Server, fields: &Value) -> Said {
    let mut body = fields.clone();
    body["messages"] = json!([user("x")]);
    say(server, &body).await
}

#[tokio::test]
async fn b034_halogen_flash_server_50_the_effort_none_turns_thinking_off() {
    let server = Server::start(&script(json!(["plain"]))).await;
    let off = with_fields(&server, &json!({"reasoning_effort": "none"})).await;
    assert_eq!((off.content.as_str(), off.reasoning.as_str()), ("plain", ""));
    for effort in ["minimal", "low", "medium", "high", "xhigh"] {
        let on = with_fields(&server, &json!({"reasoning_effort": effort})).await;
        assert_eq!((on.content.as_str(), on.reasoning.as_str()), ("", "plain"), "{effort}");
    }
}

#[tokio::test]
async fn b035_mlxstudio_100_nested_effort_is_honoured_or_refused() {
    let server = Server::start(&script(json!(["plain"]))).await;
    for (effort, content) in [("none", "plain"), ("low", ""), ("high", "")] {
        let said = with_fields(&server, &json!({"reasoning": {"effort": effort}})).await;
        assert_eq!(said.content, content, "{effort}");
    }
    for bad in [json!("huge"), json!(3), json!(["none"])] {
        let error = refused(&server, &ask(json!({"reasoning": {"effort": bad}}))).await;
        assert_eq!(error["param"], "reasoning.effort");
    }
    assert_eq!(refused(&server, &ask(json!({"reasoning": "none"}))).await["param"], "reasoning");
}

#[tokio::test]
async fn b036_mlx_lm_1001_chunked_bodies_are_read() {
    let server = Server::start(&script(json!(["x"]))).await;
    let body = ask(json!({})).to_string();
    let headers = [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")];
    for at in [1, 7, body.len() - 1] {
        let (a, b) = body.split_at(at);
        let chunked = format!("{:x}\r\n{a}\r\n{:X}\r\n{b}\r\n0\r\n\r\n", a.len(), b.len());
        assert_eq!(send(server.addr, "POST", CHAT, &headers, chunked.as_bytes()).await.status, 200);
    }
}

#[tokio::test]
async fn b037_mlx_lm_1133_every_name_of_the_model_is_this_model() {
    let server = Server::start(&script(json!(["x"]))).await;
    let names = ["default", "org/Lily-Test", "lily-test", "folder"];
    for name in names {
        let reply = server.post(&ask(json!({"model": name}))).await;
        assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("org/Lily-Test")), "{name}");
    }
    for other in ["gpt-4o", "/models/other", "org/Lily-Test-2", ""] {
        for stream in [false, true] {
            let reply = server.post(&ask(json!({"model": other, "stream": stream}))).await;
            assert_eq!((reply.status, reply.error()["code"].as_str()), (404, Some("model_not_found")), "{other}");
            let message = reply.error()["message"].as_str().unwrap().to_owned();
            assert!(names.iter().all(|name| message.contains(name)), "{message}");
        }
    }
}

#[tokio::test]
async fn b039_anything_llm_6430_no_messages_are_no_request() {
    let server = Server::start(&script(json!(["x"]))).await;
    for bad in [json!([]), json!(null), json!(3), json!("hi"), json!({"role": "user"})] {
        assert_eq!(refused(&server, &ask(json!({"messages": bad}))).await["param"], "messages", "{bad}");
    }
    let missing = refused(&server, &json!({"model": "default"})).await;
    assert_eq!(missing["param"], "messages");
}
