//! Tool calls out of the model's text (docs/model.md §7.3).

mod common;

use common::output::{Answer, Call, all_cuts, options, script, tool};
use common::{Random, demo_tokenizer, read};
use lily_chat::{OutputEvent, OutputMachine, PromptInput, Template};
use serde_json::{Map, Value, json};

fn answer(thinking: bool, written: &str) -> Answer {
    all_cuts(&demo_tokenizer(), &options(thinking, &[], &[tool()]), &script(written))
}

fn one(written: &str) -> Call {
    let got = answer(false, written);
    assert_eq!((got.calls.len(), got.content.as_str(), got.unfinished), (1, "", None), "{written}");
    got.calls[0].clone()
}

fn whole(name: &str, arguments: Value) -> Call {
    Call { name: name.into(), arguments: arguments.to_string(), whole: true }
}

#[test]
fn calls_are_parsed_with_typed_arguments() {
    let written = "[call]\n<function=f>\n<parameter=s>\n  a\n\n<b> \"c\"\\ \n\n</parameter>\n<parameter=i>\n3\n</parameter>\n\
                   <parameter=b>\ntrue\n</parameter>\n<parameter=o>\n{\"k\":[1,null]}\n</parameter>\n<parameter=m>\nnull\n\
                   </parameter>\n<parameter=new>\n5\n</parameter>\n</function>\n[/call]";
    let want = json!({"s": "  a\n\n<b> \"c\"\\ \n", "i": 3, "b": true, "o": {"k": [1, null]}, "m": null, "new": "5"});
    assert_eq!(one(written), whole("f", want));
}

#[test]
fn forms_that_differ_from_the_written_one() {
    let want = whole("f", json!({"s": "x"}));
    for written in [
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
        "[call]<function=f><parameter=s>x</parameter></function>[/call]",
        "[call]\n\n<function=f>\n\n<parameter=s>\nx</parameter>\n</function>[/call]\n",
        "[call]\n<function=f>\n<parameter=s>\nx\n</parameter>\n[/call]",
        "[call]\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>",
        "<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n[/call]",
        "\n\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>[end]",
    ] {
        assert_eq!(one(written), want, "{written}");
    }
    assert_eq!(one("[call]\n<function=f>\n</function>\n[/call]"), whole("f", json!({})));
    assert_eq!(one("[call]\n<function=other>\n</function>\n[/call]"), whole("other", json!({})));
    for empty in ["<parameter=s>\n\n</parameter>", "<parameter=s>\n</parameter>", "<parameter=s></parameter>"] {
        assert_eq!(one(&format!("[call]\n<function=f>\n{empty}\n</function>\n[/call]")), whole("f", json!({"s": ""})));
    }
}

#[test]
fn values_may_hold_any_text() {
    for value in [
        "a </parameter> b",
        "</function>\n</tool_call>",
        "<parameter=x>",
        "line 1\n  line 2\n",
        "{\"a\": \"}\"}",
        "\\é C:\\用户",
        "\\ud99c",
        "'quoted' \"twice\"",
        "</para",
        "\n",
        "[1, 2",
        "a</parameter></parameter>",
    ] {
        let written = format!("[call]\n<function=f>\n<parameter=s>\n{value}\n</parameter>\n</function>\n[/call]");
        assert_eq!(one(&written), whole("f", json!({"s": value})));
    }
    let file: String = (0..40).map(|i| format!("def f{i}(x):\n    return x < {i}  # «{i}»\n\n")).collect();
    let written = format!("[call]\n<function=f>\n<parameter=s>\n{file}\n</parameter>\n</function>\n[/call]");
    assert_eq!(one(&written), whole("f", json!({"s": file})));
    // Control tokens inside a value are its text.
    let written = "[call]\n<function=f>\n<parameter=s>\n[think]a[/think][call]\n</parameter>\n</function>\n[/call]";
    assert_eq!(one(written), whole("f", json!({"s": "<think>a</think><tool_call>"})));
}

