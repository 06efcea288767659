//! Rows of section 3: characters that come in pieces, and bytes that are none.

use serde_json::{Value, json};

use super::{content, say, script, weather};
use crate::server::{Server, ask};

/// A token for each byte.
fn bytes(text: &str) -> Vec<Value> {
    text.bytes().map(|byte| json!({"bytes": [byte]})).collect()
}

#[tokio::test]
async fn b040_tensai_110_characters_are_sent_whole() {
    let text = "👩‍👩‍👧𠮷é";
    let server = Server::start(&script(json!(bytes(text)))).await;
    let chunks = server.post(&ask(json!({"stream": true}))).await.chunks();
    let deltas: Vec<&str> = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    // One for each character, after the first with its empty content.
    let expected: Vec<String> = [String::new()].into_iter().chain(text.chars().map(String::from)).collect();
    assert_eq!(deltas, expected);
    assert_eq!(content(&server, &ask(json!({}))).await, text);
}

#[tokio::test]
async fn b041_llama_cpp_28926_an_end_in_mid_character_is_replaced_once() {
    let text = "x😀é";
    let server = Server::start(&script(json!(bytes(text)))).await;
    for (max_tokens, whole) in [(1, "x"), (2, "x"), (3, "x"), (4, "x"), (5, "x😀"), (6, "x😀"), (7, "x😀é")] {
        let said = say(&server, &ask(json!({"max_tokens": max_tokens}))).await;
        let cut = whole.len() < max_tokens;
        assert_eq!(said.content, format!("{whole}{}", if cut { "\u{fffd}" } else { "" }), "{max_tokens}");
        assert_eq!((said.finish.as_str(), said.completion_tokens), ("length", max_tokens as u64));
    }
}

#[tokio::test]
async fn b042_llama_cpp_202_a_byte_that_is_no_text_is_replaced() {
    let pieces =
        json!(["a", {"bytes": [255]}, "b", {"bytes": [240, 159]}, {"token": "</think>"}, "c", {"bytes": [192]}, "é"]);
    let server = Server::start(&script(pieces)).await;
    let said = say(&server, &json!({"messages": [{"role": "user", "content": "x"}]})).await;
    assert_eq!((said.reasoning.as_str(), said.content.as_str()), ("a\u{fffd}b\u{fffd}", "c\u{fffd}é"));
    assert_eq!(said.finish, "stop");
    // Inside arguments too.
    let pieces = json!(["<tool_call>\n<function=get_weather>\n<parameter=city>\nOs", {"bytes": [255]},
        "lo\n</parameter>\n</function>\n</tool_call>"]);
    let server = Server::start(&script(pieces)).await;
    let said = say(&server, &ask(json!({"tools": weather()}))).await;
    assert_eq!(said.calls, [("get_weather".to_owned(), "{\"city\":\"Os\u{fffd}lo\"}".to_owned())]);
}
