//! `lily bench`: speed, bandwidth and memory on this machine. `docs/bench.md` says what is measured, and how it is written.
//!
//! - [`args`]: what can be typed.
//! - [`source`]: the weights.
//! - [`mod@measure`]: one prompt length, timed.
//! - [`roofline`]: what the device does at most.
//! - [`chat`]: a conversation, with the prefix cache and without; [`chat_plot`] draws it.
//! - [`report`]: the result as JSON and as a table; [`compare`] and [`plot`]: several of them side by side.

mod args;
mod chat;
mod chat_plot;
mod compare;
mod measure;
mod plot;
mod report;
mod roofline;
mod source;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lily_model::Costs;

pub use args::BenchArgs;
use compare::Named;
pub use measure::argmax;
use measure::{Plan, Planned};
pub use report::now;
use report::{Report, Roofline};
pub use source::Source;
use source::decode_weight_bytes;

use crate::cli::EngineKind;
use crate::device;
use crate::device::Chosen;

/// Measure or read, and print tables.
pub fn bench(args: BenchArgs) -> Result<()> {
    if args.count {
        let lengths = args.contexts.map_or(vec![512], |c| c.0);
        ensure!(lengths.len() == 1, "--count takes one prompt length");
        return crate::count::count(lengths[0] as u32);
    }
    if args.chat {
        return chat::chat(&args);
    }
    if args.ablate {
        return crate::ablate::ablate(&args);
    }
    // Read first: a file that cannot be used is known before anything is measured.
    let others = args.compare.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    let own = match &args.from {
        Some(path) => {
            let (name, report) = read(path)?;
            println!("{}\n{}", report.head(), report::columns());
            report.rows.iter().for_each(|row| println!("{}", row.line()));
            (name, report)
        }
        None => ("this run".into(), measure(&args)?),
    };
    let runs = Named::all([vec![own], others].concat());
    if runs.len() > 1 {
        println!("\n{}", compare::tables(&runs));
    }
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::svg(&runs)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// A file and what to call it.
fn read(path: &Path) -> Result<(String, Report)> {
    let name = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    Ok((name, Report::read(path)?))
}

/// Measures every prompt length, and prints and writes them as they come.
fn measure(args: &BenchArgs) -> Result<Report> {
    let mut device = device::choose(args.model.device)?;
    let source = Source::open(args)?;
    let (shape, weights) = (source.shape(), source.weights());
    let contexts = contexts(args, &device, shape.max_context)?;
    let roofline = match args.peak {
        Some(peak) => Some(given(peak)),
        None => {
            let roofline = device.roofline(args.model.workers())?;
            crate::memory::forget_peak();
            roofline
        }
    };
    let mut report = Report {
        engine: "lily".into(),
        version: Some(env!("CARGO_PKG_VERSION").into()),
        device: None,
        device_uuid: device.uuid(),
        clocks: device.clocks().map(Into::into),
        date: Some(report::now()),
        weights: Some(source.name()),
        command: Some(command()),
        decode_tokens: Some(u64::from(args.decode_tokens)),
        warm_up: Some(!args.no_warm_up),
        load_s: None,
        roofline,
        rows: Vec::new(),
    };
    let decode_weight_bytes = decode_weight_bytes(weights, shape.experts_per_token);
    let mut plan = Plan {
        decode: args.decode_tokens as usize,
        rounds: args.rounds as usize,
        warm_up: !args.no_warm_up,
        costs: Costs { decode_weight_bytes, ..Costs::of(shape) },
        roofline: report.roofline.clone(),
        planned: planned(args, &device, &source)?,
    };
    let loading = Instant::now();
    let mut model = source.model(device, args)?;
    report.load_s = Some(loading.elapsed().as_secs_f64());
    report.device = Some(model.device());
    plan.costs = plan.costs.with_kv(shape, model.kv_type());

    println!("{}\n{}", report.head(), report::columns());
    for context in contexts {
        let row = plan.measure(model.as_mut(), context)?;
        println!("{}", row.line());
        report.rows.push(row);
        // After each one: a run that is stopped leaves what it has.
        if let Some(path) = &args.json {
            report.write(path)?;
        }
    }
    Ok(report)
}

/// The plan of `docs/memory.md`, for the engine that it is made for.
fn planned(args: &BenchArgs, device: &Chosen, source: &Source) -> Result<Option<Planned>> {
    if args.engine == EngineKind::Oracle {
        return Ok(None);
    }
    let (program, kv) = (device.program(), args.model.kv_dtype.map(Into::into));
    let footprint = device.footprint(source.shape(), source.bytes(), args.model.workers(), 1, kv)?;
    Ok(Some(Box::new(move |tokens| {
        let f = footprint(tokens);
        program + f.weights + f.scratch + f.sequence.of(tokens)
    })))
}

/// What was asked for, or what the device does in reasonable time.
fn contexts(args: &BenchArgs, device: &Chosen, max_context: usize) -> Result<Vec<usize>> {
    let decode = args.decode_tokens as usize;
    if let Some(asked) = &args.contexts {
        let last = asked.0.last().copied().unwrap_or(0);
        ensure!(
            last + decode <= max_context,
            "a prompt of {last} tokens and {decode} after it are more than the {max_context} that this model was made for"
        );
        return Ok(asked.0.clone());
    }
    let most = if device.is_gpu() { 128 << 10 } else { 1 << 10 };
    let lengths: Vec<usize> = (8..).map(|i| 1 << i).take_while(|&n| n <= most && n + decode <= max_context).collect();
    ensure!(!lengths.is_empty(), "256 tokens and {decode} after them are more than the {max_context} of this model");
    Ok(lengths)
}

fn given([copy_gb_s, matmul_tflops]: [f64; 2]) -> Roofline {
    Roofline { copy_gb_s, matmul_tflops, source: "given by --peak".into() }
}

/// As it was typed, without the path of the program.
pub fn command() -> String {
    std::iter::once("lily".into()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" ")
}
