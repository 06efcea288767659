//! Answers that are not streamed, and the small endpoints.

use lily_engine::PrefixOptions;
use serde_json::{Value, json};

use crate::server::{CONTEXT, Server, ask};

#[tokio::test]
async fn an_answer_has_openai_shape() {
    let server = Server::start(r#"{"pieces": ["Hello", " there", "."]}"#).await;
    let reply = server.post(&ask(json!({"model": "lily-test"}))).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("x-lily-ignored-fields"), None);
    let body = reply.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "org/Lily-Test");
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    assert!(body["system_fingerprint"].is_string());
    let choice = json!({
        "index": 0, "message": {"role": "assistant", "content": "Hello there."}, "logprobs": null,
        "finish_reason": "stop",
    });
    assert_eq!(body["choices"], json!([choice]));
    let usage = &body["usage"];
    // Three pieces and the end token.
    assert_eq!(usage["completion_tokens"], 4);
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert!((10..60).contains(&prompt), "{usage}");
    assert_eq!(usage["total_tokens"], prompt + 4);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 0);
    assert!(body["timings"]["prompt_ms"].as_f64().unwrap() >= 0.0);
}

#[tokio::test]
async fn thinking_is_split_from_content() {
    let script = r#"{"pieces": ["Let me", " see", {"token": "</think>"}, "\n\n", "Done."]}"#;
    let server = Server::start(script).await;
    let think = json!({"messages": [{"role": "user", "content": "Think."}]});
    let body = server.post(&think).await.json();
    let message = json!({"role": "assistant", "content": "Done.", "reasoning_content": "Let me see"});
    assert_eq!(body["choices"][0]["message"], message);
    let reasoning = body["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!((2..=3).contains(&reasoning), "{reasoning}");
    assert_eq!(body["usage"]["completion_tokens"], 6);

    // Cut while thinking: the reasoning is there, the content is empty, the usage is true.
    let mut cut = think.clone();
    cut["max_tokens"] = json!(2);
    let body = server.post(&cut).await.json();
    assert_eq!(body["choices"][0]["message"]["reasoning_content"], "Let me see");
    assert_eq!(body["choices"][0]["message"]["content"], "");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn every_name_of_the_model_is_this_model() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    for name in [json!(null), json!("default"), json!("org/Lily-Test"), json!("lily-test"), json!("folder")] {
        let reply = server.post(&ask(json!({"model": name}))).await;
        assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("org/Lily-Test")), "{name}");
    }
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    let model = &list["data"][0];
    assert_eq!((&model["id"], &model["object"]), (&json!("org/Lily-Test"), &json!("model")));
    assert_eq!(model["context_length"], CONTEXT);
    for path in ["/v1/models/org/Lily-Test", "/v1/models/org%2FLily-Test", "/v1/models/lily-test"] {
        assert_eq!(server.get(path).await.json()["id"], "org/Lily-Test", "{path}");
    }
    let reply = server.get("/v1/models/gpt-4").await;
    assert_eq!((reply.status, reply.error()["code"].as_str()), (404, Some("model_not_found")));
    let health = server.get("/health").await;
    assert_eq!((health.status, health.json()["status"].as_str()), (200, Some("ok")));
}

