//! Where synthetic checkpoints for benchmarks lie.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use lily_checkpoint::{Checkpoint, synthetic};

use crate::bench::BenchArgs;
use crate::term::Progress;

/// Seed of the random weights.
const SEED: u64 = 1;

/// Open the synthetic checkpoint with this many layers; write it first where it is not there yet.
pub fn checkpoint(args: &BenchArgs) -> Result<Checkpoint> {
    ensure!(
        args.layers > 0 && args.layers.is_multiple_of(4),
        "--layers {} is not a multiple of 4; every fourth layer is full attention",
        args.layers
    );
    let dir = match &args.synthetic_dir {
        Some(dir) => dir.clone(),
        None => cache_folder()?.join(format!("synthetic-{}-layers", args.layers)),
    };
    if !dir.join("config.json").exists() {
        eprintln!("Writing random weights to {} (once).", dir.display());
        let progress = Progress::start("writing");
        let shape = synthetic::full_shape(args.layers);
        synthetic::write_mlx4(&dir, &shape, SEED, &mut |done, total| progress.bytes(done, total))
            .with_context(|| format!("cannot write a synthetic checkpoint to {}", dir.display()))?;
    }
    let checkpoint = Checkpoint::open(&dir).with_context(|| format!("cannot use {}", dir.display()))?;
    let layers = checkpoint.shape().layers.len();
    ensure!(layers == args.layers, "{} holds {layers} layers, not {}", dir.display(), args.layers);
    Ok(checkpoint)
}

/// `$XDG_CACHE_HOME/lily`, or what the system uses in its place.
fn cache_folder() -> Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = var("XDG_CACHE_HOME").or_else(|| {
        let home = var("HOME")?;
        Some(if cfg!(target_vendor = "apple") { home.join("Library/Caches") } else { home.join(".cache") })
    });
    let base = base.or_else(|| var("LOCALAPPDATA")).context("no cache folder is known; give --synthetic-dir DIR")?;
    Ok(base.join("lily"))
}
