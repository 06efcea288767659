//! What a run measured, as JSON (docs/bench.md) and as a table. Other engines' measurements come in the same form.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// A run. Of other engines' files only `engine` and `rows` are needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `lily`, `mlx-lm`, `llama.cpp`.
    pub engine: String,
    /// Of the engine.
    pub version: Option<String>,
    /// What computed.
    pub device: Option<String>,
    /// Which one of its kind (CUDA).
    pub device_uuid: Option<String>,
    /// Of the device, in any form.
    pub clocks: Option<serde_json::Value>,
    /// UTC, `2026-12-01T15:00:00Z`.
    pub date: Option<String>,
    /// Which model, in how many bits.
    pub weights: Option<String>,
    /// How it was started.
    pub command: Option<String>,
    /// Tokens decoded after each prompt.
    pub decode_tokens: Option<u64>,
    /// Whether a run of the same shape that is not counted came first.
    pub warm_up: Option<bool>,
    /// Until the model was ready.
    pub load_s: Option<f64>,
    /// The device's limits.
    pub roofline: Option<Roofline>,
    /// By context, ascending.
    pub rows: Vec<Row>,
}

/// What a device does at most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// Bytes read plus bytes written by a copy, 10⁹ a second.
    pub copy_gb_s: f64,
    /// Of a large matrix product, 10¹² a second, a multiply-add being two.
    pub matmul_tflops: f64,
    /// How that is known.
    pub source: String,
}

/// Measurements after one prompt length. Rates are medians over the rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Tokens of the prompt.
    pub context: u64,
    /// Times measured.
    pub rounds: Option<u64>,
    /// Prompt tokens a second.
    pub prefill_tok_s: Option<f64>,
    /// The slowest round.
    pub prefill_min: Option<f64>,
    /// The fastest round.
    pub prefill_max: Option<f64>,
    /// Decoded tokens a second after the prompt.
    pub decode_tok_s: Option<f64>,
    /// The slowest round.
    pub decode_min: Option<f64>,
    /// The fastest round.
    pub decode_max: Option<f64>,
    /// Least operations of the prefill (`docs/model.md §5`) over its time, 10¹² a second.
    pub prefill_tflops: Option<f64>,
    /// Least bytes of a decoded token (`docs/model.md §5`) over its time, 10⁹ a second.
    pub decode_gb_s: Option<f64>,
    /// `prefill_tflops` over the roofline's, 0 to 1.
    pub prefill_roofline: Option<f64>,
    /// `decode_gb_s` over the roofline's, 0 to 1.
    pub decode_roofline: Option<f64>,
    /// Most memory so far: the device's where it has its own, else the process's.
    pub peak_bytes: Option<u64>,
    /// What `docs/memory.md` plans for one request of the prompt and what is decoded after it, weights included.
    pub planned_bytes: Option<u64>,
    /// Most memory of the process so far.
    pub process_peak_bytes: Option<u64>,
    /// Dispatches of the prefill.
    pub dispatches_prefill: Option<u64>,
    /// Dispatches of a decoded token.
    pub dispatches_token: Option<f64>,
    /// Of the decoded tokens' ids: FNV-1a, 64 bits, over their little-endian 32 bits.
    pub digest: Option<String>,
}

impl Report {
    /// Reads a file of this or another engine.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let json = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
        let report: Self =
            serde_json::from_slice(&json).with_context(|| format!("{name} is no benchmark as of docs/bench.md"))?;
        ensure!(!report.rows.is_empty(), "{name} has no rows");
        for w in report.rows.windows(2) {
            let (a, b) = (w[0].context, w[1].context);
            ensure!(a < b, "{name}: context {b} comes after {a}; they must ascend");
        }
        for row in &report.rows {
            let rates = [row.prefill_tok_s, row.decode_tok_s];
            ensure!(
                row.context > 0 && rates.iter().flatten().all(|&x| x.is_finite() && x > 0.0),
                "{name}: context {} has a number that is not above 0",
                row.context
            );
        }
        Ok(report)
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// What stands above the table.
    pub fn head(&self) -> String {
        let mut text = String::new();
        let device = self.device.as_ref().map(|d| match &self.device_uuid {
            Some(uuid) => format!("{d} ({uuid})"),
            None => d.clone(),
        });
        let roofline = self.roofline.as_ref().map(|r| {
            let (copy, matmul) = (short(r.copy_gb_s), short(r.matmul_tflops));
            format!("copy {copy} GB/s, products {matmul} TFLOP/s ({})", r.source)
        });
        let loaded = self.load_s.map(|s| format!("in {s:.1} s"));
        let after = self.decode_tokens.map(|n| format!("{n} tokens after each prompt"));
        for (name, value) in [
            ("weights", self.weights.clone()),
            ("device", device),
            ("roofline", roofline),
            ("loaded", loaded),
            ("decoded", after),
        ] {
            if let Some(value) = value {
                text += &format!("{name:<10}{value}\n");
            }
        }
        text
    }
}

