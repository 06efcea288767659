//! From a checked conversation to the prompt that the model reads, laid out so that the next turn's prompt begins with
//! this one and its answer wherever the request allows that (`docs/prefix.md`).

use lily_chat::{ChatError, Prompt, PromptInput};
use serde_json::{Map, Value};

use crate::app::App;
use crate::error::ApiError;
use crate::recall::{Note, Place, own_reasoning, text};

/// The template's variables that matter here.
const THINKING: &str = "enable_thinking";
const PRESERVE: &str = "preserve_thinking";

/// A prompt, up to where the answer begins.
pub(crate) struct Layout {
    pub(crate) prompt: Prompt,
    /// Turns of the assistant that were given back the reasoning which the client had left out.
    pub(crate) reattached: usize,
    /// Remembers the answer's reasoning, where that is wanted.
    pub(crate) note: Option<Note>,
}

/// A conversation in the shape that templates expect.
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) kwargs: Map<String, Value>,
    /// Tokens that the answer may have, where the request says so.
    pub(crate) max_tokens: Option<usize>,
}

/// Render and encode.
pub(crate) fn lay_out(app: &App, mut conversation: Conversation) -> Result<Layout, ApiError> {
    strip_header(app, &mut conversation.messages);
    let Conversation { messages, tools, mut kwargs, max_tokens } = conversation;
    let asked = kwargs.get(PRESERVE).and_then(Value::as_bool);
    // Without thinking every answer begins behind an empty block of it; only with this do earlier ones keep theirs.
    if asked.is_none() && kwargs.get(THINKING) == Some(&Value::Bool(false)) {
        kwargs.insert(PRESERVE.into(), Value::Bool(true));
    }
    let Some(recall) = app.recall.as_ref() else {
        let prompt = render(app, messages, tools, kwargs)?;
        return Ok(Layout { prompt, reattached: 0, note: None });
    };

    let last_query = messages.iter().rposition(is_query).unwrap_or(0);
    let mut place = Place::start(tools.as_deref());
    // Of each message: the reasoning that was written here, where the client says nothing else.
    let mut known: Vec<Option<String>> = Vec::with_capacity(messages.len());
    for message in &messages {
        place = place.after(message);
        let reasoning = (message["role"] == "assistant").then(|| recall.get(place)).flatten();
        known.push(reasoning.filter(|r| own_reasoning(message).is_none_or(|own| own == *r)));
    }
    let note = Some(Note::new(recall, place));
    let attach = |from: usize| {
        let mut out = messages.clone();
        let mut count = 0;
        for (message, reasoning) in out.iter_mut().zip(&known).skip(from) {
            if let (Some(reasoning), None) = (reasoning, own_reasoning(message)) {
                message["reasoning_content"] = Value::String(reasoning.clone());
                count += usize::from(!reasoning.is_empty());
            }
        }
        (out, count)
    };

    let earlier = known[..last_query].iter().any(Option::is_some);
    if earlier && asked != Some(false) {
        let mut kwargs = kwargs.clone();
        kwargs.insert(PRESERVE.into(), Value::Bool(true));
        let (messages, reattached) = attach(0);
        let prompt = render(app, messages, tools.clone(), kwargs)?;
        // The client may have left the reasoning out because it would not fit.
        let context = app.engine.context();
        let answer = max_tokens.unwrap_or(context).min(context / 4);
        if prompt.tokens.len() + answer <= context {
            return Ok(Layout { prompt, reattached, note });
        }
    }
    // Turns after the last query keep their reasoning in every case.
    let (messages, reattached) = attach(last_query);
    Ok(Layout { prompt: render(app, messages, tools, kwargs)?, reattached, note })
}

/// Whether templates take this message for a question, and not for the result of a tool (`docs/model.md` §7.2).
fn is_query(message: &Value) -> bool {
    let text = text(&message["content"]);
    let text = text.trim();
    message["role"] == "user" && !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))
}

/// Take away the first line of the system prompt where it is one that changes from request to request.
fn strip_header(app: &App, messages: &mut [Value]) {
    let Some(pattern) = &app.strip_agent_header else { return };
    let Some(message) = messages.first_mut().filter(|m| m["role"] == "system") else { return };
    let content = match &mut message["content"] {
        Value::Array(parts) if !parts.is_empty() => &mut parts[0]["text"],
        content => content,
    };
    let Value::String(text) = content else { return };
    let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
    if pattern.is_match(line.trim_end_matches('\r')) {
        *text = rest.to_owned();
    }
}

fn render(
    app: &App,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    kwargs: Map<String, Value>,
) -> Result<Prompt, ApiError> {
    let input = PromptInput { messages, tools, add_generation_prompt: true, kwargs };
    app.chat.prompt(&input).map_err(|e| match e {
        ChatError::Message(e) => ApiError::field(e.field, e.message),
        ChatError::Template(message) => ApiError::field("messages", message),
        ChatError::TemplateFailed(message) => {
            ApiError::field("messages", format!("the chat template cannot render this conversation: {message}"))
        }
        other => ApiError::internal(other.to_string()),
    })
}
