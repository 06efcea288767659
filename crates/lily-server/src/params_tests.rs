use serde_json::json;

use super::*;

fn parse(mut body: Value) -> Result<ChatParams, ApiError> {
    if body.get("messages").is_none() {
        body["messages"] = json!([{"role": "user", "content": "hi"}]);
    }
    ChatParams::parse(body.as_object().unwrap(), SamplingDefaults::default())
}

#[test]
fn defaults_are_the_checkpoints() {
    let p = parse(json!({})).unwrap();
    let expected = SamplingParams { temperature: 1.0, top_k: 20, top_p: 0.95, min_p: 0.0, seed: None };
    assert_eq!(p.sampling, expected);
    assert_eq!((p.max_tokens, p.stream, p.include_usage), (None, false, false));
    assert!(p.stop.is_empty() && p.tools.is_none() && p.kwargs.is_empty() && p.ignored.is_empty());
}

#[test]
fn each_field_reaches_its_place() {
    let p = parse(json!({
        "temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125, "seed": 9, "max_tokens": 7, "stop": "x",
        "stream": true, "stream_options": {"include_usage": true}, "user": "me", "frobnicate": 1, "metadata": {},
        "presence_penalty": 0, "n": 1, "logit_bias": {}, "logprobs": false, "response_format": {"type": "text"},
        "top_logprobs": null, "tool_choice": "auto", "parallel_tool_calls": true, "modalities": ["text"],
    }))
    .unwrap();
    let expected = SamplingParams { temperature: 0.5, top_k: 3, top_p: 0.25, min_p: 0.125, seed: Some(9) };
    assert_eq!(p.sampling, expected);
    assert_eq!((p.max_tokens, p.stream, p.include_usage), (Some(7), true, true));
    assert_eq!(p.stop, ["x"]);
    assert_eq!(p.adjust, Adjust::default());
    assert_eq!(p.ignored, ["frobnicate"]);

    assert_eq!(parse(json!({"max_tokens": 9, "max_completion_tokens": 4})).unwrap().max_tokens, Some(4));
    assert_eq!(parse(json!({"max_completion_tokens": 4, "max_tokens": null})).unwrap().max_tokens, Some(4));
    let adjust = parse(json!({
        "presence_penalty": 1.5, "frequency_penalty": -0.5, "repetition_penalty": 1.25, "logit_bias": {"5": -100, "7": 2},
    }));
    let expected = Adjust {
        logit_bias: vec![(5, -100.0), (7, 2.0)],
        repetition_penalty: 1.25,
        presence_penalty: 1.5,
        frequency_penalty: -0.5,
    };
    assert_eq!(adjust.unwrap().adjust, expected);
    assert_eq!(parse(json!({"top_k": -1})).unwrap().sampling.top_k, 0);
    assert_eq!(parse(json!({"seed": -1})).unwrap().sampling.seed, Some(u64::MAX));
    assert_eq!(parse(json!({"seed": u64::MAX})).unwrap().sampling.seed, Some(u64::MAX));
    assert_eq!(parse(json!({"stop": ["a", "b"]})).unwrap().stop, ["a", "b"]);
    assert!(parse(json!({"top_p": 1e-300})).unwrap().sampling.top_p > 0.0);
}

#[test]
fn thinking_is_switched_by_the_most_particular_field() {
    let thinking = |body| parse(body).unwrap().kwargs.get("enable_thinking").cloned();
    assert_eq!(thinking(json!({})), None);
    assert_eq!(thinking(json!({"enable_thinking": false})), Some(json!(false)));
    assert_eq!(thinking(json!({"chat_template_kwargs": {"enable_thinking": false}})), Some(json!(false)));
    assert_eq!(thinking(json!({"chat_template_kwargs": {"enable_thinking": null}})), None);
    assert_eq!(thinking(json!({"reasoning_effort": "none"})), Some(json!(false)));
    assert_eq!(thinking(json!({"reasoning_effort": "low"})), Some(json!(true)));
    assert_eq!(thinking(json!({"reasoning": {"effort": "none"}})), Some(json!(false)));
    let both = json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true}});
    assert_eq!(thinking(both), Some(json!(true)));
    let both = json!({"enable_thinking": false, "chat_template_kwargs": {"enable_thinking": true}});
    assert_eq!(thinking(both), Some(json!(false)));
    let kwargs = parse(json!({"chat_template_kwargs": {"preserve_thinking": true}})).unwrap().kwargs;
    assert_eq!(kwargs.get("preserve_thinking"), Some(&json!(true)));
}

