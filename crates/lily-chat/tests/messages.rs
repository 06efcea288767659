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
fn developer_is_system_and_leading_system_messages_are_one() {
    let user = json!({"role": "user", "content": "hi"});
    let system = |role: &str, text: &str| json!({"role": role, "content": text});
    assert_eq!(
        prompt(json!([system("developer", "Be brief."), user])),
        prompt(json!([system("system", "Be brief."), user]))
    );
    let parts =
        json!({"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind.\n"}]});
    assert_eq!(
        prompt(json!([system("system", "Be brief.\n"), parts, user])),
        prompt(json!([system("system", "Be brief.\n\nBe kind."), user]))
    );
}

#[test]
fn b001_vllm_41114_and_b002_hal0_992_system_messages_anywhere_are_one_at_the_head() {
    let user = json!({"role": "user", "content": "hi"});
    let answer = json!({"role": "assistant", "content": "yes?"});
    let system = |text: &str| json!({"role": "system", "content": text});
    assert_eq!(prompt(json!([user, system("A."), answer, user])), prompt(json!([system("A."), user, answer, user])));
    let merged = prompt(json!([system("A.\n\nB."), user, answer, user]));
    assert_eq!(prompt(json!([system("A."), user, system("B."), answer, user])), merged);
    assert_eq!(prompt(json!([system("A."), system("B."), user, answer, user])), merged);
    assert_eq!(
        prompt(
            json!([user, system("A."), answer, user, {"role": "developer", "content": [{"type": "text", "text": "B."}]}])
        ),
        merged
    );
}

#[test]
fn contents_keep_all_their_text() {
    for content in [
        json!("abc"),
        json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "input_text", "text": "c"}]),
    ] {
        assert!(prompt(json!([{"role": "user", "content": content}])).contains("user\nabc<|im_end|>"));
        let tool = json!([{"role": "user", "content": "q"}, {"role": "tool", "tool_call_id": "1", "content": content}]);
        assert!(prompt(tool).contains("<tool_response>\nabc\n</tool_response>"));
    }
}

#[test]
fn calls_render_whatever_form_their_arguments_and_content_have() {
    let render = |content: Value, arguments: Value| {
        let mut turn = json!({"role": "assistant", "content": content, "refusal": null,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]});
        if turn["content"] == "absent" {
            turn.as_object_mut().unwrap().remove("content");
        }
        prompt(json!([{"role": "user", "content": "q"}, turn]))
    };
    let want = render(json!(""), json!({"b": "x", "a": 1.50}));
    assert!(want.contains("<function=f>\n<parameter=b>\nx\n</parameter>\n<parameter=a>\n1.5\n</parameter>"), "{want}");
    for content in [json!(null), json!("absent"), json!([])] {
        assert_eq!(render(content, json!("{\"b\": \"x\", \"a\": 1.50}")), want);
    }
    for nothing in [json!(null), json!(""), json!("null"), json!("{}"), json!({})] {
        assert!(render(json!(null), nothing).contains("<function=f>\n</function>"));
    }
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
