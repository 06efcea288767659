//! The reasoning that this server wrote, kept so that a client who sends a conversation back without it does not break
//! the prefix that the cache holds.
//!
//! A turn is found by everything that came before it and by its own visible words: tools, and of each message the role,
//! the text and the calls, as the template would write them. An answer that was edited, or that stands in another
//! conversation, is another turn. Of conversations only hashes are kept, of answers only the reasoning.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use lily_chat::OutputEvent;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// SHA-256 over the conversation so far, message by message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place([u8; 32]);

impl Place {
    /// Before the first message.
    pub(crate) fn start(tools: Option<&[Value]>) -> Self {
        Self(Sha256::digest(json!(tools).to_string()).into())
    }

    /// After one more message, in the shape that templates expect. Its reasoning does not count, nor do ids of calls,
    /// which templates do not write.
    pub(crate) fn after(self, message: &Value) -> Self {
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        let calls: Vec<Value> =
            calls.iter().map(|c| json!([c["function"]["name"], c["function"]["arguments"]])).collect();
        self.then(message["role"].as_str().unwrap_or_default(), &visible(message), &calls)
    }

    fn then(self, role: &str, text: &str, calls: &[Value]) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(json!([role, text.trim(), calls]).to_string());
        Self(hash.finalize().into())
    }
}

/// The text of a content: a string, a list of text parts, or nothing.
pub(crate) fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

const CLOSE: &str = "</think>";

/// A message's text without the reasoning that an assistant's content may begin with.
fn visible(message: &Value) -> String {
    let text = text(&message["content"]);
    match text.rsplit_once(CLOSE) {
        Some((_, rest)) if message["role"] == "assistant" && !message["reasoning_content"].is_string() => rest.into(),
        _ => text,
    }
}

/// The reasoning that a client sent with an assistant's message, in the field for it or inside the content; both as
/// templates read them.
pub(crate) fn own_reasoning(message: &Value) -> Option<String> {
    if let Some(reasoning) = message["reasoning_content"].as_str() {
        return Some(reasoning.trim().into());
    }
    let text = text(&message["content"]);
    let (head, _) = text.split_once(CLOSE)?;
    let head = head.rsplit_once("<think>").map_or(head, |(_, reasoning)| reasoning);
    Some(head.trim().into())
}

/// Reasoning by place, the least recently used dropped when its bytes run out.
#[derive(Debug)]
pub(crate) struct Recall {
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    turns: HashMap<Place, (String, u64)>,
    /// By the time of the last use.
    order: BTreeMap<u64, Place>,
    clock: u64,
    bytes: usize,
}

/// What a turn takes beside its text: both maps' entries.
const OVERHEAD: usize = 160;

impl Recall {
    /// A store of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, kept: Mutex::default() }
    }

    /// The reasoning of the turn that ends here, which may be empty; `None` where this server did not write it, or has
    /// forgotten.
    pub(crate) fn get(&self, place: Place) -> Option<String> {
        let mut guard = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut *guard;
        let (text, stamp) = kept.turns.get_mut(&place)?;
        kept.clock += 1;
        kept.order.remove(stamp);
        *stamp = kept.clock;
        kept.order.insert(kept.clock, place);
        Some(text.clone())
    }

    fn put(&self, place: Place, reasoning: String) {
        let mut guard = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut *guard;
        kept.remove(place);
        kept.clock += 1;
        kept.bytes += reasoning.len() + OVERHEAD;
        kept.order.insert(kept.clock, place);
        kept.turns.insert(place, (reasoning, kept.clock));
        while kept.bytes > self.limit {
            let Some((_, &oldest)) = kept.order.first_key_value() else { return };
            kept.remove(oldest);
        }
    }
}

impl Kept {
    fn remove(&mut self, place: Place) {
        if let Some((text, stamp)) = self.turns.remove(&place) {
            self.order.remove(&stamp);
            self.bytes -= text.len() + OVERHEAD;
        }
    }
}

/// One answer on its way into the store.
#[derive(Clone)]
pub(crate) struct Note {
    recall: Arc<Recall>,
    /// Before the answer.
    place: Place,
    reasoning: String,
    content: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
}

impl Note {
    /// For the answer to a conversation.
    pub(crate) fn new(recall: &Arc<Recall>, place: Place) -> Self {
        let recall = Arc::clone(recall);
        Self { recall, place, reasoning: String::new(), content: String::new(), calls: Vec::new() }
    }

    /// The answer grew.
    pub(crate) fn add(&mut self, event: &OutputEvent) {
        match event {
            OutputEvent::Reasoning(text) => self.reasoning.push_str(text),
            OutputEvent::Content(text) => self.content.push_str(text),
            OutputEvent::ToolCallBegin { name, .. } => self.calls.push((name.clone(), String::new())),
            OutputEvent::ToolCallArguments { delta, .. } => {
                if let Some((_, arguments)) = self.calls.last_mut() {
                    arguments.push_str(delta);
                }
            }
            OutputEvent::ToolCallEnd { .. } => {}
        }
    }

