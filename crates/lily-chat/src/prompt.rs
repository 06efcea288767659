use serde_json::{Map, Value};

use crate::{ChatError, PromptInput, Template, Tokenizer};

/// A checkpoint's tokenizer and chat template together.
#[derive(Debug)]
pub struct Chat {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template.
    pub template: Template,
}

/// A rendered and encoded conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The prompt as people read it. The tokens decode to this text, in NFC where they are plain text.
    pub text: String,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Whether the prompt leaves a `<think>` open, so that the output starts inside the reasoning.
    pub starts_in_thinking: bool,
    /// Positions in `tokens` of every `<|im_start|>` that the template wrote: where messages begin, and so where a later
    /// conversation is likely to part from this one.
    pub boundaries: Vec<usize>,
}

impl Chat {
    /// Renders and encodes a conversation. Only what the template itself writes becomes control tokens; strings of
    /// messages, tools and kwargs are plain text, whatever they look like.
    ///
    /// The exception is an assistant's own history: `<think>…</think>` inside its content is where templates look for the
    /// reasoning when `reasoning_content` is absent (`docs/model.md` §7.2). A user's imitation of a tool response is a
    /// query like any other; tool results come with the role `tool`.
    ///
    /// # Errors
    /// As [`Template::render`].
    pub fn prompt(&self, input: &PromptInput) -> Result<Prompt, ChatError> {
        let marker = Marker::absent_from(input);
        let rendered = self.template.render(&marker.mark_input(input, &self.tokenizer));
        // A template may quote what it refuses.
        let rendered = rendered.map_err(|error| match error {
            ChatError::Template(message) => ChatError::Template(marker.remove(&message)),
            ChatError::TemplateFailed(message) => ChatError::TemplateFailed(marker.remove(&message)),
            other => other,
        })?;

        let mut prompt =
            Prompt { text: String::new(), tokens: Vec::new(), starts_in_thinking: false, boundaries: Vec::new() };
        let (im_start, im_end) = (self.tokenizer.added_id("<|im_start|>"), self.tokenizer.added_id("<|im_end|>"));
        let (think, end_think) = (self.tokenizer.added_id("<think>"), self.tokenizer.added_id("</think>"));
        self.tokenizer.split_added(&rendered, |segment| match segment {
            Ok((id, text)) => {
                let id_is = |other: Option<u32>| other == Some(id);
                if id_is(im_start) {
                    prompt.boundaries.push(prompt.tokens.len());
                }
                if id_is(think) {
                    prompt.starts_in_thinking = true;
                } else if id_is(end_think) || id_is(im_start) || id_is(im_end) {
                    prompt.starts_in_thinking = false;
                }
                prompt.tokens.push(id);
                prompt.text.push_str(text);
            }
            Err(plain) => {
                let plain = marker.remove(plain);
                prompt.tokens.extend(self.tokenizer.encode_text(&plain));
                prompt.text.push_str(&plain);
            }
        });
        Ok(prompt)
    }
}

/// A character that occurs nowhere in the input. Put behind the first character of everything that could grow into an
/// added token, it keeps untrusted text from matching one, also where a template joins several strings, and is taken out
/// again before plain text is encoded. As it never stands at an end where it wasn't preceded by visible text, trimming in
/// templates is unaffected.
struct Marker(char);

impl Marker {
    fn absent_from(input: &PromptInput) -> Self {
        // Noncharacters first: they aren't for interchange, so one pass over the input usually settles it. The private
        // planes behind them hold more characters than any prompt.
        let candidates = ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{10fffd}');
        let mut used = std::collections::HashSet::new();
        let mut note = |text: &str| used.extend(text.chars().filter(|c| *c >= '\u{fdd0}'));
        input.messages.iter().chain(input.tools.iter().flatten()).chain(input.kwargs.values()).for_each(|v| {
            each_string(v, &mut note);
        });
        Self(candidates.into_iter().find(|c| !used.contains(c)).expect("no text holds every private character"))
    }

