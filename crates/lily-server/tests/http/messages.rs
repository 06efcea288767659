//! Anthropic's Messages API.

use std::time::Duration;

use lily_server::Access;
use serde_json::{Value, json};

use crate::server::{CHAT, Reply, Server, ask, send};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const WEATHER: &str = "{\"token\": \"<tool_call>\"}, \"\\n<function=get_weather>\\n<parameter=city>\\nOslo\\n</parameter>\\n</function>\\n\", {\"token\": \"</tool_call>\"}";

fn request(extra: Value) -> Value {
    let mut body = json!({"model": "lily-test", "max_tokens": 50, "messages": [{"role": "user", "content": "Say."}]});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn tools() -> Value {
    json!([{"name": "get_weather", "description": "Get the weather in a city.", "input_schema":
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}])
}

/// The message that the events of a stream build, and the number of pings.
fn built(reply: &Reply) -> (Value, usize) {
    let (mut message, mut partial, mut pings) = (Value::Null, String::new(), 0);
    let mut open = None;
    let events = reply.named();
    assert_eq!(events.last().unwrap(), &json!({"type": "message_stop"}));
    for event in events {
        let index = event["index"].as_u64().map(|i| i as usize);
        match event["type"].as_str().unwrap() {
            "ping" => pings += 1,
            "message_start" => {
                assert!(message.is_null());
                message = event["message"].clone();
            }
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!((open, index), (None, Some(content.len())));
                content.push(event["content_block"].clone());
                (open, partial) = (index, String::new());
            }
            "content_block_delta" => {
                assert!(open.is_some() && open == index, "{event}");
                let (delta, block) = (&event["delta"], &mut message["content"][index.unwrap()]);
                let grow = |field: &mut Value, name: &str| {
                    *field = format!("{}{}", field.as_str().unwrap(), delta[name].as_str().unwrap()).into();
                };
                match delta["type"].as_str().unwrap() {
                    "text_delta" => grow(&mut block["text"], "text"),
                    "thinking_delta" => grow(&mut block["thinking"], "thinking"),
                    "signature_delta" => grow(&mut block["signature"], "signature"),
                    "input_json_delta" => partial += delta["partial_json"].as_str().unwrap(),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                assert!(open.is_some() && open == index, "{event}");
                open = None;
                if let Ok(input) = serde_json::from_str(&partial) {
                    message["content"][index.unwrap()]["input"] = input;
                }
            }
            "message_delta" => {
                assert_eq!(open, None);
                for name in ["stop_reason", "stop_sequence"] {
                    message[name] = event["delta"][name].clone();
                }
                for (name, value) in event["usage"].as_object().unwrap() {
                    message["usage"][name] = value.clone();
                }
            }
            "message_stop" => {}
            other => panic!("{other}"),
        }
    }
    (message, pings)
}

/// Without the ids, which differ.
fn anonymous(mut message: Value) -> Value {
    assert!(message["id"].as_str().unwrap().starts_with("msg_"), "{message}");
    message["id"] = Value::Null;
    for block in message["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            assert!(block["id"].as_str().unwrap().starts_with("toolu_"), "{block}");
            block["id"] = Value::Null;
        }
    }
    message
}

