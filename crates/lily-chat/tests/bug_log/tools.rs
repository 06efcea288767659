//! Rows of section 6 that need no server: calls as the model writes them, and what is none.

use serde_json::{Value, json};

use crate::common::output::{Answer, Call, all_cuts, options, script, tool};
use crate::common::{Random, demo_tokenizer};

fn answer(written: &str) -> Answer {
    all_cuts(&demo_tokenizer(), &options(false, &[], &[tool()]), &script(written))
}

/// The one call that all of the text is.
fn one(written: &str) -> Call {
    let got = answer(written);
    assert_eq!((got.calls.len(), got.content.as_str(), got.unfinished), (1, "", None), "{written}");
    assert!(got.calls[0].whole, "{written}");
    got.calls[0].clone()
}

/// The arguments of a call with that text between the newlines of that parameter.
fn arguments(key: &str, value: &str) -> Value {
    let call = one(&format!("[call]\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n[/call]"));
    serde_json::from_str(&call.arguments).unwrap_or_else(|e| panic!("{e}: {}", call.arguments))
}

#[test]
fn b064_higgs_177_the_xml_form_is_a_call_however_it_is_spaced() {
    for written in [
        "[call]\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n[/call]",
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
        "[call]<function=f><parameter=s>x</parameter></function>[/call]",
        "\n\n[call]\n\n<function=f>\n\n<parameter=s>\nx</parameter>\n\n</function>\n\n[/call]\n[end]",
        "[call]\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>[end]",
        "[call]\n<function=f>\n<parameter=s>\nx\n</parameter>\n[/call]",
    ] {
        let call = one(written);
        assert_eq!((call.name.as_str(), call.arguments.as_str()), ("f", "{\"s\":\"x\"}"), "{written}");
    }
}

#[test]
fn b065_vllm_mlx_597_a_function_without_its_wrapper_is_a_call_where_tools_are_declared() {
    let bare = "<function=f>\n<parameter=s>\nx\n</parameter>\n</function>";
    for written in [bare.to_owned(), format!("{bare}\n"), format!("{bare}\n</tool_call>"), format!("{bare}[/call]")] {
        assert_eq!(one(&written).arguments, "{\"s\":\"x\"}", "{written}");
    }
    // Without tools, with another name, or in the middle of a line it is text.
    let none = all_cuts(&demo_tokenizer(), &options(false, &[], &[]), &script(bare));
    assert_eq!((none.content.as_str(), none.calls.len()), (bare, 0));
    for text in [bare.replace("=f>", "=g>"), format!("such as {bare}")] {
        let got = answer(&text);
        assert_eq!((got.content, got.calls.len()), (text, 0));
    }
}

#[test]
fn b071_rapid_mlx_1518_one_newline_on_each_side_is_markup_and_no_more() {
    for value in ["  x  ", "\tx\n", "\nx", "\n\nx\n\n", " ", "\n", "a\n\n\nb", "    def f():\n        return 1\n"] {
        assert_eq!(arguments("s", value), json!({"s": value}), "{value:?}");
    }
}

#[test]
fn b072_rapid_mlx_1600_quotes_around_text_are_the_models_own() {
    for value in ["\"x\"", "'x'", "\"", "\"null\"", "`x`", "\"a\", \"b\"", "{\"a\": 1}", "[1]", "12", "true"] {
        assert_eq!(arguments("s", value), json!({"s": value}), "{value:?}");
    }
    // Where the parameter is no text, quotes are JSON.
    assert_eq!(arguments("a", "[\"x\", 'y']"), json!({"a": ["x", "y"]}));
}

#[test]
fn b073_mlx_lm_1310_a_value_of_another_type_stays_text_and_the_call_stays() {
    for value in ["abc", "1,5", "12 apples", "0x10", "1_000", "--3", ""] {
        assert_eq!(arguments("i", value), json!({"i": value}), "{value:?}");
    }
    assert_eq!(arguments("b", "yes"), json!({"b": "yes"}));
    assert_eq!(arguments("o", "{broken"), json!({"o": "{broken"}));
    assert_eq!(arguments("a", "a, b"), json!({"a": "a, b"}));
}

#[test]
fn b074_mlx_lm_1417_a_whole_number_with_a_point_is_an_integer() {
    for (written, value) in [("3.0", 3), ("-2.00", -2), ("3e2", 300), (" 7.0 ", 7), ("0.0", 0)] {
        assert_eq!(arguments("i", written), json!({"i": value}), "{written}");
    }
    // What is no whole number is not made one.
    assert_eq!(arguments("i", "3.5"), json!({"i": 3.5}));
}

