//! The engine over a tiny deterministic model and over scripts. No test waits longer than it must: every wait is for a
//! condition, with a limit that only a failure reaches.

mod admission;
mod choices;
mod disk;
mod fake;
mod leaving;
mod prefix;
mod script;

use std::time::{Duration, Instant};

use lily_chat::{OutputEvent, OutputOptions, Tokenizer};

use crate::{
    Adjust, Answer, Engine, EngineError, EngineOptions, Event, FinishReason, Finished, Load, PrefixOptions, Request,
    SamplingParams, SubmitError,
};
use fake::{Fake, Log, Op};

const CONTEXT: usize = 20_000;

pub(super) fn tokenizer() -> Tokenizer {
    let read = |name| {
        let path = format!("{}/../../demo/4bit/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    Tokenizer::from_json(&read("tokenizer.json"), Some(&read("tokenizer_config.json"))).unwrap()
}

pub(super) fn output() -> OutputOptions {
    OutputOptions { thinking: false, stop: Vec::new(), tools: Vec::new(), eos: vec![fake::EOS] }
}

fn engine(max_queue: usize, slots: usize) -> (Engine, Log) {
    caching(max_queue, slots, PrefixOptions::default())
}

/// An engine with a prefix cache.
fn caching(max_queue: usize, slots: usize, prefix: PrefixOptions) -> (Engine, Log) {
    admitting(max_queue, slots, prefix, None)
}

/// An engine with so much memory for sequences and cache.
fn admitting(max_queue: usize, parallel: usize, prefix: PrefixOptions, memory: Option<u64>) -> (Engine, Log) {
    let (model, log) = Fake::new();
    let options =
        EngineOptions { tokenizer: tokenizer(), context: CONTEXT, max_queue, prefix, parallel, memory, disk: None };
    (Engine::start(Box::new(model), options).unwrap(), log)
}

/// A prompt of `len` tokens whose first tells the fake model how to behave.
fn request(op: Op, len: usize, max_tokens: usize) -> Request {
    let mut prompt = vec![op as u32];
    prompt.extend((1..len as u32).map(|i| 300 + i % 50));
    Request {
        prompt,
        boundaries: Vec::new(),
        sampling: SamplingParams::GREEDY,
        adjust: Adjust::default(),
        max_tokens: Some(max_tokens),
        output: output(),
        progress: false,
    }
}

/// Everything that an answer says: text and how it ended.
pub(super) struct Told {
    pub(super) text: String,
    pub(super) events: Vec<OutputEvent>,
    pub(super) end: Result<Finished, EngineError>,
}

pub(super) fn drain(answer: &mut Answer) -> Told {
    let (mut text, mut events, mut started) = (String::new(), Vec::new(), false);
    loop {
        match answer.next_blocking().expect("an end before the channel closes") {
            Event::Started { .. } => assert!(!std::mem::replace(&mut started, true), "started twice"),
            Event::Output(event) => {
                assert!(started);
                if let OutputEvent::Content(t) = &event {
                    text.push_str(t);
                }
                events.push(event);
            }
            end => {
                let end = match end {
                    Event::Finished(f) => Ok(f),
                    Event::Failed(e) => Err(e),
                    _ => unreachable!(),
                };
                assert!(answer.next_blocking().is_none(), "an event after the end");
                return Told { text, events, end };
            }
        }
    }
}

/// Wait for a condition; the limit is for failures only.
pub(super) fn wait(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(10), "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn run(engine: &Engine, request: Request) -> Told {
    drain(&mut engine.submit(request).unwrap())
}

const IDLE: Load = Load { running: 0, waiting: 0 };

#[test]
fn an_answer_runs_to_its_length_and_frees_its_sequence() {
    let (engine, log) = engine(4, 1);
    let told = run(&engine, request(Op::Plain, 150, 12));
    let finished = told.end.unwrap();
    assert_eq!(finished.reason, FinishReason::Length);
    assert_eq!((finished.usage.prompt_tokens, finished.usage.completion_tokens), (150, 12));
    assert!(!told.text.is_empty());
    assert_eq!(engine.load(), IDLE);
    let log = log.lock();
    assert_eq!((log.begun, log.ended), (1, 1));
    // Chunks of 64, 64 and 22; the last token is never fed back.
    assert_eq!((log.prefills, log.decodes), (3, 11));
    assert_eq!(log.rooms, [162]);
}

#[test]
fn end_tokens_end_and_count() {
    let (engine, _) = engine(4, 1);
    let finished = run(&engine, request(Op::EosAfter4, 10, 100)).end.unwrap();
    assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::Stop, 5));
    // An end token that is also the last allowed one is an end, not a cut.
    let finished = run(&engine, request(Op::EosAfter4, 10, 5)).end.unwrap();
    assert_eq!(finished.reason, FinishReason::Stop);
}