/// Names of the columns.
pub fn columns() -> String {
    let columns = format!(
        "{:>8} {:>6}  {:>9} {:>17} {:>7} {:>5}  {:>7} {:>15} {:>6} {:>5}  {:>13} {:>9}  digest",
        "context",
        "rounds",
        "prefill/s",
        "min … max",
        "TFLOP/s",
        "of it",
        "dec./s",
        "min … max",
        "GB/s",
        "of it",
        "dispatches",
        "peak GB"
    );
    columns
}

impl Row {
    /// A line of the table.
    pub fn line(&self) -> String {
        let number = |x: Option<f64>| x.map_or("–".into(), short);
        let percent = |x: Option<f64>| x.map_or("–".into(), |x| format!("{:.1}%", 100.0 * x));
        let range = |low: Option<f64>, high: Option<f64>| format!("{} … {}", number(low), number(high));
        let dispatches = match (self.dispatches_prefill, self.dispatches_token) {
            (Some(prefill), Some(token)) => format!("{} + {token}", grouped(prefill as f64)),
            _ => "–".into(),
        };
        format!(
            "{:>8} {:>6}  {:>9} {:>17} {:>7} {:>5}  {:>7} {:>15} {:>6} {:>5}  {:>13} {:>9}  {}",
            grouped(self.context as f64),
            self.rounds.map_or("–".into(), |n| n.to_string()),
            number(self.prefill_tok_s),
            range(self.prefill_min, self.prefill_max),
            number(self.prefill_tflops),
            percent(self.prefill_roofline),
            number(self.decode_tok_s),
            range(self.decode_min, self.decode_max),
            number(self.decode_gb_s),
            percent(self.decode_roofline),
            dispatches,
            number(self.peak_bytes.map(|b| b as f64 / 1e9)),
            self.digest.as_deref().unwrap_or("–"),
        )
    }
}

/// Three digits or more: 0.124, 41.3, 217, 14,005.
pub fn short(x: f64) -> String {
    match x.abs() {
        a if a >= 99.95 => grouped(x.round()),
        a if a >= 9.995 => format!("{x:.1}"),
        a if a >= 0.9995 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

/// Whole, with commas between thousands.
pub fn grouped(x: f64) -> String {
    let digits = format!("{x:.0}");
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Now, UTC.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    utc(seconds)
}

/// Seconds since 1970 as a date of the Gregorian calendar.
fn utc(seconds: u64) -> String {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(utc(1_796_137_200), "2026-12-01T15:00:00Z");
    }

    #[test]
    fn numbers_are_short() {
        let got = [0.12449, 4.126, 41.26, 99.96, 217.4, 14_005.2, 1_234_567.0].map(short);
        assert_eq!(got, ["0.124", "4.13", "41.3", "100", "217", "14,005", "1,234,567"]);
    }

    #[test]
    fn a_file_comes_back_as_it_was() {
        let row = Row { context: 256, decode_tok_s: Some(1.5), digest: Some("00ff".into()), ..Row::default() };
        let roofline = Roofline { copy_gb_s: 4.0, matmul_tflops: 0.1, source: "measured".into() };
        let report = Report {
            engine: "lily".into(),
            version: Some("0".into()),
            device: None,
            device_uuid: None,
            clocks: Some("1980 MHz".into()),
            date: Some(now()),
            weights: None,
            command: None,
            decode_tokens: Some(64),
            warm_up: Some(true),
            load_s: Some(0.5),
            roofline: Some(roofline),
            rows: vec![row],
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        report.write(&path).unwrap();
        assert_eq!(Report::read(&path).unwrap(), report);
    }

    #[test]
    fn files_that_cannot_be_compared_say_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.json");
        for (text, part) in [
            ("{", "no benchmark"),
            (r#"{"engine": "x", "rows": []}"#, "no rows"),
            (r#"{"engine": "x", "rows": [{"context": 2}, {"context": 1}]}"#, "ascend"),
            (r#"{"engine": "x", "rows": [{"context": 2, "decode_tok_s": 0}]}"#, "context 2"),
            (r#"{"engine": "x", "rows": [{"tokens": 2}]}"#, "no benchmark"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", Report::read(&path).unwrap_err());
            assert!(error.contains(part) && error.contains("b.json"), "{error}");
        }
        std::fs::write(&path, r#"{"engine": "x", "clocks": [1], "more": 1, "rows": [{"context": 2}]}"#).unwrap();
        assert_eq!(Report::read(&path).unwrap().rows[0].context, 2);
    }
}
