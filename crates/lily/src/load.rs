//! From a `--model` value to a checkpoint, a running model and its chat.

use anyhow::{Context, Result, anyhow, bail};
use lily_chat::{Chat, Template, Tokenizer};
use lily_checkpoint::{Checkpoint, hub};
use lily_model::Model;

use crate::cli::{ContextArgs, Device, EngineKind, ModelArgs};
use crate::device::{self, Chosen};
use crate::memory;
use crate::plan::{self, Plan, PlanError, Wish};
use crate::term::Progress;

/// What a model is asked to hold.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// How long requests may get, and how much memory there is.
    pub context: &'a ContextArgs,
    /// Bytes for what is kept of earlier ones, where somebody said.
    pub cache: Option<u64>,
    /// Requests at once.
    pub parallel: usize,
}

/// Open the checkpoint that `--model` names, or the demo, and say so.
pub fn checkpoint(model: Option<&str>) -> Result<Checkpoint> {
    match model {
        Some(name) => {
            let dir = hub::resolve_model(name)?;
            let progress = Progress::start(format!("checking {}", dir.display()));
            let checkpoint = Checkpoint::open(&dir);
            drop(progress);
            checkpoint.with_context(|| format!("cannot use the checkpoint in {}", dir.display()))
        }
        None => {
            let checkpoint = demo()?;
            eprintln!("Using the built-in demo model (a toy of 24 million parameters); --model DIR runs another.");
            Ok(checkpoint)
        }
    }
}

/// The checkpoint embedded in the binary.
#[cfg(feature = "demo")]
pub fn demo() -> Result<Checkpoint> {
    macro_rules! files {
        ($($name:literal),* $(,)?) => {
            &[$(($name, include_bytes!(concat!("../../../demo/4bit/", $name)).as_slice())),*]
        };
    }
    static FILES: &[(&str, &[u8])] = files![
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
        "model.safetensors",
    ];
    Checkpoint::from_embedded("lily-demo", FILES).context("the built-in demo checkpoint is broken")
}

/// The checkpoint embedded in the binary: this binary has none.
#[cfg(not(feature = "demo"))]
pub fn demo() -> Result<Checkpoint> {
    bail!("this lily was built without the demo model; give --model DIR (or build with the default features)")
}

/// Ready the model for work on the device that was asked for.
pub fn model(checkpoint: &Checkpoint, args: &ModelArgs, engine: EngineKind) -> Result<Box<dyn Model>> {
    model_on(device::choose(args.device)?, checkpoint, args, engine)
}

/// As [`model`], on a device that is open.
pub fn model_on(
    device: Chosen,
    checkpoint: &Checkpoint,
    args: &ModelArgs,
    engine: EngineKind,
) -> Result<Box<dyn Model>> {
    if checkpoint.path().is_some() {
        let progress = Progress::start("reading the weights");
        checkpoint.read_through(&mut |done, total| {
            progress.bytes(done, total);
            true
        });
    }
    let _progress = Progress::start("preparing the model");
    let threads = args.threads.map_or(0, usize::from); // 0: one a core
    device.model(checkpoint.shape(), checkpoint.weights(), engine, threads, args.kv_dtype.map(Into::into))
}

/// The device that was asked for, or the CPU where the weights are too large for a GPU that nobody asked for, and the memory
/// plan on it.
pub fn plan(checkpoint: &Checkpoint, args: &ModelArgs, limits: &Limits) -> Result<(Chosen, Plan)> {
    let chosen = device::choose(args.device)?;
    let error = match plan_on(&chosen, checkpoint, args, limits)? {
        Ok(plan) => return Ok((chosen, plan)),
        Err(error) => error,
    };
    let advice = memory::ram().filter(|_| chosen.is_gpu()).and_then(|ram| plan::wired_limit_advice(&error, ram));
    let told = match advice {
        Some(advice) => anyhow!("{error}; {advice}"),
        None => anyhow!("{error}"),
    };
    if !plan::falls_back(args.device == Device::Auto, chosen.is_gpu(), &error) {
        return Err(told);
    }
    eprintln!("Computing on the CPU: {told}");
    let plan = plan_on(&Chosen::Cpu, checkpoint, args, limits)??;
    Ok((Chosen::Cpu, plan))
}

fn plan_on(
    device: &Chosen,
    checkpoint: &Checkpoint,
    args: &ModelArgs,
    limits: &Limits,
) -> Result<Result<Plan, PlanError>> {
    let shape = checkpoint.shape();
    let kv = args.kv_dtype.map(Into::into);
    let footprint = device.footprint(shape, checkpoint.report().bytes(), args.workers(), limits.parallel, kv)?;
    let wish = Wish {
        program: device.program(),
        footprint: &footprint,
        most: shape.max_context,
        parallel: limits.parallel,
        context: limits.context.ctx.unwrap_or_default(),
        cache: limits.cache,
        limit: limits.context.memory.or_else(|| device.limit()),
    };
    Ok(wish.plan())
}

/// The checkpoint's tokenizer.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    let Some(json) = checkpoint.file("tokenizer.json") else {
        bail!("{} has no tokenizer.json, so text cannot be read or written with it", checkpoint.name());
    };
    let config = checkpoint.file("tokenizer_config.json");
    Ok(Tokenizer::from_json(&json, config.as_deref())?)
}

/// The checkpoint's tokenizer and chat template.
pub fn chat(checkpoint: &Checkpoint) -> Result<Chat> {
    let tokenizer = tokenizer(checkpoint)?;
    let Some(source) = checkpoint.file("chat_template.jinja") else {
        bail!(
            "{} has no chat_template.jinja, so chats cannot be laid out for it; copy the file from the repository that \
             the checkpoint came from",
            checkpoint.name()
        );
    };
    let source = std::str::from_utf8(&source).context("chat_template.jinja is not UTF-8")?;
    Ok(Chat { tokenizer, template: Template::new(source)? })
}
