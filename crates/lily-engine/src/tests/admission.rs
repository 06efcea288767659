//! Several requests at once: whose turn it is, and whose memory.

use super::fake::{BLOCK_BYTES, Op, STATE_BYTES};
use super::*;

const AMPLE: PrefixOptions = PrefixOptions { bytes: 1 << 30, exact: false };

/// Most bytes of a sequence of the fake model.
fn bytes(tokens: usize) -> u64 {
    STATE_BYTES + BLOCK_BYTES * tokens.div_ceil(64) as u64
}

#[test]
fn a_side_request_overtakes_a_long_prompt() {
    let (alone, _) = engine(4, 1);
    let (long, side) = (|| request(Op::SlowPrefill, 64 * 200, 3), || request(Op::Plain, 200, 5));
    let expected = (run(&alone, long()).text, run(&alone, side()).text);
    let (engine, log) = engine(4, 2);
    let mut first = engine.submit(long()).unwrap();
    wait("prefill", || log.lock().prefills > 2);
    let side = run(&engine, side());
    let chunks = log.lock().prefills;
    assert!(chunks < 100, "{chunks} chunks before the side request was answered");
    assert_eq!((drain(&mut first).text, side.text), expected);
}

#[test]
fn a_side_request_overtakes_a_long_answer() {
    let (alone, _) = engine(4, 1);
    let (long, side) = (|| request(Op::SlowDecode, 10, 300), || request(Op::Plain, 200, 5));
    let expected = (run(&alone, long()).text, run(&alone, side()).text);
    let (engine, log) = engine(4, 2);
    let mut first = engine.submit(long()).unwrap();
    first.next_blocking().unwrap();
    let side = run(&engine, side());
    let steps = log.lock().decodes;
    assert!(steps < 200, "{steps} steps before the side request was answered");
    assert_eq!(side.text, expected.1);
    let text: String = std::iter::from_fn(|| first.next_blocking())
        .filter_map(|event| match event {
            Event::Output(OutputEvent::Content(text)) => Some(text),
            _ => None,
        })
        .collect();
    assert_eq!(text, expected.0);
}

#[test]
fn b139_mlx_lm_883_what_can_never_fit_is_refused_with_numbers() {
    let memory = bytes(640);
    let (engine, log) = admitting(4, 2, AMPLE, Some(memory));
    assert!(run(&engine, request(Op::Plain, 600, 40)).end.is_ok());
    let refused = engine.submit(request(Op::Plain, 600, 41)).err();
    assert_eq!(refused, Some(SubmitError::NeverFits { tokens: 641, bytes: bytes(641), memory }));
    // As much as the context holds.
    let refused = engine.submit(Request { max_tokens: None, ..request(Op::Plain, 600, 1) }).err();
    assert_eq!(refused, Some(SubmitError::NeverFits { tokens: CONTEXT, bytes: bytes(CONTEXT), memory }));
    assert_eq!(log.lock().begun, 1);
}

#[test]
fn what_does_not_fit_now_waits_its_turn() {
    let (engine, log) = admitting(8, 3, PrefixOptions::default(), Some(2 * bytes(1000)));
    let mut first = engine.submit(request(Op::SlowDecode, 10, 990)).unwrap();
    first.next_blocking().unwrap();
    let mut second = engine.submit(request(Op::Plain, 10, 2 * 64 + 990)).unwrap();
    let mut third = engine.submit(request(Op::Plain, 10, 5)).unwrap();
    let steps = log.lock().decodes;
    wait("twenty steps", || log.lock().decodes > steps + 20);
    // The third would fit; but then the second might wait for ever.
    assert_eq!(engine.load(), Load { running: 1, waiting: 2 });
    drop(first);
    assert!(drain(&mut second).end.is_ok());
    assert!(drain(&mut third).end.is_ok());
    let log = log.lock();
    assert_eq!((log.begun, log.ended), (3, 3));
}

#[test]
fn the_cache_gives_way_to_requests_and_gets_its_memory_back() {
    let memory = bytes(6400) + bytes(640);
    let (engine, log) = admitting(8, 2, AMPLE, Some(memory));
    let cached = |told: Told| told.end.unwrap().usage.cached_tokens;
    run(&engine, request(Op::Plain, 1000, 2));
    let mut other = request(Op::Plain, 1500, 2);
    other.prompt[0] = Op::EosAfter4 as u32;
    run(&engine, other);
    assert_eq!(cached(run(&engine, request(Op::Plain, 1000, 2))), 960, "both are kept");
    // It leaves room for hardly more than the conversation that it continues.
    let bytes_left = memory - bytes(1000 + 4700);
    assert!((bytes(960)..2 * bytes(960)).contains(&bytes_left));
    assert_eq!(cached(run(&engine, request(Op::Plain, 1000, 4700))), 960);
    let mut other = request(Op::Plain, 1500, 2);
    other.prompt[0] = Op::EosAfter4 as u32;
    assert_eq!(cached(run(&engine, other)), 0, "dropped for the long one");
    let mut other = request(Op::Plain, 1500, 2);
    other.prompt[0] = Op::EosAfter4 as u32;
    assert_eq!(cached(run(&engine, other)), 1472, "kept again");
    let log = log.lock();
    assert_eq!(log.begun, log.ended);
}
