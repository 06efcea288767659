//! From a `--model` value to a checkpoint, a running model and its chat.

use anyhow::{Context, Result, bail};
use lily_chat::{Chat, Template, Tokenizer};
use lily_checkpoint::{Checkpoint, hub};
use lily_model::Model;

use crate::cli::{EngineKind, ModelArgs};
use crate::device::{self, Chosen};
use crate::term::Progress;

/// The largest context that is taken without being asked for: a sequence of this length needs 0.7 GB on the 35B model.
const DEFAULT_CONTEXT: usize = 32_768;

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

/// Tokens that prompt and answer may have together.
pub fn context(checkpoint: &Checkpoint, asked: Option<u32>) -> Result<usize> {
    let most = checkpoint.shape().max_context;
    match asked {
        Some(n) if n as usize > most => bail!("--ctx {n} is more than the {most} tokens that this model was made for"),
        Some(n) => Ok(n as usize),
        None => Ok(most.min(DEFAULT_CONTEXT)),
    }
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