#[tokio::test]
async fn an_answer_has_anthropics_shape() {
    let server = Server::start(r#"{"pieces": ["Hello", " there", "."]}"#).await;
    let headers = [("Content-Type", "application/json"), ("anthropic-version", "2023-06-01"), ("x-api-key", "any")];
    let body = request(json!({"metadata": {"user_id": "u"}}));
    let path = format!("{MESSAGES}?beta=true");
    let reply = send(server.addr, "POST", &path, &headers, body.to_string().as_bytes()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
    assert_eq!(reply.header("x-lily-ignored-fields"), None);
    let prompt = server.post_to(COUNT, &body).await.json()["input_tokens"].as_u64().unwrap();
    assert!((10..60).contains(&prompt));
    let usage = json!({"input_tokens": prompt, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "output_tokens": 4});
    let expected = json!({
        "id": null, "type": "message", "role": "assistant", "model": "org/Lily-Test",
        "content": [{"type": "text", "text": "Hello there."}],
        "stop_reason": "end_turn", "stop_sequence": null, "usage": usage,
    });
    assert_eq!(anonymous(reply.json()), expected);
    let reply = server.post_to(MESSAGES, &request(json!({"context_management": {}}))).await;
    assert_eq!(reply.header("x-lily-ignored-fields"), Some("context_management"));
}

/// As at Anthropic, thinking is off unless it is asked for.
#[tokio::test]
async fn thinking_is_a_block_of_its_own_where_it_is_asked_for() {
    let server = Server::start(r#"{"pieces": ["Let me", " see", {"token": "</think>"}, "\n\n", "Done."]}"#).await;
    for thinking in [json!({"type": "enabled", "budget_tokens": 20}), json!({"type": "adaptive"})] {
        let message = server.post_to(MESSAGES, &request(json!({"thinking": thinking}))).await.json();
        let thought = json!({"type": "thinking", "thinking": "Let me see", "signature": "lily"});
        assert_eq!(message["content"], json!([thought, {"type": "text", "text": "Done."}]));
    }
    let server = Server::start(r#"{"pieces": ["plain"]}"#).await;
    for off in [json!({}), json!({"thinking": {"type": "disabled"}}), json!({"thinking": null})] {
        let message = server.post_to(MESSAGES, &request(off)).await.json();
        assert_eq!(message["content"], json!([{"type": "text", "text": "plain"}]));
    }
    // Lily's own switch says the same.
    for on in [json!({"enable_thinking": true}), json!({"chat_template_kwargs": {"enable_thinking": true}})] {
        let message = server.post_to(MESSAGES, &request(on)).await.json();
        assert_eq!(message["content"][0]["thinking"], "plain");
    }
}

#[tokio::test]
async fn a_streamed_message_is_the_message_that_is_not_streamed() {
    let scripts = [
        r#"{"pieces": ["Hello", " wor", "ld ", {"bytes": [240, 159]}, {"bytes": [145, 169]}, "!"]}"#.into(),
        r#"{"pieces": ["think", "ing ", {"token": "</think>"}, "\n\n", "and ", "text "]}"#.into(),
        r#"{"pieces": ["no", " end"], "end": "length"}"#.into(),
        r#"{"pieces": ["one ", "STO", "P two"]}"#.into(),
        r#"{"pieces": []}"#.into(),
        format!(
            r#"{{"pieces": ["Look.", {{"token": "</think>"}}, "\n\n", "I look.", "\n\n", {WEATHER}, "\n", {WEATHER}]}}"#
        ),
        format!(r#"{{"pieces": [{WEATHER}, "\n\nAnd more."]}}"#),
        r#"{"pieces": [{"token": "<tool_call>"}, "\n<function=get_weather>\n<parameter=city>\nOs"]}"#.into(),
    ];
    let mut reasons = Vec::new();
    for script in &scripts {
        for thinking in ["enabled", "disabled"] {
            let server = Server::start(script).await;
            let extra = json!({"max_tokens": 20, "thinking": {"type": thinking}, "stop_sequences": ["STOP"],
                "tools": tools()});
            let mut body = request(extra);
            let whole = anonymous(server.post_to(MESSAGES, &body).await.json());
            body["stream"] = json!(true);
            let streamed = anonymous(built(&server.post_to(MESSAGES, &body).await).0);
            assert_eq!(streamed, whole, "{script}");
            reasons.push(whole["stop_reason"].as_str().unwrap().to_owned());
        }
    }
    for reason in ["end_turn", "max_tokens", "stop_sequence", "tool_use"] {
        assert!(reasons.iter().any(|r| r == reason), "{reasons:?}");
    }
}

#[tokio::test]
async fn calls_are_blocks_and_end_the_turn() {
    let script = format!(r#"{{"pieces": ["I look.", "\n\n", {WEATHER}, "\n", {WEATHER}]}}"#);
    let server = Server::start(&script).await;
    let message = anonymous(server.post_to(MESSAGES, &request(json!({"tools": tools()}))).await.json());
    let call = json!({"type": "tool_use", "id": null, "name": "get_weather", "input": {"city": "Oslo"}});
    assert_eq!(message["content"], json!([{"type": "text", "text": "I look."}, call, call]));
    assert_eq!(message["stop_reason"], "tool_use");
    // Nobody may call what is not offered.
    let none = json!({"tools": tools(), "tool_choice": {"type": "none"}});
    let message = server.post_to(MESSAGES, &request(none)).await.json();
    assert_eq!((&message["content"][0]["type"], &message["stop_reason"]), (&json!("text"), &json!("end_turn")));
}

#[tokio::test]
async fn the_stop_sequence_is_named() {
    let server = Server::start(r#"{"pieces": ["one ", "ST", "OP two", " END"]}"#).await;
    for (stop, found) in
        [(json!(["END", "STOP"]), json!("STOP")), (json!(["x"]), json!(null)), (json!([]), json!(null))]
    {
        let message = server.post_to(MESSAGES, &request(json!({"stop_sequences": stop}))).await.json();
        assert_eq!(message["stop_sequence"], found);
        let reason = if found.is_null() { "end_turn" } else { "stop_sequence" };
        assert_eq!(message["stop_reason"], reason);
    }
}

/// The error of a reply in Anthropic's form: its type and message.
fn error(reply: &Reply) -> (String, String) {
    let body = reply.json();
    assert_eq!(body["type"], "error", "{body}");
    assert_eq!(body["request_id"].as_str(), reply.header("x-request-id"), "{body}");
    let part = |name: &str| body["error"][name].as_str().unwrap_or_else(|| panic!("{body}")).to_owned();
    (part("type"), part("message"))
}

#[tokio::test]
async fn bad_fields_are_named_in_anthropics_words() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let result = |content: Value| user(json!([{"type": "tool_result", "tool_use_id": "t", "content": content}]));
    let said = |content: Value| {
        json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": content},
            {"role": "user", "content": "y"}]})
    };
    let image = json!([{"type": "text", "text": "what"}, {"type": "image", "source": {"type": "url", "url": "x"}}]);
    for (extra, field) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [3]}), "messages[0]"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}), "messages"),
        (user(json!(null)), "messages[0].content"),
        (user(json!([])), "messages[0].content"),
        (user(image.clone()), "messages[0].content[1].type"),
        (user(json!([{"type": "document"}])), "messages[0].content[0].type"),
        (user(json!([{"type": "text", "text": 5}])), "messages[0].content[0].text"),
        (result(image), "messages[0].content[0].content[1].type"),
        (result(json!(5)), "messages[0].content[0].content"),
        (user(json!([{"type": "tool_result", "content": "x"}])), "messages[0].content[0].tool_use_id"),
        (said(json!([{"type": "tool_use", "id": "t", "name": "f", "input": "{}"}])), "messages[1].content[0].input"),
        (said(json!([{"type": "server_tool_use"}])), "messages[1].content[0].type"),
        (said(json!(null)), "messages[1].content"),
        (json!({"system": 5}), "system"),
        (json!({"system": [{"type": "image"}]}), "system[0].type"),
        (json!({"temperature": 1.5}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"top_k": -1}), "top_k"),
        (json!({"stop_sequences": "x"}), "stop_sequences"),
        (json!({"stop_sequences": ["x", ""]}), "stop_sequences[1]"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [{"description": "x"}]}), "tools[0].name"),
        (json!({"tools": [{"name": "f", "input_schema": 5}]}), "tools[0].input_schema"),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"tool_choice": {"type": "some"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"thinking": {"type": "much"}}), "thinking.type"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 0}}), "thinking.budget_tokens"),
        (json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema"),
    ] {
        for stream in [false, true] {
            let mut body = request(extra.clone());
            if extra.get("stream").is_none() {
                body["stream"] = json!(stream);
            }
            let reply = server.post_to(MESSAGES, &body).await;
            assert_eq!(reply.status, 400, "{body}: {reply:?}");
            let (kind, message) = error(&reply);
            assert_eq!(kind, "invalid_request_error");
            assert!(message.starts_with(&format!("{field}: ")), "{body}: {message}");
        }
    }
    assert_eq!(server.post_to(MESSAGES, &request(json!({}))).await.json()["content"][0]["text"], "x");
}

