//! The demo's golden files (`demo/eval/README.md`).

use lily_model::{Model, Rows};
use serde_json::Value;

use super::{argmax, repo};

pub fn json(path: &str) -> Value {
    let text = std::fs::read_to_string(repo(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).expect("JSON")
}

pub fn ids(v: &Value) -> Vec<u32> {
    v.as_array().expect("a list").iter().map(|i| i.as_u64().expect("an id") as u32).collect()
}

/// Loss (nats) and top id of each position.
pub struct Scores {
    pub nll: Vec<f64>,
    pub top: Vec<u32>,
}

impl Scores {
    /// After `ids[0..=i]`, the loss of `ids[i + 1]`.
    pub fn of(model: &mut dyn Model, ids: &[u32]) -> Self {
        let mut scores = Scores { nll: Vec::new(), top: Vec::new() };
        let seq = model.begin(ids.len()).expect("room");
        let (inputs, targets) = (&ids[..ids.len() - 1], &ids[1..]);
        for (part, targets) in inputs.chunks(256).zip(targets.chunks(256)) {
            let logits = model.prefill(seq, part, Rows::All).expect("prefill");
            for (i, &target) in targets.iter().enumerate() {
                let row = logits.row(i);
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let total: f64 = row.iter().map(|l| f64::from(l - max).exp()).sum();
                scores.nll.push(total.ln() - f64::from(row[target as usize] - max));
                scores.top.push(argmax(row));
            }
        }
        model.end(seq);
        scores
    }

    pub fn golden(v: &Value) -> Self {
        let nll = v["nll"].as_array().expect("a list").iter().map(|n| n.as_f64().expect("a number")).collect();
        Scores { nll, top: ids(&v["top1"]) }
    }

    pub fn perplexity(&self) -> f64 {
        (self.nll.iter().sum::<f64>() / self.nll.len() as f64).exp()
    }

    pub fn worst(&self, other: &Scores) -> f64 {
        self.nll.iter().zip(&other.nll).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }

    pub fn same_top(&self, other: &Scores) -> f64 {
        let same = self.top.iter().zip(&other.top).filter(|(a, b)| a == b).count();
        same as f64 / self.top.len() as f64
    }
}

pub fn greedy(model: &mut dyn Model, prompt: &[u32], expected: &[u32]) -> Vec<u32> {
    let seq = model.begin(prompt.len() + expected.len()).expect("room");
    let logits = model.prefill(seq, prompt, Rows::Last).expect("prefill");
    let mut out = vec![argmax(logits.row(0))];
    while out.len() < expected.len() {
        out.push(argmax(model.decode(&[(seq, out[out.len() - 1])]).expect("decode").row(0)));
    }
    model.end(seq);
    out
}
