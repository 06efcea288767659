//! Token ids against the reference implementation: of the demo's, the tiny fixture's and the real tokenizer.

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{Random, demo_tokenizer, json, repo, tokenizer};
use lily_chat::{ChatError, Tokenizer};
use serde_json::Value;

/// The real tokenizer, or none with a printed reason.
fn real() -> Option<Tokenizer> {
    let given = std::env::var_os("LILY_TOKENIZER").map(PathBuf::from);
    let folder = given.clone().unwrap_or_else(|| repo(".cache/tokenizer"));
    if given.is_none() && !folder.join("tokenizer.json").exists() {
        println!("skipped: no real tokenizer; run tests/tokenizer/build.sh or set LILY_TOKENIZER=DIR");
        return None;
    }
    Some(tokenizer(&folder))
}

fn check(tokenizer: &Tokenizer, cases: &str) {
    let cases = json(cases);
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let want: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode_with_added(text), want, "{text:?}");
    }
    assert!(cases.as_array().unwrap().len() > 50);
}

#[test]
fn real_tokenizer_encodes_as_the_reference() {
    let Some(real) = real() else { return };
    assert_eq!(real.len(), 248_077);
    check(&real, "tests/fixtures/tokenizer/cases.json");
    // Check values of docs/model.md §6.3.
    let encode = |text| real.encode_with_added(text);
    assert_eq!(
        encode("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n"),
        [248045, 846, 198, 9419, 248046, 198, 248045, 74455, 198, 248068, 198]
    );
    assert_eq!(encode("<think>\n\n</think>\n\n"), [248068, 271, 248069, 271]);
    assert_eq!(encode("Hello world"), [9419, 1814]);
    // The last seven are known from tokenizer_config.json alone.
    assert_eq!(real.added_id("<|audio_pad|>"), Some(248_076));
    assert!(real.is_special(248_044) && real.is_special(248_076) && !real.is_special(248_068));
    assert!(real.is_added(248_068) && !real.is_added(248_043) && !real.is_added(248_077));
    assert_eq!((0..248_077).filter(|&id| real.is_special(id)).count(), 21);
}

#[test]
fn demo_tokenizer_encodes_as_the_reference() {
    let demo = demo_tokenizer();
    assert_eq!(demo.len(), 8192);
    check(&demo, "tests/tokenizer/cases_demo.json");
}

#[test]
fn tiny_tokenizer_encodes_as_the_reference() {
    let tiny = tokenizer(&repo("tests/fixtures/tiny/hf"));
    assert_eq!(tiny.len(), 410);
    check(&tiny, "tests/tokenizer/cases_tiny.json");
}

#[test]
fn plain_text_never_encodes_to_added_tokens_and_comes_back() {
    for tokenizer in [Some(demo_tokenizer()), real()].into_iter().flatten() {
        let added: Vec<u32> = (0..tokenizer.len() as u32).filter(|&id| tokenizer.is_added(id)).collect();
        let text_of = |id| String::from_utf8(tokenizer.token_bytes(id).unwrap().to_vec()).unwrap();
        for &id in &added {
            assert_eq!(tokenizer.encode_with_added(&text_of(id)), [id]);
            assert_eq!(tokenizer.added_id(&text_of(id)), Some(id));
        }
        let texts: Vec<String> = added.iter().map(|&id| text_of(id)).collect();
        let mut pieces: Vec<&str> = texts.iter().map(String::as_str).collect();
        pieces.extend(["<|im_", "start|>", " ", "\n\n", "word", "é", "日本", "\u{fdd0}", "👩‍👩‍👧", "12"]);
        for seed in 0..500 {
            let text = Random(seed).join(&pieces, 12);
            let plain = tokenizer.encode_text(&text);
            assert!(plain.iter().all(|&id| !tokenizer.is_added(id)), "{text:?}");
            assert_eq!(tokenizer.decode(&plain), text);
            assert_eq!(tokenizer.decode(&tokenizer.encode_with_added(&text)), text);
        }
    }
}

#[test]
fn b044_basert_22_every_byte_has_a_token_and_every_token_its_bytes() {
    for tokenizer in [Some(demo_tokenizer()), real()].into_iter().flatten() {
        let mut single: Vec<u8> = (0..tokenizer.len() as u32)
            .filter_map(|id| tokenizer.token_bytes(id).filter(|bytes| bytes.len() == 1).map(|bytes| bytes[0]))
            .collect();
        single.sort_unstable();
        assert_eq!(single, (0..=255).collect::<Vec<u8>>());
        assert!((0..tokenizer.len() as u32).all(|id| tokenizer.token_bytes(id).is_some()));
        assert_eq!(tokenizer.token_bytes(tokenizer.len() as u32), None);
        for c in ('\u{80}'..='\u{7ff}').chain(['\u{ad}', '\u{fffd}', '\u{10ffff}']) {
            let text = tokenizer.decode(&tokenizer.encode_text(&format!("x{c}")));
            let nfc_changes = "\u{340}\u{341}\u{343}\u{344}\u{374}\u{37e}\u{387}";
            assert!(text.ends_with(c) || nfc_changes.contains(c) || text.chars().count() == 1, "{c:?}: {text:?}");
        }
    }
}

