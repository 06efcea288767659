//! What a conversation that goes on finds in the prefix cache, and the reasoning that is given back to it for that.

use regex::Regex;
use serde_json::{Value, json};

use crate::server::{Reply, Server, ask};

const HEADER: &str = "x-lily-reattached-reasoning";

/// Message and usage of an answer, streamed or not.
async fn answer(server: &Server, body: &Value, stream: bool) -> (Value, Value, Reply) {
    let mut body = body.clone();
    if !stream {
        let reply = server.post(&body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let json = reply.json();
        return (json["choices"][0]["message"].clone(), json["usage"].clone(), reply);
    }
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let reply = server.post(&body).await;
    let chunks = reply.chunks();
    let joined =
        |name: &str| -> String { chunks.iter().filter_map(|c| c["choices"][0]["delta"][name].as_str()).collect() };
    let mut message =
        json!({"role": "assistant", "content": joined("content"), "reasoning_content": joined("reasoning_content")});
    let calls = || chunks.iter().map(|c| &c["choices"][0]["delta"]["tool_calls"][0]);
    let arguments: String = calls().filter_map(|c| c["function"]["arguments"].as_str()).collect();
    if let Some(call) = calls().find(|c| c["id"].is_string()) {
        let mut call = call.clone();
        call["function"]["arguments"] = json!(arguments);
        message["tool_calls"] = json!([call]);
    }
    (message, chunks.last().unwrap()["usage"].clone(), reply)
}

fn without_reasoning(mut message: Value) -> Value {
    message.as_object_mut().unwrap().remove("reasoning_content");
    message
}

fn count(usage: &Value, name: &str) -> u64 {
    usage[name].as_u64().unwrap_or_else(|| panic!("{usage}"))
}

fn cached(usage: &Value) -> u64 {
    count(&usage["prompt_tokens_details"], "cached_tokens")
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])
}

/// With the demo model: each turn reads the new question, and of the last answer only the token that ended it.
#[tokio::test]
async fn every_turn_continues_the_state_of_the_one_before() {
    let server = Server::start_demo().await;
    let talk = ["What is the moon?", "Tell me a story about a cat.", "Thank you!"];
    let errand = ["What is the moon?", "What is the weather in Paris?", "Thank you!"];
    for (thinking, tools, questions) in [(false, json!(null), talk), (true, tools(), errand)] {
        let mut messages = vec![json!({"role": "system", "content": "You are a kind and careful helper."})];
        let mut before: Option<(Value, Vec<u64>)> = None;
        for (turn, question) in questions.iter().enumerate() {
            messages.push(json!({"role": "user", "content": question}));
            let body = json!({"messages": messages, "tools": tools, "enable_thinking": thinking, "temperature": 0,
                "max_tokens": 100});
            let tokens = server.tokens(&body).await;
            let (message, usage, reply) = answer(&server, &body, turn % 2 == 1).await;
            let what = format!("turn {turn}, thinking: {thinking}, tools: {}: {message}", !tools.is_null());
            assert_eq!(count(&usage, "prompt_tokens"), tokens.len() as u64, "{what}");
            if let Some((before, prompt)) = before {
                assert!(tokens.starts_with(&prompt), "{what}");
                let state = count(&before, "prompt_tokens") + count(&before, "completion_tokens") - 1;
                assert_eq!(cached(&usage), state, "{what}");
                let thoughts = if thinking { Some(turn.to_string()) } else { None };
                assert_eq!(reply.header(HEADER).map(str::to_owned), thoughts, "{what}");
            }
            before = Some((usage, tokens));
            messages.push(without_reasoning(message));
        }
    }
}

