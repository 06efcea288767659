//! The body of `POST /v1/chat/completions`, checked.

use lily_engine::{Adjust, SamplingParams};
use serde_json::{Map, Value};

use crate::app::SamplingDefaults;
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// A chat request whose fields are valid; nothing is known yet of its length in tokens.
#[derive(Debug)]
pub(crate) struct ChatParams {
    /// In the shape that templates expect.
    pub(crate) messages: Vec<Value>,
    /// As given; `None` when there are none or `tool_choice` is `"none"`.
    pub(crate) tools: Option<Vec<Value>>,
    /// Variables for the template, `enable_thinking` among them when the request says so.
    pub(crate) kwargs: Map<String, Value>,
    pub(crate) sampling: SamplingParams,
    pub(crate) adjust: Adjust,
    pub(crate) max_tokens: Option<usize>,
    /// Answers to give, from 1 to [`MAX_CHOICES`].
    pub(crate) choices: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// Whether chunks tell how much of the prompt has been read.
    pub(crate) progress: bool,
    /// Fields of the request that mean nothing here.
    pub(crate) ignored: Vec<String>,
}

/// Fields that change the answer, or are refused when they would have to.
const KNOWN: &[&str] = &[
    "messages",
    "model",
    "stream",
    "stream_options",
    "return_progress",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "enable_thinking",
    "preserve_thinking",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "response_format",
    "functions",
    "function_call",
    "modalities",
    "audio",
];

/// Fields that are for the caller's own books and are accepted without a word.
const BOOKKEEPING: &[&str] =
    &["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"];

/// Answers to one prompt: each decodes on its own, so that many would keep everyone else waiting.
const MAX_CHOICES: usize = 16;
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;

impl ChatParams {
    pub(crate) fn parse(body: &Map<String, Value>, defaults: SamplingDefaults) -> Result<Self, ApiError> {
        let fields = Fields(body);
        let messages = messages(&fields)?;
        refuse_what_is_missing(&fields)?;
        let stream = fields.bool("stream")?.unwrap_or(false);
        let tools = tools(&fields)?;
        Ok(Self {
            messages,
            tools,
            kwargs: template_kwargs(&fields)?,
            sampling: sampling(&fields, defaults)?,
            adjust: adjust(&fields, defaults)?,
            max_tokens: max_tokens(&fields)?,
            choices: choices(&fields)?,
            stop: stop(&fields)?,
            stream,
            include_usage: stream_option(&fields, stream, "include_usage")?,
            progress: progress(&fields, stream)?,
            ignored: body
                .keys()
                .filter(|k| !KNOWN.contains(&k.as_str()) && !BOOKKEEPING.contains(&k.as_str()))
                .cloned()
                .collect(),
        })
    }
}

fn messages(fields: &Fields) -> Result<Vec<Value>, ApiError> {
    let messages =
        fields.array("messages")?.ok_or_else(|| ApiError::field("messages", "is required: an array of messages"))?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "must hold at least one message"));
    }
    lily_chat::messages::normalise(messages).map_err(|e| ApiError::field(e.field, e.message))
}

/// Options of the API that Lily does not have yet: refused unless they ask for nothing, so that none is dropped in
/// silence.
fn refuse_what_is_missing(fields: &Fields) -> Result<(), ApiError> {
    let zero = |v: &Value| v.as_f64() == Some(0.0);
    fields.bool("logprobs")?;
    fields.only("logprobs", "false", |v| v == &Value::Bool(false))?;
    fields.integer("top_logprobs", 0)?;
    fields.only("top_logprobs", "0", zero)?;
    fields.object("response_format")?;
    fields
        .only("response_format", "{\"type\": \"text\"}", |v| v.get("type").and_then(Value::as_str) == Some("text"))?;
    fields.only("functions", "tools", |_| false)?;
    fields.only("function_call", "tool_choice", |_| false)?;
    fields.only("audio", "nothing", |_| false)?;
    fields.only("modalities", "[\"text\"]", |v| v.as_array().is_some_and(|a| a.iter().all(|m| m == "text")))
}

fn stream_option(fields: &Fields, stream: bool, name: &str) -> Result<bool, ApiError> {
    let Some(options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(ApiError::field("stream_options", "is only for requests with stream: true"));
    }
    match options.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(b)) => Ok(*b),
        Some(other) => Err(wrong_type(&format!("stream_options.{name}"), "true or false", other)),
    }
}