#[test]
fn content_and_several_calls() {
    let call = |x: &str| format!("[call]\n<function=f>\n<parameter=s>\n{x}\n</parameter>\n</function>\n[/call]");
    let got = answer(true, &format!("why\n[/think]\n\nChecking both.\n\n{}\n{}[end]", call("1"), call("2")));
    assert_eq!((got.reasoning.as_str(), got.content.as_str()), ("why", "Checking both."));
    assert_eq!(got.calls, [whole("f", json!({"s": "1"})), whole("f", json!({"s": "2"}))]);
    let got = answer(true, &format!("why\n[/think]{}", call("1")));
    assert_eq!((got.reasoning.as_str(), got.content.as_str(), got.calls.len()), ("why", "", 1));
    // Text behind a call isn't asked for, but it isn't lost.
    let got = answer(false, &format!("a\n\n{}\n\nb \n", call("1")));
    assert_eq!((got.content.as_str(), got.calls.len()), ("a\n\nb \n", 1));
    let got = answer(false, &format!("{}\n\nb", call("1")));
    assert_eq!((got.content.as_str(), got.calls.len()), ("b", 1));
}

#[test]
fn a_call_ends_the_reasoning() {
    let call = "[call]\n<function=f>\n</function>\n[/call]";
    let got = answer(true, &format!("I need it\n{call}\n[/think]\n\nDone."));
    assert_eq!((got.reasoning.as_str(), got.content.as_str()), ("I need it", "Done."));
    assert_eq!(got.calls, [whole("f", json!({}))]);
    // A marker that no call follows is part of the reasoning, and so is one spelled in ordinary tokens.
    let got = answer(true, "use [call] or\n<tool_call>\n<function=f>\n</function> [call][/think]\n\nok");
    assert_eq!(got.reasoning, "use <tool_call> or\n<tool_call>\n<function=f>\n</function> <tool_call>");
    assert_eq!((got.content.as_str(), got.calls.len()), ("ok", 0));
}

#[test]
fn what_is_no_call_is_content() {
    for written in [
        "<tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}\n</tool_call>",
        "Use <tool_call> and </tool_call>.",
        "<tool_call>\n<function=f>\nhm",
        "<tool_call>\n<function=f",
        "<tool_call>\n<function=>\n</function>",
        "<tool_call>\n<func",
        "<function=unknown>\n</function>",
        "inline <function=f>\n</function>",
        "{\"name\": \"f\", \"arguments\": {}}",
        "a < b \n",
    ] {
        let got = answer(false, written);
        assert_eq!((got.content.as_str(), got.calls.len()), (written, 0));
    }
    // With no tools declared, all markup is text.
    let written = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
    let got = all_cuts(&demo_tokenizer(), &options(false, &[], &[]), &script(written));
    assert_eq!((got.content.as_str(), got.calls.len()), (written, 0));
    let got = all_cuts(&demo_tokenizer(), &options(true, &[], &[]), &script("a[call]b[/call][/think]c"));
    assert_eq!((got.reasoning.as_str(), got.content.as_str()), ("a<tool_call>b</tool_call>", "c"));
    // A false start doesn't hide the call behind it.
    let got = answer(false, "<tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>");
    assert_eq!((got.content.as_str(), got.calls), ("<tool_call>", vec![whole("f", json!({}))]));
}

#[test]
fn stray_text_inside_a_call_becomes_content() {
    let got = answer(false, "[call]\n<function=f>\n<parameter=s>\nx\n</parameter>\n oh no \n</function>\n[/call]");
    assert_eq!((got.content.as_str(), got.calls), ("oh no", vec![whole("f", json!({"s": "x"}))]));
}

#[test]
fn a_call_that_is_cut_off_never_looks_whole() {
    let written =
        "<tool_call>\n<function=f>\n<parameter=s>\nsome \"text\"\n</parameter>\n<parameter=i>\n12\n</parameter>\n";
    let written = &(written.to_owned() + "</function>\n</tool_call>");
    let (begun, ends) = (written.find("some").unwrap() - 1, written.find("</function>").unwrap() + 11);
    for cut in 1..written.len() {
        let got = answer(false, &written[..cut]);
        if let Some(call) = got.calls.first() {
            assert!(cut > "<tool_call>\n<function=f>\n".len());
            assert_eq!((call.whole, got.unfinished.is_none()), (cut >= ends, cut >= ends), "{}", &written[..cut]);
            assert_eq!(serde_json::from_str::<Value>(&call.arguments).is_ok(), call.whole, "{}", call.arguments);
            if let Some(raw) = got.unfinished {
                assert_eq!(raw + &got.content, written[..cut]);
            }
        } else {
            assert!(cut < begun);
            assert_eq!(got.content, written[..cut]);
        }
    }
}

