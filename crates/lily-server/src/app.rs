//! What the API serves.

use std::sync::Arc;
use std::time::Duration;

use lily_chat::Chat;
use lily_engine::{Engine, SamplingParams};
use regex::Regex;

use crate::access::Access;
use crate::metrics::Metrics;
use crate::names::ModelNames;
use crate::recall::Recall;

/// Bytes of reasoning that are kept: some thousand turns.
const RECALL_BYTES: usize = 32 << 20;

/// Sampling when a request says nothing: the checkpoint's generation_config.json (`docs/model.md §6.3`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// 0 when `do_sample` is false.
    pub temperature: f32,
    /// 0 keeps all tokens.
    pub top_k: usize,
    /// 1 keeps all tokens.
    pub top_p: f32,
    /// 0 keeps all tokens.
    pub min_p: f32,
    /// Subtracted once from tokens that the answer holds.
    pub presence_penalty: f32,
    /// Weakens tokens that the prompt or the answer holds; 1 does nothing.
    pub repetition_penalty: f32,
}

impl Default for SamplingDefaults {
    /// The official checkpoint's: 1.0, 20, 0.95.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 20, top_p: 0.95, min_p: 0.0, presence_penalty: 0.0, repetition_penalty: 1.0 }
    }
}

impl SamplingDefaults {
    pub(crate) fn params(self) -> SamplingParams {
        let Self { temperature, top_k, top_p, min_p, .. } = self;
        SamplingParams { temperature, top_k, top_p, min_p, seed: None }
    }
}

/// How long connections may keep the server waiting, and how many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For the head of a request to come whole, also the first on a connection and the next after an answer: what is idle
    /// longer is closed.
    pub head: Duration,
    /// For each part of a body to come; the whole may take ten times as long.
    pub body: Duration,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
}

impl Default for Limits {
    /// 60 s, 30 s, 512 connections.
    fn default() -> Self {
        Self { head: Duration::from_secs(60), body: Duration::from_secs(30), connections: 512 }
    }
}

/// Everything that requests need. Make one with [`App::new`], then change what should differ.
pub struct App {
    /// The running engine; its context bounds prompt and answer together.
    pub engine: Engine,
    /// The checkpoint's tokenizer and template. The tokenizer is the engine's.
    pub chat: Chat,
    /// Names that requests may give in `model`.
    pub names: ModelNames,
    /// Sampling when a request says nothing.
    pub defaults: SamplingDefaults,
    /// Every id that ends an answer (`eos_token_id` of generation_config.json).
    pub eos: Vec<u32>,
    /// When the model was made or loaded, Unix seconds, for `GET /v1/models`.
    pub created: u64,
    /// Who may ask.
    pub access: Access,
    /// Of connections; only [`crate::serve`] heeds all of them.
    pub limits: Limits,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// Largest request body in bytes.
    pub max_body: usize,
    /// Refuse requests with fields that mean nothing here, rather than name them in a header.
    pub strict: bool,
    /// Take away the first line of a system prompt where this matches in it: a line that some agents change with every
    /// request, so that no prompt begins as the one before it.
    pub strip_agent_header: Option<Regex>,
    /// See [`App::reattach_reasoning`].
    pub(crate) recall: Option<Arc<Recall>>,
    /// A stream that has nothing to say for this long says a comment, so that clients and proxies do not give up.
    /// Until the first one, a failure still gets its own HTTP status.
    pub keep_alive: Duration,
    /// How long running answers may go on once the server is told to stop.
    pub grace: Duration,
}

impl App {
    /// Without keys, for loopback names only, with the official sampling defaults, a comment every 5 s of silence, 5 s of grace,
    /// not strict, reasoning re-attached, and bodies of up to 1 MiB and 64 bytes for each token of the context: more than a
    /// prompt that fits can need, and little enough to be refused before it is encoded.
    pub fn new(engine: Engine, chat: Chat, names: ModelNames, eos: Vec<u32>) -> Self {
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let max_body = (1 << 20) + 64 * engine.context();
        Self {
            engine,
            chat,
            names,
            defaults: SamplingDefaults::default(),
            eos,
            created: created.map_or(0, |d| d.as_secs()),
            access: Access::default(),
            limits: Limits::default(),
            metrics: Arc::default(),
            max_body,
            strict: false,
            strip_agent_header: None,
            recall: Some(Arc::new(Recall::new(RECALL_BYTES))),
            keep_alive: Duration::from_secs(5),
            grace: Duration::from_secs(5),
        }
    }

    /// Whether the reasoning of answers is kept, up to 32 MiB, and given back to conversations that come without it.
    pub fn reattach_reasoning(&mut self, on: bool) {
        self.recall = on.then(|| Arc::new(Recall::new(RECALL_BYTES)));
    }
}