/// Where the client wants earlier reasoning left out, the nearest state before that place serves.
#[tokio::test]
async fn an_explicit_false_restarts_at_the_nearest_earlier_state() {
    let server = Server::start_demo().await;
    for (thinking, tools) in [(false, json!(null)), (true, tools())] {
        let ask = |messages: &Value| {
            json!({"messages": messages, "tools": tools, "enable_thinking": thinking, "temperature": 0,
                "max_tokens": 40, "chat_template_kwargs": {"preserve_thinking": false}})
        };
        let question = "Please tell me a long and quiet story about a cat who lives by the sea. ".repeat(5);
        let first = json!([{"role": "user", "content": question}]);
        let (message, ..) = answer(&server, &ask(&first), false).await;
        let second = json!([first[0], message, {"role": "user", "content": "And then?"}]);
        let (old, new) = (server.tokens(&ask(&first)).await, server.tokens(&ask(&second)).await);
        let common = old.iter().zip(&new).take_while(|(a, b)| a == b).count() as u64;
        assert!(common < old.len() as u64, "the prefix holds");
        let (_, usage, reply) = answer(&server, &ask(&second), false).await;
        assert_eq!(cached(&usage), common / 64 * 64, "{usage}");
        assert!(cached(&usage) >= 64);
        assert_eq!(count(&usage, "prompt_tokens"), new.len() as u64);
        assert_eq!(reply.header(HEADER), None);
    }
}

/// Thinks and answers, each time the same.
const THINKER: &str = r#"{"pieces": ["Let me", " see.", {"token": "</think>"}, "\n\n", "Yes", "."]}"#;
const THOUGHT: &str = "<think>\nLet me see.\n</think>\n\nYes.<|im_end|>";

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn yes() -> Value {
    json!({"role": "assistant", "content": "Yes."})
}

/// A server that has answered "Is it?", streamed or not.
async fn thinker(stream: bool) -> Server {
    let server = Server::start(THINKER).await;
    let (message, _, reply) = answer(&server, &json!({"messages": [user("Is it?")]}), stream).await;
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("Yes."), &json!("Let me see.")));
    assert_eq!(reply.header(HEADER), None);
    server
}

#[tokio::test]
async fn reasoning_left_out_is_given_back_and_reported() {
    for stream in [false, true] {
        let server = thinker(stream).await;
        let body = json!({"messages": [user("Is it?"), yes(), user("Sure?")]});
        assert!(server.prompt(&body).await.contains(THOUGHT));
        for stream in [false, true] {
            assert_eq!(answer(&server, &body, stream).await.2.header(HEADER), Some("1"));
        }
        // Sent back by the client it is the same prompt, and nothing was given back.
        let mut kept = body.clone();
        kept["messages"][1]["reasoning_content"] = json!("Let me see.");
        assert_eq!(server.tokens(&kept).await, server.tokens(&body).await);
        assert_eq!(answer(&server, &kept, false).await.2.header(HEADER), None);
        // What the client says instead counts.
        kept["messages"][1]["reasoning_content"] = json!("I guess.");
        kept["preserve_thinking"] = json!(true);
        assert!(server.prompt(&kept).await.contains("<think>\nI guess.\n</think>"));
        assert_eq!(answer(&server, &kept, false).await.2.header(HEADER), None);
    }
}

#[tokio::test]
async fn reasoning_is_given_to_no_other_answer_and_no_other_conversation() {
    let server = thinker(false).await;
    let last = user("Sure?");
    let edited = json!({"role": "assistant", "content": "Yes!"});
    let system = json!({"role": "system", "content": "Be brief."});
    for body in [
        json!({"messages": [user("Is it?"), edited, last]}),
        json!({"messages": [user("Is that so?"), yes(), last]}),
        json!({"messages": [system, user("Is it?"), yes(), last]}),
        json!({"messages": [user("Is it?"), edited, user("Is it?"), yes(), last]}),
        json!({"messages": [user("Is it?"), yes(), last], "tools": tools()}),
        json!({"messages": [user("Is it?"), yes(), last], "preserve_thinking": false}),
        json!({"messages": [user("Is it?"), {"role": "user", "content": "Yes."}, last]}),
    ] {
        assert!(!server.prompt(&body).await.contains("see"), "{body}");
        assert_eq!(answer(&server, &body, false).await.2.header(HEADER), None, "{body}");
    }
    let off = Server::start_with(THINKER, 2, |app| app.reattach_reasoning(false)).await;
    answer(&off, &json!({"messages": [user("Is it?")]}), false).await;
    let body = json!({"messages": [user("Is it?"), yes(), last]});
    assert!(!off.prompt(&body).await.contains("see"));
}