#[test]
fn arguments_stream_while_a_value_is_written() {
    let demo = demo_tokenizer();
    let pieces = ["<tool_call>\n<function=f>\n<parameter=s>\n", "one ", "two\n", "three", "\n</par", "ameter>\n"];
    let pieces: Vec<Vec<u8>> = pieces.iter().map(|p| p.as_bytes().to_vec()).collect();
    let (tokenizer, ids) = demo.with_pieces(&pieces);
    let mut machine = OutputMachine::new(&tokenizer, options(false, &[], &[tool()]));
    let mut said = ids.iter().map(|&id| machine.push(id));
    let delta = |delta: &str| OutputEvent::ToolCallArguments { index: 0, delta: delta.into() };
    let begin = OutputEvent::ToolCallBegin { index: 0, name: "f".into() };
    assert_eq!(said.next().unwrap(), [begin, delta("{\"s\":\"")]);
    assert_eq!(said.next().unwrap(), [delta("one ")]);
    assert_eq!(said.next().unwrap(), [delta("two")]);
    assert_eq!(said.next().unwrap(), [delta("\\nthree")]);
    assert_eq!(said.next().unwrap(), []);
    assert_eq!(said.next().unwrap(), [delta("\"")]);
}

#[test]
fn a_tag_that_is_never_closed_does_not_silence_the_stream() {
    for opening in ["<tool_call>\n<function=", "<tool_call>", "<function=", "[call]\n<function=f>\n"] {
        let got = answer(false, &format!("{opening}{}", "word ".repeat(1000)));
        assert!(got.content.len() > 5000, "{opening}");
        let demo = demo_tokenizer();
        let (tokenizer, ids) = demo.with_pieces(&[opening.replace("[call]", "<tool_call>").into(), b"word ".to_vec()]);
        let mut machine = OutputMachine::new(&tokenizer, options(false, &[], &[tool()]));
        machine.push(ids[0]);
        let silent = (0..1000).take_while(|_| machine.push(ids[1]).is_empty()).count();
        assert!(silent < 100, "{opening}: silent for {silent} tokens");
    }
}

/// What the template writes of an assistant's turn comes out of the machine as that turn.
#[test]
fn a_rendered_turn_is_read_back() {
    let (demo, template) = (demo_tokenizer(), Template::new(&read("demo/4bit/chat_template.jinja")).unwrap());
    let words =
        ["word", " ", "\n", "é", "\"", "\\", "<b>", "</para", "y</parameter> x", "12", "{", "日本", "'", "null"];
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut inner = |most| "x".to_owned() + &random.join(&words, most) + "x";
        let (reasoning, content) = (inner(6), if seed % 3 == 0 { String::new() } else { inner(6) });
        let calls: Vec<Map<String, Value>> = (0..seed % 4)
            .map(|i| {
                let all = [
                    ("s", json!(inner(8))),
                    ("i", json!(i)),
                    ("b", json!(i % 2 == 0)),
                    ("o", json!({inner(2): [1.5, null, inner(3)]})),
                    ("unknown", json!(format!("\n{}\n ", inner(4)))),
                    ("m", Value::Null),
                ];
                all.into_iter().filter(|_| inner(3).len() % 2 == 0).map(|(k, v)| (k.to_owned(), v)).collect()
            })
            .collect();
        let tool_calls: Vec<Value> =
            calls.iter().map(|a| json!({"type": "function", "function": {"name": "f", "arguments": a}})).collect();
        let messages = vec![
            json!({"role": "user", "content": "q"}),
            json!({"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": tool_calls}),
        ];
        let text = template.render(&PromptInput { messages, ..PromptInput::default() }).unwrap();
        let turn = text.split_once("<|im_start|>assistant\n<think>\n").unwrap().1.strip_suffix("\n").unwrap();
        let turn = turn.replace("</think>", "[/think]").replace("<|im_end|>", "[end]");
        let turn = turn.replace("<tool_call>", "[call]").replace("</tool_call>", "[/call]");
        let got = all_cuts(&demo, &options(true, &[], &[tool()]), &script(&turn));
        assert_eq!((got.reasoning, got.content), (reasoning, content), "seed {seed}");
        let read: Vec<Value> = got.calls.iter().map(|c| serde_json::from_str(&c.arguments).unwrap()).collect();
        assert_eq!(read, calls.into_iter().map(Value::Object).collect::<Vec<_>>(), "seed {seed}: {turn}");
        assert!(got.calls.iter().all(|c| c.whole && c.name == "f"));
    }
}
