//! What `run` and `chat` share: an engine of their own, and one answer streamed from it.

use std::io;

use anyhow::{Context, Result, bail};
use lily_chat::{Chat, ChatError, OutputEvent, OutputOptions, PromptInput, messages};
use lily_checkpoint::{Checkpoint, GenerationDefaults};
use lily_engine::{Adjust, Engine, EngineOptions, Event, Finished, Request, SamplingParams, SubmitError};
use serde_json::{Map, Value};

use crate::cli::{ContextArgs, EngineKind, ModelArgs, SamplingArgs};
use crate::interrupt::Interrupt;
use crate::keep::Keep;
use crate::load::{self, Limits};
use crate::plan::Plan;

/// A model ready to be asked.
pub struct Session {
    name: String,
    engine: Engine,
    chat: Chat,
    eos: Vec<u32>,
    sampling: SamplingParams,
    adjust: Adjust,
    max_tokens: Option<usize>,
}

/// A piece of an answer on its way.
pub enum Piece {
    /// Reasoning grew.
    Reasoning(String),
    /// The answer proper grew.
    Content(String),
}

/// An answer, as far as it came.
#[derive(Default)]
pub struct Reply {
    /// All of the reasoning.
    pub reasoning: String,
    /// All of the answer proper.
    pub content: String,
    /// How it ended; `None` where Ctrl-C stopped it.
    pub finished: Option<Finished>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The conversation does not fit the context.
    #[error("the conversation has {prompt} tokens; {context} are the limit for it and the answer together")]
    TooLong {
        /// Tokens of the conversation.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// Anything else.
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl Session {
    /// Load a checkpoint and start an engine for it.
    pub fn open(model: &ModelArgs, context: &ContextArgs, keep: Keep, sampling: &SamplingArgs) -> Result<Self> {
        let checkpoint = load::checkpoint(model.model.as_deref())?;
        let chat = load::chat(&checkpoint)?;
        let limits = Limits { context, cache: keep.cache, parallel: 1 };
        let (engine, _) = start_engine(&checkpoint, &chat, model, &limits, 1, keep)?;
        let generation = checkpoint.generation();
        Ok(Self {
            name: checkpoint.name(),
            engine,
            chat,
            eos: generation.eos.clone(),
            sampling: sampling_params(generation, sampling),
            adjust: adjust(generation, sampling),
            max_tokens: sampling.max_tokens.map(|n| n as usize),
        })
    }

    /// Of the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What computes, for people.
    pub fn device(&self) -> &str {
        self.engine.device()
    }

    /// Stream one answer to `write`, until it is done or Ctrl-C is pressed.
    pub async fn ask(
        &self,
        conversation: &[Value],
        thinking: bool,
        interrupt: &Interrupt,
        mut write: impl FnMut(Piece) -> io::Result<()>,
    ) -> Result<Reply, AskError> {
        let mut pressed = interrupt.catch();
        let request = self.request(conversation, thinking, true).and_then(|request| {
            // With the reasoning of all turns each prompt continues the one before it, as long as there is room.
            let context = self.engine.context();
            let answer = self.max_tokens.unwrap_or(context).min(context / 4);
            let fits = request.prompt.len() + answer <= context;
            if fits { Ok(request) } else { self.request(conversation, thinking, false) }
        });
        let request = request.context("cannot lay out the conversation")?;
        let mut answer = match self.engine.submit(request) {
            Ok(answer) => answer,
            Err(SubmitError::PromptTooLong { prompt, context }) => return Err(AskError::TooLong { prompt, context }),
            Err(other) => return Err(anyhow::Error::from(other).into()),
        };
        let mut reply = Reply::default();
        loop {
            let event = tokio::select! {
                event = answer.next() => event,
                _ = pressed.changed() => return Ok(reply),
            };
            match event {
                Some(Event::Output(OutputEvent::Reasoning(text))) => {
                    reply.reasoning.push_str(&text);
                    write(Piece::Reasoning(text)).map_err(anyhow::Error::from)?;
                }
                Some(Event::Output(OutputEvent::Content(text))) => {
                    reply.content.push_str(&text);
                    write(Piece::Content(text)).map_err(anyhow::Error::from)?;
                }
                // Without tools in the prompt there are no calls.
                Some(Event::Output(_) | Event::Started { .. } | Event::Progress(_)) => {}
                Some(Event::Finished(finished)) => {
                    reply.finished = Some(finished);
                    return Ok(reply);
                }
                Some(Event::Failed(error)) => return Err(anyhow::Error::from(error).into()),
                None => return Err(anyhow::anyhow!("the engine stopped in the middle of an answer").into()),
            }
        }
    }

    /// `preserve`: earlier turns keep their reasoning. Without thinking that is an empty block each, which they keep
    /// always.
    fn request(&self, conversation: &[Value], thinking: bool, preserve: bool) -> Result<Request, ChatError> {
        let preserve = preserve || !thinking;
        let prompt = self.chat.prompt(&PromptInput {
            messages: messages::normalise(conversation)?,
            tools: None,
            add_generation_prompt: true,
            kwargs: Map::from_iter([
                ("enable_thinking".into(), Value::Bool(thinking)),
                ("preserve_thinking".into(), Value::Bool(preserve)),
            ]),
        })?;
        let output =
            OutputOptions { thinking: prompt.starts_in_thinking, eos: self.eos.clone(), ..OutputOptions::default() };
        Ok(Request {
            prompt: prompt.tokens,
            boundaries: prompt.boundaries,
            sampling: self.sampling,
            adjust: self.adjust.clone(),
            max_tokens: self.max_tokens,
            output,
            progress: false,
        })
    }
}

/// Start an engine on the device that was asked for, with the memory that is planned for it.
pub fn start_engine(
    checkpoint: &Checkpoint,
    chat: &Chat,
    model: &ModelArgs,
    limits: &Limits,
    max_queue: usize,
    keep: Keep,
) -> Result<(Engine, Plan)> {
    let vocab = checkpoint.shape().vocab;
    if chat.tokenizer.len() > vocab {
        bail!(
            "tokenizer.json has {} tokens, but the model only {vocab}: they do not belong together",
            chat.tokenizer.len()
        );
    }
    let (device, plan) = load::plan(checkpoint, model, limits)?;
    let mut model = load::model_on(device, checkpoint, model, EngineKind::Fast)?;
    model.provide(plan.context, plan.at_once()).with_context(|| {
        format!("cannot take the memory for {} × {} tokens; a smaller --ctx needs less", plan.at_once(), plan.context)
    })?;
    // After the weights were read through: what it hashes is in memory then.
    let (prefix, disk) = (keep.prefix(plan.cache), keep.disk(checkpoint)?);
    let options = EngineOptions {
        tokenizer: chat.tokenizer.clone(),
        context: plan.context,
        max_queue,
        prefix,
        parallel: limits.parallel,
        memory: Some(plan.memory),
        disk,
    };
    Ok((Engine::start(model, options).context("cannot start the engine's thread")?, plan))
}

/// The checkpoint's defaults, changed by what was typed.
fn sampling_params(defaults: &GenerationDefaults, typed: &SamplingArgs) -> SamplingParams {
    if typed.greedy {
        return SamplingParams::GREEDY;
    }
    let temperature = if defaults.do_sample { defaults.temperature } else { 0.0 };
    SamplingParams {
        temperature: typed.temperature.unwrap_or(temperature),
        top_k: typed.top_k.map_or(defaults.top_k, |k| k as usize),
        top_p: typed.top_p.unwrap_or(defaults.top_p),
        min_p: typed.min_p.unwrap_or(defaults.min_p),
        seed: typed.seed,
    }
}

/// The penalties that the checkpoint asks for.
fn adjust(defaults: &GenerationDefaults, typed: &SamplingArgs) -> Adjust {
    if typed.greedy {
        return Adjust::default();
    }
    Adjust {
        presence_penalty: defaults.presence_penalty,
        repetition_penalty: defaults.repetition_penalty,
        ..Adjust::default()
    }
}

/// The runtime of a terminal command: the main thread waits for events, another one for signals.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.context("cannot start the runtime")
}