/// Under Lily's name or llama.cpp's, which means nothing without a stream.
fn progress(fields: &Fields, stream: bool) -> Result<bool, ApiError> {
    let asked = fields.bool("return_progress")?.unwrap_or(false);
    Ok(stream_option(fields, stream, "include_progress")? || (asked && stream))
}

fn choices(fields: &Fields) -> Result<usize, ApiError> {
    let n = fields.integer("n", 1)?.map_or(1, |n| n as usize);
    if n > MAX_CHOICES {
        return Err(ApiError::field("n", format!("must be at most {MAX_CHOICES}, not {n}")));
    }
    Ok(n)
}

fn max_tokens(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let old = fields.integer("max_tokens", 1)?;
    let new = fields.integer("max_completion_tokens", 1)?;
    Ok(old.into_iter().chain(new).min().map(|n| n as usize))
}

fn sampling(fields: &Fields, defaults: SamplingDefaults) -> Result<SamplingParams, ApiError> {
    let mut params = defaults.params();
    if let Some(x) = fields.number("temperature", "from 0 to 2", |x| (0.0..=2.0).contains(&x))? {
        params.temperature = x as f32;
    }
    if let Some(x) = fields.number("top_p", "more than 0 and at most 1", |x| x > 0.0 && x <= 1.0)? {
        params.top_p = (x as f32).max(f32::MIN_POSITIVE);
    }
    if let Some(x) = fields.number("min_p", "from 0 to 1", |x| (0.0..=1.0).contains(&x))? {
        params.min_p = x as f32;
    }
    // Some clients write -1 for "all".
    if let Some(k) = fields.integer("top_k", -1)? {
        params.top_k = usize::try_from(k).unwrap_or(0);
    }
    params.seed = match fields.get("seed") {
        None => None,
        Some(v) => Some(
            v.as_u64()
                .or_else(|| v.as_i64().map(i64::cast_unsigned))
                .ok_or_else(|| wrong_type("seed", "a whole number of 64 bits", v))?,
        ),
    };
    Ok(params)
}

/// Token ids are compared with the vocabulary later.
fn adjust(fields: &Fields, defaults: SamplingDefaults) -> Result<Adjust, ApiError> {
    let penalty = |name: &str| fields.number(name, "from -2 to 2", |x| (-2.0..=2.0).contains(&x));
    let presence = penalty("presence_penalty")?.map_or(defaults.presence_penalty, |x| x as f32);
    let frequency = penalty("frequency_penalty")?.map_or(0.0, |x| x as f32);
    // Beyond, a logit of 20 would be less than 0.2 or more than 2,000: a mistake.
    let repetition = fields.number("repetition_penalty", "from 0.01 to 100", |x| (0.01..=100.0).contains(&x))?;
    let repetition = repetition.map_or(defaults.repetition_penalty, |x| x as f32);
    let bias = |(id, bias): (&String, &Value)| {
        let name = format!("logit_bias.{id}");
        let id = id.parse::<u32>().map_err(|_| ApiError::field(&name, "must be a token id, a whole number"))?;
        let bias = bias.as_f64().ok_or_else(|| wrong_type(&name, "a number", bias))?;
        if !(-100.0..=100.0).contains(&bias) {
            return Err(ApiError::field(&name, format!("must be from -100 to 100, not {bias}")));
        }
        Ok((id, bias as f32))
    };
    Ok(Adjust {
        logit_bias: fields.object("logit_bias")?.into_iter().flatten().map(bias).collect::<Result<_, _>>()?,
        repetition_penalty: repetition,
        presence_penalty: presence,
        frequency_penalty: frequency,
    })
}

