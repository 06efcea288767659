//! From the body of a Messages request to that of a chat completion.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// Fields that mean something here, or are known to need nothing.
const KNOWN: &[&str] = &[
    "model",
    "messages",
    "system",
    "max_tokens",
    "stop_sequences",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "metadata",
    "service_tier",
    "cache_control",
];

/// Fields of chat completions that may be sent as well, under the same names.
const OWN: &[&str] = &[
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "enable_thinking",
    "preserve_thinking",
    "chat_template_kwargs",
];

pub(super) fn ignored(body: &Map<String, Value>) -> Vec<String> {
    body.keys().filter(|k| !KNOWN.contains(&k.as_str()) && !OWN.contains(&k.as_str())).cloned().collect()
}

/// What a field of the chat completion is called here.
pub(super) fn own_name(param: &str) -> String {
    let param = param.replace("].function.parameters", "].input_schema").replace("].function", "]");
    for (theirs, own) in [
        ("stop", "stop_sequences"),
        ("max_completion_tokens", "max_tokens"),
        ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
        ("tool_choice.function", "tool_choice"),
        ("response_format.json_schema", "output_config.format"),
        ("response_format", "output_config.format"),
    ] {
        if let Some(rest) = param.strip_prefix(theirs).filter(|rest| rest.is_empty() || rest.starts_with(['.', '['])) {
            return format!("{own}{rest}");
        }
    }
    param
}

/// What an answer needs, and a count of tokens does not.
pub(super) fn check(body: &Map<String, Value>) -> Result<(), ApiError> {
    let fields = Fields(body);
    if fields.integer("max_tokens", 1)?.is_none() {
        return Err(ApiError::field("max_tokens", "is required: how many tokens the answer may have"));
    }
    let last = fields.array("messages")?.and_then(|messages| messages.last());
    if last.is_some_and(|message| message["role"] == "assistant") {
        let message = "ends with an assistant's message; an answer that was begun is not continued here, so the last \
                       message must be a user's";
        return Err(ApiError::unsupported("messages", message));
    }
    Ok(())
}

/// The same request as a chat completion. Everything that is Anthropic's alone is checked here.
pub(super) fn chat_body(body: &Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    let fields = Fields(body);
    let mut chat = Map::new();
    chat.insert("messages".into(), messages(&fields)?.into());
    for name in ["max_tokens", "stream", "temperature", "top_p", "top_k"].iter().chain(OWN) {
        if let Some(value) = fields.get(name) {
            chat.insert((*name).into(), value.clone());
        }
    }
    fields.number("temperature", "from 0 to 1", |x| (0.0..=1.0).contains(&x))?;
    fields.integer("top_k", 0)?;
    if let Some(stop) = fields.array("stop_sequences")?.filter(|stop| !stop.is_empty()) {
        chat.insert("stop".into(), stop.clone().into());
    }
    fields.object("metadata")?;
    fields.only("mcp_servers", "[]", |v| v.as_array().is_some_and(Vec::is_empty))?;
    fields.only("container", "null", |_| false)?;
    tools(&fields, &mut chat)?;
    thinking(&fields, &mut chat)?;
    output_config(&fields, &mut chat)?;
    Ok(chat)
}

fn object<'a>(value: &'a Value, at: &str) -> Result<Fields<'a>, ApiError> {
    value.as_object().map(Fields).ok_or_else(|| wrong_type(at, "an object", value))
}

/// The text `name` of an object that stands at `at`.
fn required<'a>(fields: &Fields<'a>, at: &str, name: &str) -> Result<&'a str, ApiError> {
    match fields.0.get(name) {
        Some(Value::String(text)) => Ok(text),
        other => Err(wrong_type(&format!("{at}.{name}"), "a string", other.unwrap_or(&Value::Null))),
    }
}

fn part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn messages(fields: &Fields) -> Result<Vec<Value>, ApiError> {
    let mut out = Vec::new();
    out.extend(system(fields.get("system"))?.map(|text| json!({"role": "system", "content": text})));
    let messages = fields.array("messages")?.filter(|messages| !messages.is_empty());
    let messages = messages.ok_or_else(|| ApiError::field("messages", "is required: at least one message"))?;
    for (i, message) in messages.iter().enumerate() {
        let at = format!("messages[{i}]");
        let message = object(message, &at)?;
        let content = message.0.get("content").unwrap_or(&Value::Null);
        let content_at = format!("{at}.content");
        match required(&message, &at, "role")? {
            "user" => user(content, &content_at, &mut out)?,
            "assistant" => out.push(assistant(content, &content_at)?),
            "system" => out.push(json!({"role": "system", "content": text(content, &content_at)?})),
            other => {
                let shown: String = other.chars().take(40).collect();
                let message = format!("must be \"user\" or \"assistant\", not {shown:?}");
                return Err(ApiError::field(format!("{at}.role"), message));
            }
        }
    }
    Ok(out)
}

