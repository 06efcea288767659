//! The answers to one request, side by side.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use lily_engine::{Answer, Event, Finished};

use crate::metrics::Metrics;
use crate::recall::Note;

/// Drops what still runs when it is dropped.
pub(crate) struct Answers {
    all: Vec<Answer>,
    ended: Vec<Option<Finished>>,
    /// What is remembered of each, where that is wanted.
    notes: Vec<Option<Note>>,
    /// Who is asked first, so that nobody's events wait for another's end.
    turn: usize,
    metrics: Arc<Metrics>,
    began: Instant,
    /// When each had its last output.
    last: Vec<Option<Instant>>,
}

impl Answers {
    pub(crate) fn new(all: Vec<Answer>, note: Option<Note>, metrics: Arc<Metrics>) -> Self {
        let ended = all.iter().map(|_| None).collect();
        let notes = vec![note; all.len()];
        let last = vec![None; all.len()];
        Self { all, ended, notes, turn: 0, metrics, began: Instant::now(), last }
    }

    /// Measure the time until this output of answer `i`.
    fn measure(&mut self, i: usize) {
        let now = Instant::now();
        match self.last[i] {
            Some(last) => self.metrics.between(now - last),
            None if self.last.iter().all(Option::is_none) => self.metrics.first(now - self.began),
            None => {}
        }
        self.last[i] = Some(now);
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The next event and whose it is; `None` where there will be none before all have ended. May be dropped while it waits
    /// without losing an event.
    pub(crate) async fn next(&mut self) -> Option<(usize, Event)> {
        let next = poll_fn(|cx| {
            for step in 0..self.all.len() {
                let i = (self.turn + step) % self.all.len();
                if self.ended[i].is_some() {
                    continue;
                }
                if let Poll::Ready(event) = self.all[i].poll_next(cx) {
                    self.turn = i + 1;
                    return Poll::Ready(event.map(|event| (i, event)));
                }
            }
            Poll::Pending
        });
        let (i, event) = next.await?;
        match &event {
            Event::Output(event) => {
                self.notes[i].iter_mut().for_each(|note| note.add(event));
                self.measure(i);
            }
            // Before the client hears of the end: it may ask again at once.
            Event::Finished(_) => self.notes[i].take().into_iter().for_each(Note::finish),
            _ => {}
        }
        Some((i, event))
    }

    /// Answer `i` has ended. The sum of all, once it was the last: the prompt counts once, and decoding took as long as the
    /// longest.
    pub(crate) fn end(&mut self, i: usize, finished: Finished) -> Option<Finished> {
        self.ended[i] = Some(finished);
        let all: Option<Vec<&Finished>> = self.ended.iter().map(Option::as_ref).collect();
        let (first, others) = all?.split_first().map(|(first, others)| ((*first).clone(), others.to_vec()))?;
        let total = others.into_iter().fold(first, |mut sum, one| {
            sum.usage.completion_tokens += one.usage.completion_tokens;
            sum.usage.reasoning_tokens += one.usage.reasoning_tokens;
            sum.timings.decode = sum.timings.decode.max(one.timings.decode);
            sum
        });
        self.metrics.finished(&total.usage);
        Some(total)
    }
}
