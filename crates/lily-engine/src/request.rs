//! What is asked of the engine and what comes back.

use lily_chat::{OutputEvent, OutputOptions};
use lily_model::ModelError;

use crate::adjust::Adjust;
use crate::sampler::{SamplerError, SamplingParams};

/// One answer to generate.
#[derive(Clone)]
pub struct Request {
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Lengths of the prompt at which messages begin, where a later request is likely to part from this one: places worth
    /// keeping the state at. Any may be missing.
    pub boundaries: Vec<usize>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What changes the logits before.
    pub adjust: Adjust,
    /// Tokens to generate at most, the end token included; `None` is as many as the context holds. More than the
    /// context holds is cut to that.
    pub max_tokens: Option<usize>,
    /// How tokens become text, and which tokens and strings end the answer.
    pub output: OutputOptions,
    /// Whether to tell how much of the prompt has been read, after each chunk of it.
    pub progress: bool,
}

/// What happens to a request, in this order: any number of `Progress` where it is asked for, one `Started`, any number of
/// `Output`, then `Finished`. `Failed` may come at any point and is then the last.
#[derive(Debug)]
pub enum Event {
    /// A chunk of the prompt has been read.
    Progress(Progress),
    /// The prompt has been read; the first token is about to be chosen.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// How many of them were not computed because a cached prefix held them.
        cached_tokens: usize,
    },
    /// Text, reasoning or a tool call grew.
    Output(OutputEvent),
    /// The answer is whole.
    Finished(Finished),
    /// There will be no more; what came before is what the model wrote.
    Failed(EngineError),
}

/// How much of a prompt has been read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Tokens of the prompt.
    pub total: usize,
    /// How many of them a cached prefix held.
    pub cached: usize,
    /// How many have been read, cached ones included.
    pub processed: usize,
    /// Seconds since the engine took the request up.
    pub seconds: f64,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why it ended.
    pub reason: FinishReason,
    /// The stop string that ended it, if one did.
    pub stop_string: Option<String>,
    /// Tokens counted.
    pub usage: Usage,
    /// Seconds spent.
    pub timings: Timings,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// `max_tokens` or the context is used up.
    Length,
    /// The model ended its turn after calling tools.
    ToolCalls,
}

/// Tokens of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: usize,
    /// Tokens generated: reasoning, content, markup and the end token.
    pub completion_tokens: usize,
    /// Generated tokens that were reasoning.
    pub reasoning_tokens: usize,
    /// Prompt tokens taken from a cached prefix.
    pub cached_tokens: usize,
}

/// Where the time of one request went, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// From submission until the engine took it up.
    pub queue: f64,
    /// Reading the prompt, until the first logits.
    pub prefill: f64,
    /// From the first logits to the end.
    pub decode: f64,
}

/// Why a request was not taken. Nothing has been computed for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The prompt has no tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// There is no room for the prompt and one token after it.
    #[error("the prompt has {prompt} tokens; a context of {context} leaves room for at most {}", context.saturating_sub(1))]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that prompt and answer may have together.
        context: usize,
    },
    /// The request may come to need more memory than all sequences have together.
    #[error("prompt and answer may have {tokens} tokens, whose state takes {bytes} bytes; {memory} are there for it")]
    NeverFits {
        /// Tokens of the prompt and of the longest answer allowed.
        tokens: usize,
        /// Bytes of their keys, values and recurrent state.
        bytes: u64,
        /// Bytes that sequences may hold.
        memory: u64,
    },
    /// `max_tokens` is 0.
    #[error("max_tokens must be at least 1")]
    NothingToGenerate,
    /// As many requests wait as may.
    #[error("{waiting} requests are waiting already, which is the limit")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
    },
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Closed,
}

/// Why a request that was taken did not finish. Other requests are not affected.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// The model refused or failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model's logits cannot be sampled from.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// Code below panicked while it worked for this request.
    #[error("internal error while generating: {0}")]
    Panicked(String),
    /// [`crate::Canceller::cancel`] was called.
    #[error("cancelled")]
    Cancelled,
    /// The engine was shut down before the answer was whole.
    #[error("the engine is shutting down")]
    ShutDown,
}
