//! What can be typed: commands, options and their help.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use lily_model::KvType;
use regex::Regex;

use crate::bench::BenchArgs;
use crate::plan;

/// Qwen3.6-35B-A3B on your own machine: chat in the terminal, or serve it over an OpenAI-compatible API.
///
/// Without --model, a small built-in demo model of the same architecture answers, so that every command works before
/// anything has been downloaded.
#[derive(Debug, Parser)]
#[command(name = "lily", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// Write what the engine does to standard error
    #[arg(short, long, global = true)]
    pub verbose: bool,

    /// How what goes there is written: for people, or one JSON object a line
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, env = "LILY_LOG_FORMAT")]
    pub log_format: LogFormat,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How log lines are written.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people
    Text,
    /// One object a line
    Json,
}

const EXAMPLES: &str = "\
Examples:
  lily chat                                talk with the built-in demo model
  lily serve                               the same over HTTP, on http://127.0.0.1:8080/v1
  lily run \"What is the moon?\"             one answer, then exit
  lily serve --model ~/Qwen3.6-35B-A3B-4bit";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer over HTTP, with the API of OpenAI's chat completions
    Serve(ServeArgs),
    /// Talk with the model in the terminal
    Chat(ChatArgs),
    /// Answer one prompt and exit
    Run(RunArgs),
    /// Print what a checkpoint folder holds, and what it lacks
    Inspect(InspectArgs),
    /// Measure prefill and decode speed, bandwidth and memory
    Bench(BenchArgs),
    /// Check every GPU kernel on this machine, and measure it
    Doctor(DoctorArgs),
    /// Measure perplexity and top-1 accuracy over a text
    Eval(EvalArgs),
}

const MODEL: &str = "Model";
const SAMPLING: &str = "Sampling (defaults come from the checkpoint)";

/// Which checkpoint runs, and how.
#[derive(Args, Debug, Clone)]
pub struct ModelArgs {
    /// Checkpoint folder, or the name of a repository in the local Hugging Face cache [default: the built-in demo]
    #[arg(long, help_heading = MODEL, env = "LILY_MODEL", value_name = "DIR|OWNER/NAME")]
    pub model: Option<String>,

    /// Worker threads [default: all cores]
    #[arg(long, help_heading = MODEL, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,

    /// What computes
    #[arg(long, help_heading = MODEL, env = "LILY_DEVICE", value_enum, default_value_t = Device::Auto)]
    pub device: Device,

    /// What keys and values are cached as [default: bf16; f32 with --engine oracle]
    #[arg(long, help_heading = MODEL, env = "LILY_KV_DTYPE", value_enum)]
    pub kv_dtype: Option<KvDtype>,
}

impl ModelArgs {
    /// Worker threads: as many as were asked for, else one a core.
    pub fn workers(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(cores, usize::from)
    }
}

/// What keys and values are cached as.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvDtype {
    /// For tests: 40,960 bytes a token on the 35B model; on a GPU, products of prefill then take F32 too
    F32,
    /// 20,480 bytes a token on the 35B model
    Bf16,
    /// 8 bits with a scale for 32 values: 10,880 bytes a token on the 35B model, not quite the same answers (docs/kv.md)
    Q8,
}

impl From<KvDtype> for KvType {
    fn from(kv: KvDtype) -> Self {
        match kv {
            KvDtype::F32 => Self::F32,
            KvDtype::Bf16 => Self::Bf16,
            KvDtype::Q8 => Self::Q8,
        }
    }
}

/// What computes.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The GPU of a Mac where there is one, else the CPU
    Auto,
    /// All cores, with SIMD
    Cpu,
    /// The GPU of a Mac
    Metal,
    /// An NVIDIA GPU, for measurements: Hopper, with the CUDA driver and NVRTC
    Cuda,
    /// The GPU's kernels, run on the CPU: very slow, for checks
    #[cfg(feature = "emulated")]
    Emulated,
}

/// How long a conversation may get.
#[derive(Args, Debug, Clone)]
pub struct ContextArgs {
    /// Tokens that prompt and answer may have together; auto takes as many as fit the memory [default: what the model was
    /// made for and fits, at most 32768]
    #[arg(long, help_heading = MODEL, value_name = "TOKENS|auto")]
    pub ctx: Option<plan::Context>,
    /// Memory that Lily may take on the device, as in 24GiB; weights that the CPU reads from a memory map are not counted
    /// [default: what is free; on a Mac's GPU what the system recommends]
    #[arg(long, help_heading = MODEL, value_name = "BYTES", value_parser = byte_count)]
    pub memory: Option<u64>,
}

