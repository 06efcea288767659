//! The output state machine: thinking, content, stop strings, and how text is cut into tokens not mattering.

mod common;

use common::output::{Answer, Cut, Out, all_cuts, options, run, script, tool};
use common::{Random, demo_tokenizer};
use lily_chat::{Ended, OutputEvent, OutputMachine, OutputOptions, Tokenizer};
use serde_json::Value;

fn answer(thinking: bool, stop: &[&str], tools: &[Value], written: &str) -> Answer {
    all_cuts(&demo_tokenizer(), &options(thinking, stop, tools), &script(written))
}

#[test]
fn thinking_is_split_from_content_without_the_newlines_between() {
    for (thinking, written, reasoning, content) in [
        (true, "why\n[/think]\n\nyes[end]", "why", "yes"),
        (true, "\nwhy\n\nso[/think]yes\n", "why\n\nso", "yes\n"),
        (true, "[think]\nwhy\n[/think]\n\n", "why", ""),
        (true, "\n[/think]\n\nyes", "", "yes"),
        (true, "cut off\n", "cut off\n", ""),
        (true, "a[/think]b[/think]c[think]d", "a", "b</think>c<think>d"),
        (false, "\n yes ", "", "\n yes "),
        (false, "[think]\n\n[/think]\n\nyes", "", "yes"),
        (false, "\n[think]\nwhy\n[/think]\n\nyes", "why", "yes"),
        (false, "[/think]\n\nyes", "", "yes"),
        (false, "The [think] tag and [/think].", "", "The <think> tag and </think>."),
        // Spelled in ordinary tokens it is text, as a model quotes what a user typed.
        (true, "the user wrote </think> here\n[/think]\n\nok", "the user wrote </think> here", "ok"),
    ] {
        let got = answer(thinking, &[], &[], written);
        assert_eq!((got.reasoning.as_str(), got.content.as_str()), (reasoning, content), "{written}");
        assert_eq!(got.ended, written.ends_with("[end]").then_some(Ended::Eos));
    }
}

#[test]
fn control_tokens_never_show_and_nothing_comes_after_the_end() {
    let got = answer(true, &[], &[tool()], "a[start]b[/think]\n\nc[start]d[end]e[call]f");
    assert_eq!((got.reasoning.as_str(), got.content.as_str()), ("ab", "cd"));
    assert_eq!(got.ended, Some(Ended::Eos));
}

#[test]
fn stop_strings_never_leak() {
    for (stop, written, content, ended) in [
        (&["three"][..], "one two three four", "one two ", Some("three")),
        (&["><"], "<unk><unk>", "<unk", Some("><")),
        (&["END!"], "the E EN END", "the E EN END", None),
        (&["ab", "abc"], "xabcd", "x", Some("abc")),
        (&["ab", "abc"], "xabd", "x", Some("ab")),
        (&["ab", "abc"], "xab", "x", Some("ab")),
        (&["abcd", "c"], "abcx", "ab", Some("c")),
        (&["abcd", "c"], "abcd", "", Some("abcd")),
        (&["é!", "!!", "ab"], "caf é!! x", "caf ", Some("é!")),
        (&["\n\n"], "a\nb\n\nc", "a\nb", Some("\n\n")),
        (&["aab"], "aaaab", "aa", Some("aab")),
        (&["", "x"], "axb", "a", Some("x")),
        (&["</think>"], "a</think>b", "a", Some("</think>")),
    ] {
        let got = answer(false, stop, &[], written);
        assert_eq!(got.content, content, "{written:?}");
        assert_eq!(got.ended, ended.map(|s: &str| Ended::StopString(s.to_owned())), "{written:?}");
        // With tools declared, whitespace and tags are held back too; the result stays the same.
        assert_eq!(answer(false, stop, &[tool()], written), got);
    }
}

