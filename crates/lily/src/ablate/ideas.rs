//! The ideas, one after another.

use anyhow::Result;
use lily_gpu::ablate::{Baseline, KeyReads, SingleLaunches, Without};

use super::Sizes;
use super::lab::Lab;
use super::table::{Row, Samples, Unit};

/// Parts of the baseline that cuts every sequence into as many, whatever its length.
const SPLITS: u32 = 32;
/// Other numbers of parts, for the note.
const OTHER_SPLITS: [u32; 3] = [64, 128, 256];

/// Compares everything that the model is long enough for. `done` sees each row as it comes.
pub fn all<G: SingleLaunches>(lab: &mut Lab<G>, sizes: &Sizes, done: impl Fn(&Row)) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut add = |row: Row| {
        done(&row);
        rows.push(row);
    };
    let most = lab.shape().max_context as u32;
    for &prompt in sizes.prompts.iter().filter(|&&n| n <= most) {
        add(expanded(lab, sizes, prompt)?);
    }
    add(host_routed(lab, sizes, sizes.prompts[0])?);
    add(keys(lab, sizes)?);
    if fits(sizes, sizes.long, most) {
        packed(lab, sizes)?.into_iter().for_each(&mut add);
    }
    if fits(sizes, sizes.longest, most) {
        blocks(lab, sizes)?.into_iter().for_each(&mut add);
    }
    launches(lab, sizes)?.into_iter().for_each(&mut add);
    Ok(rows)
}

/// Tokens that all measurements at one context decode.
fn steps(sizes: &Sizes) -> u32 {
    (sizes.rounds + 1) * 2 * (sizes.decode + 8) + 64
}

fn fits(sizes: &Sizes, context: u32, most: u32) -> bool {
    context + steps(sizes) <= most
}

fn prefill(prompt: u32) -> String {
    format!("model, prefill of {prompt}")
}

fn expanded<G: SingleLaunches>(lab: &mut Lab<G>, sizes: &Sizes, prompt: u32) -> Result<Row> {
    let side = |expanded| Some(Without::FusedDequantisation { expanded });
    let ([off, on, shipped], difference) = lab.prefill([side(true), side(false), None], prompt, sizes.rounds)?;
    Ok(Row {
        idea: "fused dequantisation",
        measured: prefill(prompt),
        unit: Unit::TokensPerSecond,
        off,
        on,
        mission: Some("+77.4 %"),
        note: format!(
            "off writes a layer's routed experts as BF16 before each of their products; last logits differ by {difference:.1e} \
             of the largest; as shipped {:.1} tok/s",
            shipped.median()
        ),
    })
}

fn host_routed<G: SingleLaunches>(lab: &mut Lab<G>, sizes: &Sizes, prompt: u32) -> Result<Row> {
    let ([off, on], difference) = lab.prefill([Some(Without::ResidentRouting), None], prompt, sizes.rounds)?;
    anyhow::ensure!(difference == 0.0, "rows sorted by the host give other logits ({difference:.1e})");
    Ok(Row {
        idea: "routing on the device",
        measured: prefill(prompt),
        unit: Unit::TokensPerSecond,
        off,
        on,
        mission: Some("+89 % at 512"),
        note: "off ends the command buffer after each router; the host sorts, and the products' grids are exact; same logits"
            .into(),
    })
}

fn keys<G: SingleLaunches>(lab: &mut Lab<G>, sizes: &Sizes) -> Result<Row> {
    let mut rates = |how| lab.keys(how, sizes.long, sizes.keys);
    let (off, on, values) = (rates(KeyReads::Lanes)?, rates(KeyReads::Rows)?, rates(KeyReads::Values)?);
    Ok(Row {
        idea: "coalesced key reads",
        measured: format!("kernel, q·k over {}", positions(sizes.long)),
        unit: Unit::GigabytesPerSecond,
        off,
        on,
        mission: Some("33.8 → 47.9 GB/s"),
        note: format!(
            "off has a lane for each position, which reads 16 bytes at a time; value by value {:.1} GB/s",
            values.median()
        ),
    })
}

