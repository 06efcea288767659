//! Rows of section 5: what is reasoning and what is content.

use serde_json::{Value, json};

use super::{Said, say, script, user, weather};
use crate::server::{Server, ask};

/// The answer of these pieces to a request with or without thinking.
async fn said(pieces: Value, thinking: bool) -> Said {
    let server = Server::start(&script(pieces)).await;
    say(&server, &json!({"messages": [user("x")], "enable_thinking": thinking})).await
}

async fn assert_said(pieces: Value, thinking: bool, reasoning: &str, content: &str) {
    let said = said(pieces.clone(), thinking).await;
    assert_eq!((said.reasoning.as_str(), said.content.as_str()), (reasoning, content), "{pieces}");
    assert_eq!(said.finish, "stop");
}

#[tokio::test]
async fn b055_omlx_2367_the_switch_reaches_the_prompt_from_both_places() {
    let server = Server::start(&script(json!(["x"]))).await;
    for (fields, off) in [
        (json!({"enable_thinking": false}), true),
        (json!({"chat_template_kwargs": {"enable_thinking": false}}), true),
        (json!({"enable_thinking": true}), false),
        (json!({"chat_template_kwargs": {"enable_thinking": true}}), false),
        (json!({"chat_template_kwargs": {}}), false),
    ] {
        let mut body = fields.clone();
        body["messages"] = json!([user("hi")]);
        let prompt = server.prompt(&body).await;
        let end = if off { "<think>\n\n</think>\n\n" } else { "assistant\n<think>\n" };
        assert!(prompt.ends_with(end), "{fields}: {prompt}");
        assert_eq!(say(&server, &body).await.content, if off { "x" } else { "" }, "{fields}");
    }
}

#[tokio::test]
async fn b056_llama_cpp_23320_an_answer_begins_inside_the_block_that_the_prompt_opened() {
    assert_said(json!(["abc", {"token": "</think>"}, "x"]), true, "abc", "x").await;
    assert_said(json!(["abc\n", {"token": "</think>"}, "\n\n", "x"]), true, "abc", "x").await;
    assert_said(json!([{"token": "</think>"}, "\n\nx"]), true, "", "x").await;
    // A model that opens the block once more says nothing new.
    assert_said(json!([{"token": "<think>"}, "\nabc", {"token": "</think>"}, "x"]), true, "abc", "x").await;
    // Where the prompt has closed it, a stray tag at the start is no text.
    assert_said(json!([{"token": "</think>"}, "\n\nx"]), false, "", "x").await;
}

#[tokio::test]
async fn b057_llama_cpp_21118_a_call_ends_the_reasoning() {
    let call = "\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n";
    for close in [json!([]), json!(["\n", {"token": "</think>"}, "\n\nDone."])] {
        let mut pieces = json!(["Look", " up.\n", {"token": "<tool_call>"}, call, {"token": "</tool_call>"}]);
        pieces.as_array_mut().unwrap().extend(close.as_array().unwrap().clone());
        let server = Server::start(&script(pieces)).await;
        let said = say(&server, &json!({"messages": [user("x")], "tools": weather()})).await;
        assert_eq!((said.reasoning.as_str(), said.finish.as_str()), ("Look up.", "tool_calls"));
        assert_eq!(said.calls, [("get_weather".to_owned(), "{\"city\":\"Oslo\"}".to_owned())]);
        assert_eq!(said.content, if close == json!([]) { "" } else { "Done." });
    }
}

#[tokio::test]
async fn b058_ik_llama_cpp_1951_an_empty_block_is_no_content() {
    let block = |inside: &str| json!([{"token": "<think>"}, inside, {"token": "</think>"}, "\n\n", "x"]);
    for inside in ["\n\n", "\n", " "] {
        let said = said(block(inside), false).await;
        assert_eq!((said.reasoning.trim(), said.content.as_str()), ("", "x"), "{inside:?}");
    }
    // Whatever stands in it is reasoning.
    assert_said(block("\nwhy\n"), false, "why", "x").await;
}

#[tokio::test]
async fn b059_lmstudio_bug_tracker_1602_an_answer_of_reasoning_alone_is_counted() {
    let server = Server::start(r#"{"pieces": ["a", "b"], "end": "length"}"#).await;
    let said = say(&server, &json!({"messages": [user("x")], "max_tokens": 5})).await;
    let expected = ("ababa", "", "length", 5);
    assert_eq!(
        (said.reasoning.as_str(), said.content.as_str(), said.finish.as_str(), said.completion_tokens),
        expected
    );
    let usage = server.post(&json!({"messages": [user("x")], "max_tokens": 5})).await.json()["usage"].clone();
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 5);
}

#[tokio::test]
async fn b060_rapid_mlx_1779_tags_that_an_answer_explains_are_text() {
    let answer = json!(["why", {"token": "</think>"}, "\n\nThe ", {"token": "<think>"}, " tag and ", {"token": "</think>"},
        ", or <think> and </think>."]);
    let text = "The <think> tag and </think>, or <think> and </think>.";
    assert_said(answer, true, "why", text).await;
    assert_said(
        json!(["The ", {"token": "<think>"}, " tag and ", {"token": "</think>"}, "."]),
        false,
        "",
        &text[..28].replace("</think>", "</think>."),
    )
    .await;
}

#[tokio::test]
async fn b061_vllm_mlx_402_a_second_block_is_content_as_it_is_written() {
    let twice =
        json!(["why", {"token": "</think>"}, "\n\none", {"token": "<think>"}, "again", {"token": "</think>"}, "two"]);
    assert_said(twice, true, "why", "one<think>again</think>two").await;
    let at_once =
        json!(["why", {"token": "</think>"}, "\n\n", {"token": "<think>"}, "again", {"token": "</think>"}, "two"]);
    assert_said(at_once, true, "why", "<think>again</think>two").await;
}

/// With the demo model.
#[tokio::test]
async fn b062_qwen3_8_131_reasoning_that_the_client_left_out_does_not_cost_the_cache() {
    let server = Server::start_demo().await;
    let question = user("What is the weather in Paris?");
    let ask = |messages: Value| json!({"messages": messages, "tools": weather(), "temperature": 0, "max_tokens": 100});
    let first = server.post(&ask(json!([question]))).await.json();
    let mut turn = first["choices"][0]["message"].clone();
    let reasoning = turn.as_object_mut().unwrap().remove("reasoning_content");
    assert!(reasoning.is_some() && turn["tool_calls"].is_array(), "{first}");
    let result = json!({"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "sunny"});
    let reply = server.post(&ask(json!([question, turn, result]))).await;
    assert_eq!(reply.header("x-lily-reattached-reasoning"), Some("1"));
    // All of the first turn but its end token.
    let read = first["usage"]["total_tokens"].as_u64().unwrap() - 1;
    assert_eq!(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"], read, "{first}");
}

#[tokio::test]
async fn b063_llama_cpp_24671_the_switch_is_of_one_request() {
    let server = Server::start(&script(json!(["plain"]))).await;
    for round in 0..3 {
        for off in [json!({"enable_thinking": false}), json!({"reasoning_effort": "none"})] {
            let on = say(&server, &json!({"messages": [user("x")]})).await;
            assert_eq!((on.reasoning.as_str(), on.content.as_str()), ("plain", ""), "{round}");
            let off = say(&server, &ask(off)).await;
            assert_eq!((off.reasoning.as_str(), off.content.as_str()), ("", "plain"), "{round}");
        }
    }
}
