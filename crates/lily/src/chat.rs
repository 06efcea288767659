//! `lily chat`: a conversation in the terminal.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use lily_engine::FinishReason;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use crate::cli::ChatArgs;
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::keep::Keep;
use crate::session::{AskError, Piece, Reply, Session, runtime};
use crate::term::{Style, printable};

const PROMPT: &str = "> ";
const HELP: &str = "\
/think on|off   let the model reason before it answers, or not
/clear          forget the conversation
/quit           leave (also Ctrl-D)
Ctrl-C          stop the answer";

/// Talk until the person leaves.
pub fn chat(args: ChatArgs) -> Result<ExitCode> {
    let keep = Keep::of(&args.prefix)?;
    let session = Session::open(&args.model, &args.context, keep, &args.sampling)?;
    let system = args.system.as_ref().map(|text| json!({ "role": "system", "content": text }));
    let mut talk = Talk {
        session,
        history: Vec::new(),
        system: system.into_iter().collect(),
        thinking: args.thinking.on(),
        style: Style::of(&std::io::stdout()),
    };
    let mut input = Input::new()?;
    if input.is_terminal() {
        println!("{}/help lists the commands, Ctrl-C stops an answer.{}", talk.style.dim, talk.style.reset);
    }
    runtime()?.block_on(async {
        let interrupt = Interrupt::listen()?;
        let mut leaving = false;
        loop {
            match input.next()? {
                Line::Text(line) => {
                    leaving = false;
                    if talk.obey_or_ask(line.trim(), &interrupt).await? {
                        return Ok(ExitCode::SUCCESS);
                    }
                }
                Line::Interrupted if leaving => return Ok(ExitCode::from(INTERRUPTED)),
                Line::Interrupted => {
                    leaving = true;
                    println!("{}Ctrl-C again leaves.{}", talk.style.dim, talk.style.reset);
                }
                Line::End => return Ok(ExitCode::SUCCESS),
            }
        }
    })
}

struct Talk {
    session: Session,
    system: Vec<Value>,
    /// Turns of user and assistant.
    history: Vec<Value>,
    thinking: bool,
    style: Style,
}

impl Talk {
    /// Carry out a command or answer a question; true says that the person wants to leave.
    async fn obey_or_ask(&mut self, line: &str, interrupt: &Interrupt) -> Result<bool> {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (None, ..) => {}
            (Some("/quit" | "/exit"), None, _) => return Ok(true),
            (Some("/help"), None, _) => println!("{HELP}"),
            (Some("/clear"), None, _) => {
                self.history.clear();
                println!("The conversation is forgotten.");
            }
            (Some("/think"), Some(word @ ("on" | "off")), None) => {
                self.thinking = word == "on";
                println!("Thinking is {word}.");
            }
            (Some("/think"), None, _) => println!("Thinking is {}.", if self.thinking { "on" } else { "off" }),
            (Some(word), ..) if word.starts_with('/') => println!("No such command: {line}\n{HELP}"),
            _ => self.ask(line, interrupt).await?,
        }
        Ok(false)
    }

    async fn ask(&mut self, question: &str, interrupt: &Interrupt) -> Result<()> {
        self.history.push(json!({ "role": "user", "content": question }));
        let conversation: Vec<Value> = self.system.iter().chain(&self.history).cloned().collect();
        let mut printer = Printer { style: self.style, reasoning: false };
        let reply = self.session.ask(&conversation, self.thinking, interrupt, |piece| printer.write(piece)).await;
        printer.end()?;
        match reply {
            Ok(reply) => self.remember(reply),
            Err(error @ AskError::TooLong { .. }) => {
                self.history.pop();
                eprintln!("{error}. /clear begins a new conversation.");
            }
            Err(AskError::Other(error)) => return Err(error),
        }
        Ok(())
    }

    /// Keep an answer, also one that was cut off, for the turns that follow.
    fn remember(&mut self, reply: Reply) {
        let note = match reply.finished.map(|f| f.reason) {
            None => "(stopped)",
            Some(FinishReason::Length) => "(cut off at the length limit)",
            Some(_) => "",
        };
        if !note.is_empty() {
            println!("{}{note}{}", self.style.dim, self.style.reset);
        }
        let mut message = json!({ "role": "assistant", "content": reply.content });
        if !reply.reasoning.is_empty() {
            message["reasoning_content"] = reply.reasoning.into();
        }
        self.history.push(message);
    }
}

/// Writes an answer: the reasoning dimmed, or between marks where there are no styles.
struct Printer {
    style: Style,
    reasoning: bool,
}

impl Printer {
    fn write(&mut self, piece: Piece) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        let text = match piece {
            Piece::Reasoning(text) => {
                if !std::mem::replace(&mut self.reasoning, true) {
                    write!(out, "{}", if self.style.is_plain() { "[thinking] " } else { self.style.dim })?;
                }
                text
            }
            Piece::Content(text) => {
                if std::mem::take(&mut self.reasoning) {
                    write!(out, "{}\n\n", if self.style.is_plain() { " [/thinking]" } else { self.style.reset })?;
                }
                text
            }
        };
        write!(out, "{}", printable(&text, self.style.is_plain()))?;
        out.flush()
    }

    fn end(&self) -> std::io::Result<()> {
        let reset = if self.reasoning { self.style.reset } else { "" };
        writeln!(std::io::stdout(), "{reset}")
    }
}

enum Line {
    Text(String),
    Interrupted,
    End,
}

/// Lines from a terminal, with editing and recall, or from a pipe.
enum Input {
    Terminal(Box<DefaultEditor>),
    Pipe(std::io::Lines<std::io::StdinLock<'static>>),
}

impl Input {
    fn new() -> Result<Self> {
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            return Ok(Self::Terminal(Box::new(DefaultEditor::new().context("cannot use this terminal")?)));
        }
        Ok(Self::Pipe(std::io::stdin().lock().lines()))
    }

    fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    fn next(&mut self) -> Result<Line> {
        match self {
            Self::Terminal(editor) => match editor.readline(PROMPT) {
                Ok(line) => {
                    editor.add_history_entry(&line)?;
                    Ok(Line::Text(line))
                }
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(error).context("cannot read from the terminal"),
            },
            Self::Pipe(lines) => match lines.next() {
                Some(line) => Ok(Line::Text(line.context("cannot read from standard input")?)),
                None => Ok(Line::End),
            },
        }
    }
}