fn stop(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let check = |name: &str, value: &Value| match value {
        Value::String(s) if s.is_empty() => Err(ApiError::field(name, "must not be empty")),
        Value::String(s) if s.len() > MAX_STOP_BYTES => {
            Err(ApiError::field(name, format!("must be at most {MAX_STOP_BYTES} bytes long, not {}", s.len())))
        }
        Value::String(s) => Ok(s.clone()),
        other => Err(wrong_type(name, "a string", other)),
    };
    match fields.get("stop") {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) if list.is_empty() || list.len() > MAX_STOPS => {
            Err(ApiError::field("stop", format!("must hold 1 to {MAX_STOPS} strings, not {}", list.len())))
        }
        Some(Value::Array(list)) => list.iter().enumerate().map(|(i, v)| check(&format!("stop[{i}]"), v)).collect(),
        Some(value @ Value::String(_)) => Ok(vec![check("stop", value)?]),
        Some(other) => Err(wrong_type("stop", "a string or an array of strings", other)),
    }
}

fn tools(fields: &Fields) -> Result<Option<Vec<Value>>, ApiError> {
    let tools = fields.array("tools")?.filter(|t| !t.is_empty());
    for (i, tool) in tools.into_iter().flatten().enumerate() {
        let Value::Object(map) = tool else { return Err(wrong_type(&format!("tools[{i}]"), "an object", tool)) };
        if map.get("type").and_then(Value::as_str) != Some("function") {
            return Err(ApiError::field(format!("tools[{i}].type"), "must be \"function\""));
        }
        let at = |name: &str| format!("tools[{i}].function{name}");
        let function = match map.get("function") {
            Some(Value::Object(function)) => function,
            other => return Err(wrong_type(&at(""), "an object", other.unwrap_or(&Value::Null))),
        };
        match function.get("name") {
            Some(Value::String(name)) if !name.is_empty() => {}
            Some(Value::String(_)) => return Err(ApiError::field(at(".name"), "must not be empty")),
            other => return Err(wrong_type(&at(".name"), "a string", other.unwrap_or(&Value::Null))),
        }
        match function.get("parameters") {
            None | Some(Value::Null | Value::Object(_)) => {}
            Some(other) => return Err(wrong_type(&at(".parameters"), "an object (a JSON schema)", other)),
        }
    }
    if tools.is_some() {
        fields.only("parallel_tool_calls", "true", |v| v == &Value::Bool(true))?;
    }
    match fields.get("tool_choice") {
        None => Ok(tools.cloned()),
        Some(Value::String(s)) if s == "auto" => Ok(tools.cloned()),
        Some(Value::String(s)) if s == "none" => Ok(None),
        Some(_) => Err(ApiError::unsupported("tool_choice", "only \"auto\" and \"none\" are supported yet")),
    }
}

/// Variables of the template. Thinking is on unless something says no; what is more particular wins: the field of the
/// request, then that of `chat_template_kwargs`, and for thinking then `reasoning_effort`.
fn template_kwargs(fields: &Fields) -> Result<Map<String, Value>, ApiError> {
    const THINKING: &str = "enable_thinking";
    const SWITCHES: [&str; 2] = [THINKING, "preserve_thinking"];
    let mut kwargs = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    for reserved in ["messages", "tools", "add_generation_prompt"] {
        if kwargs.contains_key(reserved) {
            let field = format!("chat_template_kwargs.{reserved}");
            return Err(ApiError::field(field, "is set by the server; leave it out"));
        }
    }
    for name in SWITCHES {
        match kwargs.get(name) {
            None | Some(Value::Bool(_)) => {}
            Some(Value::Null) => {
                kwargs.remove(name);
            }
            Some(other) => return Err(wrong_type(&format!("chat_template_kwargs.{name}"), "true or false", other)),
        }
    }
    let effort = match fields.string("reasoning_effort")? {
        Some(effort) => Some(("reasoning_effort", effort)),
        None => match fields.object("reasoning")?.and_then(|r| r.get("effort")) {
            None | Some(Value::Null) => None,
            Some(Value::String(effort)) => Some(("reasoning.effort", effort.as_str())),
            Some(other) => return Err(wrong_type("reasoning.effort", "a string", other)),
        },
    };
    if let Some((field, effort)) = effort {
        let on = match effort {
            "none" => false,
            "minimal" | "low" | "medium" | "high" | "xhigh" => true,
            _ => return Err(ApiError::field(field, "must be none, minimal, low, medium, high or xhigh")),
        };
        kwargs.entry(THINKING).or_insert(Value::Bool(on));
    }
    for name in SWITCHES {
        if let Some(on) = fields.bool(name)? {
            kwargs.insert(name.into(), Value::Bool(on));
        }
    }
    Ok(kwargs)
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
