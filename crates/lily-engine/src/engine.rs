//! The handle of the engine and of one answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Instant;

use lily_chat::Tokenizer;
use lily_model::{Model, SequenceBytes};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::prefix::{DiskOptions, PrefixOptions};
use crate::queue::{CacheUse, Job, Listener, Load, Queue};
use crate::request::{Event, Request, SubmitError};
use crate::worker;

/// What an engine is given beside the model.
pub struct EngineOptions {
    /// The checkpoint's tokenizer; its size bounds the ids that may be generated.
    pub tokenizer: Tokenizer,
    /// Tokens that prompt and answer may have together.
    pub context: usize,
    /// Requests that may wait while another runs.
    pub max_queue: usize,
    /// How much of earlier prompts and answers is kept for later requests.
    pub prefix: PrefixOptions,
    /// Requests that run at once and take turns, at least 1.
    pub parallel: usize,
    /// Bytes that sequences and what is kept of earlier ones may hold together. A request begins when the most that it may
    /// come to hold is free; what is kept gives way to it. `None`: not bounded.
    pub memory: Option<u64>,
    /// Where it is kept beyond the life of the process. Nothing is where `prefix` keeps nothing.
    pub disk: Option<DiskOptions>,
}

/// A running engine. Clones share it; when the last one is dropped, what still runs is failed and the thread ends.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    queue: Arc<Queue>,
    device: String,
    context: usize,
    sequence: SequenceBytes,
    memory: u64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Start the thread that owns `model`.
    pub fn start(model: Box<dyn Model>, options: EngineOptions) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::new(options.parallel.max(1), options.max_queue));
        let (device, sequence) = (model.device(), model.sequence_bytes());
        let (context, memory) = (options.context, options.memory.unwrap_or(u64::MAX));
        let shared = Arc::clone(&queue);
        let thread =
            std::thread::Builder::new().name("engine".into()).spawn(move || worker::work(model, &options, &shared))?;
        Ok(Self {
            inner: Arc::new(Inner { queue, device, context, sequence, memory, thread: Mutex::new(Some(thread)) }),
        })
    }

    /// Queue a request. Does not block; refuses what can be known to fail before anything is computed.
    pub fn submit(&self, request: Request) -> Result<Answer, SubmitError> {
        let (answer, listener) = Answer::new();
        self.queue(request, listener, Vec::new())?;
        Ok(answer)
    }

    /// As [`Self::submit`], for `choices` answers (at least one) that go on independently from one reading of the prompt.
    /// Answer i is the one that the request gives alone with i added to its seed. Each takes a slot of its own, so that
    /// some may wait for others; each may be dropped alone.
    pub fn submit_choices(&self, request: Request, choices: usize) -> Result<Vec<Answer>, SubmitError> {
        let (first, listener) = Answer::new();
        let (mut answers, others): (Vec<Answer>, Vec<Listener>) = (1..choices).map(|_| Answer::new()).unzip();
        self.queue(request, listener, others)?;
        answers.insert(0, first);
        Ok(answers)
    }

    fn queue(&self, request: Request, listener: Listener, others: Vec<Listener>) -> Result<(), SubmitError> {
        let context = self.inner.context;
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if request.max_tokens == Some(0) {
            return Err(SubmitError::NothingToGenerate);
        }
        if request.prompt.len() >= context {
            return Err(SubmitError::PromptTooLong { prompt: request.prompt.len(), context });
        }
        let tokens = context.min(request.prompt.len().saturating_add(request.max_tokens.unwrap_or(context)));
        let (bytes, memory) = (self.inner.sequence.of(tokens), self.inner.memory);
        if bytes > memory {
            return Err(SubmitError::NeverFits { tokens, bytes, memory });
        }
        self.inner.queue.push(Job { request, bytes, listener, others, fork: None, submitted: Instant::now() })
    }

    /// What runs the model, for people: `"cpu (AVX2, 2 threads)"`.
    pub fn device(&self) -> &str {
        &self.inner.device
    }

    /// Tokens that prompt and answer may have together.
    pub fn context(&self) -> usize {
        self.inner.context
    }

    /// How busy the engine is now.
    pub fn load(&self) -> Load {
        self.inner.queue.load()
    }

    /// What is kept of earlier prompts and answers, as of the last state that came or went.
    pub fn cache(&self) -> CacheUse {
        self.inner.queue.cache()
    }

    /// Refuse new requests and fail all others after the step that runs now.
    pub fn close(&self) {
        self.inner.queue.close();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
        // Wait, so that the model's memory is free when this returns.
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// The events of one request. Dropping it cancels the request: in the queue at once, while it runs within one decode
/// step or one prefill chunk.
pub struct Answer {
    events: UnboundedReceiver<Event>,
    cancelled: Arc<AtomicBool>,
}

impl Answer {
    fn new() -> (Self, Listener) {
        let (sender, events) = unbounded_channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        (Self { events, cancelled: Arc::clone(&cancelled) }, Listener { events: sender, cancelled })
    }

    /// The next event; `None` after the last. May be dropped while it waits without losing an event.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// [`Self::next`] for those who wait for several answers at once.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }

    /// [`Self::next`] for threads outside an async runtime.
    ///
    /// # Panics
    /// When called inside an async runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// A way to cancel from elsewhere, as from a signal handler's thread; the last event is then
    /// [`crate::EngineError::Cancelled`].
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.cancelled))
    }
}

/// Cancels one request.
#[derive(Clone)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Cancel. More calls, or one after the end, do nothing.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
