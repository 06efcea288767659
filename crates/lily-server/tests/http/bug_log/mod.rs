//! Public failures of other servers, replayed over HTTP. Each test bears the id and the reference of a row of
//! `docs/bug-log.md`, and an assertion of what must hold.

mod messages;
mod stops;
mod streams;
mod thinking;
mod tools;
mod unicode;
mod validation;

use serde_json::{Value, json};

use crate::server::{Reply, Server};

/// An answer, whichever way it came.
#[derive(Debug, Default, PartialEq)]
pub struct Said {
    pub reasoning: String,
    pub content: String,
    /// Names and arguments.
    pub calls: Vec<(String, String)>,
    pub finish: String,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

impl Said {
    fn count(&mut self, usage: &Value) {
        let of = |name: &str| usage[name].as_u64().unwrap_or_else(|| panic!("{usage}"));
        (self.prompt_tokens, self.completion_tokens) = (of("prompt_tokens"), of("completion_tokens"));
        assert_eq!(of("total_tokens"), self.prompt_tokens + self.completion_tokens);
    }

    pub fn whole(reply: &Reply) -> Self {
        assert_eq!(reply.status, 200, "{reply:?}");
        let body = reply.json();
        let (choice, text) = (&body["choices"][0], |v: &Value| v.as_str().unwrap_or_default().to_owned());
        let message = &choice["message"];
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let call = |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
        let mut said = Self {
            reasoning: text(&message["reasoning_content"]),
            content: text(&message["content"]),
            calls: calls.map(call).collect(),
            finish: text(&choice["finish_reason"]),
            ..Self::default()
        };
        said.count(&body["usage"]);
        said
    }

    pub fn streamed(reply: &Reply) -> Self {
        let mut said = Self::default();
        for chunk in reply.chunks() {
            let choice = &chunk["choices"][0];
            let delta = &choice["delta"];
            said.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
            said.content += delta["content"].as_str().unwrap_or_default();
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let index = call["index"].as_u64().unwrap() as usize;
                if let Some(name) = call["function"]["name"].as_str() {
                    assert_eq!(index, said.calls.len(), "{chunk}");
                    said.calls.push((name.to_owned(), String::new()));
                }
                said.calls[index].1 += call["function"]["arguments"].as_str().unwrap_or_default();
            }
            if let Some(finish) = choice["finish_reason"].as_str() {
                assert_eq!(said.finish, "", "two ends: {chunk}");
                said.finish = finish.to_owned();
            }
            if chunk["usage"].is_object() {
                said.count(&chunk["usage"]);
            }
        }
        said
    }
}

/// The answer to `body`, which must be the same with and without a stream. The script must have one line.
pub async fn say(server: &Server, body: &Value) -> Said {
    let whole = Said::whole(&server.post(body).await);
    let mut body = body.clone();
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    assert_eq!(Said::streamed(&server.post(&body).await), whole, "{body}");
    whole
}

/// The content alone.
pub async fn content(server: &Server, body: &Value) -> String {
    say(server, body).await.content
}

/// The refusal of `body`, which must be the same 400 with and without a stream.
pub async fn refused(server: &Server, body: &Value) -> Value {
    let mut errors = Vec::new();
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = json!(stream);
        let reply = server.post(&body).await;
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        assert_eq!(reply.header("content-type"), Some("application/json"), "{body}");
        let error = reply.error();
        assert_eq!(error["type"], "invalid_request_error", "{body}");
        assert!(error["message"].as_str().is_some_and(|words| !words.is_empty()), "{error}");
        errors.push(error);
    }
    assert_eq!(errors[0], errors[1]);
    errors.remove(0)
}

pub fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// A script of one answer.
pub fn script(pieces: Value) -> String {
    json!({"pieces": pieces}).to_string()
}

/// A tool that takes a city.
pub fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])
}
