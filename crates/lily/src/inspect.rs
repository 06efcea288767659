//! `lily inspect`: what a checkpoint holds, and what it lacks.

use std::io::Write;

use anyhow::{Result, bail};
use lily_checkpoint::{hub, inspect as look_at};

use crate::cli::InspectArgs;
use crate::load;

/// Print the report; an incomplete checkpoint is an error after it.
pub fn inspect(args: InspectArgs) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let Some(name) = args.model else {
        write!(out, "{}", load::checkpoint(None)?.report())?;
        return Ok(());
    };
    let report = look_at(&hub::resolve_model(&name)?);
    write!(out, "{report}")?;
    match report.problems.len() {
        0 => Ok(()),
        1 => bail!("this checkpoint cannot be used: {}", report.problems[0]),
        n => bail!("this checkpoint cannot be used: {n} problems, see above"),
    }
}
