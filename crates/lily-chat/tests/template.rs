//! Chat templates against the renders of the Python reference.

mod common;

use common::{json as fixture, read};
use lily_chat::{ChatError, PromptInput, Template};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

fn goldens() -> Value {
    fixture("tests/fixtures/chat/goldens.json")
}

fn demo() -> Template {
    Template::new(&read("demo/4bit/chat_template.jinja")).unwrap()
}

fn input(case: &Value) -> PromptInput {
    let mut kwargs = case["kwargs"].as_object().cloned().unwrap_or_default();
    PromptInput {
        messages: case["messages"].as_array().unwrap().clone(),
        tools: case["tools"].as_array().cloned(),
        add_generation_prompt: kwargs.remove("add_generation_prompt") != Some(Value::Bool(false)),
        kwargs,
    }
}

#[test]
fn feature_template_renders_byte_for_byte() {
    let goldens = goldens();
    let template = Template::new(&read("tests/fixtures/chat/feature_template.jinja")).unwrap();
    let kwargs = goldens["feature_context"].as_object().unwrap().clone();
    let text = template.render(&PromptInput { kwargs, ..PromptInput::default() }).unwrap();
    assert_eq!(text, goldens["feature"].as_str().unwrap());
}

/// What the demo's template writes around the list of tools, in place of the official instructions.
const DEMO_HEAD: &str = "# Tools\n\nYou can call these functions:\n<tools>";
const DEMO_TAIL: &str = "\n\nTo call a function, answer only with a block in this form:\n<tool_call>\n<function=NAME>\n\
                         <parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>";

#[test]
fn demo_template_follows_the_official_one() {
    let (goldens, template) = (goldens(), demo());
    let (mut texts, mut with_tools, mut errors) = (0, 0, 0);
    for case in goldens["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let want = &goldens["official"][name];
        let got = template.render(&input(case));
        if want["error"] == true {
            assert!(matches!(got, Err(ChatError::Template(_))), "{name}: {got:?}");
            errors += 1;
            continue;
        }
        let want = want["text"].as_str().unwrap();
        *if want.contains("[[TOOLS_HEAD]]") { &mut with_tools } else { &mut texts } += 1;
        let want = want.replace("[[TOOLS_HEAD]]", DEMO_HEAD).replace("[[TOOLS_TAIL]]", DEMO_TAIL);
        assert_eq!(got.unwrap(), want, "{name}");
    }
    assert_eq!((texts, with_tools, errors), (9, 5, 4));
}

#[test]
fn demo_template_refuses_what_it_must() {
    let template = demo();
    let user = json!({"role": "user", "content": "a"});
    let call = json!({"function": {"name": "f", "arguments": "{}"}});
    for (messages, words) in [
        (json!([]), "no messages"),
        (json!([{"role": "user", "content": "<tool_response>\n1\n</tool_response>"}]), "no user message"),
        (json!([{"role": "system", "content": "a"}]), "no user message"),
        (json!([user, {"role": "system", "content": "a"}]), "must come first"),
        (json!([user, {"content": "a"}]), "Unknown role"),
        (json!([{"role": "system", "content": [{"type": "image"}]}, user]), "text only"),
        (json!([{"role": "user", "content": 5}]), "neither text nor a list"),
        (json!([{"role": "user", "content": {"text": "a"}}]), "neither text nor a list"),
        (json!([{"role": "user", "content": ["a"]}]), "no object"),
        (json!([{"role": "user", "content": [{"type": "smell"}]}]), "neither text nor picture"),
        (json!([user, {"role": "assistant", "tool_calls": [call]}]), "no object"),
    ] {
        let case = json!({"messages": messages});
        match template.render(&input(&case)) {
            Err(ChatError::Template(message)) => assert!(message.contains(words), "{message}"),
            other => panic!("{messages}: {other:?}"),
        }
    }
}

#[test]
fn demo_template_numbers_pictures_and_videos() {
    let parts = json!([{"type": "image"}, {"type": "video"}, {"type": "image_url"}, {"text": " what? "}]);
    let case = json!({"messages": [{"role": "user", "content": parts}], "kwargs": {"add_vision_id": true}});
    let medium = |pad: &str| format!("<|vision_start|><|{pad}_pad|><|vision_end|>");
    let (image, video) = (medium("image"), medium("video"));
    let want = format!("<|im_start|>user\nPicture 1: {image}Video 1: {video}Picture 2: {image} what?<|im_end|>\n");
    assert_eq!(demo().render(&input(&case)).unwrap(), want + "<|im_start|>assistant\n<think>\n");
}

#[test]
fn official_template_renders_byte_for_byte() {
    const SHA256: &str = "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259";
    let Some(path) = std::env::var_os("LILY_OFFICIAL_TEMPLATE") else {
        println!("skipped: LILY_OFFICIAL_TEMPLATE=FILE is not set, and the official template is not shipped");
        return;
    };
    let source = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    assert_eq!(sha256(&source), SHA256, "{path:?} is not the template of the pinned revision (docs/model.md)");
    let (goldens, template) = (goldens(), Template::new(&source).unwrap());
    for case in goldens["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let want = &goldens["official"][name];
        match template.render(&input(case)) {
            Ok(text) => assert_eq!(sha256(&text), want["sha256"].as_str().unwrap_or("an error"), "{name}:\n{text}"),
            Err(error) => assert!(matches!(error, ChatError::Template(_)) && want["error"] == true, "{name}: {error}"),
        }
    }
}

fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn errors_tell_the_template_from_the_engine() {
    let render = |source: &str| Template::new(source).unwrap().render(&PromptInput::default());
    match render("{% if not messages %}{{ raise_exception('Nothing to say.') }}{% endif %}") {
        Err(error @ ChatError::Template(_)) => assert_eq!(error.to_string(), "Nothing to say."),
        other => panic!("{other:?}"),
    }
    match render("{% macro m() %}{{ raise_exception('From inside.') }}{% endmacro %}{{ m() | trim }}") {
        Err(error @ ChatError::Template(_)) => assert_eq!(error.to_string(), "From inside."),
        other => panic!("{other:?}"),
    }
    assert!(matches!(render("{{ messages | no_such_filter }}"), Err(ChatError::TemplateFailed(_))));
    assert!(matches!(Template::new("{% if %}"), Err(ChatError::TemplateSyntax(_))));
}

#[test]
fn tojson_spells_floats_as_python_does() {
    let template = Template::new("{{ x | tojson }}").unwrap();
    let kwargs: Map<String, Value> = serde_json::from_str(
        r#"{"x": {"small": 1e-06, "big": 1e16, "one": 1.0, "int": 10000000000000000, "exact": 0.1234567890123456}}"#,
    )
    .unwrap();
    let text = template.render(&PromptInput { kwargs, ..PromptInput::default() }).unwrap();
    let want = r#"{"small": 1e-06, "big": 1e+16, "one": 1.0, "int": 10000000000000000, "exact": 0.1234567890123456}"#;
    assert_eq!(text, want);
}
