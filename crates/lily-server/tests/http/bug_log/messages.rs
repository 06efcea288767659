//! Rows of section 1: what clients send as messages.

use serde_json::{Value, json};

use super::{content, refused, say, script, user, weather};
use crate::server::{Server, ask};

/// A question, a call of an assistant, and its result.
fn errand(call: &Value) -> Value {
    let result = json!({"role": "tool", "tool_call_id": "1", "content": "4 C"});
    ask(json!({"messages": [user("Weather in Oslo?"), call, result], "tools": weather()}))
}

fn call(arguments: &Value) -> Value {
    let function = json!({"name": "get_weather", "arguments": arguments});
    json!({"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": function}]})
}

#[tokio::test]
async fn b001_vllm_41114_late_system_messages_are_answered() {
    let server = Server::start(&script(json!(["x"]))).await;
    let system = json!({"role": "system", "content": "Be brief."});
    let first = ask(json!({"messages": [system, user("hi")]}));
    let late = ask(json!({"messages": [user("hi"), system]}));
    assert_eq!(content(&server, &late).await, "x");
    assert_eq!(server.prompt(&late).await, server.prompt(&first).await);
}

#[tokio::test]
async fn b003_vllm_36432_a_list_without_a_question_is_refused_in_words() {
    let server = Server::start(&script(json!(["x"]))).await;
    let mut body = errand(&call(&json!("{}")));
    body["messages"][0] = json!({"role": "system", "content": "Be brief."});
    let error = refused(&server, &body).await;
    assert_eq!(error["param"], "messages");
    assert!(error["message"].as_str().unwrap().contains("no user message"), "{error}");
    let last = ask(json!({"messages": [user("hi"), {"role": "assistant", "content": "yes?"}]}));
    assert_eq!(content(&server, &last).await, "x");
}

#[tokio::test]
async fn b004_llama_cpp_20215_developer_is_answered() {
    let server = Server::start(&script(json!(["x"]))).await;
    let of = |role: &str| ask(json!({"messages": [{"role": role, "content": "Be brief."}, user("hi")]}));
    assert_eq!(say(&server, &of("developer")).await, say(&server, &of("system")).await);
}

#[tokio::test]
async fn b006_mlx_lm_185_a_call_with_null_content_is_answered() {
    let server = Server::start(&script(json!(["x"]))).await;
    assert_eq!(content(&server, &errand(&call(&json!("{\"city\": \"Oslo\"}")))).await, "x");
}

#[tokio::test]
async fn b010_open_webui_6514_content_may_be_parts() {
    let server = Server::start(&script(json!(["x"]))).await;
    let of = |content: Value| ask(json!({"messages": [{"role": "user", "content": content}]}));
    let parts = of(json!([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]));
    assert_eq!(content(&server, &parts).await, "x");
    assert_eq!(server.prompt(&parts).await, server.prompt(&of(json!("one two"))).await);
}

#[tokio::test]
async fn b012_rapid_mlx_776_text_that_is_no_string_is_named() {
    let server = Server::start(&script(json!(["x"]))).await;
    for bad in [json!(5), json!({"a": 1}), json!(["a"]), json!(true), json!(null)] {
        let parts = json!([{"type": "text", "text": "fine"}, {"type": "text", "text": bad}]);
        let body = ask(json!({"messages": [user("a"), {"role": "user", "content": parts}]}));
        assert_eq!(refused(&server, &body).await["param"], "messages[1].content[1].text", "{bad}");
    }
    assert_eq!(content(&server, &ask(json!({}))).await, "x");
}

#[tokio::test]
async fn b014_sglang_28035_arguments_that_are_no_object_do_not_end_the_session() {
    let server = Server::start(&script(json!(["x"]))).await;
    for bad in ["[]", "\"x\"", "{"] {
        let error = refused(&server, &errand(&call(&json!(bad)))).await;
        assert_eq!(error["param"], "messages[1].tool_calls[0].function.arguments", "{bad}");
    }
    for nothing in [json!(""), json!("null"), json!(null)] {
        assert_eq!(content(&server, &errand(&call(&nothing))).await, "x", "{nothing}");
    }
}

/// With the demo model: its second call, made after it has read its first, is an object of plain values again.
#[tokio::test]
async fn b015_lmdeploy_3058_a_call_after_a_call_has_plain_arguments() {
    let server = Server::start_demo().await;
    let mut messages = json!([]);
    for city in ["Paris", "Rome"] {
        let question = user(&format!("What is the weather in {city}?"));
        messages.as_array_mut().unwrap().push(question);
        let body = ask(json!({"messages": messages, "tools": weather(), "temperature": 0, "max_tokens": 100}));
        let message = server.post(&body).await.json()["choices"][0]["message"].clone();
        let call = &message["tool_calls"][0];
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().expect("a call")).unwrap();
        assert_eq!(arguments, json!({"city": city}), "{message}");
        let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "{\"weather\": \"sunny\"}"});
        messages.as_array_mut().unwrap().extend([message, result]);
    }
}

/// With the demo model.
#[tokio::test]
async fn b016_qwen3_1826_each_turn_without_thinking_continues_the_one_before() {
    let server = Server::start_demo().await;
    let (mut messages, mut before, mut read) = (vec![], vec![], 0);
    for question in ["What is the moon?", "Tell me a story about a cat.", "Thank you!"] {
        messages.push(user(question));
        let body = json!({"messages": messages, "enable_thinking": false, "temperature": 0, "max_tokens": 100});
        let tokens = server.tokens(&body).await;
        assert!(tokens.starts_with(&before), "{question}");
        let reply = server.post(&body).await.json();
        let usage = &reply["usage"];
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], read, "{question} {usage}");
        // All but the end token, which has not been read yet.
        read = usage["total_tokens"].as_u64().unwrap() - 1;
        messages.push(reply["choices"][0]["message"].clone());
        before = tokens;
    }
}

/// With the demo model.
#[tokio::test]
async fn b017_mlx_lm_1327_the_shortest_prompts_are_answered() {
    let server = Server::start_demo().await;
    for text in ["hi", "a", ".", "é", "我"] {
        for thinking in [true, false] {
            let body =
                json!({"messages": [user(text)], "max_tokens": 3, "enable_thinking": thinking, "temperature": 0});
            let said = say(&server, &body).await;
            assert!((1..=3).contains(&said.completion_tokens), "{text}: {said:?}");
        }
    }
}

#[tokio::test]
async fn b020_llama_cpp_python_1805_a_call_without_content_is_answered() {
    let server = Server::start(&script(json!(["x"]))).await;
    let with = errand(&call(&json!("{\"city\": \"Oslo\"}")));
    let mut without = with.clone();
    without["messages"][1].as_object_mut().unwrap().remove("content");
    assert_eq!(content(&server, &without).await, "x");
    assert_eq!(server.prompt(&without).await, server.prompt(&with).await);
}

#[tokio::test]
async fn b021_vllm_mlx_83_pictures_are_refused_by_name() {
    let server = Server::start(&script(json!(["x"]))).await;
    let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    let parts = json!([{"type": "text", "text": "What is this?"}, picture]);
    let error = refused(&server, &ask(json!({"messages": [{"role": "user", "content": parts}]}))).await;
    assert_eq!(error["param"], "messages[0].content[1].type");
    assert!(error["message"].as_str().unwrap().contains("images are not supported"), "{error}");
}
