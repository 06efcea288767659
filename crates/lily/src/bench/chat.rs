//! `lily bench --chat`: a conversation of twenty turns, with the prefix cache and without it, in one run.
//!
//! The script is `bench/chat.json`, the same that `bench/peers/chat.py` says to other servers, which writes the same form.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lily_engine::Usage;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::chat_plot;
use super::report::{grouped, now, short};
use super::{BenchArgs, command};
use crate::cli::{ContextArgs, PrefixArgs, SamplingArgs};
use crate::interrupt::Interrupt;
use crate::keep::Keep;
use crate::session::{Session, runtime};

const SCRIPT: &str = include_str!("../../../../bench/chat.json");

/// Where a state may lie behind the last token that two prompts share.
const BLOCK: u64 = 64;

#[derive(Deserialize)]
struct Script {
    system: String,
    questions: Vec<String>,
}

/// A file of `--chat`. Of another server's, `engine` and `runs` are needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    /// `chat`.
    pub kind: String,
    /// `lily`, `llama.cpp`, `mlx-lm`.
    pub engine: String,
    /// Of the engine.
    pub version: Option<String>,
    /// What computed.
    pub device: Option<String>,
    /// UTC, `2026-12-01T15:00:00Z`.
    pub date: Option<String>,
    /// Which model, in how many bits.
    pub weights: Option<String>,
    /// How it was started.
    pub command: Option<String>,
    /// Conversations that each run is made of; times are medians over them.
    pub rounds: Option<u64>,
    /// Tokens that an answer may have.
    pub answer_tokens: Option<u64>,
    /// With the cache, and without it.
    pub runs: Vec<Run>,
}

/// The conversation once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Whether earlier turns were kept.
    pub cache: bool,
    /// By turn.
    pub rows: Vec<Turn>,
}

/// One question and its answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// From 1.
    pub turn: u64,
    /// Tokens of the whole prompt.
    pub prompt_tokens: u64,
    /// Those that were not read again.
    pub cached_tokens: Option<u64>,
    /// Those that were read: the rest.
    pub prefilled_tokens: Option<u64>,
    /// Those that no turn before had read or fed.
    pub new_tokens: Option<u64>,
    /// Tokens of the answer.
    pub completion_tokens: Option<u64>,
    /// From the request to the first text, seconds: median, fastest, slowest.
    pub ttft_s: f64,
    /// The fastest.
    pub ttft_min: Option<f64>,
    /// The slowest.
    pub ttft_max: Option<f64>,
}