    fn mark_input(&self, input: &PromptInput, tokenizer: &Tokenizer) -> PromptInput {
        let starts = tokenizer.added_first_chars();
        let mark = |text: &str| self.mark(text, starts);
        PromptInput {
            messages: input.messages.iter().map(|m| mark_message(m, &mark)).collect(),
            tools: input.tools.as_ref().map(|tools| tools.iter().map(|t| map_strings(t, &mark)).collect()),
            add_generation_prompt: input.add_generation_prompt,
            kwargs: map_object(&input.kwargs, &mark),
        }
    }

    fn mark(&self, text: &str, starts: &[char]) -> String {
        let mut out = String::with_capacity(text.len() + 8);
        for c in text.chars() {
            out.push(c);
            if starts.contains(&c) {
                out.push(self.0);
            }
        }
        out
    }

    fn remove(&self, text: &str) -> String {
        text.chars().filter(|c| *c != self.0).collect()
    }
}

fn mark_message(message: &Value, mark: &dyn Fn(&str) -> String) -> Value {
    let Value::Object(fields) = message else { return map_strings(message, mark) };
    // With reasoning given apart, templates don't look for it inside the content, so everything there is plain text.
    let may_hold_thinking = fields.get("role").and_then(Value::as_str) == Some("assistant")
        && !fields.get("reasoning_content").is_some_and(Value::is_string);
    let marked = fields.iter().map(|(key, value)| {
        let value =
            if key == "content" && may_hold_thinking { mark_history(value, mark) } else { map_strings(value, mark) };
        (key.clone(), value)
    });
    Value::Object(marked.collect())
}

/// Marks an assistant's content, leaving alone the think tags up to its last `</think>`: a template cuts there and keeps
/// nothing of the tags themselves.
fn mark_history(content: &Value, mark: &dyn Fn(&str) -> String) -> Value {
    const CLOSE: &str = "</think>";
    let keep_thinking = |text: &str| {
        let Some(end) = text.rfind(CLOSE).map(|at| at + CLOSE.len()) else { return mark(text) };
        let (history, rest) = text.split_at(end);
        let blocks: Vec<String> = history
            .split(CLOSE)
            .map(|block| block.split("<think>").map(mark).collect::<Vec<_>>().join("<think>"))
            .collect();
        blocks.join(CLOSE) + &mark(rest)
    };
    match content {
        Value::String(text) => Value::String(keep_thinking(text)),
        Value::Array(parts) => {
            // A later part may close a block that an earlier one opened, so parts before the last close keep their tags.
            let text_of = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
            let last = parts.iter().rposition(|p| text_of(p).is_some_and(|t| t.contains(CLOSE)));
            let mark_part = |(i, part): (usize, &Value)| match (part, text_of(part)) {
                (Value::Object(fields), Some(text)) if last.is_some_and(|last| i <= last) => {
                    let mut fields = map_object(fields, mark);
                    let kept = if last == Some(i) {
                        keep_thinking(&text)
                    } else {
                        let all = keep_thinking(&(text + CLOSE));
                        all[..all.len() - CLOSE.len()].to_owned()
                    };
                    fields.insert("text".into(), Value::String(kept));
                    Value::Object(fields)
                }
                _ => map_strings(part, mark),
            };
            Value::Array(parts.iter().enumerate().map(mark_part).collect())
        }
        other => map_strings(other, mark),
    }
}

fn each_string(value: &Value, note: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => note(text),
        Value::Array(items) => items.iter().for_each(|item| each_string(item, note)),
        Value::Object(map) => map.iter().for_each(|(key, item)| {
            note(key);
            each_string(item, note);
        }),
        _ => {}
    }
}

fn map_strings(value: &Value, f: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(f(text)),
        Value::Array(items) => Value::Array(items.iter().map(|item| map_strings(item, f)).collect()),
        Value::Object(map) => Value::Object(map_object(map, f)),
        other => other.clone(),
    }
}

fn map_object(map: &Map<String, Value>, f: &dyn Fn(&str) -> String) -> Map<String, Value> {
    map.iter().map(|(key, item)| (f(key), map_strings(item, f))).collect()
}