#[test]
fn prompt_and_answer_share_the_context() {
    let (engine, log) = engine(4, 1);
    let refuse = |r| engine.submit(r).err();
    let too_long = |prompt| Some(SubmitError::PromptTooLong { prompt, context: CONTEXT });
    assert_eq!(refuse(request(Op::Plain, CONTEXT, 1)), too_long(CONTEXT));
    assert_eq!(refuse(request(Op::Plain, CONTEXT + 1, 1)), too_long(CONTEXT + 1));
    assert_eq!(refuse(Request { prompt: vec![], ..request(Op::Plain, 1, 1) }), Some(SubmitError::EmptyPrompt));
    assert_eq!(refuse(request(Op::Plain, 5, 0)), Some(SubmitError::NothingToGenerate));
    assert_eq!(log.lock().begun, 0);

    for max_tokens in [Some(1), Some(usize::MAX), None] {
        let finished = run(&engine, Request { max_tokens, ..request(Op::Plain, CONTEXT - 1, 1) }).end.unwrap();
        assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::Length, 1));
    }
    let finished = run(&engine, Request { max_tokens: None, ..request(Op::Plain, CONTEXT - 40, 1) }).end.unwrap();
    assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::Length, 40));
    assert!(log.lock().rooms.iter().all(|&r| r == CONTEXT));
}

#[test]
fn leaving_while_decoding_frees_the_sequence() {
    let (engine, log) = engine(4, 1);
    let mut answer = engine.submit(request(Op::SlowDecode, 10, 10_000)).unwrap();
    for _ in 0..4 {
        answer.next_blocking().unwrap();
    }
    drop(answer);
    wait("an idle engine", || engine.load() == IDLE);
    let log = log.lock();
    assert_eq!((log.begun, log.ended), (1, 1));
    assert!(log.decodes < 100, "{} steps after the client left", log.decodes);
}

#[test]
fn leaving_during_prefill_frees_the_sequence() {
    let (engine, log) = engine(4, 1);
    let answer = engine.submit(request(Op::SlowPrefill, 64 * 300, 1)).unwrap();
    wait("prefill", || log.lock().prefills > 2);
    drop(answer);
    wait("an idle engine", || engine.load() == IDLE);
    let log = log.lock();
    assert_eq!((log.begun, log.ended, log.decodes), (1, 1, 0));
    assert!(log.prefills < 150, "{} chunks", log.prefills);
}

#[test]
fn leaving_the_queue_costs_nothing() {
    let (engine, log) = engine(4, 1);
    let mut first = engine.submit(request(Op::SlowDecode, 10, 10_000)).unwrap();
    first.next_blocking().unwrap();
    let second = engine.submit(request(Op::Plain, 10, 5)).unwrap();
    let mut third = engine.submit(request(Op::Plain, 10, 5)).unwrap();
    assert_eq!(engine.load(), Load { running: 1, waiting: 2 });
    drop(second);
    assert_eq!(engine.load(), Load { running: 1, waiting: 1 });
    drop(first);
    assert!(drain(&mut third).end.is_ok());
    assert_eq!(log.lock().begun, 2);
}

