//! Runs beside one another.

use super::report::{Report, Row, grouped, short};

/// A run with the name that tables and plots give it.
#[derive(Clone, Debug)]
pub struct Named {
    /// The engine, and where that is not enough the file.
    pub name: String,
    /// What it measured.
    pub report: Report,
}

impl Named {
    /// Names runs that come with the names of their files.
    pub fn all(reports: Vec<(String, Report)>) -> Vec<Self> {
        let twice = |engine: &str| reports.iter().filter(|(_, r)| r.engine == engine).count() > 1;
        let name = |(file, r): &(String, Report)| match twice(&r.engine) {
            true => format!("{} ({file})", r.engine),
            false => r.engine.clone(),
        };
        let names: Vec<String> = reports.iter().map(name).collect();
        names.into_iter().zip(reports).map(|(name, (_, report))| Self { name, report }).collect()
    }

    /// Of a context.
    fn row(&self, context: u64) -> Option<&Row> {
        self.report.rows.iter().find(|row| row.context == context)
    }
}

/// Contexts of any of the runs, ascending.
pub fn contexts(runs: &[Named]) -> Vec<u64> {
    let mut all: Vec<u64> = runs.iter().flat_map(|r| r.report.rows.iter().map(|row| row.context)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Two tables, prefill and decode: tokens a second of each run, and the first one's over each other's.
pub fn tables(runs: &[Named]) -> String {
    let prefill = table(runs, "prefill tok/s", |r| r.prefill_tok_s);
    prefill + "\n" + &table(runs, "decode tok/s", |r| r.decode_tok_s)
}

fn table(runs: &[Named], title: &str, rate: fn(&Row) -> Option<f64>) -> String {
    let dash = || "–".to_string();
    let mut text = format!("{title}\n{:>9}", "context");
    let width = |r: &Named| r.name.chars().count().max(9);
    for (i, run) in runs.iter().enumerate() {
        text += &format!("  {:>1$}", run.name, width(run));
        text += if i > 0 { "   ratio" } else { "" };
    }
    for context in contexts(runs) {
        text += &format!("\n{:>9}", grouped(context as f64));
        let of = |run: &Named| run.row(context).and_then(rate);
        let first = runs.first().and_then(of);
        for (i, run) in runs.iter().enumerate() {
            text += &format!("  {:>1$}", of(run).map_or_else(dash, short), width(run));
            if i > 0 {
                let ratio = first.zip(of(run)).map_or_else(dash, |(a, b)| format!("{:.2}×", a / b));
                text += &format!("  {ratio:>6}");
            }
        }
    }
    text + "\n"
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A run with its file's name.
    pub fn run(engine: &str, rows: &[(u64, f64)]) -> (String, Report) {
        let row = |&(context, x)| format!(r#"{{"context": {context}, "prefill_tok_s": {x}, "decode_tok_s": 5}}"#);
        let rows: Vec<String> = rows.iter().map(row).collect();
        let json = format!(r#"{{"engine": {engine:?}, "rows": [{}]}}"#, rows.join(","));
        (format!("{engine}-file"), serde_json::from_str(&json).unwrap())
    }

    #[test]
    fn ratios_stand_beside_the_rates() {
        let runs = Named::all(vec![run("lily", &[(256, 3000.0), (1024, 10.0)]), run("other", &[(256, 2000.0)])]);
        let text = tables(&runs);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "prefill tok/s");
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["256", "3,000", "2,000", "1.50×"]);
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["1,024", "10.0", "–", "–"]);
        assert!(text.contains("decode tok/s") && text.contains("1.00×"));
    }

    #[test]
    fn one_engine_twice_is_told_apart_by_its_files() {
        let (mut a, b) = (run("lily", &[(1, 1.0)]), run("lily", &[(1, 1.0)]));
        a.0 = "before".into();
        let names: Vec<String> = Named::all(vec![a, b]).into_iter().map(|n| n.name).collect();
        assert_eq!(names, ["lily (before)", "lily (lily-file)"]);
    }
}
