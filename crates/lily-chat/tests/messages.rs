//! Messages as clients send them.

mod common;

use common::{demo_tokenizer, read};
use lily_chat::messages::normalise;
use lily_chat::{Chat, PromptInput, Template};
use serde_json::{Value, json};

fn good(messages: Value) -> Vec<Value> {
    normalise(messages.as_array().unwrap()).unwrap_or_else(|e| panic!("{e}"))
}

fn prompt(messages: Value) -> String {
    let template = Template::new(&read("demo/4bit/chat_template.jinja")).unwrap();
    let chat = Chat { tokenizer: demo_tokenizer(), template };
    let messages = good(messages);
    chat.prompt(&PromptInput { messages, add_generation_prompt: true, ..PromptInput::default() }).unwrap().text
}

#[test]
fn reasoning_is_known_by_both_names() {
    for name in ["reasoning_content", "reasoning"] {
        let turn = json!({"role": "assistant", "content": "b", name: "why"});
        assert!(prompt(json!([{"role": "user", "content": "a"}, turn])).contains("<think>\nwhy\n</think>\n\nb"));
    }
}

#[test]
fn what_is_wrong_is_named() {
    let user = json!({"role": "user", "content": "a"});
    let call = |call: Value| json!([user, {"role": "assistant", "content": null, "tool_calls": [call]}]);
    let function = |f: Value| call(json!({"id": "1", "type": "function", "function": f}));
    for (messages, field, word) in [
        (json!([]), "messages", "empty"),
        (json!(["hi"]), "messages[0]", "object"),
        (json!([{"content": "a"}]), "messages[0].role", "missing"),
        (json!([{"role": 1, "content": "a"}]), "messages[0].role", "string"),
        (json!([user, {"role": "narrator", "content": "a"}]), "messages[1].role", "narrator"),
        (json!([{"role": "user"}]), "messages[0].content", "string"),
        (json!([{"role": "user", "content": null}]), "messages[0].content", "string"),
        (json!([{"role": "user", "content": 3}]), "messages[0].content", "a number"),
        (json!([{"role": "user", "content": {"text": "a"}}]), "messages[0].content", "an object"),
        (json!([{"role": "user", "content": ["a"]}]), "messages[0].content[0]", "object"),
        (json!([{"role": "user", "content": [{"text": "a"}]}]), "messages[0].content[0].type", "missing"),
        (
            json!([user, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": 1}]}]),
            "messages[1].content[1].text",
            "a number",
        ),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text", "missing"),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]),
            "messages[0].content[0].type",
            "images are not supported",
        ),
        (json!([{"role": "user", "content": [{"type": "input_audio"}]}]), "messages[0].content[0].type", "text only"),
        (json!([{"role": "user", "content": [{"type": "smell"}]}]), "messages[0].content[0].type", "smell"),
        (json!([user, {"role": "user", "content": "a", "tool_calls": [{}]}]), "messages[1].tool_calls", "assistant"),
        (json!([user, {"role": "assistant", "tool_calls": "f"}]), "messages[1].tool_calls", "a string"),
        (json!([user, {"role": "assistant", "function_call": {}}]), "messages[1].function_call", "tool_calls"),
        (
            json!([user, {"role": "assistant", "content": "", "reasoning_content": 1}]),
            "messages[1].reasoning_content",
            "string",
        ),
        (call(json!("f")), "messages[1].tool_calls[0]", "object"),
        (call(json!({"type": "custom"})), "messages[1].tool_calls[0].type", "custom"),
        (call(json!({})), "messages[1].tool_calls[0].function", "missing"),
        (function(json!({})), "messages[1].tool_calls[0].function.name", "missing"),
        (function(json!({"name": ""})), "messages[1].tool_calls[0].function.name", "name"),
        (function(json!({"name": "f", "arguments": "[]"})), "messages[1].tool_calls[0].function.arguments", "a list"),
        (
            function(json!({"name": "f", "arguments": "\"x\""})),
            "messages[1].tool_calls[0].function.arguments",
            "a string",
        ),
        (
            function(json!({"name": "f", "arguments": "{"})),
            "messages[1].tool_calls[0].function.arguments",
            "valid JSON",
        ),
    ] {
        let error = normalise(messages.as_array().unwrap()).expect_err(&messages.to_string());
        assert_eq!(error.field, field, "{error}");
        assert!(error.message.contains(word), "{error}");
    }
}