/// Attention without an idea, with it, and as it ships.
fn attention<G: SingleLaunches>(
    lab: &mut Lab<G>,
    sizes: &Sizes,
    context: u32,
    off: Baseline,
    others: &[u32],
    row: impl Fn(Samples, Samples) -> Row,
) -> Result<Vec<Row>> {
    let baseline = |packed, splits| Baseline { packed, splits, longest: context + steps(sizes) };
    let [off, on] = [Baseline { longest: context + steps(sizes), ..off }, baseline(true, None)]
        .map(|baseline| Some(Without::Attention(baseline)));
    let mut held = lab.filled(context, steps(sizes))?;
    let rates = lab.decode([off, on, None], &mut held, sizes.decode, sizes.rounds)?;
    let [off_rate, on_rate, shipped] = rates;
    let model = row(off_rate, on_rate);
    let seen = format!("{}; as shipped {:.1} tok/s", model.note, shipped.median());
    let mut rows = vec![Row { measured: format!("model, decode at {}", positions(context)), note: seen, ..model }];

    let times = [lab.attention(off, &mut held)?, lab.attention(on, &mut held)?, lab.attention(None, &mut held)?];
    if let [Some(off), Some(on), Some(shipped)] = times {
        let mut note = format!("of a layer, merging included; as shipped {:.1} µs", shipped.median());
        for &splits in others {
            let side = Some(Without::Attention(baseline(true, Some(splits))));
            if let Some(time) = lab.attention(side, &mut held)? {
                note += &format!("; {splits} parts {:.1} µs", time.median());
            }
        }
        let measured = format!("kernel, attention at {}", positions(context));
        rows.push(Row { measured, unit: Unit::Microseconds, note, ..row(off, on) });
    }
    Ok(rows)
}

fn packed<G: SingleLaunches>(lab: &mut Lab<G>, sizes: &Sizes) -> Result<Vec<Row>> {
    let one = Baseline { packed: false, splits: None, longest: 0 };
    attention(lab, sizes, sizes.long, one, &[], |off, on| Row {
        idea: "packed query heads",
        measured: String::new(),
        unit: Unit::TokensPerSecond,
        off,
        on,
        mission: Some("+23.8 % at 32K"),
        note: "off has a threadgroup for each query head, those of one kv head side by side".into(),
    })
}

fn blocks<G: SingleLaunches>(lab: &mut Lab<G>, sizes: &Sizes) -> Result<Vec<Row>> {
    let split = Baseline { packed: true, splits: Some(SPLITS), longest: 0 };
    attention(lab, sizes, sizes.longest, split, &OTHER_SPLITS, |off, on| Row {
        idea: "fixed blocks",
        measured: String::new(),
        unit: Unit::TokensPerSecond,
        off,
        on,
        mission: Some("+40.2 % at 128K"),
        note: format!("off cuts every sequence into {SPLITS} parts for each kv head, whatever its length"),
    })
}

fn launches<G: SingleLaunches>(lab: &mut Lab<G>, sizes: &Sizes) -> Result<Vec<Row>> {
    let mut held = lab.filled(sizes.short, steps(sizes))?;
    let [off, on] = lab.decode([Some(Without::OneCommandBuffer), None], &mut held, sizes.decode, sizes.rounds)?;
    let decode = Row {
        idea: "graph or command buffer",
        measured: format!("model, decode at {}", positions(sizes.short)),
        unit: Unit::TokensPerSecond,
        off,
        on,
        mission: None,
        note: "off launches each dispatch alone, with no wait between them".into(),
    };
    let prompt = sizes.prompts[0];
    let ([off, on], difference) = lab.prefill([Some(Without::OneCommandBuffer), None], prompt, sizes.rounds)?;
    anyhow::ensure!(difference == 0.0, "single launches give other logits ({difference:.1e})");
    let prefill = Row { measured: prefill(prompt), off, on, note: "same logits".into(), ..decode.clone() };
    Ok(vec![decode, prefill])
}

/// `32K` for 32,768.
fn positions(n: u32) -> String {
    if n >= 1024 && n.is_multiple_of(1024) { format!("{}K", n / 1024) } else { n.to_string() }
}
