//! `lily bench --ablate`: what each of the GPU program's ideas brings on this device. `docs/bench.md` says what is compared.
//!
//! - [`lab`]: one comparison, off and on in turn.
//! - [`ideas`]: the ideas, one after another.
//! - [`table`]: the result as a table and as JSON.

mod ideas;
mod lab;
mod table;

use anyhow::{Context, Result, bail, ensure};
use lily_gpu::Options;
use lily_gpu::ablate::SingleLaunches;
use serde_json::{Value, json};

use crate::bench::{self, BenchArgs, Source};
use crate::device::{Chosen, choose};
use lab::Lab;

/// Where the ideas are measured.
struct Sizes {
    /// Prompts: expanding weights at all of them, the rest at the first.
    prompts: Vec<u32>,
    /// Context of decode in single launches.
    short: u32,
    /// Context of packed heads, and positions of the keys that are read.
    long: u32,
    /// Context of fixed blocks.
    longest: u32,
    /// Tokens decoded in a measurement.
    decode: u32,
    /// Measurements of each side.
    rounds: u32,
    /// Bytes of keys that one measurement reads at least: more than caches hold.
    keys: u64,
}

/// Measures all ideas, prints a table, and writes JSON where asked.
pub fn ablate(args: &BenchArgs) -> Result<()> {
    let device = choose(args.model.device)?;
    if matches!(device, Chosen::Cpu) {
        bail!("--ablate compares programs of a GPU; give --device cuda, or metal on a Mac");
    }
    let source = Source::open(args)?;
    let full = Sizes {
        prompts: vec![512, 4096],
        short: 256,
        long: 32 << 10,
        longest: 128 << 10,
        decode: args.decode_tokens,
        rounds: args.rounds,
        keys: 256 << 20,
    };
    let options = Options::default();
    match device {
        Chosen::Cpu => Ok(()),
        #[cfg(target_os = "macos")]
        Chosen::Metal(gpu) => {
            let options = Options { body: gpu.body(), ..options };
            measure(gpu, None, &source, options, full, args)
        }
        #[cfg(target_os = "linux")]
        Chosen::Cuda(gpu) => {
            let options = Options { body: gpu.body()?, ..options };
            let uuid = gpu.uuid().ok();
            measure(*gpu, uuid, &source, options, full, args)
        }
        // Enough to see that everything runs; its times say nothing.
        #[cfg(feature = "emulated")]
        Chosen::Emulated(gpu) => {
            let decode = args.decode_tokens.min(2);
            let small = Sizes { prompts: vec![8], short: 40, long: 260, longest: 600, decode, rounds: 1, keys: 1 };
            measure(gpu, None, &source, options, small, args)
        }
    }
}

fn measure<G: SingleLaunches>(
    gpu: G,
    uuid: Option<String>,
    source: &Source,
    options: Options,
    sizes: Sizes,
    args: &BenchArgs,
) -> Result<()> {
    let (shape, device) = (source.shape(), gpu.name());
    ensure!(shape.max_context as u32 > sizes.prompts[0], "the model is made for {} tokens only", shape.max_context);
    println!("model        {}", source.name());
    println!("device       {device}");
    println!("rounds       {} of each side, in turn; medians", sizes.rounds);
    println!();
    println!("{}", table::head());
    let mut lab = Lab::new(gpu, shape, source.weights(), options)?;
    let rows = ideas::all(&mut lab, &sizes, |row| println!("{}", row.line()))?;
    println!();
    rows.iter().filter(|row| !row.note.is_empty()).for_each(|row| println!("{}", row.remark()));

    if let Some(path) = &args.json {
        let report = json!({
            "engine": "lily",
            "kind": "ablation",
            "version": env!("CARGO_PKG_VERSION"),
            "device": device,
            "device_uuid": uuid,
            "date": bench::now(),
            "weights": source.name(),
            "command": bench::command(),
            "layers": shape.layers.len(),
            "rounds": sizes.rounds,
            "rows": rows.iter().map(table::Row::json).collect::<Vec<Value>>(),
        });
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
