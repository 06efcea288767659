//! `lily run`: one answer to standard output.

use std::io::{Read, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::cli::RunArgs;
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::keep::Keep;
use crate::session::{Piece, Session, runtime};
use crate::term::{Style, printable};

/// Answer one prompt. The answer alone goes to standard output, the reasoning, dimmed, to standard error.
pub fn run(args: RunArgs) -> Result<ExitCode> {
    let prompt = if args.prompt == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read the prompt from standard input")?;
        text
    } else {
        args.prompt
    };
    ensure!(!prompt.trim().is_empty(), "the prompt is empty");

    // One answer has no later request that could use what is kept.
    let session = Session::open(&args.model, &args.context, Keep::nothing(), &args.sampling)?;
    let system = args.system.map(|text| json!({ "role": "system", "content": text }));
    let conversation: Vec<_> = system.into_iter().chain([json!({ "role": "user", "content": prompt })]).collect();

    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let (style, plain) = (Style::of(&err), Style::of(&out).is_plain());
    let mut thinking = false;
    let mut write = |piece: Piece| {
        if let Piece::Reasoning(text) = piece {
            thinking = true;
            write!(err, "{}{}{}", style.dim, printable(&text, style.is_plain()), style.reset)?;
            return err.flush();
        }
        if std::mem::take(&mut thinking) {
            writeln!(err, "\n")?;
        }
        if let Piece::Content(text) = piece {
            write!(out, "{}", printable(&text, plain))?;
        }
        out.flush()
    };
    let reply = runtime()?.block_on(async {
        let interrupt = Interrupt::listen()?;
        anyhow::Ok(session.ask(&conversation, args.thinking.on(), &interrupt, &mut write).await?)
    })?;
    writeln!(out)?;
    Ok(if reply.finished.is_some() { ExitCode::SUCCESS } else { ExitCode::from(INTERRUPTED) })
}