    /// The answer is whole. One that says nothing, or whose last call was cut off, is not kept.
    pub(crate) fn finish(self) {
        let call = |(name, arguments): &(String, String)| {
            let arguments: Value = serde_json::from_str(arguments).ok()?;
            Some(json!([name, arguments]))
        };
        let Some(calls) = self.calls.iter().map(call).collect::<Option<Vec<_>>>() else { return };
        if calls.is_empty() && self.content.trim().is_empty() {
            return;
        }
        let place = self.place.then("assistant", &self.content, &calls);
        self.recall.put(place, self.reasoning.trim().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(n: u32) -> Place {
        Place::start(None).after(&json!({"role": "user", "content": n.to_string()}))
    }

    #[test]
    fn a_place_is_what_the_template_writes() {
        let at = |message: Value| Place::start(None).after(&message);
        let plain = at(json!({"role": "assistant", "content": "yes"}));
        for same in [
            json!({"role": "assistant", "content": " yes\n"}),
            json!({"role": "assistant", "content": [{"type": "text", "text": "y"}, {"type": "text", "text": "es"}]}),
            json!({"role": "assistant", "content": "yes", "reasoning_content": "why"}),
            json!({"role": "assistant", "content": "<think>\nwhy\n</think>\n\nyes"}),
        ] {
            assert_eq!(at(same.clone()), plain, "{same}");
        }
        let call = |id: &str, arguments: Value| {
            at(json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}]}))
        };
        assert_eq!(call("a", json!({"x": 1})), call("b", json!({"x": 1})));
        for other in [
            at(json!({"role": "user", "content": "yes"})),
            at(json!({"role": "assistant", "content": "yes!"})),
            // Another reasoning given apart does not make markup in the text one.
            at(json!({"role": "assistant", "content": "<think></think>yes", "reasoning_content": "why"})),
            call("a", json!({"x": 1})),
            plain.after(&json!({"role": "user", "content": "a"})),
            Place::start(Some(&[json!({"f": 1})])).after(&json!({"role": "assistant", "content": "yes"})),
        ] {
            assert_ne!(other, plain);
        }
        assert_ne!(call("a", json!({"x": 1})), call("a", json!({"x": 2})));
    }

    #[test]
    fn reasoning_is_read_as_templates_read_it() {
        for (message, want) in [
            (json!({"content": "yes"}), None),
            (json!({"content": "yes", "reasoning_content": " why\n"}), Some("why")),
            (json!({"content": "yes", "reasoning_content": ""}), Some("")),
            (json!({"content": "<think>\nwhy\n</think>\n\nyes"}), Some("why")),
            (json!({"content": "a<think>b<think>c</think>d</think>e"}), Some("c")),
            (json!({"content": null}), None),
        ] {
            assert_eq!(own_reasoning(&message).as_deref(), want, "{message}");
        }
    }

    #[test]
    fn what_was_used_least_recently_is_forgotten() {
        let one = 100 + OVERHEAD;
        let recall = Recall::new(3 * one);
        for n in 0..3 {
            recall.put(place(n), "r".repeat(100));
        }
        assert!(recall.get(place(0)).is_some());
        recall.put(place(3), "r".repeat(100));
        let kept = |recall: &Recall| (0..5).map(|n| recall.get(place(n)).is_some()).collect::<Vec<_>>();
        assert_eq!(kept(&recall), [true, false, true, true, false]);
        // The same turn again takes no more room; one larger than all of it is not kept.
        recall.put(place(3), "s".repeat(100));
        assert_eq!(kept(&recall), [true, false, true, true, false]);
        assert_eq!(recall.get(place(3)), Some("s".repeat(100)));
        recall.put(place(4), "r".repeat(3 * one));
        assert_eq!(kept(&recall), [false; 5]);
        assert_eq!(recall.kept.lock().unwrap().bytes, 0);
    }

    #[test]
    fn only_whole_answers_are_kept() {
        let recall = Arc::new(Recall::new(1 << 20));
        let start = place(0);
        let mut note = Note::new(&recall, start);
        note.add(&OutputEvent::Reasoning("why\n".into()));
        note.clone().finish();
        assert_eq!(recall.get(start.after(&json!({"role": "assistant", "content": ""}))), None);
        note.add(&OutputEvent::ToolCallBegin { index: 0, name: "f".into() });
        note.add(&OutputEvent::ToolCallArguments { index: 0, delta: "{\"x\": ".into() });
        note.clone().finish();
        assert!(recall.kept.lock().unwrap().turns.is_empty());
        note.add(&OutputEvent::ToolCallArguments { index: 0, delta: "1}".into() });
        note.finish();
        let turn = json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]});
        assert_eq!(recall.get(start.after(&turn)).as_deref(), Some("why"));
    }
}
