//! Warm equals cold in every bit: an engine with a prefix cache, against a model that reads every prompt anew in one call and
//! chooses the largest logit itself, and a list of all states that the cache was given.
//!
//! What differs between the tests is a [`Setup`]: the device, the cache, and what happens to it.

#![allow(dead_code, reason = "each test file uses a part")]

mod watched;

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lily_chat::{OutputOptions, Tokenizer};
use lily_engine::{
    Adjust, Answer, DiskOptions, Engine, EngineOptions, Event, Load, PrefixOptions, Request, SamplingParams,
};
use lily_model::{Model, Rows, SeqId};

use watched::{Row, Seen, Watched};

/// Snapshots made by prefill stand at its multiples, and keys and values lie in blocks of it.
pub const BLOCK: usize = 64;

/// What a test runs on.
pub struct Setup {
    /// Makes the model: for the engine, again after a restart, and for the cold runs.
    pub model: Box<dyn Fn() -> Box<dyn Model>>,
    pub tokenizer: Tokenizer,
    /// Tokens that prompt and answer may have.
    pub context: usize,
    /// Tokens of a pass of the engine's, a multiple of [`BLOCK`].
    pub chunk: usize,
    /// Tokens of an answer at most, in a walk.
    pub answers: usize,
    pub prefix: PrefixOptions,
    /// Requests that the engine runs at once.
    pub parallel: usize,
    /// Whether the cache has room for everything: then a request must restart from the longest state that there ever was.
    pub ample: bool,
    /// Where what was kept is after a restart of the engine.
    pub disk: Option<DiskOptions>,
}

/// Numbers from a seed (SplitMix64).
pub struct Dice(Cell<u64>);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    pub fn below(&self, n: usize) -> usize {
        self.0.set(self.0.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    /// Tokens of a vocabulary of `vocab`.
    pub fn tokens(&self, count: usize, vocab: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab) as u32).collect()
    }
}

/// What a test has seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub requests: usize,
    /// Requests that restarted from a kept state.
    pub hits: usize,
    /// Tokens of their prompts that it held.
    pub reused: usize,
    /// Hits after a restart of the engine, of states from before it.
    pub survived: usize,
    /// Hits of a state that a client's leaving in prefill left behind.
    pub cancelled: usize,
    /// Requests that a longer state was made for once, which is gone.
    pub dropped: usize,
    /// Requests that took turns with others.
    pub together: usize,
    /// Rows of logits compared, and tokens that a device chose itself.
    pub rows: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Origin {
    Answered,
    Cancelled,
}

/// A state that the cache was given, by this engine or one before.
struct Kept {
    tokens: Vec<u32>,
    origin: Origin,
    engine: usize,
}

pub struct Talks {
    setup: Setup,
    cold: Box<dyn Model>,
    engine: Option<Engine>,
    engines: usize,
    seen: Arc<Mutex<Seen>>,
    kept: Vec<Kept>,
    /// Whether answers are compared with cold runs; counting alone needs none.
    pub compare: bool,
    /// Prompt tokens that the last request read.
    pub read: usize,
    pub counts: Counts,
}

impl Talks {
    pub fn new(setup: Setup) -> Self {
        let cold = (setup.model)();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut talks = Self {
            setup,
            cold,
            engine: None,
            engines: 0,
            seen,
            kept: Vec::new(),
            compare: true,
            read: 0,
            counts: Counts::default(),
        };
        talks.restart();
        talks
    }

    /// Ids that a prompt may hold.
    pub fn vocab(&self) -> usize {
        self.setup.tokenizer.len().min(self.cold.shape().vocab)
    }