#[tokio::test]
async fn stop_strings_cut_the_text_and_count_whole_tokens() {
    let server = Server::start(r#"{"pieces": ["one", " tw", "o th", "ree", " END"]}"#).await;
    for (stop, text, tokens) in [
        (json!("two"), "one ", 3),
        (json!(["zzz", "thr", "two th"]), "one ", 3),
        (json!("ree"), "one two th", 4),
        // The output ends in a beginning of the stop string: nothing is lost.
        (json!("END!"), "one two three END", 6),
        (json!("absent"), "one two three END", 6),
    ] {
        let body = server.post(&ask(json!({"stop": stop}))).await.json();
        assert_eq!(body["choices"][0]["message"]["content"], text, "{stop}");
        assert_eq!(body["choices"][0]["finish_reason"], "stop", "{stop}");
        assert_eq!(body["usage"]["completion_tokens"], tokens, "{stop}");
    }
}

#[tokio::test]
async fn length_is_told_and_counted() {
    let server = Server::start(r#"{"pieces": ["a", "b"], "end": "length"}"#).await;
    for field in ["max_tokens", "max_completion_tokens"] {
        let body = server.post(&ask(json!({field: 5}))).await.json();
        assert_eq!(body["choices"][0]["message"]["content"], "ababa");
        assert_eq!(body["choices"][0]["finish_reason"], "length");
        assert_eq!(body["usage"]["completion_tokens"], 5);
    }
    // As much as the context holds, and not a token more.
    for max_tokens in [Value::Null, json!(1_000_000)] {
        let body = server.post(&ask(json!({"max_tokens": max_tokens}))).await.json();
        assert_eq!(body["usage"]["total_tokens"], CONTEXT);
        assert_eq!(body["choices"][0]["finish_reason"], "length");
    }
}

#[tokio::test]
async fn tool_calls_become_structured_when_tools_are_declared() {
    let call = "<function=get_weather>\\n<parameter=city>\\nOslo\\n</parameter>\\n</function>\\n";
    let script = format!(r#"{{"pieces": [{{"token": "<tool_call>"}}, "\n{call}", {{"token": "</tool_call>"}}]}}"#);
    let server = Server::start(&script).await;
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": schema}}]);
    let body = server.post(&ask(json!({"tools": tools}))).await.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{body}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("get_weather")));
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Oslo"}));

    let chunks = server.post(&ask(json!({"tools": tools, "stream": true}))).await.chunks();
    let deltas: Vec<&Value> =
        chunks.iter().map(|c| &c["choices"][0]["delta"]["tool_calls"][0]).filter(|c| !c.is_null()).collect();
    assert_eq!((&deltas[0]["index"], &deltas[0]["function"]["name"]), (&json!(0), &json!("get_weather")));
    let joined: String = deltas.iter().filter_map(|d| d["function"]["arguments"].as_str()).collect();
    assert_eq!(joined, call["function"]["arguments"].as_str().unwrap());
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    // tool_choice "none", or no tools: it is text.
    for body in [ask(json!({"tools": tools, "tool_choice": "none"})), ask(json!({}))] {
        let body = server.post(&body).await.json();
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
        assert!(body["choices"][0]["message"]["content"].as_str().unwrap().contains("<function=get_weather>"));
    }
}

#[tokio::test]
async fn fields_without_meaning_are_accepted_and_named() {
    let server = Server::start(r#"{"pieces": ["x"]}"#).await;
    let reply = server.post(&ask(json!({"frobnicate": 1, "user": "me", "naïve\n": 2, "store": true}))).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-lily-ignored-fields"), Some("frobnicate, na?ve?"));
    let reply = server.post(&ask(json!({"frobnicate": 1, "stream": true}))).await;
    assert_eq!(reply.header("x-lily-ignored-fields"), Some("frobnicate"));
}

#[tokio::test]
async fn a_conversation_that_goes_on_reports_what_was_cached() {
    let prefix = PrefixOptions { bytes: 1 << 20, exact: false };
    let server = Server::start_caching(r#"{"pieces": ["Yes", "."]}"#, 2, prefix, |_| {}).await;
    let question = "Is this a question that is long enough to fill more than one block of tokens? ".repeat(8);
    let body = |stream: bool| {
        let mut body = json!({"messages": [{"role": "user", "content": question}], "stream": stream});
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        ask(body)
    };
    let cold = server.post(&body(false)).await.json()["usage"].clone();
    assert_eq!(cold["prompt_tokens_details"]["cached_tokens"], 0);
    let prompt = cold["prompt_tokens"].as_u64().unwrap();
    assert!(prompt > 64, "{prompt}");
    // The last multiple of 64 before the end, in whole answers and in streams; the prompt counts whole.
    let whole = server.post(&body(false)).await.json()["usage"].clone();
    let chunks = server.post(&body(true)).await.chunks();
    for usage in [&whole, &chunks.last().unwrap()["usage"]] {
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], (prompt - 1) / 64 * 64);
        assert_eq!(usage["prompt_tokens"], prompt);
        assert_eq!(usage["total_tokens"], cold["total_tokens"]);
    }
}
