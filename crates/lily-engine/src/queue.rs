//! The bounded queue between those who ask and the engine thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::request::{EngineError, Event, Request, SubmitError};

/// How busy the engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that the model works on; each holds a sequence.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
}

/// A request with the way back to whoever asked.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) events: UnboundedSender<Event>,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) submitted: Instant,
}

impl Job {
    /// Whether nobody waits for this any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.is_closed() || self.cancelled.load(Ordering::Relaxed)
    }

    /// Send an event; that nobody listens any more is noticed between steps.
    pub(crate) fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: usize,
    closed: bool,
}

impl State {
    fn sweep(&mut self) {
        self.waiting.retain(|job| {
            let cancelled = job.is_cancelled();
            if cancelled {
                job.send(Event::Failed(EngineError::Cancelled));
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
        if state.waiting.len() + state.running >= self.max_waiting + self.slots {
            return Err(SubmitError::QueueFull { waiting: state.waiting.len() });
        }
        state.waiting.push_back(job);
        self.changed.notify_one();
        Ok(())
    }

    /// The next job, counted as running; `None` when there is none and `block` is false, or when the engine closes.
    pub(crate) fn take(&self, block: bool) -> Option<Job> {
        let mut state = self.lock();
        loop {
            state.sweep();
            if state.closed {
                return None;
            }
            if let Some(job) = state.waiting.pop_front() {
                state.running += 1;
                return Some(job);
            }
            if !block {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A running job has ended and its sequence is freed.
    pub(crate) fn done(&self) {
        self.lock().running -= 1;
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
            job.send(Event::Failed(EngineError::ShutDown));
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
