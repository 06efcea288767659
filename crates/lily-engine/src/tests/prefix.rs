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

#[test]
fn exactly_the_prompts_are_reused_when_bits_must_equal() {
    let (engine, log) = caching(4, 1, PrefixOptions { exact: true, ..AMPLE });
    run(&engine, request(Op::Plain, 150, 12));
    let prompt = turn(&log, &request(Op::Plain, 150, 1).prompt, 12, 30);
    assert_eq!(cached(&run(&engine, Request { prompt, ..request(Op::Plain, 1, 12) })), 128);
}

#[test]
fn states_are_kept_before_messages_begin() {
    let (engine, log) = caching(4, 1, AMPLE);
    run(&engine, Request { boundaries: vec![0, 70, 140, 330], ..request(Op::Plain, 400, 1) });
    // 64, 128, 320 and 384 by prefill, and the end.
    assert_eq!(log.lock().snapshots, 5);
    for (differs, expected) in [(70, 64), (140, 128), (319, 128), (320, 320), (399, 384)] {
        let mut prompt = request(Op::Plain, 400, 1).prompt;
        prompt[differs] = 999;
        assert_eq!(cached(&run(&engine, Request { prompt, ..request(Op::Plain, 1, 1) })), expected, "{differs}");
    }
}

#[test]
fn a_cancelled_prefill_keeps_what_it_read() {
    let (engine, log) = caching(4, 1, AMPLE);
    let answer = engine.submit(request(Op::SlowPrefill, 64 * 300, 1)).unwrap();
    wait("prefill", || log.lock().prefills > 5);
    drop(answer);
    wait("an idle engine", || engine.load() == IDLE);
    let read = log.lock().read;
    assert!(read < 64 * 150, "{read}");
    let prompt = request(Op::SlowPrefill, read + 10, 1);
    assert_eq!(cached(&run(&engine, prompt)), read);
    let log = log.lock();
    assert_eq!((log.begun, log.restored), (log.ended, 1));
}

#[test]
fn snapshots_that_fail_or_panic_cost_no_answer() {
    let (plain, _) = engine(4, 1);
    for op in [Op::FailSnapshot, Op::PanicSnapshot] {
        let (engine, log) = caching(4, 1, AMPLE);
        for _ in 0..2 {
            let told = run(&engine, request(op, 150, 12));
            assert_eq!((cached(&told), told.text), (0, run(&plain, request(op, 150, 12)).text));
        }
        run(&engine, request(Op::Plain, 150, 12));
        assert_eq!(cached(&run(&engine, request(Op::Plain, 150, 12))), 128, "the others' prefixes are kept");
        let log = log.lock();
        assert_eq!(log.begun, log.ended);
    }
}

#[test]
fn eight_conversations_interleaved_read_and_say_what_they_would_alone() {
    let (cold, cold_log) = engine(10, 1);
    for (bytes, exact, slots) in [(1 << 30, false, 1), (1 << 30, true, 2), (9000, false, 1), (9000, true, 3)] {
        let (warm, warm_log) = caching(10, slots, PrefixOptions { bytes, exact });
        let mut dice = 7 + bytes + slots as u64;
        let mut next = |n: usize| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) as usize % n
        };
        let mut talks: Vec<Vec<u32>> = (0..8).map(|i| request(Op::Plain, 60 + i, 1).prompt).collect();
        let (mut hits, mut tokens) = (0, 0);
        for _ in 0..60 {
            let n = next(8);
            let answer = 1 + next(70);
            let prompt = talks[n].clone();
            let boundaries = vec![0, prompt.len() / 2, prompt.len().saturating_sub(20)];
            let asked =
                || Request { prompt: prompt.clone(), boundaries: boundaries.clone(), ..request(Op::Plain, 1, answer) };
            let before = (warm_log.lock().rows.len(), cold_log.lock().rows.len());
            let (got, expected) = (run(&warm, asked()), run(&cold, asked()));
            assert_eq!(got.text, expected.text);
            // The state behind every token, not only the tokens.
            assert_eq!(warm_log.lock().rows[before.0..], cold_log.lock().rows[before.1..]);
            assert!(cached(&got) < prompt.len());
            hits += usize::from(cached(&got) > 0);
            tokens += cached(&got);
            let more = 1 + next(90) as u32;
            talks[n] = match next(8) {
                // An edited message: the conversation goes back.
                0 => prompt[..prompt.len() - next(prompt.len() / 2)].iter().copied().chain([900]).collect(),
                _ => turn(&warm_log, &prompt, answer, more),
            };
        }
        assert!(hits > 20 && tokens > 2000, "{hits} hits, {tokens} tokens with {bytes} bytes");
        let log = warm_log.lock();
        assert_eq!(log.begun, log.ended);
    }
}

#[test]
fn decoding_that_ends_at_a_block_is_decoding_still() {
    for (exact, expected) in [(false, 128), (true, 64)] {
        let (engine, log) = caching(4, 1, PrefixOptions { exact, ..AMPLE });
        // 120 tokens and 8 that are fed back.
        run(&engine, request(Op::Plain, 120, 9));
        let prompt = turn(&log, &request(Op::Plain, 120, 1).prompt, 9, 30);
        assert_eq!(cached(&run(&engine, Request { prompt, ..request(Op::Plain, 1, 1) })), expected);
    }
}
