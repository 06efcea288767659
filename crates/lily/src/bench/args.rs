//! What can be typed after `lily bench`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::{EngineKind, ModelArgs};

/// `lily bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Benchmark random weights at the dimensions of the 35B model instead, made in memory
    #[arg(long)]
    pub synthetic: bool,
    /// Instead of times, count dispatches and bytes of the GPU program on the emulator, at the dimensions of the 35B model
    #[arg(long, conflicts_with_all = ["synthetic", "json"])]
    pub count: bool,
    /// Compare the GPU program with itself, each of its ideas off and on (docs/bench.md)
    #[arg(long, conflicts_with_all = ["count", "contexts", "from", "compare", "plot", "peak", "no_warm_up"])]
    pub ablate: bool,
    /// Hold a conversation of 20 turns, with the prefix cache and without: what each turn reads, and the time to its first
    /// token (docs/bench.md). --decode-tokens is then the most that an answer has, --rounds how often it is held
    #[arg(long, conflicts_with_all = ["synthetic", "count", "ablate", "contexts", "peak", "no_warm_up", "engine"])]
    pub chat: bool,
    /// Turns of the conversation, at most 20
    #[arg(long, default_value_t = 20, requires = "chat", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20))]
    pub turns: u32,
    /// Layers of the random weights, a multiple of 4; 40 is the whole model, 19.5 GB
    #[arg(long, default_value_t = 4, requires = "synthetic", value_name = "N")]
    pub layers: usize,
    /// Write the random weights to this folder once, and map them from there
    #[arg(long, requires = "synthetic", value_name = "DIR")]
    pub synthetic_dir: Option<PathBuf>,

    /// Tokens of the prompts, in ascending order; 4K is 4,096 [default: 256 to 128K by doubling on a GPU, to 1K on the
    /// CPU, as far as the model goes]
    #[arg(long, visible_alias = "prompt-tokens", value_name = "N,…", value_parser = contexts)]
    pub contexts: Option<Contexts>,
    /// Tokens decoded after each prompt
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub decode_tokens: u32,
    /// Times that a prompt of up to 8,192 tokens is measured, after one warm-up; longer ones in proportion fewer times
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Measure the first run of each prompt too, cold as it is
    #[arg(long)]
    pub no_warm_up: bool,
    /// The device's copy bandwidth and matrix rate, measured otherwise, as the roofline
    #[arg(long, value_name = "GB_S,TFLOP_S", value_parser = peak)]
    pub peak: Option<[f64; 2]>,
    /// Which implementation, on the CPU
    #[arg(long, value_enum, default_value_t = EngineKind::Fast)]
    pub engine: EngineKind,
    /// Also write the numbers to this file (docs/bench.md), anew after each prompt length
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measure nothing: take the numbers of this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["synthetic", "contexts", "json", "count", "peak"])]
    pub from: Option<PathBuf>,
    /// Print ratios to the numbers of this file, of Lily or another engine (repeatable)
    #[arg(long, value_name = "FILE", conflicts_with = "count")]
    pub compare: Vec<PathBuf>,
    /// Draw this run and those it is compared with
    #[arg(long, value_name = "FILE.svg", conflicts_with = "count")]
    pub plot: Option<PathBuf>,
}

/// Prompt lengths, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contexts(pub Vec<usize>);

/// Reads `256,4K`.
fn contexts(text: &str) -> Result<Contexts, String> {
    let list = text.split(',').map(tokens).collect::<Result<Vec<_>, _>>()?;
    match list.windows(2).find(|w| w[0] >= w[1]) {
        Some(w) => Err(format!("{} does not come after {}: the lengths must ascend", w[1], w[0])),
        None => Ok(Contexts(list)),
    }
}

fn tokens(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let number = digits.parse::<u32>().ok().filter(|&n| n > 0 && digits.bytes().all(|b| b.is_ascii_digit()));
    let number = number.and_then(|n| n.checked_mul(unit));
    number.map(|n| n as usize).ok_or_else(|| format!("{text:?} is not a length such as 512 or 4K"))
}

/// Reads `4270,762`.
fn peak(text: &str) -> Result<[f64; 2], String> {
    let number = |s: &str| s.parse::<f64>().ok().filter(|x| x.is_finite() && *x > 0.0);
    let pair = text.split_once(',').and_then(|(copy, products)| Some([number(copy)?, number(products)?]));
    pair.ok_or_else(|| "must be two numbers above 0, such as 4270,762".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_ascend_and_know_one_unit() {
        assert_eq!(contexts("256,512,1K,128k"), Ok(Contexts(vec![256, 512, 1024, 131_072])));
        for (bad, part) in [("512,512", "ascend"), ("1K,512", "ascend"), ("4M", "4M"), ("0", "\"0\""), ("", "\"\"")] {
            assert!(contexts(bad).unwrap_err().contains(part), "{bad}");
        }
        assert!(tokens("+5").is_err() && tokens("4294967295K").is_err() && contexts("1,,2").is_err());
    }

    #[test]
    fn a_peak_is_two_positive_numbers() {
        assert_eq!(peak("4270,762.5"), Ok([4270.0, 762.5]));
        for bad in ["4270", "4270,0", "nan,1", "1,2,3", "inf,1"] {
            assert!(peak(bad).is_err(), "{bad}");
        }
    }
}
