//! Rows of section 4: stop strings.

use serde_json::{Value, json};

use super::{refused, say, script, user, weather};
use crate::server::{Server, ask};

/// The text of an answer of these pieces, streamed or not, and whether all of the script came.
async fn cut(pieces: Value, stop: Value) -> (String, bool) {
    let count = pieces.as_array().unwrap().len() as u64;
    let server = Server::start(&script(pieces)).await;
    let said = say(&server, &ask(json!({"stop": stop}))).await;
    assert_eq!(said.finish, "stop");
    // With the end token behind the pieces.
    (said.content, said.completion_tokens == count + 1)
}

#[tokio::test]
async fn b046_vmlx_swift_109_nothing_comes_after_a_match() {
    for pieces in [
        json!(["one", " two", " three", " four", " five"]),
        json!(["one two ", "thr", "ee", " four"]),
        json!(["one two t", "hree four", " five"]),
        json!(["one two three"]),
    ] {
        let (text, all) = cut(pieces.clone(), json!("three")).await;
        assert_eq!(text, "one two ", "{pieces}");
        assert!(!all, "{pieces} was not stopped");
    }
}

#[tokio::test]
async fn b047_camelid_731_nothing_is_sent_twice() {
    assert_eq!(cut(json!(["<unk>", "<unk>", "<unk>"]), json!("><")).await, ("<unk".to_owned(), false));
    assert_eq!(cut(json!(["<unk>", "<unk>"]), json!(["><", "k><u"])).await, ("<un".to_owned(), false));
    assert_eq!(cut(json!(["aa", "aa", "b"]), json!("aab")).await, ("aa".to_owned(), false));
}

#[tokio::test]
async fn b048_llama_cpp_9867_the_start_of_a_stop_is_text_at_the_end() {
    assert_eq!(cut(json!(["the ", "END", " E", "N"]), json!("END!")).await, ("the END EN".to_owned(), true));
    assert_eq!(cut(json!(["a", " EN"]), json!(["END", "EN!"])).await, ("a EN".to_owned(), true));
    // Also where the limit ends it.
    let server = Server::start(&script(json!(["a", " EN", "D!"]))).await;
    let said = say(&server, &ask(json!({"stop": "END!", "max_tokens": 2}))).await;
    assert_eq!((said.content.as_str(), said.finish.as_str()), ("a EN", "length"));
}

#[tokio::test]
async fn b049_smg_2203_half_a_closing_tag_does_not_leak() {
    let call = "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>";
    for (end, stop) in [("\n</tool_", "zzz"), ("\n</tool_call", "</tool_call>!"), ("\n</", "</s>"), ("\n", "\n\n")] {
        let server = Server::start(&script(json!([{"token": "<tool_call>"}, "\n", call, end]))).await;
        let said = say(&server, &ask(json!({"tools": weather(), "stop": stop}))).await;
        assert_eq!((said.content.as_str(), said.finish.as_str()), ("", "tool_calls"), "{end:?}");
        assert_eq!(said.calls, [("get_weather".to_owned(), "{\"city\":\"Oslo\"}".to_owned())]);
    }
    // Inside the reasoning, what is held comes out as reasoning.
    let server = Server::start(&script(json!(["why </thi"]))).await;
    let said = say(&server, &json!({"messages": [user("x")], "stop": "</thing"})).await;
    assert_eq!((said.reasoning.as_str(), said.content.as_str()), ("why </thi", ""));
}

#[tokio::test]
async fn b050_vllm_45636_a_stop_that_looks_like_the_tag_keeps_the_tag() {
    let pieces = json!(["why", " </thi", "s>", {"token": "</think>"}, "\n\n", "see </thin", "k> not </thi", "ng> x"]);
    let server = Server::start(&script(pieces)).await;
    let said = say(&server, &json!({"messages": [user("x")], "stop": "</thing"})).await;
    assert_eq!((said.reasoning.as_str(), said.content.as_str()), ("why </this>", "see </think> not "));
    assert_eq!(said.finish, "stop");
}

#[tokio::test]
async fn b053_vllm_3574_stops_count_in_content_only() {
    let server =
        Server::start(&script(json!(["do", " STOP", {"token": "</think>"}, "\n\n", "now", " STOP", " it"]))).await;
    let body = json!({"messages": [{"role": "system", "content": "STOP"}, user("Say STOP.")], "stop": "STOP"});
    let said = say(&server, &body).await;
    assert_eq!((said.reasoning.as_str(), said.content.as_str()), ("do STOP", "now "));
    // Nor in the arguments of a call.
    let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nSTOP\n</parameter>\n</function>\n</tool_call>";
    let server = Server::start(&script(json!([call]))).await;
    let said = say(&server, &ask(json!({"tools": weather(), "stop": "STOP"}))).await;
    assert_eq!(said.calls, [("get_weather".to_owned(), "{\"city\":\"STOP\"}".to_owned())]);
}

#[tokio::test]
async fn b054_empty_stops_are_refused_and_null_is_none() {
    let server = Server::start(&script(json!(["one two"]))).await;
    let long = "x".repeat(2000);
    for (bad, param) in [
        (json!(""), "stop"),
        (json!([""]), "stop[0]"),
        (json!(["a", ""]), "stop[1]"),
        (json!([]), "stop"),
        (json!(5), "stop"),
        (json!(["a", 5]), "stop[1]"),
        (json!(long), "stop"),
        (json!(vec!["x"; 17]), "stop"),
    ] {
        assert_eq!(refused(&server, &ask(json!({"stop": bad}))).await["param"], param, "{bad}");
    }
    assert_eq!(say(&server, &ask(json!({"stop": null}))).await.content, "one two");
    let five = json!(["a", "b", "c", "d", "two"]);
    assert_eq!(say(&server, &ask(json!({"stop": five}))).await.content, "one ");
}
