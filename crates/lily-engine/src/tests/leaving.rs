//! Clients that leave: how many calls of the model follow, and what of their work is kept. They leave inside a call, so
//! that the counts are exact.

use super::fake::Op;
use super::*;

const AMPLE: PrefixOptions = PrefixOptions { bytes: 1 << 30, exact: false };

#[test]
fn b120_ds4_333_no_chunk_follows_the_one_in_which_the_client_leaves() {
    for (slots, call, exact) in [(1, 1, false), (1, 5, true), (2, 5, false)] {
        let (engine, log) = caching(4, slots, PrefixOptions { exact, ..AMPLE });
        let mut held = log.lock();
        let answer = engine.submit(request(Op::Plain, 64 * 20 + 7, 5)).unwrap();
        held.in_prefill = Some((call, Box::new(|| drop(answer))));
        drop(held);
        wait("an idle engine", || engine.load() == IDLE);
        {
            let log = log.lock();
            assert_eq!((log.prefills, log.decodes, log.read), (call, 0, call * 64));
            assert_eq!((log.begun, log.ended), (1, 1));
        }
        // The same again goes on where it stopped.
        let told = run(&engine, request(Op::Plain, 64 * 20 + 7, 5));
        assert_eq!(told.end.unwrap().usage.cached_tokens, call * 64);
        assert_eq!(log.lock().read, 64 * 20 + 7);
        let (cold, _) = self::engine(4, 1);
        assert_eq!(told.text, run(&cold, request(Op::Plain, 64 * 20 + 7, 5)).text);
    }
}

#[test]
fn no_step_follows_the_one_in_which_the_client_leaves() {
    for call in [1, 7] {
        let (engine, log) = caching(4, 1, AMPLE);
        let mut held = log.lock();
        let answer = engine.submit(request(Op::Plain, 100, 10_000)).unwrap();
        held.in_decode = Some((call, Box::new(|| drop(answer))));
        drop(held);
        wait("an idle engine", || engine.load() == IDLE);
        let fed = {
            let log = log.lock();
            assert_eq!((log.decodes, log.begun, log.ended), (call, 1, 1));
            log.fed.clone()
        };
        // Who takes up what was said restarts after it.
        let prompt = [request(Op::Plain, 100, 1).prompt, fed, vec![500, 501]].concat();
        let told = run(&engine, Request { prompt, ..request(Op::Plain, 1, 1) });
        assert_eq!(told.end.unwrap().usage.cached_tokens, 100 + call);
    }
}

#[test]
fn b122_pegainfer_642_the_queue_is_left_without_a_call() {
    let (engine, log) = engine(4, 1);
    let mut held = log.lock();
    let mut first = engine.submit(request(Op::Plain, 64 * 3, 5)).unwrap();
    let second = engine.submit(request(Op::Plain, 64 * 7, 5)).unwrap();
    let mut third = engine.submit(request(Op::Plain, 64, 5)).unwrap();
    held.in_prefill = Some((2, Box::new(|| drop(second))));
    drop(held);
    assert!(drain(&mut first).end.is_ok() && drain(&mut third).end.is_ok());
    let log = log.lock();
    assert_eq!((log.begun, log.read), (2, 64 * 4));
}

#[test]
fn b124_mlx_vlm_2147_others_go_on_when_one_leaves() {
    let (alone, _) = engine(4, 1);
    let expected = run(&alone, request(Op::Plain, 64 * 9, 20)).text;
    for prefilling in [true, false] {
        let (engine, log) = caching(4, 2, AMPLE);
        let mut held = log.lock();
        let leaves = engine.submit(request(Op::EosAfter4, 64 * 9 - 1, 20)).unwrap();
        let mut stays = engine.submit(request(Op::Plain, 64 * 9, 20)).unwrap();
        match prefilling {
            true => held.in_prefill = Some((4, Box::new(|| drop(leaves)))),
            false => held.in_decode = Some((2, Box::new(|| drop(leaves)))),
        }
        drop(held);
        assert_eq!(drain(&mut stays).text, expected);
        wait("an idle engine", || engine.load() == IDLE);
        let log = log.lock();
        assert_eq!((log.begun, log.ended), (2, 2));
    }
}
