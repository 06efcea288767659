//! `lily eval`: perplexity and top-1 accuracy over a text, and the distance from golden values.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use lily_checkpoint::Checkpoint;
use lily_model::{Model, Rows};
use serde_json::Value;

use crate::bench::argmax;
use crate::cli::EvalArgs;
use crate::load;
use crate::term::Progress;

/// Rows of logits held at a time: 64 MB at the real vocabulary, and a multiple of 64 so that cuts change no bit.
const ROWS: usize = 64;

/// Score a text or a golden file and print what came out.
pub fn eval(args: EvalArgs) -> Result<()> {
    let checkpoint = load::checkpoint(args.model.model.as_deref())?;
    let golden = args.golden.as_deref().map(Golden::read).transpose()?;
    let mut ids = match (&golden, &args.text) {
        (Some(golden), _) => golden.ids.clone(),
        (None, Some(path)) => encode(&checkpoint, path)?,
        (None, None) => bail!("give --text FILE or --golden FILE"),
    };
    if let Some(positions) = args.positions {
        ids.truncate(positions as usize + 1);
    }
    ensure!(ids.len() >= 2, "the text has {} token(s); at least 2 are needed to score one", ids.len());

    let mut model = load::model(&checkpoint, &args.model, args.engine)?;
    let scores = score(model.as_mut(), &ids)?;
    let n = scores.nll.len();
    let mean = scores.nll.iter().sum::<f64>() / n as f64;
    let hits = scores.top1.iter().zip(&ids[1..]).filter(|(a, b)| a == b).count();
    println!("model        {}", checkpoint.name());
    println!("device       {}", model.device());
    println!("positions    {n}");
    println!("mean loss    {mean:.6} nats");
    println!("perplexity   {:.4}", mean.exp());
    println!("top-1        {:.2} %", 100.0 * hits as f64 / n as f64);
    if let Some(golden) = golden {
        golden.compare(&scores);
    }
    Ok(())
}

/// Per position: the loss of the token that came, and the likeliest token.
struct Scores {
    nll: Vec<f64>,
    top1: Vec<u32>,
}

fn score(model: &mut dyn Model, ids: &[u32]) -> Result<Scores> {
    let progress = Progress::start("scoring");
    let inputs = &ids[..ids.len() - 1];
    let seq = model.begin(inputs.len())?;
    let mut scores = Scores { nll: Vec::with_capacity(inputs.len()), top1: Vec::with_capacity(inputs.len()) };
    for (i, part) in inputs.chunks(ROWS).enumerate() {
        let logits = model.prefill(seq, part, Rows::All)?;
        for r in 0..part.len() {
            let row = logits.row(r);
            scores.nll.push(nll(row, ids[i * ROWS + r + 1]));
            scores.top1.push(argmax(row));
        }
        progress.count(scores.nll.len() as u64, inputs.len() as u64);
    }
    model.end(seq);
    Ok(scores)
}

/// `−ln softmax(row)[target]`, summed in F64.
fn nll(row: &[f32], target: u32) -> f64 {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    sum.ln() + max - f64::from(row[target as usize])
}

fn encode(checkpoint: &Checkpoint, path: &Path) -> Result<Vec<u32>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(load::tokenizer(checkpoint)?.encode_with_added(&text))
}

/// Expected values: see `demo/eval/README.md`.
struct Golden {
    ids: Vec<u32>,
    nll: Vec<f64>,
    top1: Vec<u32>,
}

impl Golden {
    fn read(path: &Path) -> Result<Self> {
        let file = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", file()))?;
        let value: Value = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", file()))?;
        let list =
            |key: &str| value[key].as_array().with_context(|| format!("{}: `{key}` is missing or not a list", file()));
        let ids = |key: &str| -> Result<Vec<u32>> {
            let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
            list(key)?
                .iter()
                .map(id)
                .collect::<Option<_>>()
                .with_context(|| format!("{}: `{key}` holds no ids", file()))
        };
        let nll = list("nll")?.iter().map(Value::as_f64).collect::<Option<Vec<_>>>();
        let nll = nll.with_context(|| format!("{}: `nll` holds something that is not a number", file()))?;
        let golden = Self { ids: ids("input_ids")?, nll, top1: ids("top1")? };
        let n = golden.nll.len();
        ensure!(
            golden.ids.len() == n + 1 && golden.top1.len() == n,
            "{}: for {n} losses, {} ids and {n} top-1 ids are needed",
            file(),
            n + 1
        );
        Ok(golden)
    }

    fn compare(&self, scores: &Scores) {
        let n = scores.nll.len();
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        let differences: Vec<f64> = scores.nll.iter().zip(&self.nll).map(|(a, b)| (a - b).abs()).collect();
        let largest = differences.iter().copied().fold(0.0, f64::max);
        let same = scores.top1.iter().zip(&self.top1).filter(|(a, b)| a == b).count();
        let ratio = (mean(&scores.nll) - mean(&self.nll[..n])).exp() - 1.0;
        println!();
        println!("against the golden values");
        println!("perplexity   {:.4} there, {:+.4} % here", mean(&self.nll[..n]).exp(), 100.0 * ratio);
        println!("loss         {largest:.6} nats apart at most, {:.6} on average", mean(&differences));
        println!("top-1        the same at {same} of {n} positions ({:.2} %)", 100.0 * same as f64 / n as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_of_a_known_distribution() {
        let row = [2.0_f32.ln(), 0.0, 0.0];
        assert!((nll(&row, 0) - 2.0_f64.ln()).abs() < 1e-7);
        assert!((nll(&row, 2) - 4.0_f64.ln()).abs() < 1e-7);
        assert!((nll(&[1e4, 0.0], 1) - 1e4).abs() < 1e-6);
    }
}