/// Measure or read, print, write, draw.
pub fn chat(args: &BenchArgs) -> Result<()> {
    let others = args.compare.iter().map(|path| Chat::read(path)).collect::<Result<Vec<_>>>()?;
    let own = match &args.from {
        Some(path) => Chat::read(path)?,
        None => measure(args)?,
    };
    println!("{}", own.table());
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&own)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    others.iter().for_each(|other| println!("{}", other.table()));
    if let Some(path) = &args.plot {
        let all: Vec<Chat> = std::iter::once(own).chain(others).collect();
        std::fs::write(path, chat_plot::svg(&all)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn measure(args: &BenchArgs) -> Result<Chat> {
    let mut script: Script = serde_json::from_str(SCRIPT).context("bench/chat.json")?;
    script.questions.truncate(args.turns as usize);
    let runtime = runtime()?;
    let mut report = Chat {
        kind: "chat".into(),
        engine: "lily".into(),
        version: Some(env!("CARGO_PKG_VERSION").into()),
        device: None,
        date: Some(now()),
        weights: None,
        command: Some(command()),
        rounds: Some(u64::from(args.rounds)),
        answer_tokens: Some(u64::from(args.decode_tokens)),
        runs: Vec::new(),
    };
    runtime.block_on(async {
        let interrupt = Interrupt::listen()?;
        let mut answers = Vec::new();
        for cache in [true, false] {
            let mut rounds = Vec::new();
            for _ in 0..args.rounds {
                // A session of its own: nothing is left of the round before.
                let session = open(args, cache)?;
                rounds.push(talk(&session, &script, &mut answers, &interrupt).await?);
                report.device.get_or_insert_with(|| session.device().to_owned());
                report.weights.get_or_insert_with(|| session.name().to_owned());
            }
            report.runs.push(Run { cache, rows: median(&rounds)? });
        }
        ensure!(
            report.runs[0].rows.iter().zip(&report.runs[1].rows).all(|(a, b)| a.prompt_tokens == b.prompt_tokens),
            "with the cache the conversation went another way than without it"
        );
        Ok(report)
    })
}

fn open(args: &BenchArgs, cache: bool) -> Result<Session> {
    let prefix = PrefixArgs { cache_bytes: (!cache).then_some(0), ..PrefixArgs::default() };
    let keep = Keep::of(&prefix)?;
    let sampling = SamplingArgs { greedy: true, max_tokens: Some(args.decode_tokens), ..SamplingArgs::default() };
    Session::open(&args.model, &ContextArgs { ctx: None, memory: None }, keep, &sampling)
}

/// All turns; each answer goes into the next one's conversation. `answers` are those of the first conversation, which all others
/// repeat as what was said: on a GPU a state that decoding left may lead to another answer than reading the prompt anew.
async fn talk(
    session: &Session,
    script: &Script,
    answers: &mut Vec<String>,
    interrupt: &Interrupt,
) -> Result<Vec<Turn>> {
    // What is made at the first use of the device is not the first turn's.
    let hello = [json!({"role": "user", "content": "Hi."})];
    session.ask(&hello, false, interrupt, |_| Ok(())).await?;
    let mut conversation: Vec<Value> = vec![json!({"role": "system", "content": script.system})];
    let mut turns = Vec::new();
    let mut known = 0;
    for (i, question) in script.questions.iter().enumerate() {
        conversation.push(json!({"role": "user", "content": question}));
        let mut first = None;
        let start = Instant::now();
        let reply = session.ask(&conversation, false, interrupt, |_| {
            first.get_or_insert_with(|| start.elapsed().as_secs_f64());
            Ok(())
        });
        let reply = reply.await?;
        let end = start.elapsed().as_secs_f64();
        let finished = reply.finished.context("stopped by Ctrl-C")?;
        turns.push(Turn::of(turns.len() as u64 + 1, finished.usage, known, first.unwrap_or(end)));
        known = finished.usage.prompt_tokens + finished.usage.completion_tokens - 1;
        if answers.len() == i {
            answers.push(reply.content);
        }
        conversation.push(json!({"role": "assistant", "content": answers[i]}));
    }
    Ok(turns)
}

impl Turn {
    /// `known`: prompt and fed answer of the turn before.
    fn of(turn: u64, usage: Usage, known: usize, ttft_s: f64) -> Self {
        Self {
            turn,
            prompt_tokens: usage.prompt_tokens as u64,
            cached_tokens: Some(usage.cached_tokens as u64),
            prefilled_tokens: Some((usage.prompt_tokens - usage.cached_tokens) as u64),
            new_tokens: Some(usage.prompt_tokens.saturating_sub(known) as u64),
            completion_tokens: Some(usage.completion_tokens as u64),
            ttft_s,
            ttft_min: None,
            ttft_max: None,
        }
    }
}

/// The rounds as one, whose times are medians.
fn median(rounds: &[Vec<Turn>]) -> Result<Vec<Turn>> {
    let (first, others) = rounds.split_first().context("no rounds")?;
    let counts = |t: &Turn| (t.prompt_tokens, t.cached_tokens, t.completion_tokens);
    ensure!(
        others.iter().all(|round| round.iter().map(counts).eq(first.iter().map(counts))),
        "rounds gave different answers to the same questions"
    );
    let turn = |(i, turn): (usize, &Turn)| {
        let mut times: Vec<f64> = rounds.iter().map(|round| round[i].ttft_s).collect();
        times.sort_by(f64::total_cmp);
        let (ttft_min, ttft_max) = (times.first().copied(), times.last().copied());
        Turn { ttft_s: times[times.len() / 2], ttft_min, ttft_max, ..turn.clone() }
    };
    Ok(first.iter().enumerate().map(turn).collect())
}

impl Chat {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let json = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
        let chat: Self = serde_json::from_slice(&json)
            .with_context(|| format!("{name} is no chat of lily bench --chat (docs/bench.md)"))?;
        ensure!(chat.kind == "chat", "{name}: kind is {:?}, not \"chat\"", chat.kind);
        ensure!(chat.runs.iter().any(|run| !run.rows.is_empty()), "{name} has no turns");
        for row in chat.runs.iter().flat_map(|run| &run.rows) {
            ensure!(row.ttft_s.is_finite() && row.ttft_s > 0.0, "{name}: turn {} has no time above 0", row.turn);
        }
        Ok(chat)
    }

    /// For people: a run beside the other, and what to look for.
    fn table(&self) -> String {
        let about = [Some(self.engine.clone()), self.device.clone(), self.weights.clone()];
        let mut text = about.into_iter().flatten().collect::<Vec<_>>().join(", ") + "\n";
        text += &format!("{:>5} {:>7} {:>7}", "turn", "prompt", "new");
        for run in &self.runs {
            text += if run.cache { "  | cached    read  first token" } else { "  | no cache, first token" };
        }
        let count = |n: Option<u64>| n.map_or("–".into(), |n| grouped(n as f64));
        let turns = self.runs.iter().map(|run| run.rows.len()).max().unwrap_or(0);
        for i in 0..turns {
            let Some(row) = self.runs.iter().find_map(|run| run.rows.get(i)) else { break };
            text += &format!("\n{:>5} {:>7} {:>7}", row.turn, grouped(row.prompt_tokens as f64), count(row.new_tokens));
            for run in &self.runs {
                let row = run.rows.get(i).cloned().unwrap_or_default();
                let time = format!("{} ms", short(1e3 * row.ttft_s));
                text += &match run.cache {
                    true => {
                        format!("  | {:>6} {:>7} {time:>12}", count(row.cached_tokens), count(row.prefilled_tokens))
                    }
                    false => format!("  | {time:>21}"),
                };
            }
        }
        if let Some(most) = self.most_above_new() {
            let verdict = if most <= BLOCK as i64 { "at most a block" } else { "more than a block" };
            text += &format!("\nread beyond what is new: {most} tokens at most, {verdict} of {BLOCK}\n");
        }
        text
    }

    /// How many tokens that were not new a turn with the cache read at most.
    pub fn most_above_new(&self) -> Option<i64> {
        let rows = &self.runs.iter().find(|run| run.cache)?.rows;
        rows.iter().filter_map(|row| Some(row.prefilled_tokens? as i64 - row.new_tokens? as i64)).max()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two runs of three turns.
    pub fn example(engine: &str) -> Chat {
        let turn = |turn: u64, read: u64, ms: f64| Turn {
            turn,
            prompt_tokens: 100 * turn,
            cached_tokens: Some(100 * turn - read),
            prefilled_tokens: Some(read),
            new_tokens: Some(40),
            ttft_s: ms / 1e3,
            ..Turn::default()
        };
        let warm = Run { cache: true, rows: vec![turn(1, 100, 9.0), turn(2, 40, 4.0), turn(3, 104, 5.0)] };
        let cold = Run { cache: false, rows: vec![turn(1, 100, 9.0), turn(2, 200, 18.0), turn(3, 300, 27.0)] };
        let json = json!({"kind": "chat", "engine": engine, "runs": [warm, cold]});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn the_script_has_twenty_turns() {
        let script: Script = serde_json::from_str(SCRIPT).unwrap();
        assert_eq!(script.questions.len(), 20);
    }

    #[test]
    fn times_are_medians_and_counts_must_agree() {
        let round = |ms: f64| vec![Turn { turn: 1, prompt_tokens: 7, ttft_s: ms, ..Turn::default() }];
        let got = median(&[round(3.0), round(1.0), round(2.0)]).unwrap();
        assert_eq!((got[0].ttft_s, got[0].ttft_min, got[0].ttft_max), (2.0, Some(1.0), Some(3.0)));
        let mut other = round(1.0);
        other[0].prompt_tokens = 8;
        assert!(median(&[round(1.0), other]).unwrap_err().to_string().contains("different answers"));
    }

    #[test]
    fn the_table_says_what_was_read_twice() {
        let mut chat = example("x");
        chat.runs[0].rows[0].new_tokens = Some(100);
        assert_eq!(chat.most_above_new(), Some(64));
        assert!(chat.table().contains("64 tokens at most, at most a block"), "{}", chat.table());
        chat.runs[0].rows[2].prefilled_tokens = Some(105);
        assert!(chat.table().contains("more than a block"));
        let lines = chat.table();
        assert_eq!(lines.lines().nth(3).unwrap().split_whitespace().collect::<Vec<_>>()[..3], ["2", "200", "40"]);
    }

    #[test]
    fn files_that_are_no_chat_say_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.json");
        for (text, part) in [
            ("{", "no chat"),
            (r#"{"kind": "ablation", "engine": "x", "runs": []}"#, "kind"),
            (r#"{"kind": "chat", "engine": "x", "runs": []}"#, "no turns"),
            (
                r#"{"kind": "chat", "engine": "x", "runs": [{"cache": true, "rows": [{"turn": 4, "prompt_tokens": 1, "ttft_s": 0}]}]}"#,
                "turn 4",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", Chat::read(&path).unwrap_err());
            assert!(error.contains(part) && error.contains("c.json"), "{error}");
        }
        std::fs::write(&path, serde_json::to_string(&example("x")).unwrap()).unwrap();
        assert_eq!(Chat::read(&path).unwrap(), example("x"));
    }
}