/// A regex that gives up on a long run would cut the text differently, or take for ever.
#[test]
fn long_runs_of_anything_are_encoded_whole_and_soon() {
    let demo = demo_tokenizer();
    let short = demo.encode_text(&(" ".repeat(2000) + "x"));
    for piece in [" ", "\n", "a", "!", "1", "\u{301}", " \n", "日", "\t "] {
        let text = "x".to_owned() + &piece.repeat(300_000) + "x";
        let start = Instant::now();
        let ids = demo.encode_text(&text);
        assert!(start.elapsed() < Duration::from_secs(20), "{piece:?}: {:?}", start.elapsed());
        if piece != "\u{301}" {
            assert_eq!(demo.decode(&ids), text);
        }
    }
    // The last blank belongs to the word behind it, however long the run is.
    let long = demo.encode_text(&(" ".repeat(2_000_000) + "x"));
    assert_eq!(long[long.len() - 1], short[short.len() - 1]);
}

#[test]
fn pieces_of_a_script_are_tokens() {
    let demo = demo_tokenizer();
    let the = demo.encode_text(" the");
    assert_eq!(the.len(), 1);
    let pieces: Vec<Vec<u8>> =
        [&b" the"[..], b"no such token", b"\xf0\x9f", b"</think>", b"no such token", b"a"].map(<[u8]>::to_vec).into();
    let (scripted, ids) = demo.with_pieces(&pieces);
    assert_eq!(scripted.len(), demo.len() + 3);
    for (id, piece) in ids.iter().zip(&pieces) {
        assert_eq!(scripted.token_bytes(*id).unwrap(), piece);
    }
    assert_eq!((ids[0], ids[1], ids[4]), (the[0], demo.len() as u32, demo.len() as u32));
    // Text that looks like a control token is text.
    assert!(!scripted.is_added(ids[3]));
    assert_eq!(demo.token_bytes(ids[1]), None);
    let (more, more_ids) = scripted.with_pieces(&[b"no such token".to_vec(), b"another".to_vec()]);
    assert_eq!((more_ids[0], more_ids[1] as usize), (ids[1], scripted.len()));
    assert_eq!(more.len(), scripted.len() + 1);
}

#[test]
fn files_that_cannot_be_used_are_refused_by_name() {
    let good: Value = json("demo/4bit/tokenizer.json");
    let change = |f: &dyn Fn(&mut Value)| {
        let mut file = good.clone();
        f(&mut file);
        file.to_string().into_bytes()
    };
    let refused = |file: &[u8], config: Option<&[u8]>, name: &str, word: &str| {
        let error = Tokenizer::from_json(file, config).expect_err(word);
        assert!(matches!(&error, ChatError::Tokenizer { file, .. } if *file == name), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    let bytes = change(&|_| {});
    refused(b"{", None, "tokenizer.json", "EOF");
    refused(&bytes, Some(b"7"), "tokenizer_config.json", "invalid type");
    refused(&change(&|f| f["model"]["vocab"]["hello there"] = 9000.into()), None, "tokenizer.json", "hello there");
    refused(&change(&|f| f["added_tokens"][0]["lstrip"] = true.into()), None, "tokenizer.json", "lstrip");
    refused(&change(&|f| f["added_tokens"][0]["id"] = Value::Null), None, "tokenizer.json", "without an id");
    refused(&change(&|f| f["model"]["vocab"]["he"] = 8.into()), None, "tokenizer.json", "two tokens");
    refused(&change(&|f| f["model"]["vocab"]["he"] = u32::MAX.into()), None, "tokenizer.json", "too high");
    refused(&change(&|f| f["model"]["type"] = "WordPiece".into()), None, "tokenizer.json", "BPE");
    let byte = |f: &mut Value| f["model"]["vocab"].as_object_mut().unwrap().shift_remove("ÿ");
    refused(&change(&|f| drop(byte(f))), None, "tokenizer.json", "0xff");
    let plain = &|f: &mut Value| f["pre_tokenizer"] = f["pre_tokenizer"]["pretokenizers"][0].clone();
    refused(&change(plain), None, "tokenizer.json", "not byte-level");
    let other = br#"{"added_tokens_decoder": {"8186": {"content": "<thought>"}}}"#;
    refused(&bytes, Some(other), "tokenizer_config.json", "<thought>");
}