/// A string, or blocks of text; those stand apart like several system messages of a chat.
fn system(system: Option<&Value>) -> Result<Option<String>, ApiError> {
    match system {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(blocks)) => {
            let text = |(i, block)| text_block(block, &format!("system[{i}]"));
            let texts = blocks.iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?;
            let texts: Vec<&str> = texts.into_iter().map(str::trim).filter(|text| !text.is_empty()).collect();
            Ok((!texts.is_empty()).then(|| texts.join("\n\n")))
        }
        Some(other) => Err(wrong_type("system", "a string or an array of text blocks", other)),
    }
}

/// Content that can be text only, as parts of a chat message.
fn text(content: &Value, at: &str) -> Result<Value, ApiError> {
    let Some(blocks) = blocks(content, at)? else { return Ok(content.clone()) };
    let one = |(j, block)| text_block(block, &format!("{at}[{j}]")).map(part);
    blocks.iter().enumerate().map(one).collect()
}

/// The blocks of a content; `None` where it is a string.
fn blocks<'a>(content: &'a Value, at: &str) -> Result<Option<&'a [Value]>, ApiError> {
    match content {
        Value::String(_) => Ok(None),
        Value::Array(blocks) => Ok(Some(blocks)),
        other => Err(wrong_type(at, "a string or an array of blocks", other)),
    }
}

fn text_block<'a>(block: &'a Value, at: &str) -> Result<&'a str, ApiError> {
    let block = object(block, at)?;
    match required(&block, at, "type")? {
        "text" => required(&block, at, "text"),
        other => Err(refused(other, at, "text")),
    }
}

/// The error for a block that cannot stand here.
fn refused(kind: &str, at: &str, known: &str) -> ApiError {
    let shown: String = kind.chars().take(40).collect();
    let message = match kind {
        "image" => "images are not supported: this server runs the text model only".into(),
        "document" => "documents are not supported: send their text as a text block".into(),
        _ => format!("{shown:?} blocks are not supported here; known are {known}"),
    };
    ApiError::unsupported(format!("{at}.type"), message)
}

/// Results of tools become messages of their own; text before and after them stays where it stood.
fn user(content: &Value, at: &str, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let Some(blocks) = blocks(content, at)? else {
        out.push(json!({"role": "user", "content": content}));
        return Ok(());
    };
    if blocks.is_empty() {
        return Err(ApiError::field(at, "must hold at least one block"));
    }
    let mut parts = Vec::new();
    for (j, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{j}]");
        let block = object(block, &at)?;
        match required(&block, &at, "type")? {
            "text" => parts.push(part(required(&block, &at, "text")?)),
            "tool_result" => {
                if !parts.is_empty() {
                    out.push(json!({"role": "user", "content": std::mem::take(&mut parts)}));
                }
                out.push(tool_result(&block, &at)?);
            }
            other => return Err(refused(other, &at, "text and tool_result")),
        }
    }
    if !parts.is_empty() {
        out.push(json!({"role": "user", "content": parts}));
    }
    Ok(())
}

/// A failure that does not say so itself is marked: the template has no other place for it.
fn tool_result(block: &Fields, at: &str) -> Result<Value, ApiError> {
    let id = required(block, at, "tool_use_id")?;
    let mut content = match block.get("content") {
        None => Value::String(String::new()),
        Some(content) => text(content, &format!("{at}.content"))?,
    };
    let failed = match block.get("is_error") {
        None | Some(Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(other) => return Err(wrong_type(&format!("{at}.is_error"), "true or false", other)),
    };
    let says_so = crate::recall::text(&content).to_ascii_lowercase().contains("error");
    if failed && !says_so {
        content = match content {
            Value::Array(mut parts) => {
                parts.insert(0, part("Error: "));
                parts.into()
            }
            other => format!("Error: {}", other.as_str().unwrap_or_default()).into(),
        };
    }
    Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
}

fn assistant(content: &Value, at: &str) -> Result<Value, ApiError> {
    let Some(blocks) = blocks(content, at)? else { return Ok(json!({"role": "assistant", "content": content})) };
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for (j, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{j}]");
        let block = object(block, &at)?;
        match required(&block, &at, "type")? {
            "text" => text.push_str(required(&block, &at, "text")?),
            "thinking" => reasoning.push_str(required(&block, &at, "thinking")?),
            // Sealed by another server: there is nothing to read in it.
            "redacted_thinking" => {}
            "tool_use" => calls.push(tool_use(&block, &at)?),
            other => return Err(refused(other, &at, "text, thinking, redacted_thinking and tool_use")),
        }
    }
    let mut message = json!({"role": "assistant", "content": text});
    // An empty block is one whose text the client dropped, so that it says nothing of the reasoning.
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}

