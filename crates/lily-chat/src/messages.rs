//! OpenAI-style messages, checked and brought into the shape that chat templates expect (`docs/model.md` §7).

use serde_json::{Map, Value, json};

/// A message that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct MessageError {
    /// Path of the field, such as `messages[2].content`.
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub message: String,
}

type Checked<T> = Result<T, MessageError>;

fn refuse<T>(field: impl Into<String>, message: impl Into<String>) -> Checked<T> {
    Err(MessageError { field: field.into(), message: message.into() })
}

/// Checks messages and brings them into the shape that templates expect.
///
/// - `developer` becomes `system`; system messages become one, at the head of the list, joined by a blank line in their
///   order, wherever they stood: the template takes one only there.
/// - Content stays a string, a list of text parts or null (only for assistant and tool).
/// - `tool_calls[].function.arguments`, which clients send as a JSON string, becomes an object; null and the empty string
///   become `{}`.
/// - An assistant's `reasoning` is taken for `reasoning_content` where that is absent.
/// - Other fields stay as they are. Nothing that would have to be dropped is accepted.
///
/// # Errors
/// Names the field: no messages, unknown role, wrong types, pictures and other media parts, tool calls that aren't an
/// assistant's.
pub fn normalise(messages: &[Value]) -> Result<Vec<Value>, MessageError> {
    if messages.is_empty() {
        return refuse("messages", "is empty; at least one message with role \"user\" is needed");
    }
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    for (i, message) in messages.iter().enumerate() {
        let at = format!("messages[{i}]");
        let Value::Object(message) = message else {
            return refuse(at, format!("must be an object, not {}", kind(message)));
        };
        let message = one(message, &at)?;
        if role(&message) != "system" {
            out.push(message);
        } else if out.first().is_some_and(|first| role(first) == "system") {
            let both = format!("{}\n\n{}", text(&out[0]["content"]).trim(), text(&message["content"]).trim());
            out[0]["content"] = Value::String(both);
        } else {
            out.insert(0, message);
        }
    }
    Ok(out)
}

fn role(message: &Value) -> &str {
    message["role"].as_str().unwrap_or_default()
}

/// The text of a checked content.
fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

fn one(message: &Map<String, Value>, at: &str) -> Checked<Value> {
    let role = match message.get("role") {
        Some(Value::String(role)) if role == "developer" => "system",
        Some(Value::String(role)) if ["system", "user", "assistant", "tool"].contains(&role.as_str()) => role,
        Some(Value::String(role)) => {
            let known = "system, developer, user, assistant, tool";
            return refuse(format!("{at}.role"), format!("unknown role {role:?}; known are {known}"));
        }
        Some(other) => return refuse(format!("{at}.role"), format!("must be a string, not {}", kind(other))),
        None => return refuse(format!("{at}.role"), "is missing"),
    };
    let mut message = message.clone();
    message.insert("role".into(), role.into());

    let content = content(message.get("content"), &format!("{at}.content"))?;
    if content.is_null() && !["assistant", "tool"].contains(&role) {
        return refuse(format!("{at}.content"), "must be a string or a list of text parts");
    }
    message.insert("content".into(), content);

    if message.get("function_call").is_some_and(|call| !call.is_null()) {
        return refuse(format!("{at}.function_call"), "is not supported; use tool_calls");
    }
    match message.remove("tool_calls") {
        None | Some(Value::Null) => {}
        Some(Value::Array(calls)) if calls.is_empty() => {}
        Some(_) if role != "assistant" => {
            return refuse(format!("{at}.tool_calls"), "only assistant messages have tool calls");
        }
        Some(Value::Array(calls)) => {
            let calls = calls.iter().enumerate().map(|(j, call)| tool_call(call, &format!("{at}.tool_calls[{j}]")));
            message.insert("tool_calls".into(), calls.collect::<Checked<Vec<Value>>>()?.into());
        }
        Some(other) => return refuse(format!("{at}.tool_calls"), format!("must be a list, not {}", kind(&other))),
    }
    reasoning(&mut message, at)?;
    Ok(Value::Object(message))
}