#[test]
fn b075_vllm_43238_json_is_read_first_and_pythons_spelling_second() {
    assert_eq!(arguments("a", "[true, false, null]"), json!({"a": [true, false, null]}));
    assert_eq!(arguments("a", "[True, False, None, 'it\\'s']"), json!({"a": [true, false, null, "it's"]}));
    let nested = json!({"a": [true, {"b": null}], "c": "True"});
    assert_eq!(arguments("o", "{\"a\": [true, {\"b\": null}], \"c\": \"True\"}"), json!({"o": nested}));
    assert_eq!(arguments("o", "{'a': [True, {'b': None}], 'c': 'True'}"), json!({"o": nested}));
    assert_eq!(arguments("b", "True"), json!({"b": true}));
    assert_eq!(arguments("s", "True"), json!({"s": "True"}));
}

#[test]
fn b076_qwen3_8_187_null_is_null_where_the_schema_allows_it() {
    assert_eq!(arguments("m", "null"), json!({"m": null}));
    assert_eq!(arguments("m", "None"), json!({"m": null}));
    for text in ["nullable", "\"null\"", "null and void"] {
        assert_eq!(arguments("m", text), json!({"m": text}), "{text}");
    }
    for key in ["s", "i", "b", "o", "a"] {
        assert_eq!(arguments(key, "null"), json!({key: "null"}), "{key}");
    }
}

#[test]
fn b077_rapid_mlx_1551_a_parameter_that_no_schema_mentions_is_text() {
    for value in ["5", "true", "null", "[1, 2]", "{\"a\": 1}", "some words"] {
        assert_eq!(arguments("unheard_of", value), json!({"unheard_of": value}), "{value}");
    }
    let written =
        "[call]\n<function=f>\n<parameter=i>\n3\n</parameter>\n<parameter=x y>\n4\n</parameter>\n</function>\n[/call]";
    assert_eq!(one(written).arguments, "{\"i\":3,\"x y\":\"4\"}");
}

#[test]
fn b084_vllm_mlx_583_other_forms_and_cut_markup_are_text_to_the_letter() {
    let json = "{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}";
    for text in [
        format!("<tool_call>\n{json}\n</tool_call>"),
        format!("<tool_call>{json}"),
        format!("<tool_call>\n<function>{json}</function>\n</tool_call>"),
        format!("```json\n{json}\n```\n</tool_call>"),
        "<tool_call>\n<function=f".to_owned(),
        "<tool_call>\n<function=f>\n<para and so on".to_owned(),
        "<tool_c and <function and </tool_call".to_owned(),
    ] {
        let got = answer(&text);
        assert_eq!((got.content, got.calls.len(), got.unfinished), (text, 0, None));
    }
}

/// Any mix of markup is calls, or text as it was written. What is text was written in that order; where nothing is a call,
/// all of it is text.
#[test]
fn b084_vllm_mlx_583_any_mix_of_markup_is_calls_or_text() {
    let words = [
        "<tool_call>",
        "</tool_call>",
        "[call]",
        "[/call]",
        "\n",
        "<function=f>",
        "<function=",
        "</function>",
        "<parameter=s>",
        "<parameter=i>",
        "</parameter>",
        "</para",
        "{\"name\": \"f\"",
        "}",
        "x",
        " 3",
        "<",
    ];
    let mut called = 0;
    for seed in 0..300 {
        let written = Random(seed).join(&words, 16);
        let got = answer(&written);
        let plain = written.replace("[call]", "<tool_call>").replace("[/call]", "</tool_call>");
        let mut rest = plain.chars();
        assert!(got.content.chars().all(|c| rest.any(|w| w == c)), "seed {seed}: {written:?}: {got:?}");
        if got.calls.is_empty() {
            assert_eq!(got.content, plain, "seed {seed}");
        }
        let whole = got.calls.iter().filter(|call| call.whole).count();
        assert_eq!(got.calls.len() - whole, usize::from(got.unfinished.is_some()), "seed {seed}: {written:?}: {got:?}");
        called += whole;
    }
    assert!(called > 10, "{called}");
}

#[test]
fn b085_atlas_73_an_empty_value_is_an_empty_string() {
    for value in ["\n\n", "\n", ""] {
        let call = one(&format!("[call]\n<function=f>\n<parameter=s>{value}</parameter>\n</function>\n[/call]"));
        assert_eq!(call.arguments, "{\"s\":\"\"}", "{value:?}");
    }
    let both = "<parameter=s>\n\n</parameter>\n<parameter=i>\n1\n</parameter>";
    assert_eq!(one(&format!("[call]\n<function=f>\n{both}\n</function>\n[/call]")).arguments, "{\"s\":\"\",\"i\":1}");
}

#[test]
fn b086_ollama_16937_braces_and_quotes_inside_values_are_kept() {
    for value in
        ["}", "{\"a\": \"}\"}", "if (x) { y(\"}\"); }", "\"}]", "{{{", "\\\"", "</function> in \"text\"", "a \"b\" c"]
    {
        assert_eq!(arguments("s", value), json!({"s": value}), "{value:?}");
    }
    assert_eq!(arguments("o", "{\"a\": \"}{\\\"\"}"), json!({"o": {"a": "}{\""}}));
    assert_eq!(arguments("a", "[\"]\", '[\"']"), json!({"a": ["]", "[\""]}));
}
