//! Public failures of other servers, replayed on this crate. Each test bears the id and the reference of a row of
//! `docs/bug-log.md`, and an assertion of what must hold.

#[path = "../common/mod.rs"]
mod common;
mod messages;
mod text;
mod tools;

use common::{demo_tokenizer, read};
use lily_chat::messages::normalise;
use lily_chat::{Chat, ChatError, Prompt, PromptInput, Template};
use serde_json::{Value, json};

/// The demo's template, and the official one where `LILY_OFFICIAL_TEMPLATE=FILE` gives it.
fn templates() -> Vec<Chat> {
    let official = std::env::var_os("LILY_OFFICIAL_TEMPLATE")
        .map(|path| std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}")));
    let sources = [Some(read("demo/4bit/chat_template.jinja")), official];
    let chat = |source: String| Chat { tokenizer: demo_tokenizer(), template: Template::new(&source).unwrap() };
    sources.into_iter().flatten().map(chat).collect()
}

fn rendered(chat: &Chat, messages: &Value, kwargs: Value) -> Result<Prompt, ChatError> {
    let messages = normalise(messages.as_array().unwrap()).unwrap_or_else(|e| panic!("{e}: {messages}"));
    let kwargs = kwargs.as_object().unwrap().clone();
    chat.prompt(&PromptInput { messages, add_generation_prompt: true, kwargs, tools: None })
}

fn prompt(chat: &Chat, messages: &Value) -> Prompt {
    rendered(chat, messages, json!({})).unwrap_or_else(|e| panic!("{e}: {messages}"))
}

/// Assert that all these conversations have the same prompt, and return its text, which every template agrees on only in
/// the parts asked for.
fn same(conversations: &[Value]) -> Vec<String> {
    let chats = templates();
    let texts = chats.iter().map(|chat| {
        let first = prompt(chat, &conversations[0]);
        for other in &conversations[1..] {
            assert_eq!(prompt(chat, other), first, "{other}");
        }
        first.text
    });
    texts.collect()
}

/// The field and the words of the refusal.
fn refusal(messages: &Value) -> (String, String) {
    match normalise(messages.as_array().unwrap()) {
        Err(error) => (error.field, error.message),
        Ok(_) => panic!("accepted: {messages}"),
    }
}

fn user(content: impl Into<Value>) -> Value {
    json!({"role": "user", "content": content.into()})
}

fn said(role: &str, content: impl Into<Value>) -> Value {
    json!({"role": role, "content": content.into()})
}

fn parts(texts: &[&str]) -> Value {
    texts.iter().map(|text| json!({"type": "text", "text": text})).collect()
}

/// An assistant's turn that calls `f`.
fn call(content: Value, arguments: Value) -> Value {
    let function = json!({"name": "look_up", "arguments": arguments});
    json!({"role": "assistant", "content": content, "tool_calls": [{"id": "1", "type": "function", "function": function}]})
}

fn result(content: impl Into<Value>) -> Value {
    json!({"role": "tool", "tool_call_id": "1", "content": content.into()})
}

/// How many tokens of the prompt are control tokens.
fn control_tokens(chat: &Chat, prompt: &Prompt) -> usize {
    prompt.tokens.iter().filter(|id| chat.tokenizer.is_added(**id)).count()
}