/// What is kept of earlier prompts and answers.
#[derive(Args, Debug, Clone, Default)]
pub struct PrefixArgs {
    /// Memory for the states of earlier prompts and answers, as in 4GiB or 500MB; 0 keeps none [default: a quarter of the
    /// memory that is free, at most 8 GiB and what requests leave]
    #[arg(long, help_heading = MODEL, value_name = "BYTES", value_parser = byte_count)]
    pub cache_bytes: Option<u64>,
    /// Read the last answer again instead of reusing the state that decoding left, so that an answer has the same bits
    /// with and without the cache on every device; on the CPU it has them anyway
    #[arg(long, help_heading = MODEL)]
    pub exact_prefix: bool,
    /// Keep these states on disk too, in this directory, so that conversations go on after a restart without being read
    /// again. Whoever can read its files can read what was said [default: nowhere]
    #[arg(long, help_heading = MODEL, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// What the files in --cache-dir may take together; the least recently used go first
    #[arg(long, help_heading = MODEL, value_name = "BYTES", value_parser = byte_count, default_value = "16GiB")]
    pub cache_dir_bytes: u64,
}

fn byte_count(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return Err("must be a whole number of bytes, or one with MB, GB, MiB or GiB behind it".into()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    bytes.ok_or_else(|| "must be a whole number of bytes, such as 4GiB".into())
}

/// How tokens are chosen. What is not given comes from the checkpoint's generation_config.json.
#[derive(Args, Debug, Clone, Default)]
pub struct SamplingArgs {
    /// Randomness: 0 always takes the likeliest token
    #[arg(long, help_heading = SAMPLING, value_name = "T", value_parser = temperature)]
    pub temperature: Option<f32>,
    /// Keep the likeliest tokens that together have this probability
    #[arg(long, help_heading = SAMPLING, value_name = "P", value_parser = share)]
    pub top_p: Option<f32>,
    /// Keep this many of the likeliest tokens (0: all)
    #[arg(long, help_heading = SAMPLING, value_name = "K")]
    pub top_k: Option<u32>,
    /// Drop tokens less likely than this share of the likeliest
    #[arg(long, help_heading = SAMPLING, value_name = "P", value_parser = share_or_none)]
    pub min_p: Option<f32>,
    /// Same seed, same answer
    #[arg(long, help_heading = SAMPLING, value_name = "N")]
    pub seed: Option<u64>,
    /// Always take the likeliest token (the same as --temperature 0)
    #[arg(long, help_heading = SAMPLING, conflicts_with_all = ["temperature", "seed"])]
    pub greedy: bool,
    /// Tokens that the answer may have at most [default: as many as fit]
    #[arg(long, help_heading = SAMPLING, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
}

fn number(text: &str, fits: impl Fn(f32) -> bool, bounds: &str) -> Result<f32, String> {
    let x: f32 = text.parse().map_err(|_| format!("must be a number {bounds}"))?;
    if fits(x) { Ok(x) } else { Err(format!("must be {bounds}")) }
}

fn temperature(text: &str) -> Result<f32, String> {
    number(text, |x| (0.0..=2.0).contains(&x), "from 0 to 2")
}

fn share(text: &str) -> Result<f32, String> {
    number(text, |x| x > 0.0 && x <= 1.0, "more than 0 and at most 1")
}

fn share_or_none(text: &str) -> Result<f32, String> {
    number(text, |x| (0.0..=1.0).contains(&x), "from 0 to 1")
}

/// Whether the model writes its reasoning down first.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct ThinkingArgs {
    /// Let the model reason before it answers (the default)
    #[arg(long, overrides_with = "no_thinking")]
    pub thinking: bool,
    /// Answer at once
    #[arg(long, overrides_with = "thinking")]
    pub no_thinking: bool,
}

impl ThinkingArgs {
    /// On unless it was turned off.
    pub fn on(self) -> bool {
        !self.no_thinking
    }
}