#[test]
fn a_canceller_ends_the_answer_with_cancelled() {
    let (engine, log) = engine(4, 1);
    let mut running = engine.submit(request(Op::SlowDecode, 10, 10_000)).unwrap();
    let mut waiting = engine.submit(request(Op::Plain, 10, 5)).unwrap();
    running.next_blocking().unwrap();
    waiting.canceller().cancel();
    assert!(matches!(drain(&mut waiting).end, Err(EngineError::Cancelled)));
    running.canceller().cancel();
    let end = loop {
        match running.next_blocking().unwrap() {
            Event::Output(_) => {}
            end => break end,
        }
    };
    assert!(matches!(end, Event::Failed(EngineError::Cancelled)), "{end:?}");
    let log = log.lock();
    assert_eq!((log.begun, log.ended), (1, 1));
}

#[test]
fn fifty_cancelled_requests_leave_nothing_behind() {
    let (engine, log) = engine(100, 1);
    for i in 0..50 {
        let mut answer = engine.submit(request(Op::SlowDecode, 70, 1000)).unwrap();
        if i % 2 == 0 {
            answer.next_blocking().unwrap();
        }
    }
    wait("an idle engine", || engine.load() == IDLE);
    assert!(run(&engine, request(Op::Plain, 10, 5)).end.is_ok());
    let log = log.lock();
    assert_eq!(log.begun, log.ended);
}

#[test]
fn the_queue_is_bounded() {
    for max_queue in [0, 1, 3] {
        let (engine, _) = engine(max_queue, 1);
        let mut running = engine.submit(request(Op::SlowDecode, 10, 10_000)).unwrap();
        let waiting: Vec<_> = (0..max_queue).map(|_| engine.submit(request(Op::Plain, 10, 5)).unwrap()).collect();
        running.next_blocking().unwrap();
        let refused = engine.submit(request(Op::Plain, 10, 5)).err();
        assert_eq!(refused, Some(SubmitError::QueueFull { waiting: max_queue }));
        drop(running);
        for mut answer in waiting {
            assert!(drain(&mut answer).end.is_ok());
        }
        wait("an idle engine", || engine.load() == IDLE);
        assert!(run(&engine, request(Op::Plain, 10, 5)).end.is_ok());
    }
}

#[test]
fn failures_and_panics_stay_with_their_request() {
    let (engine, log) = engine(4, 1);
    let good = run(&engine, request(Op::Plain, 80, 8)).text;
    for (op, message) in [
        (Op::FailPrefill, "device: prefill failed"),
        (Op::FailDecode, "device: decode failed"),
        (Op::Nan, "the model gave NaN as logit of token 17"),
        (Op::PanicPrefill, "internal error while generating: prefill panicked"),
        (Op::PanicDecode, "internal error while generating: decode panicked"),
    ] {
        let end = run(&engine, request(op, 80, 8)).end;
        assert_eq!(end.unwrap_err().to_string(), message);
        assert_eq!(engine.load(), IDLE, "{message}");
        assert_eq!(run(&engine, request(Op::Plain, 80, 8)).text, good, "after {message}");
    }
    let log = log.lock();
    assert_eq!(log.begun, log.ended);
}

#[test]
fn a_model_without_room_fails_that_request_alone() {
    let (engine, log) = engine(4, 1);
    let end = run(&engine, request(Op::Plain, 80, fake::NO_ROOM - 80)).end;
    assert_eq!(end.unwrap_err().to_string(), "device: no memory");
    assert_eq!(engine.load(), IDLE);
    assert!(run(&engine, request(Op::Plain, 80, 8)).end.is_ok());
    assert_eq!(log.lock().begun, 1);
}