#[test]
fn stop_strings_count_in_content_only() {
    let got = answer(true, &["stop", "</thi"], &[], "don't stop </thi\n[/think]\n\nnow stop it");
    assert_eq!((got.reasoning.as_str(), got.content.as_str()), ("don't stop </thi", "now "));
    let call = "[call]\n<function=f>\n<parameter=s>\nstop\n</parameter>\n</function>\n[/call]";
    let got = answer(false, &["stop", "function"], &[tool()], call);
    assert_eq!(got.calls[0].arguments, r#"{"s":"stop"}"#);
    assert_eq!((got.content.as_str(), got.ended), ("", None));
    // The markup of what turns out to be no call is content.
    let got = answer(false, &["call> is"], &[tool()], "The tag <tool_call> is nice");
    assert_eq!(got.content, "The tag <tool_");
}

#[test]
fn characters_come_whole_and_cut_ones_are_replaced_once() {
    let family = "👩‍👩‍👧 𠮷";
    let got = answer(false, &[], &[], family);
    assert_eq!(got.content, family);
    let demo = demo_tokenizer();
    for cut in 0..=family.len() {
        for (thinking, tools) in [(false, vec![]), (true, vec![]), (false, vec![tool()])] {
            let bytes = &family.as_bytes()[..cut];
            let got = all_cuts(&demo, &options(thinking, &[], &tools), &[Out::Text(bytes.to_vec())]);
            assert_eq!(got.reasoning + &got.content, String::from_utf8_lossy(bytes));
        }
    }
    let outs = [Out::Text(b"a\xffb\xf0\x9f".to_vec()), Out::Control("<|im_end|>")];
    assert_eq!(all_cuts(&demo, &options(false, &[], &[]), &outs).content, "a\u{fffd}b\u{fffd}");
}

#[test]
fn text_goes_out_as_soon_as_its_meaning_is_known() {
    let demo = demo_tokenizer();
    let pieces: Vec<Vec<u8>> = ["Hi", " there", "\n", "\nstop", "ped"].iter().map(|p| p.as_bytes().to_vec()).collect();
    let (tokenizer, ids) = demo.with_pieces(&pieces);
    let mut machine = OutputMachine::new(&tokenizer, options(false, &["stopping"], &[]));
    let said: Vec<Vec<OutputEvent>> = ids.iter().map(|&id| machine.push(id)).collect();
    let content = |text: &str| vec![OutputEvent::Content(text.into())];
    assert_eq!(said, [content("Hi"), content(" there"), content("\n"), content("\n"), content("stopped")]);
}

#[test]
fn reasoning_tokens_are_counted() {
    let demo = demo_tokenizer();
    let (tokenizer, ids) = demo.with_pieces(&[b"why".to_vec(), b" so".to_vec(), b"yes".to_vec()]);
    let mut machine = OutputMachine::new(&tokenizer, OutputOptions { thinking: true, ..OutputOptions::default() });
    let close = demo.added_id("</think>").unwrap();
    for id in [ids[0], ids[1], close, ids[2]] {
        assert!(machine.ended().is_none());
        machine.push(id);
    }
    assert_eq!((machine.reasoning_tokens(), machine.is_thinking()), (3, false));
}

/// Fragments that markers, stop strings and characters are made of.
const FRAGMENTS: [&str; 30] = [
    "a",
    " ",
    "\n",
    "\n\n",
    "<",
    "é",
    "日",
    "stop",
    "st",
    "END",
    "[think]",
    "[/think]",
    "[call]",
    "[/call]",
    "[start]",
    "<tool_call>",
    "\n<function=f>\n",
    "<function=g>",
    "<parameter=s>\n",
    "<parameter=i>",
    "12",
    "\n</parameter>",
    "</parameter>",
    "\n</function>",
    "</function>\n",
    "</tool_call>",
    "</para",
    "text",
    "[end]",
    "True",
];

#[test]
fn how_text_is_cut_into_tokens_does_not_matter() {
    let demo = demo_tokenizer();
    for seed in 0..4000 {
        let mut random = Random(seed);
        let written = random.join(&FRAGMENTS, 24);
        let stop: &[&str] = if seed % 3 == 0 { &["stop", "END", "</parameter>"] } else { &[] };
        let tools = if seed % 4 == 0 { vec![] } else { vec![tool()] };
        let options = options(seed % 2 == 0, stop, &tools);
        let outs = script(&written);
        let whole = run(&demo, &options, &outs, Cut::Whole);
        assert_eq!(run(&demo, &options, &outs, Cut::Bytes), whole, "seed {seed}: {written:?}");
        let cut = run(&demo, &options, &outs, Cut::Random(&mut random));
        assert_eq!(cut, whole, "seed {seed}: {written:?}");
        nothing_is_lost(&demo, &written, &whole, seed);
    }
}

/// Every letter and digit outside of markup comes out somewhere, in order of kind, unless a stop or an end cut it off.
fn nothing_is_lost(_demo: &Tokenizer, written: &str, answer: &Answer, seed: u64) {
    if answer.ended.is_some() {
        return;
    }
    let plain = |text: &str| text.matches(['é', '日', '2']).count();
    let mut out = answer.reasoning.clone() + &answer.content;
    for call in &answer.calls {
        out += &call.arguments;
    }
    assert_eq!(plain(&out), plain(written), "seed {seed}: {written:?} gave {answer:?}");
}
