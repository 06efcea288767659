//! Several answers to one prompt.

use super::fake::Op;
use super::*;

const WARM: SamplingParams = SamplingParams { temperature: 1.5, top_k: 50, top_p: 0.95, min_p: 0.0, seed: Some(40) };

fn asked(op: Op, prompt: usize, tokens: usize) -> Request {
    Request { sampling: WARM, ..request(op, prompt, tokens) }
}

#[test]
fn each_is_what_its_seed_gives_alone_and_the_prompt_is_read_once() {
    let (alone, _) = engine(4, 1);
    let expected: Vec<_> = (0..5)
        .map(|i| {
            let sampling = SamplingParams { seed: Some(40 + i), ..WARM };
            run(&alone, Request { sampling, ..asked(Op::Plain, 150, 12) })
        })
        .collect();
    assert!(expected.windows(2).all(|w| w[0].text != w[1].text), "other seeds, other answers");
    for (slots, prefix) in [
        (1, PrefixOptions::default()),
        (2, PrefixOptions::default()),
        (3, PrefixOptions { bytes: 1 << 30, exact: false }),
        (8, PrefixOptions { bytes: 1 << 30, exact: true }),
    ] {
        let (engine, log) = caching(0, slots, prefix);
        for round in 0..2 {
            let mut answers = engine.submit_choices(asked(Op::Plain, 150, 12), 5).unwrap();
            let read = log.lock().read;
            for (answer, expected) in answers.iter_mut().zip(&expected) {
                let told = drain(answer);
                let usage = told.end.unwrap().usage;
                let cached = if round == 1 && prefix.bytes > 0 { 128 } else { 0 };
                assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens), (150, 12, cached));
                assert_eq!(told.text, expected.text);
            }
            assert!(log.lock().read - read <= 150);
            wait("an idle engine", || engine.load() == IDLE);
        }
        let log = log.lock();
        assert_eq!(log.read, if prefix.bytes > 0 { 150 + 22 } else { 300 });
        assert_eq!((log.begun, log.ended), (10, 10));
        assert!(log.widest <= slots && (slots == 1 || log.widest > 1), "{} of {slots} at once", log.widest);
    }
}

#[test]
fn they_go_before_requests_that_came_later_and_take_none_of_their_places() {
    let (engine, log) = engine(1, 1);
    let mut choices = engine.submit_choices(request(Op::SlowDecode, 10, 60), 3).unwrap();
    // It waits: the further answers do not fill the queue.
    wait("the fork", || engine.load() == Load { running: 1, waiting: 2 });
    let held = log.lock();
    let mut later = engine.submit(request(Op::Plain, 70, 1)).unwrap();
    assert_eq!(engine.submit(request(Op::Plain, 70, 1)).err(), Some(SubmitError::QueueFull { waiting: 1 }));
    drop(held);
    assert!(drain(&mut later).end.is_ok());
    assert_eq!(log.lock().decodes, 3 * 59, "all before it");
    assert!(choices.iter_mut().all(|answer| drain(answer).end.is_ok()));
}

#[test]
fn one_that_leaves_is_not_missed() {
    for slots in [1, 3] {
        // While the prompt is read, the first leaves: the others go on from it.
        let (engine, log) = engine(4, slots);
        let held = log.lock();
        let mut choices = engine.submit_choices(request(Op::Plain, 200, 6), 3).unwrap();
        drop((held, choices.remove(0)));
        assert!(choices.iter_mut().all(|answer| drain(answer).end.is_ok()));
        wait("an idle engine", || engine.load() == IDLE);
        {
            let log = log.lock();
            assert_eq!((log.read, log.begun, log.ended), (200, 3, 3));
        }
        // In decode, one step in.
        let mut held = log.lock();
        let at = held.decodes + 1;
        let mut choices = engine.submit_choices(request(Op::Plain, 200, 6), 3).unwrap();
        let second = choices.remove(1);
        held.in_decode = Some((at, Box::new(|| drop(second))));
        drop(held);
        assert!(choices.iter_mut().all(|answer| drain(answer).end.is_ok()));
        wait("an idle engine", || engine.load() == IDLE);
        let log = log.lock();
        assert_eq!(log.begun, log.ended);
    }
}

#[test]
fn all_that_leave_stop_the_work() {
    let (engine, log) = engine(4, 2);
    let mut held = log.lock();
    let choices = engine.submit_choices(request(Op::Plain, 64 * 20, 6), 3).unwrap();
    held.in_prefill = Some((3, Box::new(|| drop(choices))));
    drop(held);
    wait("an idle engine", || engine.load() == IDLE);
    let log = log.lock();
    assert_eq!((log.prefills, log.begun, log.ended, log.snapshots), (3, 1, 1, 0));
}

#[test]
fn what_fails_before_the_fork_fails_for_all_and_after_it_for_one() {
    let (engine, log) = engine(4, 2);
    let ends = |op| -> Vec<_> {
        let mut answers = engine.submit_choices(request(op, 80, 8), 3).unwrap();
        answers.iter_mut().map(|a| drain(a).end.map(|f| f.reason).map_err(|e| e.to_string())).collect()
    };
    assert_eq!(ends(Op::FailPrefill), vec![Err("device: prefill failed".to_owned()); 3]);
    let panicked = "internal error while generating: prefill panicked".to_owned();
    assert_eq!(ends(Op::PanicPrefill), vec![Err(panicked); 3]);
    // Only what was to be forked.
    let failed = Err("device: snapshot failed".to_owned());
    assert_eq!(ends(Op::FailSnapshot), [Ok(FinishReason::Length), failed.clone(), failed]);
    assert_eq!(ends(Op::Plain), vec![Ok(FinishReason::Length); 3]);
    assert_eq!(engine.load(), IDLE);
    let log = log.lock();
    assert_eq!(log.begun, log.ended);
}

#[test]
fn closing_tells_those_that_wait() {
    let (engine, _) = engine(4, 1);
    let mut choices = engine.submit_choices(request(Op::SlowDecode, 10, 10_000), 3).unwrap();
    wait("the fork", || engine.load().waiting == 2);
    engine.close();
    for answer in &mut choices {
        while let Some(event) = answer.next_blocking() {
            let told = matches!(event, Event::Started { .. } | Event::Output(_) | Event::Failed(EngineError::ShutDown));
            assert!(told, "{event:?}");
        }
    }
}