/// A call's turn keeps its reasoning by the template's own rule, also where earlier turns lose theirs.
#[tokio::test]
async fn a_call_gets_its_reasoning_back_in_every_case() {
    let call = r#"{"pieces": ["Look it", " up.", {"token": "</think>"}, "\n\n", {"token": "<tool_call>"},
        "\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n", {"token": "</tool_call>"}]}"#;
    let server = Server::start(&call.replace('\n', "")).await;
    let question = json!({"messages": [user("Old?"), yes(), user("Weather in Oslo?")], "tools": tools()});
    let (message, _, _) = answer(&server, &question, false).await;
    assert_eq!(message["tool_calls"][0]["function"]["name"], "get_weather", "{message}");
    let mut call = without_reasoning(message);
    call["tool_calls"][0]["id"] = json!("another id");
    let result = json!({"role": "tool", "content": "4 C", "tool_call_id": "another id"});
    for preserve in [json!(null), json!(false), json!(true)] {
        let mut body = question.clone();
        body["messages"].as_array_mut().unwrap().extend([call.clone(), result.clone()]);
        body["preserve_thinking"] = preserve.clone();
        let prompt = server.prompt(&body).await;
        assert!(prompt.contains("<think>\nLook it up.\n</think>\n\n<tool_call>\n<function=get_weather>"), "{prompt}");
        assert_eq!(answer(&server, &body, false).await.2.header(HEADER), Some("1"), "{preserve}");
        // The turn before was not written here: it looks as in the question's prompt, unless the client says otherwise.
        assert_eq!(prompt.contains("<think>\n\n</think>\n\nYes."), preserve == json!(true), "{prompt}");
    }
}

#[tokio::test]
async fn reasoning_that_would_not_fit_stays_out() {
    // One token as the model writes it, and hundreds as the tokenizer does.
    let script = r#"{"pieces": ["PIECES", {"token": "</think>"}, "Yes."]}"#;
    let script = script.replace("PIECES", &"Let me see it all. ".repeat(250));
    let server = Server::start(&script).await;
    let (_, usage, _) = answer(&server, &json!({"messages": [user("Is it?")]}), false).await;
    assert!(count(&usage, "total_tokens") < 100, "{usage}");
    let body = json!({"messages": [user("Is it?"), yes(), user("Sure?")]});
    let (_, usage, reply) = answer(&server, &body, false).await;
    assert_eq!(reply.header(HEADER), None);
    assert!(count(&usage, "prompt_tokens") < 100, "{usage}");
}

#[tokio::test]
async fn the_first_line_of_a_system_prompt_goes_where_it_matches() {
    let server = Server::start_with(r#"{"pieces": ["x"]}"#, 2, |app| {
        app.strip_agent_header = Some(Regex::new("^x-agent: ").unwrap());
    })
    .await;
    let with = |content: Value| ask(json!({"messages": [{"role": "system", "content": content}, user("hi")]}));
    let want = server.tokens(&with(json!("Be brief.\nx-agent: 1"))).await;
    for content in [
        json!("x-agent: build=17\nBe brief.\nx-agent: 1"),
        json!("x-agent: build=18\r\nBe brief.\nx-agent: 1"),
        json!([{"type": "text", "text": "x-agent: 5"}, {"type": "text", "text": "Be brief.\nx-agent: 1"}]),
    ] {
        assert_eq!(server.tokens(&with(content.clone())).await, want, "{content}");
    }
    let prompt = server.prompt(&with(json!("Be brief.\nx-agent: 1"))).await;
    assert!(prompt.contains("system\nBe brief.\nx-agent: 1<|im_end|>"), "{prompt}");
    // Only in a system prompt, and only where it was asked for.
    let prompt = server.prompt(&ask(json!({"messages": [user("x-agent: 1\nhi")]}))).await;
    assert!(prompt.contains("x-agent: 1\nhi"), "{prompt}");
    let plain = Server::start(r#"{"pieces": ["x"]}"#).await;
    assert!(plain.prompt(&with(json!("x-agent: 1\nBe brief."))).await.contains("x-agent: 1\nBe brief."));
}
