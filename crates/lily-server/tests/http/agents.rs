//! Tool loops as coding agents send them, over several turns: each turn continues the state of the one before.

use lily_engine::PrefixOptions;
use regex::Regex;
use serde_json::{Value, json};

use crate::server::{Server, send};

/// Thinks, reads two files at once, edits one, and is done.
const EDIT: &str = r#"{"pieces": ["Read", " first.", {"token": "</think>"}, "\n\n", "I read.", "\n\n", {"token": "<tool_call>"}, "\n<function=read>\n<parameter=path>\na.rs\n</parameter>\n</function>\n", {"token": "</tool_call>"}, "\n", {"token": "<tool_call>"}, "\n<function=read>\n<parameter=path>\nb.rs\n</parameter>\n</function>\n", {"token": "</tool_call>"}]}
{"pieces": ["Now edit.", {"token": "</think>"}, "\n\n", {"token": "<tool_call>"}, "\n<function=edit>\n<parameter=path>\na.rs\n</parameter>\n<parameter=line>\n2\n</parameter>\n<parameter=text>\nlet x = 1;\n\nlet y = 2;\n</parameter>\n</function>\n", {"token": "</tool_call>"}]}
{"pieces": ["Good.", {"token": "</think>"}, "\n\n", "Done: ", "a.rs is changed."]}
{"pieces": ["Easy.", {"token": "</think>"}, "\n\n", "You are welcome."]}
"#;

async fn agent() -> Server {
    let prefix = PrefixOptions { bytes: 1 << 24, exact: false };
    Server::start_caching(EDIT, 2, prefix, |app| {
        app.strip_agent_header = Some(Regex::new("^x-anthropic-billing-header:").unwrap());
        app.names.aliases.push("claude-*".into());
    })
    .await
}

fn schema(names: &[&str]) -> Value {
    let property = |name: &&str| {
        let kind = if *name == "line" { "integer" } else { "string" };
        ((*name).to_owned(), json!({"type": kind}))
    };
    let properties: serde_json::Map<String, Value> = names.iter().map(property).collect();
    json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": properties,
        "required": names, "additionalProperties": false})
}

/// One streamed turn by the Messages API, as its content and usage.
async fn message(server: &Server, turn: usize, messages: &[Value]) -> (Vec<Value>, Value) {
    let tool =
        |name: &str, names: &[&str]| json!({"name": name, "description": "A tool.", "input_schema": schema(names)});
    let cache = json!({"type": "ephemeral"});
    let body = json!({
        "model": "claude-sonnet-4-5-20250929",
        "messages": messages,
        "system": [
            {"type": "text", "text": format!("x-anthropic-billing-header: cc_version=2.0.{turn}; cc_entrypoint=cli;")},
            {"type": "text", "text": "You are a coding agent.", "cache_control": cache},
            {"type": "text", "text": "You help with files. Working directory: /home/user/project.\nIs it a repository: Yes",
                "cache_control": cache},
        ],
        "tools": [tool("read", &["path"]), tool("edit", &["path", "line", "text"])],
        "metadata": {"user_id": "user_1_account__session_2"},
        "max_tokens": 200,
        "thinking": {"type": "enabled", "budget_tokens": 100},
        "temperature": 1,
        "stream": true,
    });
    let headers = [
        ("Content-Type", "application/json"),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14"),
        ("Authorization", "Bearer none"),
        ("x-stainless-lang", "js"),
    ];
    let reply = send(server.addr, "POST", "/v1/messages?beta=true", &headers, body.to_string().as_bytes()).await;
    assert_eq!(reply.header("x-lily-ignored-fields"), None);
    let (mut blocks, mut partial, mut usage) = (Vec::<Value>::new(), String::new(), Value::Null);
    for event in reply.named() {
        let delta = &event["delta"];
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                blocks.push(event["content_block"].clone());
                partial.clear();
            }
            "content_block_delta" => {
                partial += delta["partial_json"].as_str().unwrap_or_default();
                for name in ["text", "thinking", "signature"] {
                    if let Some(more) = delta[name].as_str() {
                        let field = &mut blocks.last_mut().unwrap()[name];
                        *field = format!("{}{more}", field.as_str().unwrap()).into();
                    }
                }
            }
            "content_block_stop" if !partial.is_empty() => {
                blocks.last_mut().unwrap()["input"] = serde_json::from_str(&partial).unwrap();
            }
            "message_delta" => usage = event["usage"].clone(),
            "error" => panic!("{event}"),
            _ => {}
        }
    }
    (blocks, usage)
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": [
        {"type": "text", "text": "<system-reminder>\nToday is Friday.\n</system-reminder>"},
        {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}},
    ]})
}

/// Results of the calls of an answer, in the forms that agents send them.
fn results(blocks: &[Value]) -> Value {
    let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
    let result = |(i, call): (usize, &Value)| {
        let content = if i == 0 { json!([{"type": "text", "text": "     1\tfn main() {}\n"}]) } else { json!("gone") };
        json!({"type": "tool_result", "tool_use_id": call["id"], "content": content, "is_error": i > 0})
    };
    let mut content: Vec<Value> = calls.enumerate().map(result).collect();
    content.last_mut().unwrap()["cache_control"] = json!({"type": "ephemeral"});
    json!({"role": "user", "content": content})
}

/// What Claude Code sends: a first system line that differs each time, system blocks with cache marks, thinking that comes
/// back with its signature or was dropped, results as arrays.
#[tokio::test]
async fn a_tool_loop_of_claude_code_goes_on_without_reading_again() {
    for keep_thinking in [true, false] {
        let server = agent().await;
        let mut messages = vec![user("Fix a.rs.")];
        let mut before = 0;
        for turn in 0..4 {
            let (mut blocks, usage) = message(&server, turn, &messages).await;
            let kinds: Vec<&str> = blocks.iter().map(|block| block["type"].as_str().unwrap()).collect();
            let expected: &[&str] = match turn {
                0 => &["thinking", "text", "tool_use", "tool_use"],
                1 => &["thinking", "tool_use"],
                _ => &["thinking", "text"],
            };
            assert_eq!(kinds, expected, "turn {turn}");
            if turn == 1 {
                let input = json!({"path": "a.rs", "line": 2, "text": "let x = 1;\n\nlet y = 2;"});
                assert_eq!(blocks[1]["input"], input);
            }
            let cached = usage["cache_read_input_tokens"].as_u64().unwrap();
            // All of the prompt before, up to the block of 64 tokens in which it ended.
            assert!(cached >= before / 64 * 64, "turn {turn}: {usage}, the prompt before had {before}");
            before = usage["input_tokens"].as_u64().unwrap() + cached;
            assert!(before > 64, "{usage}");
            if !keep_thinking {
                blocks.retain(|block| block["type"] != "thinking");
            }
            messages.push(json!({"role": "assistant", "content": blocks}));
            messages.push(if turn < 2 { results(&blocks) } else { user("Thank you.") });
        }
    }
}