#[tokio::test]
async fn every_error_on_the_path_has_anthropics_form() {
    let server = Server::start_with(r#"{"pieces": ["x"]}"#, 2, |app| app.max_body = 10_000).await;
    let post = async |path: &str, kind: &str, body: &[u8]| {
        send(server.addr, "POST", path, &[("Content-Type", kind)], body).await
    };
    let json = "application/json";
    let good = request(json!({})).to_string();
    let claude = request(json!({"model": "claude-sonnet-4-5"})).to_string();
    let long = request(json!({"messages": [{"role": "user", "content": "a b ".repeat(2000)}]})).to_string();
    let large = vec![b' '; 20_000];
    for (path, kind, body, status, error_type) in [
        (MESSAGES, json, b"{".as_slice(), 400, "invalid_request_error"),
        (MESSAGES, json, long.as_bytes(), 400, "invalid_request_error"),
        (MESSAGES, json, claude.as_bytes(), 404, "not_found_error"),
        (COUNT, json, claude.as_bytes(), 404, "not_found_error"),
        ("/v1/messages/batches", json, good.as_bytes(), 404, "not_found_error"),
        (MESSAGES, json, large.as_slice(), 413, "request_too_large"),
        (MESSAGES, "text/plain", good.as_bytes(), 415, "invalid_request_error"),
    ] {
        let reply = post(path, kind, body).await;
        assert_eq!((reply.status, error(&reply).0.as_str()), (status, error_type), "{path} {reply:?}");
        assert_eq!(reply.header("content-length"), Some(reply.body.len().to_string().as_str()));
    }
    let reply = server.get(MESSAGES).await;
    assert_eq!((reply.status, error(&reply).0.as_str()), (405, "invalid_request_error"));
    let foreign = [("Content-Type", json), ("Origin", "http://evil.example")];
    let reply = send(server.addr, "POST", MESSAGES, &foreign, good.as_bytes()).await;
    assert_eq!((reply.status, error(&reply).0.as_str()), (403, "permission_error"));
    // Other paths keep OpenAI's.
    assert_eq!(post("/v1/messagesx", json, b"{}").await.json()["error"]["code"], "not_found");

    let keyed = Server::start_with(r#"{"pieces": ["x"]}"#, 2, |app| {
        app.access = Access::new(&["secret".into()], Vec::new(), Vec::new()).unwrap();
    })
    .await;
    for (key, status) in [("wrong", 401), ("secret", 200)] {
        let headers = [("Content-Type", json), ("x-api-key", key)];
        let reply = send(keyed.addr, "POST", MESSAGES, &headers, good.as_bytes()).await;
        assert_eq!(reply.status, status, "{key}");
        if status == 401 {
            assert_eq!(error(&reply).0, "authentication_error");
        }
    }
}

