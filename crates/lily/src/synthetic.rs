//! Random weights for benchmarks.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use lily_checkpoint::{Checkpoint, synthetic};

use crate::term::Progress;

/// Seed of the random weights.
pub const SEED: u64 = 1;

/// Refuses numbers of layers that no shape has.
pub fn check(layers: usize) -> Result<()> {
    ensure!(
        layers > 0 && layers.is_multiple_of(4),
        "--layers {layers} is not a multiple of 4; every fourth layer is full attention"
    );
    Ok(())
}

/// Open the synthetic checkpoint with this many layers in a folder; write it first where it is not there yet.
pub fn checkpoint(dir: &Path, layers: usize) -> Result<Checkpoint> {
    if !dir.join("config.json").exists() {
        eprintln!("Writing random weights to {} (once).", dir.display());
        let progress = Progress::start("writing");
        let shape = synthetic::full_shape(layers);
        synthetic::write_mlx4(dir, &shape, SEED, &mut |done, total| progress.bytes(done, total))
            .with_context(|| format!("cannot write a synthetic checkpoint to {}", dir.display()))?;
    }
    let checkpoint = Checkpoint::open(dir).with_context(|| format!("cannot use {}", dir.display()))?;
    let there = checkpoint.shape().layers.len();
    ensure!(there == layers, "{} holds {there} layers, not {layers}", dir.display());
    Ok(checkpoint)
}
