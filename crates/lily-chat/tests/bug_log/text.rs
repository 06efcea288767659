//! Rows of sections 3 and 4: bytes, characters and stop strings of what the model writes.

use lily_chat::Ended;
use serde_json::{Value, json};

use crate::common::demo_tokenizer;
use crate::common::output::{Out, all_cuts, options, script, tool};

/// The arguments of the one call that `value` of parameter `key` makes.
fn arguments(key: &str, value: &[u8]) -> Value {
    let head = format!("<tool_call>\n<function=f>\n<parameter={key}>\n").into_bytes();
    let tail = b"\n</parameter>\n</function>\n</tool_call>";
    let written = [&head, value, tail].concat();
    let got = all_cuts(&demo_tokenizer(), &options(false, &[], &[tool()]), &[Out::Text(written)]);
    let [call] = &got.calls[..] else { panic!("{got:?}") };
    assert!(call.whole, "{got:?}");
    serde_json::from_str(&call.arguments).unwrap_or_else(|e| panic!("{e}: {}", call.arguments))
}

#[test]
fn b043_vllm_mlx_525_backslashes_before_other_letters_are_escaped() {
    for text in ["\\é", "C:\\用户", "\\", "\\\\é\\", "a\\nb", "\\u00e9 and \\\"用\\\""] {
        assert_eq!(arguments("s", text.as_bytes()), json!({"s": text}));
    }
    // No JSON, because of the backslash: the object becomes the text that the model wrote.
    for text in ["{\"path\": \"C:\\用户\"}", "[\"\\é\"]"] {
        assert_eq!(arguments("o", text.as_bytes()), json!({"o": text}));
    }
    assert_eq!(arguments("o", "{\"path\": \"C:\\\\用户\"}".as_bytes()), json!({"o": {"path": "C:\\用户"}}));
}

#[test]
fn b045_claude_code_68325_half_surrogates_leave_as_valid_text() {
    // Spelled as an escape it is six characters of text, or text where the parameter is an object.
    assert_eq!(arguments("s", b"\\ud99c"), json!({"s": "\\ud99c"}));
    assert_eq!(arguments("o", b"{\"a\": \"\\ud99c\"}"), json!({"o": "{\"a\": \"\\ud99c\"}"}));
    assert_eq!(arguments("o", b"{'a': '\\ud99c'}"), json!({"o": "{'a': '\\ud99c'}"}));
    // As bytes it is no UTF-8.
    assert_eq!(arguments("s", b"a\xed\xa6\x9cb"), json!({"s": "a\u{fffd}\u{fffd}\u{fffd}b"}));
    // A whole pair is a character.
    assert_eq!(arguments("o", b"{\"a\": \"\\ud83d\\ude00\"}"), json!({"o": {"a": "😀"}}));
}

/// What is shown of `written`, and the stop string that ended it.
fn stopped(stop: &[&str], written: &str) -> (String, Option<String>) {
    let plain = all_cuts(&demo_tokenizer(), &options(false, stop, &[]), &script(written));
    assert_eq!(all_cuts(&demo_tokenizer(), &options(false, stop, &[tool()]), &script(written)), plain);
    let stop = plain.ended.map(|ended| match ended {
        Ended::StopString(stop) => stop,
        Ended::Eos => panic!("{written:?} has no end"),
    });
    (plain.content, stop)
}

#[test]
fn b051_xybrid_518_stops_of_several_bytes_may_overlap() {
    let stops = ["é!", "!!", "ab", "abc"];
    for (written, content, stop) in [
        ("caf é!! x", "caf ", Some("é!")),
        ("é é ! !", "é é ! !", None),
        ("é", "é", None),
        ("hm!!", "hm", Some("!!")),
        ("hm!é!", "hm!", Some("é!")),
        ("xabcd", "x", Some("abc")),
        ("aab", "a", Some("ab")),
        ("a日é!", "a日", Some("é!")),
        ("日a", "日a", None),
    ] {
        assert_eq!(stopped(&stops, written), (content.to_owned(), stop.map(str::to_owned)), "{written:?}");
    }
}

#[test]
fn b052_mlx_knife_68_the_earliest_of_several_stops_wins_and_is_not_shown() {
    for (stop, written, content, ended) in [
        (&["ab", "abc"][..], "xabcd", "x", "abc"),
        (&["abc", "ab"], "xabd", "x", "ab"),
        (&["END", "END OF"], "the END OF it", "the ", "END OF"),
        (&["END", "END OF"], "the END", "the ", "END"),
        (&["d", "bcd"], "abcd", "a", "bcd"),
        (&["abcd", "c"], "abcx", "ab", "c"),
        (&["two", "one"], "zero one two", "zero ", "one"),
    ] {
        assert_eq!(stopped(stop, written), (content.to_owned(), Some(ended.to_owned())), "{written:?}");
    }
}

/// The end of a call's markup is markup also where the output ends within it.
#[test]
fn b049_smg_2203_half_a_closing_tag_is_no_text() {
    let call = "<tool_call>\n<function=f>\n<parameter=i>\n3\n</parameter>\n</function>";
    for half in ["", "\n", "\n<", "\n</tool_", "</tool_call", "\n</tool_call>", "\n</tool_call>\n"] {
        for stop in [&["zzz"][..], &["</tool_call>!", "\n\n"]] {
            let got = all_cuts(&demo_tokenizer(), &options(false, stop, &[tool()]), &script(&format!("{call}{half}")));
            assert_eq!((got.content.as_str(), got.calls.len(), got.calls[0].whole), ("", 1, true), "{half:?}");
        }
    }
}
