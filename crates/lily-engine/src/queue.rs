//! The bounded queue between those who ask and the engine thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lily_model::Snapshot;
use tokio::sync::mpsc::UnboundedSender;

use crate::request::{EngineError, Event, Request, SubmitError};

/// How busy the engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that the model works on; each holds a sequence.
    pub running: usize,
    /// Requests in the queue, and further answers of those that run.
    pub waiting: usize,
}

/// What the prefix cache holds in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Bytes of all states; what several share counts once.
    pub bytes: u64,
    /// States from which a request can begin.
    pub states: usize,
}

/// The way back to whoever waits for one answer.
#[derive(Clone)]
pub(crate) struct Listener {
    pub(crate) events: UnboundedSender<Event>,
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl Listener {
    /// Whether nobody waits any more.
    fn is_gone(&self) -> bool {
        self.events.is_closed() || self.cancelled.load(Ordering::Relaxed)
    }

    /// Send an event; that nobody listens any more is noticed between steps.
    pub(crate) fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

/// A request with the ways back to whoever asked.
pub(crate) struct Job {
    pub(crate) request: Request,
    /// Most memory that its sequence comes to hold.
    pub(crate) bytes: u64,
    pub(crate) listener: Listener,
    /// Who waits for further answers to the same prompt; each becomes a job of its own where the prompt ends.
    pub(crate) others: Vec<Listener>,
    /// Where it begins, if its prompt has been read.
    pub(crate) fork: Option<Fork>,
    pub(crate) submitted: Instant,
}

/// The end of a prompt, from which several answers go on.
#[derive(Clone)]
pub(crate) struct Fork {
    pub(crate) snapshot: Snapshot,
    /// After the prompt's last token, [vocab].
    pub(crate) logits: Arc<[f32]>,
    /// Prompt tokens that were not computed.
    pub(crate) cached: usize,
    /// Whether the state after it is that of a cold run.
    pub(crate) exact: bool,
    pub(crate) taken: Instant,
    /// Seconds that the prompt took.
    pub(crate) prefill: f64,
}

impl Job {
    /// Whether nobody waits for this any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.listener.is_gone() && self.others.iter().all(Listener::is_gone)
    }

    /// Everybody who waits for this.
    pub(crate) fn listeners(&self) -> Vec<Listener> {
        std::iter::once(&self.listener).chain(&self.others).cloned().collect()
    }

    fn fail(&self, error: &EngineError) {
        self.listeners().iter().for_each(|listener| listener.send(Event::Failed(error.clone())));
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: usize,
    closed: bool,
    cache: CacheUse,
}

impl State {
    fn sweep(&mut self) {
        self.waiting.retain(|job| {
            let cancelled = job.is_cancelled();
            if cancelled {
                job.fail(&EngineError::Cancelled);
            }
            !cancelled
        });
    }
}

/// What the engine's handles and its thread share.
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Requests that may run at once.
    pub(crate) slots: usize,
    max_waiting: usize,
}

impl Queue {
    pub(crate) fn new(slots: usize, max_waiting: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), slots, max_waiting }
    }

    /// The state is whole whenever the lock is free, so a poisoned lock is used on.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Append a job. One that a free slot takes at once does not count as waiting.
    pub(crate) fn push(&self, job: Job) -> Result<(), SubmitError> {
        let mut state = self.lock();
        if state.closed {
            return Err(SubmitError::Closed);
        }
        state.sweep();
        // Further answers of a request that was taken are not new ones.
        let waiting = state.waiting.iter().filter(|job| job.fork.is_none()).count();
        if waiting + state.running >= self.max_waiting + self.slots {
            return Err(SubmitError::QueueFull { waiting });
        }
        state.waiting.push_back(job);
        self.changed.notify_one();
        Ok(())
    }

    /// Put further answers of a request that runs before all that wait.
    pub(crate) fn push_front(&self, jobs: Vec<Job>) {
        let mut state = self.lock();
        if state.closed {
            return jobs.iter().for_each(|job| job.fail(&EngineError::ShutDown));
        }
        jobs.into_iter().rev().for_each(|job| state.waiting.push_front(job));
    }

    /// The next job, counted as running, if it needs at most `bytes`. `None` when there is none and `block` is false, when
    /// the engine closes, and when the first one needs more: nobody overtakes it, so that it has its turn.
    pub(crate) fn take(&self, block: bool, bytes: u64) -> Option<Job> {
        let mut state = self.lock();
        loop {
            state.sweep();
            if state.closed {
                return None;
            }
            let first = state.waiting.front().map(|job| job.bytes <= bytes);
            if first == Some(true) {
                state.running += 1;
                return state.waiting.pop_front();
            }
            if first == Some(false) || !block {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Bytes of the ends of prompts that further answers wait to go on from.
    pub(crate) fn held(&self) -> u64 {
        let state = self.lock();
        let mut last = None;
        let forks = state.waiting.iter().filter_map(|job| job.fork.as_ref());
        // Answers to one prompt stand together and share its end.
        forks
            .filter(|fork| last.replace(Arc::as_ptr(&fork.snapshot.state)) != Some(Arc::as_ptr(&fork.snapshot.state)))
            .map(|fork| fork.snapshot.bytes)
            .sum()
    }

    /// Wait for a change, at most so long, and not where something waits already.
    pub(crate) fn pause(&self, most: Duration) {
        let state = self.lock();
        if state.waiting.is_empty() && !state.closed {
            drop(self.changed.wait_timeout(state, most));
        }
    }

    /// A running job has ended and its sequence is freed.
    pub(crate) fn done(&self) {
        self.lock().running -= 1;
    }

    /// What the cache holds from now on.
    pub(crate) fn report(&self, cache: CacheUse) {
        self.lock().cache = cache;
    }

    pub(crate) fn cache(&self) -> CacheUse {
        self.lock().cache
    }

    /// Tell requests that were cancelled in the queue.
    pub(crate) fn sweep(&self) {
        self.lock().sweep();
    }

    /// Refuse what comes and fail what waits.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for job in state.waiting.drain(..) {
            job.fail(&EngineError::ShutDown);
        }
        self.changed.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub(crate) fn load(&self) -> Load {
        let mut state = self.lock();
        state.sweep();
        Load { running: state.running, waiting: state.waiting.len() }
    }
}
