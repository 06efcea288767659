//! The engine thread: takes requests from the queue, gives each its turns, and keeps the failures of one from the rest.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lily_chat::Tokenizer;
use lily_model::{Logits, Model, Rows, SeqId, SequenceBytes, Top};

use crate::engine::EngineOptions;
use crate::prefix::{Disk, PrefixCache};
use crate::queue::{CacheUse, Job, Queue};
use crate::request::{EngineError, Event, Finished};
use crate::run::Run;
use crate::schedule::{Schedule, Turn};

/// How long an engine with nothing else to do waits before it asks again whether the disk is ready for more.
const DISK_PAUSE: Duration = Duration::from_millis(10);

/// Serve the queue until it closes.
pub(crate) fn work(model: Box<dyn Model>, options: &EngineOptions, queue: &Queue) {
    let mut worker = Worker {
        sequence: model.sequence_bytes(),
        model,
        tokenizer: &options.tokenizer,
        context: options.context,
        memory: options.memory.unwrap_or(u64::MAX),
        queue,
        runs: Vec::new(),
        schedule: Schedule::default(),
        cache: PrefixCache::new(options.prefix),
    };
    if let (Some(cache), Some(disk)) = (&mut worker.cache, &options.disk) {
        cache.keep_on(Disk::open(disk, worker.model.as_ref()));
    }
    while worker.admit() {
        worker.step();
        worker.tend();
    }
    while !worker.runs.is_empty() {
        worker.fail(0, EngineError::ShutDown);
    }
    worker.flush();
}

struct Worker<'a> {
    model: Box<dyn Model>,
    tokenizer: &'a Tokenizer,
    context: usize,
    /// Bytes that runs and cache may hold together.
    memory: u64,
    /// What a sequence takes of them.
    sequence: SequenceBytes,
    queue: &'a Queue,
    /// In order of arrival.
    runs: Vec<Run>,
    schedule: Schedule,
    /// `None` when nothing is kept.
    cache: Option<PrefixCache>,
}

/// What a decode step gave.
enum Chosen {
    /// The next token of each sequence.
    Tokens(Vec<u32>),
    /// The largest logits of each sequence, to choose from.
    Top(Vec<Top>),
    /// All logits, to choose from.
    Open(Logits),
}

/// Run code for one request; a panic becomes that request's error.
///
/// What the closure borrows may be half changed after a panic. Callers drop the request and its sequence, and a model
/// keeps nothing else that one sequence writes and another reads.
fn guard<T>(work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(EngineError::Panicked(text.unwrap_or_else(|| "a panic without a message".into())))
    })
}