/// `reasoning_content` or, as some clients name it, `reasoning`.
fn reasoning(message: &mut Map<String, Value>, at: &str) -> Checked<()> {
    for name in ["reasoning_content", "reasoning"] {
        match message.remove(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => {
                message.entry("reasoning_content").or_insert(Value::String(text));
            }
            Some(other) => return refuse(format!("{at}.{name}"), format!("must be a string, not {}", kind(&other))),
        }
    }
    Ok(())
}

fn content(content: Option<&Value>, at: &str) -> Checked<Value> {
    match content {
        None | Some(Value::Null) => Ok(Value::Null),
        Some(Value::String(text)) => Ok(Value::String(text.clone())),
        Some(Value::Array(parts)) => {
            let parts = parts.iter().enumerate().map(|(j, part)| content_part(part, &format!("{at}[{j}]")));
            Ok(parts.collect::<Checked<Vec<Value>>>()?.into())
        }
        Some(other) => refuse(at, format!("must be a string or a list of parts, not {}", kind(other))),
    }
}

fn content_part(part: &Value, at: &str) -> Checked<Value> {
    let Value::Object(fields) = part else {
        return refuse(
            at,
            format!("must be an object such as {{\"type\": \"text\", \"text\": …}}, not {}", kind(part)),
        );
    };
    let part_type = match fields.get("type") {
        Some(Value::String(name)) => name.as_str(),
        Some(other) => return refuse(format!("{at}.type"), format!("must be a string, not {}", kind(other))),
        None => return refuse(format!("{at}.type"), "is missing"),
    };
    let key = match part_type {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        "image" | "image_url" | "input_image" => {
            return refuse(format!("{at}.type"), "images are not supported: this server runs the text model only");
        }
        "video" | "video_url" | "audio" | "input_audio" | "file" | "input_file" => {
            return refuse(format!("{at}.type"), format!("{part_type:?} parts are not supported: text only"));
        }
        other => {
            return refuse(format!("{at}.type"), format!("unknown part type {other:?}; only \"text\" is supported"));
        }
    };
    match fields.get(key) {
        Some(Value::String(text)) => Ok(json!({"type": "text", "text": text})),
        Some(other) => refuse(format!("{at}.{key}"), format!("must be a string, not {}", kind(other))),
        None => refuse(format!("{at}.{key}"), "is missing"),
    }
}

fn tool_call(call: &Value, at: &str) -> Checked<Value> {
    let Value::Object(fields) = call else { return refuse(at, format!("must be an object, not {}", kind(call))) };
    match fields.get("type") {
        None => {}
        Some(Value::String(name)) if name == "function" => {}
        Some(other) => return refuse(format!("{at}.type"), format!("must be \"function\", not {other}")),
    }
    let function = match fields.get("function") {
        Some(Value::Object(function)) => function,
        Some(other) => return refuse(format!("{at}.function"), format!("must be an object, not {}", kind(other))),
        None => return refuse(format!("{at}.function"), "is missing"),
    };
    match function.get("name") {
        Some(Value::String(name)) if !name.is_empty() => {}
        Some(other) => return refuse(format!("{at}.function.name"), format!("must be a name, not {other}")),
        None => return refuse(format!("{at}.function.name"), "is missing"),
    }
    let arguments = arguments(function.get("arguments"), &format!("{at}.function.arguments"))?;
    let mut function = function.clone();
    function.insert("arguments".into(), arguments);
    let mut call = fields.clone();
    call.insert("type".into(), "function".into());
    call.insert("function".into(), Value::Object(function));
    Ok(Value::Object(call))
}

fn arguments(arguments: Option<&Value>, at: &str) -> Checked<Value> {
    let parsed = match arguments {
        None | Some(Value::Null) => return Ok(json!({})),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(json!({})),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) => return refuse(at, format!("is not valid JSON: {error}")),
        },
        Some(other) => other.clone(),
    };
    match parsed {
        Value::Object(_) => Ok(parsed),
        Value::Null => Ok(json!({})),
        other => refuse(at, format!("must be a JSON object, not {}", kind(&other))),
    }
}

/// A value's type, for error messages.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
