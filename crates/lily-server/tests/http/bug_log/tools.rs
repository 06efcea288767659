//! Rows of section 6: tool calls.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{say, user, weather};
use crate::server::{Server, ask};

/// A line of a script.
fn line(pieces: &[Value]) -> String {
    json!({"pieces": pieces}).to_string()
}

fn token(name: &str) -> Value {
    json!({"token": name})
}

/// A call as the model writes it, between the two control tokens.
fn written(city: &str) -> String {
    format!("\n<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n</function>\n")
}

/// What that call is to a client.
fn called(city: &str) -> (String, String) {
    ("get_weather".into(), json!({"city": city}).to_string())
}

/// A call between its control tokens.
fn call(city: &str) -> [Value; 3] {
    [token("<tool_call>"), json!(written(city)), token("</tool_call>")]
}

/// With tools and thinking on.
fn thinking() -> Value {
    json!({"messages": [user("Weather?")], "tools": weather()})
}

#[tokio::test]
async fn b066_vllm_39056_a_call_inside_the_reasoning_is_a_call() {
    let begins = [json!("I need"), json!(" it.\n")];
    let unclosed = line(&[&begins[..], &call("Oslo")].concat());
    let closed = line(&[&begins[..], &call("Oslo"), &[json!("\n"), token("</think>")]].concat());
    for script in [unclosed, closed] {
        let seen = say(&Server::start(&script).await, &thinking()).await;
        assert_eq!((seen.reasoning.as_str(), seen.content.as_str()), ("I need it.", ""), "{script}");
        assert_eq!((seen.calls, seen.finish.as_str()), (vec![called("Oslo")], "tool_calls"), "{script}");
    }
}

#[tokio::test]
async fn b067_vllm_51679_a_call_may_follow_the_end_of_the_reasoning_at_once() {
    for between in [&[][..], &[json!("\n")], &[json!("\n\n")]] {
        for before in [&[json!("Look"), json!(" it up.\n")][..], &[]] {
            let script = line(&[before, &[token("</think>")], between, &call("Oslo")].concat());
            let seen = say(&Server::start(&script).await, &thinking()).await;
            let reasoning = if before.is_empty() { "" } else { "Look it up." };
            assert_eq!((seen.reasoning.as_str(), seen.content.as_str()), (reasoning, ""), "{script}");
            assert_eq!((seen.calls, seen.finish.as_str()), (vec![called("Oslo")], "tool_calls"), "{script}");
        }
    }
}

#[tokio::test]
async fn b068_vllm_mlx_55_two_calls_are_two_wherever_the_text_is_cut() {
    let text = |city: &str| format!("<tool_call>{}</tool_call>", written(city));
    let text = format!("{}\n{}", text("Oslo"), text("Rome"));
    let cuts: Vec<usize> = (1..text.len()).collect();
    // A line for the answer in one piece and one for the stream.
    let lines: Vec<String> = cuts.iter().map(|&at| line(&[json!(text[..at]), json!(text[at..])])).collect();
    let script: Vec<&str> = lines.iter().flat_map(|line| [line.as_str(), line]).collect();
    let server = Server::start(&script.join("\n")).await;
    for at in cuts {
        let seen = say(&server, &ask(json!({"tools": weather()}))).await;
        let expected = (vec![called("Oslo"), called("Rome")], "", "tool_calls");
        assert_eq!((seen.calls, seen.content.as_str(), seen.finish.as_str()), expected, "cut at {at}");
    }
}

#[tokio::test]
async fn b069_gcli2api_406_calls_of_one_answer_have_indexes_and_ids_of_their_own() {
    let cities = ["Oslo", "Rome", "Oslo", "Lima"];
    let mut pieces = vec![json!("Four.\n\n")];
    pieces.extend(cities.iter().flat_map(|city| call(city)));
    let server = Server::start(&line(&pieces)).await;
    // That indexes count up is asserted where the stream is put together.
    let seen = say(&server, &ask(json!({"tools": weather()}))).await;
    assert_eq!(seen.calls, cities.map(called));
    assert_eq!((seen.content.as_str(), seen.finish.as_str()), ("Four.", "tool_calls"));
    let ids =
        |calls: Vec<&Value>| calls.iter().filter_map(|c| c["id"].as_str().map(str::to_owned)).collect::<BTreeSet<_>>();
    let chunks = server.post(&ask(json!({"tools": weather(), "stream": true}))).await.chunks();
    assert_eq!(ids(chunks.iter().map(|c| &c["choices"][0]["delta"]["tool_calls"][0]).collect()).len(), 4);
    let whole = server.post(&ask(json!({"tools": weather()}))).await.json();
    assert_eq!(ids(whole["choices"][0]["message"]["tool_calls"].as_array().unwrap().iter().collect()).len(), 4);
}