impl Worker<'_> {
    /// Fill free slots with what fits, waiting when nothing runs and nothing is to be copied for the disk. When nothing
    /// runs, everything fits that was taken into the queue. False when the engine closes.
    fn admit(&mut self) -> bool {
        while self.runs.len() < self.queue.slots {
            let idle = self.runs.is_empty();
            let bytes = if idle { self.memory } else { self.unspoken() };
            let behind = self.cache.as_ref().is_some_and(PrefixCache::is_behind);
            let Some(job) = self.queue.take(idle && !behind, bytes) else { break };
            self.begin(job);
        }
        !self.queue.is_closed()
    }

    /// Bytes that no running request may come to need, and no answer waits to go on from.
    fn unspoken(&self) -> u64 {
        self.memory.saturating_sub(self.runs.iter().map(|run| run.job.bytes).sum()).saturating_sub(self.queue.held())
    }

    /// The cache may hold what no running request may come to need.
    fn share_memory(&mut self) {
        let unspoken = self.unspoken();
        if let Some(cache) = &mut self.cache {
            cache.limit(unspoken);
        }
        self.report();
    }

    /// Say what the cache holds.
    fn report(&self) {
        if let Some(cache) = &self.cache {
            self.queue.report(CacheUse { bytes: cache.bytes(), states: cache.states() });
        }
    }

    fn begin(&mut self, job: Job) {
        let listeners = job.listeners();
        let fork = job.fork.clone();
        let left = self.unspoken().saturating_sub(job.bytes);
        if let Some(cache) = &mut self.cache {
            // What the request continues is marked as used, and goes last.
            cache.find(&job.request.prompt);
            cache.limit(left);
        }
        let (model, tokenizer, context) = (self.model.as_mut(), self.tokenizer, self.context);
        let cache = self.cache.as_mut();
        match guard(|| Run::begin(job, model, tokenizer, context, cache)) {
            Ok(run) => {
                self.runs.push(run);
                // Room for it was made, and a state may have come from the disk.
                self.report();
            }
            Err(error) => {
                tracing::error!(%error, "a request could not begin");
                self.share_memory();
                self.queue.done();
                return listeners.iter().for_each(|listener| listener.send(Event::Failed(error.clone())));
            }
        }
        if let Some(fork) = fork {
            let i = self.runs.len() - 1;
            let (run, model) = (&mut self.runs[i], self.model.as_ref());
            let result = guard(|| run.choose(&fork.logits, model));
            self.settle(i, result);
        }
    }

    /// One call of the model, for whoever's turn it is.
    fn step(&mut self) {
        self.queue.sweep();
        for i in (0..self.runs.len()).rev() {
            if self.runs[i].job.is_cancelled() {
                // Who asks again need not wait for what has been read.
                self.keep_last(i);
                self.fail(i, EngineError::Cancelled);
            }
        }
        let needs: Vec<_> = self.runs.iter().map(|run| (run.seq, run.need())).collect();
        match self.schedule.next(&needs) {
            Some(Turn::Prefill(i)) => self.prefill(i),
            Some(Turn::Decode(turn)) => self.decode(&turn),
            None => {}
        }
    }

    fn prefill(&mut self, i: usize) {
        let (run, model) = (&mut self.runs[i], self.model.as_mut());
        let result = guard(|| {
            let (tokens, last) = run.chunk(model.prefill_chunk().max(1));
            let count = tokens.len();
            let logits = model.prefill(run.seq, tokens, if last { Rows::Last } else { Rows::None })?;
            run.advance(count);
            Ok(last.then_some(logits))
        });
        if result.is_ok() && self.runs[i].at_cut() {
            self.keep(i);
        }
        let result = result.and_then(|logits| {
            let Some(logits) = logits else { return Ok(None) };
            self.fork(i, logits.row(0));
            let (run, model) = (&mut self.runs[i], self.model.as_ref());
            guard(|| run.choose(logits.row(0), model))
        });
        self.settle(i, result);
    }

    /// The prompt of a run has been read: let the further answers to it go on from here. `logits` [vocab].
    fn fork(&mut self, i: usize, logits: &[f32]) {
        let (run, model) = (&mut self.runs[i], self.model.as_mut());
        let others = std::mem::take(&mut run.job.others);
        if others.is_empty() {
            return;
        }
        match guard(|| Ok(model.snapshot(run.seq)?)) {
            Ok(snapshot) => {
                self.queue.push_front(run.forks(&others, snapshot, logits));
                self.share_memory();
            }
            Err(error) => {
                tracing::error!(%error, "further answers could not begin");
                others.iter().for_each(|listener| listener.send(Event::Failed(error.clone())));
            }
        }
    }

    /// One token for each of `turn`. When the model refuses the batch, each is tried alone, so that only the one that
    /// it cannot serve fails.
    fn decode(&mut self, turn: &[usize]) {
        match self.feed(turn) {
            Ok(chosen) => {
                // From the last to the first: a run that ends leaves the list.
                for (row, &i) in turn.iter().enumerate().rev() {
                    let (run, model) = (&mut self.runs[i], self.model.as_ref());
                    run.was_fed();
                    let result = guard(|| match &chosen {
                        Chosen::Tokens(tokens) => Ok(run.accept(tokens[row])),
                        Chosen::Top(top) => run.choose_top(&top[row]),
                        Chosen::Open(logits) => run.choose(logits.row(row), model),
                    });
                    self.settle(i, result);
                }
            }
            Err(EngineError::Model(_)) if turn.len() > 1 => turn.iter().rev().for_each(|&i| self.decode(&[i])),
            Err(e) if turn.len() == 1 => self.fail(turn[0], e),
            Err(e) => turn.iter().rev().for_each(|&i| self.fail(i, EngineError::Panicked(e.to_string()))),
        }
    }

    /// The device chooses where every run of the turn is greedy, and gives only the largest logits where no run needs
    /// more, if it can.
    fn feed(&mut self, turn: &[usize]) -> Result<Chosen, EngineError> {
        let batch: Vec<(SeqId, u32)> =
            turn.iter().filter_map(|&i| self.runs[i].token().map(|token| (self.runs[i].seq, token))).collect();
        let greedy = turn.iter().all(|&i| self.runs[i].is_greedy());
        let candidates = turn
            .iter()
            .map(|&i| self.runs[i].candidates(self.model.as_ref()))
            .try_fold(0, |most, count| Some(most.max(count?)));
        let vocab = self.tokenizer.len();
        guard(|| {
            if let Some(k) = candidates {
                if greedy && let Some(tokens) = self.model.decode_greedy(&batch, vocab)? {
                    return Ok(Chosen::Tokens(tokens));
                }
                if !greedy && let Some(top) = self.model.decode_top(&batch, k, vocab)? {
                    return Ok(Chosen::Top(top));
                }
            }
            Ok(Chosen::Open(self.model.decode(&batch)?))
        })
    }

    fn settle(&mut self, i: usize, result: Result<Option<Finished>, EngineError>) {
        match result {
            Ok(None) => {}
            Ok(Some(finished)) => {
                self.keep_last(i);
                self.end(i, Event::Finished(finished));
            }
            Err(e) => self.fail(i, e),
        }
    }

    /// [`Self::keep`] for a run that ends: it leaves its keys and values to the cache, and all the memory that it did not
    /// come to need.
    fn keep_last(&mut self, i: usize) {
        let left = self.unspoken().saturating_add(self.runs[i].job.bytes).saturating_sub(self.sequence.of(0));
        if let Some(cache) = &mut self.cache {
            cache.limit(left);
        }
        self.keep(i);
    }

    /// Copy the state of a run into the cache. The request does not fail when that does.
    fn keep(&mut self, i: usize) {
        let Some(cache) = &mut self.cache else { return };
        let (model, run) = (self.model.as_mut(), &self.runs[i]);
        let (tokens, exact) = run.seen();
        let kept = guard(|| {
            // One that cannot stay would only drive out others.
            let fits = self.sequence.of(tokens.len()) - self.sequence.of(0) <= cache.budget();
            if fits && cache.wants(&tokens, exact) {
                cache.make_room();
                cache.insert(&tokens, model.snapshot(run.seq)?, exact);
            }
            Ok(())
        });
        match kept {
            Ok(()) => {}
            Err(error @ EngineError::Panicked(_)) => {
                // It may be half changed.
                tracing::error!(%error, "keeping a state failed; the prefix cache begins anew");
                *cache = cache.anew();
            }
            Err(error) => tracing::warn!(%error, "a state could not be kept"),
        }
        self.report();
    }

    /// Between two calls of the model: a part of what is to be on the disk is copied.
    fn tend(&mut self) {
        let Some(cache) = &mut self.cache else { return };
        let model = self.model.as_mut();
        let tended = guard(|| Ok(cache.tend(model)));
        match tended {
            // The thread that writes is slower than what there is to do, which is nothing else.
            Ok(false) if self.runs.is_empty() && cache.is_behind() => self.queue.pause(DISK_PAUSE),
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "copying a state for the disk failed"),
        }
    }

    fn flush(&mut self) {
        let Some(cache) = &mut self.cache else { return };
        let model = self.model.as_mut();
        let flushed = guard(|| {
            cache.flush(model);
            Ok(())
        });
        if let Err(error) = flushed {
            tracing::error!(%error, "writing the cache directory failed");
        }
    }

    fn fail(&mut self, i: usize, error: EngineError) {
        if !matches!(error, EngineError::Cancelled | EngineError::ShutDown) {
            tracing::error!(%error, "a request failed");
        }
        self.end(i, Event::Failed(error));
    }

    /// Free the sequence, then tell: who has the last event may count on the memory.
    fn end(&mut self, i: usize, event: Event) {
        let run = self.runs.remove(i);
        if let Err(error) = guard(|| {
            self.model.end(run.seq);
            Ok(())
        }) {
            tracing::error!(%error, "freeing a sequence failed");
        }
        self.share_memory();
        self.queue.done();
        if let Event::Failed(error) = &event {
            run.job.others.iter().for_each(|listener| listener.send(Event::Failed(error.clone())));
        }
        run.job.listener.send(event);
    }
}