#[test]
fn tools_are_checked_and_can_be_switched_off() {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    assert_eq!(parse(json!({"tools": [tool]})).unwrap().tools, Some(vec![tool.clone()]));
    assert_eq!(parse(json!({"tools": [tool], "tool_choice": "none"})).unwrap().tools, None);
    assert_eq!(parse(json!({"tools": []})).unwrap().tools, None);
}

#[test]
fn every_refusal_names_its_field() {
    let tool = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    let cases = [
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": 5}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"stream": true, "stream_options": 1}), "stream_options"),
        (json!({"stream": true, "stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"max_tokens": "5"}), "max_tokens"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": 2.1}), "temperature"),
        (json!({"temperature": true}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_p": 1.01}), "top_p"),
        (json!({"min_p": -0.1}), "min_p"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"top_k": 1.5}), "top_k"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"seed": "x"}), "seed"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": [""]}), "stop[0]"),
        (json!({"stop": ["a", 3]}), "stop[1]"),
        (json!({"stop": []}), "stop"),
        (json!({"stop": vec!["x"; 17]}), "stop"),
        (json!({"stop": 5}), "stop"),
        (json!({"stop": "x".repeat(1025)}), "stop"),
        (json!({"tools": 5}), "tools"),
        (json!({"tools": [5]}), "tools[0]"),
        (json!({"tools": [{"type": "code"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (tool(json!({})), "tools[0].function.name"),
        (tool(json!({"name": ""})), "tools[0].function.name"),
        (tool(json!({"name": 1})), "tools[0].function.name"),
        (tool(json!({"name": "f", "parameters": []})), "tools[0].function.parameters"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}), "tool_choice"),
        (json!({"enable_thinking": "no"}), "enable_thinking"),
        (json!({"chat_template_kwargs": []}), "chat_template_kwargs"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages"),
        (json!({"chat_template_kwargs": {"enable_thinking": 0}}), "chat_template_kwargs.enable_thinking"),
        (json!({"preserve_thinking": "no"}), "preserve_thinking"),
        (json!({"chat_template_kwargs": {"preserve_thinking": 1}}), "chat_template_kwargs.preserve_thinking"),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
        (json!({"reasoning_effort": 1}), "reasoning_effort"),
        (json!({"reasoning": {"effort": "huge"}}), "reasoning.effort"),
        (json!({"n": 0}), "n"),
        (json!({"n": 17}), "n"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": "x"}), "frequency_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"repetition_penalty": 1e9}), "repetition_penalty"),
        (json!({"logit_bias": {"five": 1}}), "logit_bias.five"),
        (json!({"logit_bias": {"-5": 1}}), "logit_bias.-5"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
        (json!({"logit_bias": {"5": "1"}}), "logit_bias.5"),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"response_format": "text"}), "response_format"),
        (json!({"functions": []}), "functions"),
        (json!({"modalities": ["audio"]}), "modalities"),
    ];
    for (body, field) in cases {
        let shown = body.to_string();
        let e = match parse(body) {
            Ok(p) => panic!("{shown} was accepted: {p:?}"),
            Err(e) => e,
        };
        assert_eq!((e.status.as_u16(), e.param.as_deref()), (400, Some(field)), "{shown}: {}", e.message);
        assert!(e.message.starts_with(field), "{shown}: {}", e.message);
        assert_eq!(e.kind, "invalid_request_error");
    }
}