/// `lily serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub prefix: PrefixArgs,

    /// Address to listen on; 0.0.0.0 lets other machines in, which then need --api-key
    #[arg(long, env = "LILY_HOST", default_value = "127.0.0.1", value_name = "IP")]
    pub host: IpAddr,
    /// Port to listen on (0: any free one)
    #[arg(long, env = "LILY_PORT", default_value_t = 8080)]
    pub port: u16,
    /// A key that clients must send as Authorization: Bearer or x-api-key (repeatable, or separated by commas). Other users of
    /// this machine can read a command line; the environment is the better place
    #[arg(long, env = "LILY_API_KEY", value_name = "KEY", value_delimiter = ',', hide_env_values = true)]
    pub api_key: Vec<String>,
    /// A further name by which clients may reach this server without a key (repeatable; * for any)
    #[arg(long, value_name = "HOST")]
    pub allow_host: Vec<String>,
    /// An origin whose web pages may use this server, as http://localhost:3000 (repeatable; * for any)
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Vec<String>,
    /// A further name that clients may give as `model` (repeatable; one that ends in * is every name that begins so)
    #[arg(long, value_name = "NAME")]
    pub alias: Vec<String>,
    /// Requests that may wait for the engine; more are refused with 429
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub max_queue: usize,
    /// Requests that run at once: they take turns by chunk of a prompt and by token; more wait
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub parallel: u16,
    /// Refuse requests with fields that mean nothing here; without it, a header of the answer names them
    #[arg(long)]
    pub strict: bool,
    /// Give conversations that come without it the reasoning back that was written for them here, so that they continue
    /// what is kept of them (docs/prefix.md)
    #[arg(long, value_enum, default_value_t = Switch::On, value_name = "on|off", hide_possible_values = true)]
    pub reattach_reasoning: Switch,
    /// Take away the first line of a system prompt where this pattern matches in it: some agents change it with every
    /// request, and then nothing that is kept can be used
    #[arg(long, value_name = "REGEX")]
    pub strip_agent_header: Option<Regex>,
    /// For tests of clients: answer with the tokens written in this file, one JSON line a request (docs/script.md)
    #[arg(long, value_name = "FILE.jsonl")]
    pub script: Option<PathBuf>,
}

/// On or off.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

/// `lily chat`.
#[derive(Args, Debug)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub prefix: PrefixArgs,
    /// Instructions that the whole conversation follows
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub thinking: ThinkingArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// `lily run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The question; `-` reads it from standard input
    pub prompt: String,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    /// Instructions that the answer follows
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub thinking: ThinkingArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// `lily inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Checkpoint folder, or the name of a repository in the local Hugging Face cache [default: the built-in demo]
    #[arg(env = "LILY_MODEL", value_name = "DIR|OWNER/NAME")]
    pub model: Option<String>,
}

/// Which implementation of the model runs on the CPU.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// SIMD on the quantised weights
    Fast,
    /// Plain F32, slow, easy to trust
    Oracle,
}

/// `lily doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Which device
    #[arg(long, env = "LILY_DEVICE", value_enum, default_value_t = Device::Auto)]
    pub device: Device,
    /// Use the dimensions of the 35B model instead of smaller ones
    #[arg(long)]
    pub full: bool,
}

/// `lily eval`.
#[derive(Args, Debug)]
pub struct EvalArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Text to score; chat markup such as <|im_start|> is read as such
    #[arg(long, value_name = "FILE", required_unless_present = "golden")]
    pub text: Option<PathBuf>,
    /// Golden file with `input_ids`, `nll` and `top1` to score and compare with (demo/eval/golden_*.json)
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    pub golden: Option<PathBuf>,
    /// Score at most this many positions
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub positions: Option<u32>,
    /// Which implementation, on the CPU
    #[arg(long, value_enum, default_value_t = EngineKind::Fast)]
    pub engine: EngineKind,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn numbers_outside_their_bounds_are_refused() {
        for (flag, bad) in [("--temperature", "NaN"), ("--temperature", "2.5"), ("--top-p", "0"), ("--min-p", "-0.1")] {
            let error = Cli::try_parse_from(["lily", "run", "x", &format!("{flag}={bad}")]).unwrap_err();
            assert!(error.to_string().contains(flag), "{error}");
        }
    }

    #[test]
    fn sizes_of_memory_have_units() {
        for (text, bytes) in [("0", 0), ("12", 12), ("500MB", 500_000_000), ("4GiB", 4 << 30), ("64 mib", 64 << 20)] {
            assert_eq!(byte_count(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "-1", "1.5GiB", "4 stones", "99999999999GiB"] {
            assert!(byte_count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_last_thinking_flag_wins() {
        let on = |args: &[&str]| match Cli::try_parse_from(args).unwrap().command {
            Command::Run(run) => run.thinking.on(),
            _ => unreachable!(),
        };
        assert!(on(&["lily", "run", "x"]));
        assert!(!on(&["lily", "run", "x", "--no-thinking"]));
        assert!(on(&["lily", "run", "x", "--no-thinking", "--thinking"]));
        assert!(!on(&["lily", "run", "x", "--thinking", "--no-thinking"]));
    }
}