#[tokio::test]
async fn a_full_queue_is_a_rate_limit() {
    let server = Server::start_with(r#"{"pieces": ["word "], "delay_ms": 10, "end": "length"}"#, 1, |_| {}).await;
    let running = server.open(&ask(json!({"stream": true}))).await;
    server.until("a running request", |load| load.running == 1).await;
    let waiting = server.open(&ask(json!({}))).await;
    server.until("a waiting request", |load| load.waiting == 1).await;
    let reply = server.post_to(MESSAGES, &request(json!({}))).await;
    assert_eq!((reply.status, error(&reply).0.as_str()), (429, "rate_limit_error"));
    assert!(reply.header("retry-after").is_some());
    drop((running, waiting));
    server.until_idle().await;
}

#[tokio::test]
async fn a_slow_prompt_is_bridged_by_pings_and_the_first_event_has_the_usage() {
    let script = r#"{"pieces": ["x"], "prefill_ms": 400}"#;
    let server = Server::start_with(script, 2, |app| app.keep_alive = Duration::from_millis(50)).await;
    let body = request(json!({"stream": true}));
    let reply = server.post_to(MESSAGES, &body).await;
    let (message, pings) = built(&reply);
    assert!(pings >= 2, "{reply:?}");
    let events = reply.named();
    let start = events.iter().find(|e| e["type"] == "message_start").unwrap();
    assert_eq!(start["message"]["usage"]["input_tokens"], message["usage"]["input_tokens"]);
    assert_eq!(start["message"]["usage"]["output_tokens"], 0);
}

#[tokio::test]
async fn a_failure_in_the_middle_is_an_error_event() {
    let server = Server::start(r#"{"pieces": ["a", "b", "c"], "fail_after": 2}"#).await;
    let events = server.post_to(MESSAGES, &request(json!({"stream": true}))).await.named();
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
    assert!(events.iter().any(|e| e["delta"]["text"] == "a"));
    let reply = server.post_to(MESSAGES, &request(json!({}))).await;
    assert_eq!((reply.status, error(&reply).0.as_str()), (500, "api_error"));
    server.assert_alive().await;
}

#[tokio::test]
async fn a_star_ends_an_alias_for_all_names_that_begin_so() {
    let server = Server::start_with(r#"{"pieces": ["x"]}"#, 2, |app| app.names.aliases.push("claude-*".into())).await;
    for (name, status) in [("claude-sonnet-4-5", 200), ("claude-", 200), ("claude", 404), ("my-claude-3", 404)] {
        assert_eq!(server.post_to(MESSAGES, &request(json!({"model": name}))).await.status, status, "{name}");
    }
}

/// The same conversation by both APIs: the prompt of one continues the state of the other.
#[tokio::test]
async fn a_conversation_goes_on_by_the_other_api() {
    let server = Server::start_demo().await;
    let chat_tools = json!([{"type": "function", "function": {"name": "get_weather",
        "description": "Get the weather in a city.", "parameters": tools()[0]["input_schema"]}}]);
    for (thinking, with_tools) in [(false, false), (true, false), (true, true)] {
        let system = "You are a kind and careful helper.";
        let question = if with_tools { "What is the weather in Paris?" } else { "What is the moon?" };
        let (ours, theirs) = if with_tools { (tools(), chat_tools.clone()) } else { (json!(null), json!(null)) };
        let chat = json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
            "tools": theirs, "enable_thinking": thinking, "temperature": 0, "max_tokens": 100});
        let first = server.post_to(CHAT, &chat).await.json();
        let answer = &first["choices"][0]["message"];
        let mut blocks = Vec::new();
        if let Some(text) = answer["reasoning_content"].as_str() {
            blocks.push(json!({"type": "thinking", "thinking": text, "signature": "lily"}));
        }
        if let Some(text) = answer["content"].as_str().filter(|text| !text.is_empty()) {
            blocks.push(json!({"type": "text", "text": text}));
        }
        let mut next = vec![json!({"type": "text", "text": "Thank you!", "cache_control": {"type": "ephemeral"}})];
        for call in answer["tool_calls"].as_array().into_iter().flatten() {
            let input: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
            blocks.push(json!({"type": "tool_use", "id": call["id"], "name": "get_weather", "input": input}));
            next.insert(0, json!({"type": "tool_result", "tool_use_id": call["id"], "content": "4 C"}));
        }
        assert_eq!(next.len() > 1, with_tools, "{answer}");
        let usage = &first["usage"];
        let state = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap() - 1;
        let kind = if thinking { "enabled" } else { "disabled" };
        // With the reasoning and without, and with a block of it that was emptied.
        for keep in 0..3 {
            let mut blocks = blocks.clone();
            match keep {
                1 => blocks.retain(|block| block["type"] != "thinking"),
                2 if thinking => blocks[0]["thinking"] = json!(""),
                _ => {}
            }
            let body = json!({"system": [{"type": "text", "text": system}], "messages": [
                    {"role": "user", "content": [{"type": "text", "text": question}]},
                    {"role": "assistant", "content": blocks}, {"role": "user", "content": next}],
                "tools": ours, "thinking": {"type": kind}, "temperature": 0, "max_tokens": 1});
            let usage = server.post_to(MESSAGES, &body).await.json()["usage"].clone();
            assert!(usage["cache_read_input_tokens"].as_u64().unwrap() >= state, "{usage} {state} {body}");
            let whole = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
            assert_eq!(server.post_to(COUNT, &body).await.json()["input_tokens"], whole);
        }
    }
}

#[tokio::test]
async fn a_failed_call_is_told_to_the_model() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    let count = async |result: Value| {
        let body = json!({"messages": [{"role": "user", "content": "Go."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [result]}]});
        server.post_to(COUNT, &body).await.json()["input_tokens"].as_u64().unwrap()
    };
    let result = |content: Value, failed: bool| json!({"type": "tool_result", "tool_use_id": "t", "content": content, "is_error": failed});
    for plain in [json!("it is gone"), json!([{"type": "text", "text": "it is gone"}])] {
        assert!(count(result(plain.clone(), true)).await > count(result(plain, false)).await);
    }
    for told in [json!("Error: gone"), json!([{"type": "text", "text": "<tool_use_error>gone</tool_use_error>"}])] {
        assert_eq!(count(result(told.clone(), true)).await, count(result(told, false)).await);
    }
    // No content at all is an empty result.
    let empty = json!({"type": "tool_result", "tool_use_id": "t"});
    assert_eq!(count(empty).await, count(result(json!(""), false)).await);
}