#[test]
fn a_batch_gives_the_same_text_as_one_after_another() {
    let requests = || (0..6).map(|i| request(if i == 2 { Op::EosAfter4 } else { Op::Plain }, 40 + 50 * i, 20 + i));
    let (serial, _) = engine(10, 1);
    let expected: Vec<_> = requests().map(|r| run(&serial, r).text).collect();
    let (batched, log) = engine(10, 3);
    let mut answers: Vec<_> = requests().map(|r| batched.submit(r).unwrap()).collect();
    let got: Vec<_> = answers.iter_mut().map(|a| drain(a).text).collect();
    assert_eq!(got, expected);
    assert!(log.lock().widest > 1, "never a batch");
}

#[test]
fn in_a_batch_only_the_broken_request_fails() {
    for op in [Op::FailDecode, Op::FailPrefill, Op::PanicPrefill, Op::Nan] {
        let (engine, log) = engine(4, 2);
        let mut good = engine.submit(request(Op::SlowDecode, 10, 30)).unwrap();
        let mut bad = engine.submit(request(op, 80, 30)).unwrap();
        assert!(drain(&mut bad).end.is_err(), "{op:?}");
        assert!(drain(&mut good).end.is_ok(), "{op:?}");
        let log = log.lock();
        assert_eq!(log.begun, log.ended);
    }
}

#[test]
fn seeds_reproduce_an_answer() {
    let (engine, _) = engine(4, 1);
    let text = |seed| {
        let sampling = SamplingParams { temperature: 1.5, top_k: 50, top_p: 0.95, min_p: 0.0, seed };
        run(&engine, Request { sampling, ..request(Op::Plain, 30, 40) }).text
    };
    assert_eq!(text(Some(1)), text(Some(1)));
    assert_ne!(text(Some(1)), text(Some(2)));
    assert_ne!(text(None), text(None));
}

#[test]
fn padding_ids_are_never_generated() {
    let (engine, log) = engine(4, 1);
    // The fake's padding logits are far above all others.
    for temperature in [0.0, 2.0] {
        let sampling = SamplingParams { temperature, ..SamplingParams::GREEDY };
        run(&engine, Request { sampling, ..request(Op::Padding, 10, 50) }).end.unwrap();
    }
    let vocab = tokenizer().len() as u32;
    assert!(log.lock().fed.iter().all(|&id| id < vocab));
}

#[test]
fn a_scripted_token_is_followed_unless_it_is_masked() {
    let (engine, log) = engine(4, 1);
    run(&engine, request(Op::ScriptedPadding, 10, 21)).end.unwrap();
    let fed = &log.lock().fed;
    assert_eq!(fed.len(), 20);
    for pair in fed.chunks(2) {
        assert_eq!(pair[0], 400);
        // The best token that is not masked; the fake puts it there.
        assert!((300..500).contains(&pair[1]), "{pair:?}");
    }
}

#[test]
fn closing_fails_what_runs_and_what_waits() {
    let (engine, log) = engine(4, 1);
    let mut running = engine.submit(request(Op::SlowDecode, 10, 10_000)).unwrap();
    let mut waiting = engine.submit(request(Op::Plain, 10, 5)).unwrap();
    running.next_blocking().unwrap();
    let other = engine.clone();
    drop(engine);
    assert_eq!(other.load().running, 1, "a handle is left");
    drop(other);
    let counts = {
        let log = log.lock();
        (log.begun, log.ended)
    };
    assert_eq!(counts, (1, 1), "dropping the last handle waits for the thread");
    assert!(matches!(drain(&mut waiting).end, Err(EngineError::ShutDown)));
    while let Some(event) = running.next_blocking() {
        assert!(matches!(event, Event::Output(_) | Event::Failed(EngineError::ShutDown)), "{event:?}");
    }

    let (engine, _) = self::engine(4, 1);
    engine.close();
    assert_eq!(engine.submit(request(Op::Plain, 10, 5)).err(), Some(SubmitError::Closed));
}
