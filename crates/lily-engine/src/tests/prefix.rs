//! Requests that begin with what earlier ones read or wrote.

use super::fake::Op;
use super::*;

const AMPLE: PrefixOptions = PrefixOptions { bytes: 1 << 30, exact: false };

/// The next turn of a conversation: the prompt, what the model answered and `more` tokens.
fn turn(log: &Log, prompt: &[u32], answer: usize, more: u32) -> Vec<u32> {
    let fed = log.lock().fed.clone();
    let fed = &fed[fed.len() + 1 - answer..];
    prompt.iter().chain(fed).copied().chain((0..more).map(|i| 600 + i % 7)).collect()
}

fn cached(told: &Told) -> usize {
    told.end.as_ref().unwrap().usage.cached_tokens
}

#[test]
fn a_second_request_starts_where_the_first_one_parts() {
    let (engine, log) = caching(4, 1, AMPLE);
    let (cold, _) = self::engine(4, 1);
    let first = run(&engine, request(Op::Plain, 150, 12));
    assert_eq!(cached(&first), 0);
    // The same again: the last multiple of 64 before its end.
    let again = run(&engine, request(Op::Plain, 150, 12));
    assert_eq!((cached(&again), &again.text), (128, &first.text));
    // The conversation goes on: everything but the answer's last token, which was never fed back.
    let prompt = turn(&log, &request(Op::Plain, 150, 1).prompt, 12, 30);
    let read = log.lock().read;
    let next = Request { prompt, ..request(Op::Plain, 1, 12) };
    let warm = run(&engine, Request { prompt: next.prompt.clone(), ..request(Op::Plain, 1, 12) });
    assert_eq!(cached(&warm), 161);
    assert_eq!(log.lock().read - read, 30);
    assert_eq!(warm.text, run(&cold, next).text);
}