    /// End the engine and begin another.
    pub fn restart(&mut self) {
        // The old one is gone before the new one opens what it left.
        self.engine = None;
        if self.setup.disk.is_none() {
            self.kept.clear();
        }
        let Setup { model, tokenizer, context, chunk, prefix, parallel, disk, .. } = &self.setup;
        let watched = Box::new(Watched { model: model(), chunk: *chunk, seen: Arc::clone(&self.seen) });
        let options = EngineOptions {
            tokenizer: tokenizer.clone(),
            context: *context,
            max_queue: 8,
            prefix: *prefix,
            parallel: *parallel,
            memory: None,
            disk: disk.clone(),
        };
        self.engine = Some(Engine::start(watched, options).unwrap());
        self.engines += 1;
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    /// Ask for `answer` tokens and compare every row behind them with a cold run's. Returns what was said.
    pub fn ask(&mut self, prompt: &[u32], boundaries: &[usize], answer: usize) -> Vec<u32> {
        *self.seen.lock().unwrap() = Seen::default();
        let finished = drain(self.engine().submit(request(prompt, boundaries, answer)).unwrap());
        let what =
            format!("request {}: {} of {} tokens were kept", self.counts.requests, finished.cached, prompt.len());
        assert_eq!((finished.prompt, finished.said), (prompt.len(), answer), "{what}");
        self.check_hit(prompt, finished.cached, &what);
        let (seq, began_at) = self.seen.lock().unwrap().began[0];
        assert_eq!(began_at, finished.cached, "{what}");
        self.read = self.seen.lock().unwrap().read;
        assert_eq!(began_at + self.read, prompt.len(), "{what}: every other token was read once");
        self.answered(prompt, boundaries, answer, (seq, began_at), &what)
    }

    /// Ask for several at once: they take turns. Returns what each said.
    pub fn together(&mut self, asked: &[(Vec<u32>, Vec<usize>, usize)]) -> Vec<Vec<u32>> {
        *self.seen.lock().unwrap() = Seen::default();
        let submit = |(prompt, boundaries, answer): &(Vec<u32>, Vec<usize>, usize)| {
            self.engine().submit(request(prompt, boundaries, *answer)).unwrap()
        };
        let answers: Vec<Answer> = asked.iter().map(submit).collect();
        let finished: Vec<Ended> = answers.into_iter().map(drain).collect();
        let began = self.seen.lock().unwrap().began.clone();
        assert_eq!(began.len(), asked.len());
        self.counts.together += asked.len();
        let mut said = Vec::new();
        for (((prompt, boundaries, answer), seq), finished) in asked.iter().zip(began).zip(finished) {
            let what = format!("together: {} of {} tokens were kept", seq.1, prompt.len());
            assert!(seq.1 == finished.cached && seq.1 < prompt.len(), "{what}");
            said.push(self.answered(prompt, boundaries, *answer, seq, &what));
        }
        said
    }

    /// Ask for two answers to one prompt: the second begins where the prompt ends.
    pub fn twice(&mut self, prompt: &[u32], boundaries: &[usize], answer: usize) {
        *self.seen.lock().unwrap() = Seen::default();
        let answers = self.engine().submit_choices(request(prompt, boundaries, answer), 2).unwrap();
        answers.into_iter().for_each(|answer| {
            drain(answer);
        });
        let (began, rows) = {
            let mut seen = self.seen.lock().unwrap();
            let began = seen.began.clone();
            assert_eq!((began.len(), began[1].1), (2, prompt.len()));
            assert_eq!(began[0].1 + seen.read, prompt.len(), "the prompt was read once");
            let rows = seen.rows_of(began[1].0);
            (began, rows)
        };
        self.answered(prompt, boundaries, answer, began[0], "the first of two");
        // Its first token is chosen from the first one's logits.
        assert!(rows == self.cold_run(prompt, answer)[1..], "the second of two differs from a cold run's");
    }

    /// A request was answered by sequence `began.0`, which began with `began.1` tokens.
    fn answered(
        &mut self,
        prompt: &[u32],
        boundaries: &[usize],
        answer: usize,
        began: (SeqId, usize),
        what: &str,
    ) -> Vec<u32> {
        let rows = self.seen.lock().unwrap().rows_of(began.0);
        assert_eq!(rows.len(), answer, "{what}");
        let said: Vec<u32> = rows.iter().map(|row| row.token(self.setup.tokenizer.len())).collect();
        if self.compare {
            for (i, (got, expected)) in rows.iter().zip(&self.cold_run(prompt, answer)).enumerate() {
                assert!(got == expected, "{what}; row {i} of {answer} differs from a cold run's");
            }
            self.counts.rows += rows.len();
        }
        self.counts.requests += 1;
        self.note_cuts(prompt, boundaries, began.1, prompt.len());
        // The last token was not fed back.
        let end = [prompt, &said[..answer - 1]].concat();
        self.note(end, Origin::Answered, answer > 1);
        said
    }

    /// Ask, and leave inside the model's prefill call of that number, from 1 (or after the first token, where there are not
    /// so many).
    pub fn leave(&mut self, prompt: &[u32], boundaries: &[usize], call: usize) {
        let mut seen = self.seen.lock().unwrap();
        *seen = Seen::default();
        let answer = self.engine().submit(request(prompt, boundaries, 1)).unwrap();
        seen.leaves = Some((call, answer));
        drop(seen);
        let began = Instant::now();
        while self.engine().load() != Load::default() {
            assert!(began.elapsed() < Duration::from_secs(60), "an engine that nobody listens to goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (calls, read, began_at, left) = {
            let mut seen = self.seen.lock().unwrap();
            (seen.calls, seen.read, seen.began[0].1, seen.leaves.take().is_none())
        };
        let origin = if left { Origin::Cancelled } else { Origin::Answered };
        assert!(calls <= call, "{calls} passes, and the client left in number {call}");
        self.check_hit(prompt, began_at, "a request that was left");
        self.note_cuts(prompt, boundaries, began_at, began_at + read);
        self.note(prompt[..began_at + read].to_vec(), origin, false);
    }

    /// Rows of a run that reads the whole prompt in one call.
    fn cold_run(&mut self, prompt: &[u32], answer: usize) -> Vec<Row> {
        let vocab = self.setup.tokenizer.len();
        let model = self.cold.as_mut();
        let seq = model.begin(prompt.len() + answer).unwrap();
        let mut rows = vec![Row::logits(model.prefill(seq, prompt, Rows::Last).unwrap().row(0))];
        while rows.len() < answer {
            let token = rows[rows.len() - 1].token(vocab);
            rows.push(watched::step(model, seq, token, vocab));
        }
        model.end(seq);
        rows
    }

    /// What a request restarted from is a state that was made and that it continues; the longest, where all are there.
    fn check_hit(&mut self, prompt: &[u32], cached: usize, what: &str) {
        assert!(cached < prompt.len(), "{what}: the last token is always computed");
        let here = |k: &&Kept| k.tokens.len() < prompt.len() && prompt.starts_with(&k.tokens);
        let longest = self.kept.iter().filter(here).map(|k| k.tokens.len()).max().unwrap_or(0);
        if self.setup.ample {
            assert_eq!(cached, longest, "{what}; the longest state that it continues is another");
        }
        assert!(cached <= longest, "{what}; there was none longer than {longest}");
        self.counts.dropped += usize::from(cached < longest);
        if cached == 0 {
            return;
        }
        self.counts.hits += 1;
        self.counts.reused += cached;
        let made: Vec<&Kept> = self.kept.iter().filter(here).filter(|k| k.tokens.len() == cached).collect();
        assert!(!made.is_empty(), "{what}; no state was made there");
        self.counts.cancelled += usize::from(made.iter().all(|k| k.origin == Origin::Cancelled));
        self.counts.survived += usize::from(made.iter().all(|k| k.engine < self.engines));
    }

    /// States that prefill leaves behind between `from` and `to`: the last multiple of a block before each message and
    /// before the end of the prompt, and every 4,096 tokens.
    fn note_cuts(&mut self, prompt: &[u32], boundaries: &[usize], from: usize, to: usize) {
        for cut in (from + 1..=to).filter(|n| n.is_multiple_of(BLOCK)) {
            let next = cut + BLOCK;
            let before_message = boundaries.iter().any(|b| (cut..next).contains(b) && *b < prompt.len());
            let before_end = (cut..next).contains(&(prompt.len() - 1));
            if before_message || before_end || cut.is_multiple_of(4096) && cut < prompt.len() {
                self.note(prompt[..cut].to_vec(), Origin::Answered, false);
            }
        }
    }

    fn note(&mut self, tokens: Vec<u32>, origin: Origin, decoded: bool) {
        let exact = !decoded && tokens.len().is_multiple_of(BLOCK);
        let known = self.kept.iter().any(|k| k.tokens == tokens);
        if !tokens.is_empty() && !known && (exact || !self.setup.prefix.exact) {
            self.kept.push(Kept { tokens, origin, engine: self.engines });
        }
    }
}

fn request(prompt: &[u32], boundaries: &[usize], answer: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        boundaries: boundaries.to_vec(),
        sampling: SamplingParams::GREEDY,
        adjust: Adjust::default(),
        max_tokens: Some(answer),
        // No end token: every answer has its length.
        output: OutputOptions::default(),
        progress: false,
    }
}

/// Tokens that the engine counted.
struct Ended {
    prompt: usize,
    cached: usize,
    said: usize,
}

fn drain(mut answer: Answer) -> Ended {
    loop {
        match answer.next_blocking().unwrap() {
            Event::Finished(finished) => {
                let usage = finished.usage;
                let (prompt, cached) = (usage.prompt_tokens, usage.cached_tokens);
                return Ended { prompt, cached, said: usage.completion_tokens };
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

/// Requests that share n - 2 … n + 2 tokens with one before them, for n at every border that there is: of a block, of a pass
/// and of a message. They end there or go on otherwise.
pub fn borders(talks: &mut Talks, base: usize, boundaries: &[usize], seed: u64) {
    let dice = Dice::new(seed);
    let vocab = talks.vocab();
    let base = dice.tokens(base, vocab);
    talks.ask(&base, boundaries, 3);
    let chunk = talks.setup.chunk;
    let mut borders: Vec<usize> =
        (BLOCK..base.len()).step_by(BLOCK).chain([chunk]).chain(boundaries.to_vec()).collect();
    borders.sort_unstable();
    borders.dedup();
    for n in borders {
        for shared in n.saturating_sub(2).max(1)..=(n + 2).min(base.len() - 1) {
            let mut prompt = base[..shared].to_vec();
            if dice.below(3) > 0 {
                prompt.push((base[shared] + 1) % vocab as u32);
                prompt.extend(dice.tokens([0, 1, 2, 61][dice.below(4)], vocab));
            }
            talks.ask(&prompt, boundaries, 1 + dice.below(3));
        }
    }
}

/// Eight conversations, taken up in any order: answered, edited, asked again, left, and taken up after a restart.
pub fn walk(talks: &mut Talks, steps: usize, longest: usize, seed: u64) {
    let dice = Dice::new(seed);
    let vocab = talks.vocab();
    // Half of them begin alike.
    let common = dice.tokens(BLOCK + 3, vocab);
    let begin = |n: usize| match n % 2 {
        0 => [&common[..], &dice.tokens(1 + n, vocab)].concat(),
        _ => dice.tokens(BLOCK - 2 + n, vocab),
    };
    let mut prompts: Vec<Vec<u32>> = (0..8).map(begin).collect();
    let mut starts: Vec<Vec<usize>> = vec![vec![0]; 8];
    for step in 0..steps {
        let n = dice.below(8);
        if prompts[n].len() > longest {
            (prompts[n], starts[n]) = (begin(n), vec![0]);
        }
        let (prompt, boundaries) = (prompts[n].clone(), starts[n].clone());
        let answers = talks.setup.answers;
        match dice.below(8) {
            // The client leaves while its prompt is read; the same prompt may come again.
            0 => {
                prompts[n].extend(dice.tokens(1 + dice.below(4 * BLOCK), vocab));
                talks.leave(&prompts[n], &boundaries, 1 + dice.below(2));
                talks.ask(&prompts[n], &boundaries, 1 + dice.below(3));
            }
            // Asked again.
            1 => {
                talks.ask(&prompt, &boundaries, 1 + dice.below(4));
                talks.twice(&prompt, &boundaries, 2);
            }
            // The last message is edited, or one before it.
            2 if boundaries.len() > 1 => {
                let keep = 1 + dice.below(boundaries.len() - 1);
                let at = boundaries[keep];
                prompts[n] = [&prompt[..at], &dice.tokens(1 + dice.below(40), vocab)].concat();
                starts[n].truncate(keep + 1);
                talks.ask(&prompts[n], &starts[n], 1 + dice.below(3));
            }
            3 if step % 16 == 15 => talks.restart(),
            // Several go on at once.
            4 | 5 if talks.setup.parallel > 1 => {
                let some: Vec<usize> = (0..3).map(|i| (n + i * (1 + step % 2)) % 8).collect();
                let asked: Vec<_> =
                    some.iter().map(|&n| (prompts[n].clone(), starts[n].clone(), 1 + dice.below(6))).collect();
                for (&n, said) in some.iter().zip(talks.together(&asked)) {
                    starts[n].push(prompts[n].len() + said.len());
                    prompts[n].extend(said);
                    prompts[n].extend(dice.tokens(1 + dice.below(70), vocab));
                }
            }
            // The conversation goes on, sometimes so that a prompt or an answer ends at a block.
            _ => {
                let answer = match dice.below(3) {
                    0 => (prompt.len() / BLOCK * BLOCK + BLOCK + 1 - prompt.len()).min(answers),
                    _ => 1 + dice.below(answers.min(8)),
                };
                let said = talks.ask(&prompt, &boundaries, answer);
                let at = prompt.len() + said.len();
                let more = match dice.below(3) {
                    0 => BLOCK - at % BLOCK,
                    _ => 1 + dice.below(70),
                };
                prompts[n] = [prompt, said, dice.tokens(more, vocab)].concat();
                starts[n].push(at);
            }
        }
    }
}