fn tool_use(block: &Fields, at: &str) -> Result<Value, ApiError> {
    let (id, name) = (required(block, at, "id")?, required(block, at, "name")?);
    if name.is_empty() {
        return Err(ApiError::field(format!("{at}.name"), "must not be empty"));
    }
    let input = match block.get("input") {
        None => json!({}),
        Some(input @ Value::Object(_)) => input.clone(),
        Some(other) => return Err(wrong_type(&format!("{at}.input"), "an object", other)),
    };
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}}))
}

fn tools(fields: &Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let tools = fields.array("tools")?.filter(|tools| !tools.is_empty());
    if let Some(tools) = tools {
        let tools = tools.iter().enumerate().map(|(i, tool)| self::tool(tool, &format!("tools[{i}]")));
        chat.insert("tools".into(), tools.collect::<Result<Vec<Value>, _>>()?.into());
    }
    let Some(choice) = fields.object("tool_choice")?.map(Fields) else { return Ok(()) };
    let kind = required(&choice, "tool_choice", "type")?;
    let forced = match kind {
        "auto" | "none" => kind.into(),
        "any" => "required".into(),
        "tool" => json!({"type": "function", "function": {"name": required(&choice, "tool_choice", "name")?}}),
        _ => return Err(ApiError::field("tool_choice.type", "must be \"auto\", \"any\", \"tool\" or \"none\"")),
    };
    if tools.is_none() && kind != "auto" && kind != "none" {
        return Err(ApiError::field("tool_choice", "asks for a call, but there are no tools"));
    }
    chat.insert("tool_choice".into(), forced);
    match choice.get("disable_parallel_tool_use") {
        None | Some(Value::Bool(false)) => {}
        Some(Value::Bool(true)) => drop(chat.insert("parallel_tool_calls".into(), false.into())),
        Some(other) => return Err(wrong_type("tool_choice.disable_parallel_tool_use", "true or false", other)),
    }
    Ok(())
}

/// A tool that the client runs. Those that Anthropic's servers run, or whose schema only its models know, cannot be served.
fn tool(tool: &Value, at: &str) -> Result<Value, ApiError> {
    let tool = object(tool, at)?;
    if let Some(kind) = tool.get("type").filter(|kind| *kind != "custom") {
        let shown: String = kind.as_str().unwrap_or("another").chars().take(60).collect();
        let message =
            format!("{shown:?} tools are not supported; declare tools with name, description and input_schema");
        return Err(ApiError::unsupported(format!("{at}.type"), message));
    }
    let name = required(&tool, at, "name")?;
    if name.is_empty() {
        return Err(ApiError::field(format!("{at}.name"), "must not be empty"));
    }
    let mut function = json!({"name": name});
    if tool.get("description").is_some() {
        function["description"] = required(&tool, at, "description")?.into();
    }
    match tool.get("input_schema") {
        None => {}
        Some(schema @ Value::Object(_)) => function["parameters"] = schema.clone(),
        Some(other) => {
            return Err(wrong_type(&format!("{at}.input_schema"), "an object (a JSON schema)", other));
        }
    }
    Ok(json!({"type": "function", "function": function}))
}

/// As at Anthropic, nobody thinks who was not asked to.
fn thinking(fields: &Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let mut on = false;
    if let Some(thinking) = fields.object("thinking")?.map(Fields) {
        let kind = required(&thinking, "thinking", "type")?;
        on = match kind {
            "enabled" | "adaptive" => true,
            "disabled" => false,
            _ => return Err(ApiError::field("thinking.type", "must be \"enabled\", \"adaptive\" or \"disabled\"")),
        };
        match thinking.get("budget_tokens").map(|budget| (budget.as_u64(), budget)) {
            None | Some((Some(1..), _)) => {}
            Some((_, other)) => {
                return Err(wrong_type("thinking.budget_tokens", "a whole number of at least 1", other));
            }
        }
    }
    let by_template = chat.get("chat_template_kwargs").is_some_and(|kwargs| !kwargs["enable_thinking"].is_null());
    if !chat.contains_key("enable_thinking") && (fields.get("thinking").is_some() || !by_template) {
        chat.insert("enable_thinking".into(), on.into());
    }
    Ok(())
}

/// The effort has no levels here; a format is that of chat completions.
fn output_config(fields: &Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(config) = fields.object("output_config")?.map(Fields) else { return Ok(()) };
    let Some(format) = config.get("format") else { return Ok(()) };
    let format = object(format, "output_config.format")?;
    if required(&format, "output_config.format", "type")? != "json_schema" {
        return Err(ApiError::field("output_config.format.type", "must be \"json_schema\""));
    }
    let Some(schema @ Value::Object(_)) = format.get("schema") else {
        let other = format.get("schema").unwrap_or(&Value::Null);
        return Err(wrong_type("output_config.format.schema", "an object (a JSON schema)", other));
    };
    let schema = json!({"name": "answer", "schema": schema, "strict": true});
    chat.insert("response_format".into(), json!({"type": "json_schema", "json_schema": schema}));
    Ok(())
}