#[tokio::test]
async fn b079_rapid_mlx_1391_a_call_that_never_closes_does_not_silence_the_stream() {
    const WORDS: usize = 800;
    for opening in ["<tool_call>\n<function=", "<tool_call>\n", "<function="] {
        let pieces = [vec![json!(opening)], vec![json!("word "); WORDS]].concat();
        let server = Server::start(&line(&pieces)).await;
        let body = ask(json!({"tools": weather(), "stream": true}));
        let chunks = server.post(&body).await.chunks();
        let said: Vec<&str> = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(said.concat(), format!("{opening}{}", "word ".repeat(WORDS)));
        // What was held back came out in one piece; all else came word by word.
        assert!(said.len() > WORDS - 100, "{opening:?}: {} pieces", said.len());
    }
    // Inside of an argument it streams as what it is.
    let opening = json!("<tool_call>\n<function=get_weather>\n<parameter=city>\n");
    let server = Server::start(&line(&[vec![opening], vec![json!("word "); WORDS]].concat())).await;
    let chunks = server.post(&ask(json!({"tools": weather(), "stream": true}))).await.chunks();
    let pieces = chunks.iter().filter(|c| c["choices"][0]["delta"]["tool_calls"].is_array()).count();
    assert!(pieces > WORDS - 100, "{pieces}");
}

#[tokio::test]
async fn b081_rapid_mlx_1766_without_tools_markup_is_text() {
    let words = ["Write ", "<tool_call>", "\n<function=f>\n", "</function>", "</tool_call>", " or <parameter=x>."];
    let server = Server::start(&line(&words.map(|word| json!(word)))).await;
    for tools in [Value::Null, json!([])] {
        let seen = say(&server, &ask(json!({"tools": tools}))).await;
        assert_eq!((seen.content, seen.calls.len(), seen.finish.as_str()), (words.concat(), 0, "stop"));
    }
    // The control tokens of the same name too.
    let server = Server::start(&line(&call("Oslo"))).await;
    let seen = say(&server, &ask(json!({}))).await;
    assert_eq!(seen.content, format!("<tool_call>{}</tool_call>", written("Oslo")));
}

#[tokio::test]
async fn b082_vllm_mlx_356_json_with_a_name_is_no_call() {
    for text in [
        "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}",
        "{\"name\": \"Ada\", \"age\": 36}",
        "[{\"name\": \"get_weather\", \"parameters\": {}}]",
        "```json\n{\"name\": \"get_weather\"}\n```",
    ] {
        let pieces: Vec<Value> = text.split_inclusive(' ').map(|piece| json!(piece)).collect();
        let server = Server::start(&line(&pieces)).await;
        for tools in [Value::Null, weather()] {
            let seen = say(&server, &ask(json!({"tools": tools}))).await;
            assert_eq!((seen.content.as_str(), seen.calls.len(), seen.finish.as_str()), (text, 0, "stop"));
        }
    }
}

#[tokio::test]
async fn b087_opencode_24316_a_call_without_arguments_is_an_empty_object() {
    let pieces = [token("<tool_call>"), json!("\n<function=now>\n</function>\n"), token("</tool_call>")];
    let server = Server::start(&line(&pieces)).await;
    let tools = json!([{"type": "function", "function": {"name": "now"}}]);
    let seen = say(&server, &ask(json!({"tools": tools}))).await;
    assert_eq!((seen.calls, seen.finish.as_str()), (vec![("now".into(), "{}".into())], "tool_calls"));
    // With the result behind it the model sees that the call was made: nothing of ours repeats it.
    let call = json!({"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}});
    let call = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let result = json!({"role": "tool", "tool_call_id": "1", "content": "It is noon."});
    let prompt = server.prompt(&ask(json!({"tools": tools, "messages": [user("Time?"), call, result]}))).await;
    let (before, after) = prompt.rsplit_once("<function=now>\n</function>\n</tool_call>").expect(&prompt);
    assert!(before.contains("Time?") && after.contains("It is noon."), "{prompt}");
}
