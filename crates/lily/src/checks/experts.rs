//! Router and experts, in prefill and in decode.

use anyhow::Result;
use lily_cpu::oracle::moe::route;
use lily_gpu::kernels::{
    Body, Element, ExpertMap, GroupedDown, GroupedGateUp, MoeCombine, MoeDownStep, MoeGateUpStep, MoeMap, MoeRoute,
    NormOutputs, StepNorm, View, grouped_blocks, grouped_down, grouped_gate_up, moe_combine, moe_down_step,
    moe_gate_up_step, moe_map, moe_partials, moe_route,
};
use lily_gpu::{Contents, Gpu};

use super::lab::{Lab, TestMatrix, Work, difference, dot, elements, equal, named, normed, rounded, sigmoid, silu};

const EPS: f32 = 1e-6;

/// Everything but prefill's grouped products.
pub fn check<G: Gpu>(lab: &mut Lab<'_, G>) -> Result<()> {
    routing(lab, 5, 8, 4)?;
    routing(lab, 9, 256, 8)?;
    combine(lab, 3, if lab.full { 2048 } else { 128 }, 8)?;
    check_decode(lab)
}

/// Decode's two dispatches.
pub fn check_decode<G: Gpu>(lab: &mut Lab<'_, G>) -> Result<()> {
    let shapes: &[(usize, usize, usize)] =
        if lab.full { &[(2048, 512, 32)] } else { &[(128, 64, 8), (1024, 128, 8), (512, 256, 8)] };
    for &(hidden, width, count) in shapes {
        for (batch, bits, shared_bits) in [(1, 4, 4), (3, 4, 8), (8, 8, 8), (2, 16, 8)] {
            step(lab, hidden, width, count, batch, bits, shared_bits)?;
        }
    }
    Ok(())
}

/// Prefill's grouped products, and the shared expert's.
pub fn check_prefill<G: Gpu>(lab: &mut Lab<'_, G>, body: Body) -> Result<()> {
    // Rows on both sides of a block, and all on one expert.
    for (tokens, count, chosen, same) in [(1, 8, 4, false), (33, 32, 8, false), (65, 256, 8, false), (40, 8, 1, true)] {
        if body != Body::Tensor {
            map(lab, body, tokens, count, chosen, same)?;
        }
    }
    for &element in elements(body) {
        for (tokens, bits, same) in [(1, 4, false), (33, 4, false), (40, 8, true), (9, 16, false)] {
            grouped(lab, body, element, [128, 64, 8, 4], tokens, bits, same)?;
        }
        if lab.full {
            grouped(lab, body, element, [2048, 512, 32, 8], 64, 4, false)?;
        }
        for tokens in [1, 64, 65] {
            shared(lab, body, element, tokens)?;
        }
    }
    Ok(())
}

fn routing<G: Gpu>(lab: &mut Lab<'_, G>, tokens: usize, count: usize, chosen: usize) -> Result<()> {
    let stride = count + 1;
    // Steps of a quarter: ties are many.
    let logits: Vec<f32> = (0..tokens * stride).map(|_| lab.random.below(64) as f32 / 4.0 - 8.0).collect();
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for row in logits.chunks_exact(stride) {
        let (e, w) = route(&row[..count], chosen);
        ids.extend(e.into_iter().map(|e| e as u32));
        weights.extend(w);
    }
    let logits = lab.input(&logits)?;
    let (ids_out, weights_out) = (lab.output(tokens * chosen)?, lab.output(tokens * chosen)?);
    lab.check(
        "moe_route",
        format!("{tokens} tokens, {chosen} of {count}"),
        Work::Bytes((4 * tokens * (count + 2 * chosen)) as u64),
        2e-6,
        |gpu| {
            let r = MoeRoute {
                logits: View::of(&logits),
                stride: stride as u32,
                experts: View::of(&ids_out),
                weights: View::of(&weights_out),
                tokens: tokens as u32,
                count: count as u32,
                chosen: chosen as u32,
            };
            moe_route(gpu, &r)
        },
        |lab| Ok(equal(&lab.read_words(&ids_out)?, &ids).max(difference(&lab.read(&weights_out)?, &weights))),
    );
    Ok(())
}

/// Distinct experts for each token; `same`: one expert for all.
fn chosen_experts<G: Gpu>(lab: &mut Lab<'_, G>, tokens: usize, count: usize, chosen: usize, same: bool) -> Vec<u32> {
    let mut out = Vec::with_capacity(tokens * chosen);
    for _ in 0..tokens {
        let first = if same { 3 } else { lab.random.below(count as u64) as usize };
        out.extend((0..chosen).map(|j| ((first + j * (count / chosen)) % count) as u32));
    }
    out
}

/// Order of the rows and the blocks as `moe_map` must give them: expert, first, end.
fn mapped(experts: &[u32], block_rows: u32, count: usize, blocks: usize) -> (Vec<u32>, [Vec<u32>; 3]) {
    let mut order: Vec<u32> = (0..experts.len() as u32).collect();
    order.sort_by_key(|&i| (experts[i as usize], i));
    let mut of = [vec![u32::MAX; blocks], vec![0; blocks], vec![0; blocks]];
    let (mut block, mut first) = (0, 0);
    for e in 0..count as u32 {
        let end = first + experts.iter().filter(|&&x| x == e).count() as u32;
        while first < end {
            let to = end.min(first + block_rows);
            (of[0][block], of[1][block], of[2][block]) = (e, first, to);
            (block, first) = (block + 1, to);
        }
    }
    (order, of)
}

fn map<G: Gpu>(lab: &mut Lab<'_, G>, body: Body, tokens: usize, count: usize, chosen: usize, same: bool) -> Result<()> {
    let experts = chosen_experts(lab, tokens, count, chosen, same);
    let rows = experts.len();
    let block = body.grouped_rows(Element::Bf16);
    let blocks = grouped_blocks(block, rows as u32, count as u32) as usize;
    let (order, of) = mapped(&experts, block, count, blocks);
    let experts = lab.words(&experts)?;
    let order_out = lab.output(rows)?;
    let out = [lab.output(blocks)?, lab.output(blocks)?, lab.output(blocks)?];
    lab.check(
        if body == Body::Mma { "moe_map mma" } else { "moe_map" },
        format!("{tokens} tokens, {chosen} of {count}{}", if same { ", all on one" } else { "" }),
        Work::Bytes((8 * rows + 12 * blocks) as u64),
        0.0,
        |gpu| {
            let m = MoeMap {
                body,
                experts: View::of(&experts),
                order: View::of(&order_out),
                block_expert: View::of(&out[0]),
                block_first: View::of(&out[1]),
                block_end: View::of(&out[2]),
                rows: rows as u32,
                count: count as u32,
                block,
                blocks: blocks as u32,
            };
            moe_map(gpu, &m)
        },
        |lab| {
            let mut worst = equal(&lab.read_words(&order_out)?, &order);
            for (got, want) in out.iter().zip(&of) {
                worst = worst.max(equal(&lab.read_words(got)?, want));
            }
            Ok(worst)
        },
    );
    Ok(())
}

fn combine<G: Gpu>(lab: &mut Lab<'_, G>, tokens: usize, width: usize, chosen: usize) -> Result<()> {
    let stride = 9;
    let x = lab.random.values(tokens * width, 2.0);
    let y = lab.random.values(tokens * chosen * width, 0.5);
    let shared = lab.random.values(tokens * width, 1.0);
    let gate = lab.random.values(tokens * stride, 3.0);
    let weight = lab.random.values(width, 1.5);
    let mut sum = x.clone();
    for (i, s) in sum.iter_mut().enumerate() {
        let (t, c) = (i / width, i % width);
        let own: f64 = (0..chosen).map(|j| f64::from(y[(t * chosen + j) * width + c])).sum();
        *s = (f64::from(*s) + own + f64::from(sigmoid(gate[t * stride])) * f64::from(shared[i])) as f32;
    }
    let want = normed(&sum, &weight, EPS);
    let (x, y, shared, gate) = (lab.input(&x)?, lab.input(&y)?, lab.input(&shared)?, lab.input(&gate)?);
    let (weight, exact) = (lab.floats(&weight, Contents::Weights)?, lab.output(tokens * width)?);
    lab.check(
        "moe_combine",
        format!("{tokens} tokens, {chosen} experts, {width} wide"),
        Work::Bytes((4 * tokens * width * (chosen + 4)) as u64),
        5e-6,
        |gpu| {
            let outputs = NormOutputs { exact: Some(View::of(&exact)), rounded: None };
            let c = MoeCombine {
                x: View::of(&x),
                experts: View::of(&y),
                shared: View::of(&shared),
                shared_gate: View::of(&gate),
                stride: stride as u32,
                norm: Some((View::of(&weight), outputs)),
                tokens: tokens as u32,
                chosen: chosen as u32,
                width: width as u32,
                eps: EPS,
            };
            moe_combine(gpu, &c)
        },
        |lab| Ok(difference(&lab.read(&exact)?, &want).max(difference(&lab.read(&x)?, &sum))),
    );
    Ok(())
}

/// Rows of expert `e` of a matrix that holds all of them, times x.
fn expert<B>(m: &TestMatrix<B>, element: Element, e: usize, count: usize, x: &[f32]) -> Vec<f32> {
    let (rows, cols) = (m.device.rows as usize / count, m.device.cols as usize);
    let own = rounded(element, &m.values[e * rows * cols..(e + 1) * rows * cols]);
    own.chunks_exact(cols).map(|w| dot(w, x)).collect()
}

fn inner<B>(gate: &TestMatrix<B>, up: &TestMatrix<B>, element: Element, e: usize, count: usize, x: &[f32]) -> Vec<f32> {
    let up = expert(up, element, e, count, x);
    expert(gate, element, e, count, x).into_iter().zip(up).map(|(g, u)| silu(g) * u).collect()
}

/// Both dispatches of decode.
fn step<G: Gpu>(
    lab: &mut Lab<'_, G>,
    hidden: usize,
    width: usize,
    count: usize,
    batch: usize,
    bits: u32,
    shared_bits: u32,
) -> Result<()> {
    let body = lab.step;
    let chosen = if count >= 32 { 8 } else { 4 };
    let (gate, up) = (lab.matrix(count * width, hidden, bits)?, lab.matrix(count * width, hidden, bits)?);
    let down = lab.matrix(count * hidden, width, bits)?;
    let (shared_gate, shared_up) = (lab.matrix(width, hidden, shared_bits)?, lab.matrix(width, hidden, shared_bits)?);
    let shared_down = lab.matrix(hidden, width, shared_bits)?;
    let (x, weight) = (lab.random.values(batch * hidden, 1.0), lab.random.values(hidden, 0.3));
    let stride = count + 1;
    let logits = lab.random.values(batch * stride, 3.0);
    let (mut ids, mut act, mut after) = (Vec::new(), Vec::new(), x.clone());
    for (b, h) in normed(&x, &weight, EPS).chunks_exact(hidden).enumerate() {
        let row = &logits[b * stride..(b + 1) * stride];
        let (experts, weights) = route(&row[..count], chosen);
        let mut add = |outputs: Vec<f32>| {
            for (a, o) in after[b * hidden..].iter_mut().zip(outputs) {
                *a += o;
            }
        };
        for (&e, w) in experts.iter().zip(weights) {
            let own: Vec<f32> = inner(&gate, &up, Element::F32, e, count, h).into_iter().map(|v| w * v).collect();
            add(expert(&down, Element::F32, e, count, &own));
            act.extend(own);
        }
        let w = sigmoid(row[count]);
        let own: Vec<f32> = inner(&shared_gate, &shared_up, Element::F32, 0, 1, h).into_iter().map(|v| w * v).collect();
        add(expert(&shared_down, Element::F32, 0, 1, &own));
        act.extend(own);
        ids.extend(experts.into_iter().map(|e| e as u32));
    }
    let squares = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() as f32;
    let sums: Vec<f32> = x.chunks_exact(hidden).map(squares).collect();
    let (x, weight, sums, logits) = (lab.input(&x)?, lab.input(&weight)?, lab.input(&sums)?, lab.input(&logits)?);
    let (ids_out, act_out) = (lab.output(batch * chosen)?, lab.output(act.len())?);
    let shape = format!("{batch} rows, {hidden} → {chosen} × {width}, {bits} bit");
    let own = |m: &TestMatrix<G::Buffer>| m.bytes() / count as u64 * (batch * chosen) as u64;
    let (batch, count, chosen) = (batch as u32, count as u32, chosen as u32);
    lab.check(
        lab.step_name("moe_gate_up_step", "moe_gate_up mma"),
        shape.clone(),
        Work::Bytes(own(&gate) + own(&up) + shared_gate.bytes() + shared_up.bytes()),
        1e-5,
        |gpu| {
            let s = MoeGateUpStep {
                body,
                gate: &gate.device,
                up: &up.device,
                shared_gate: &shared_gate.device,
                shared_up: &shared_up.device,
                x: View::of(&x),
                norm: StepNorm { weight: View::of(&weight), partials: View::of(&sums), count: 1, eps: EPS },
                logits: View::of(&logits),
                stride: stride as u32,
                experts: View::of(&ids_out),
                act: View::of(&act_out),
                batch,
                count,
                chosen,
            };
            moe_gate_up_step(gpu, &s)
        },
        |lab| Ok(difference(&lab.read(&act_out)?, &act).max(equal(&lab.read_words(&ids_out)?, &ids))),
    );
    // From the reference's inner values, so that an error stays where it is.
    let (act, ids) = (lab.input(&act)?, lab.words(&ids)?);
    let partials = moe_partials(body, &down.device, &shared_down.device, chosen) as usize;
    let partials_out = lab.output(batch as usize * partials)?;
    let squares: Vec<f32> = after.chunks_exact(hidden).map(squares).collect();
    lab.check(
        lab.step_name("moe_down_step", "moe_down mma"),
        shape,
        Work::Bytes(own(&down) + shared_down.bytes()),
        1e-5,
        |gpu| {
            let s = MoeDownStep {
                body,
                down: &down.device,
                shared_down: &shared_down.device,
                experts: View::of(&ids),
                act: View::of(&act),
                x: View::of(&x),
                partials: View::of(&partials_out),
                batch,
                count,
                chosen,
            };
            moe_down_step(gpu, &s)
        },
        |lab| {
            let sums: Vec<f32> = lab.read(&partials_out)?.chunks_exact(partials).map(|p| p.iter().sum()).collect();
            Ok(difference(&lab.read(&x)?, &after).max(difference(&sums, &squares)))
        },
    );
    Ok(())
}

/// BF16: inner values are rounded, and a sum on the border may round to its other neighbour.
fn tolerance(element: Element) -> f32 {
    if element == Element::Bf16 { 0.005 } else { 1e-5 }
}

/// `sizes`: hidden, width, experts, experts of a token.
fn grouped<G: Gpu>(
    lab: &mut Lab<'_, G>,
    body: Body,
    element: Element,
    sizes: [usize; 4],
    tokens: usize,
    bits: u32,
    same: bool,
) -> Result<()> {
    let [hidden, width, count, per_token] = sizes;
    let per_token = if same { 1 } else { per_token };
    let (gate, up) = (lab.matrix(count * width, hidden, bits)?, lab.matrix(count * width, hidden, bits)?);
    let down = lab.matrix(count * hidden, width, bits)?;
    let experts = chosen_experts(lab, tokens, count, per_token, same);
    let assignments = experts.len();
    let block = body.grouped_rows(element);
    let blocks = grouped_blocks(block, assignments as u32, count as u32) as usize;
    let (order, of) = mapped(&experts, block, count, blocks);
    let x = rounded(element, &lab.random.values(tokens * hidden, 1.0));
    let weights = lab.random.values(assignments, 1.0);
    let (mut act, mut want) = (Vec::new(), vec![0.0; assignments * hidden]);
    for &i in &order {
        let (i, e) = (i as usize, experts[i as usize] as usize);
        let row = &x[i / per_token * hidden..][..hidden];
        let own = rounded(element, &inner(&gate, &up, element, e, count, row));
        let y = expert(&down, element, e, count, &own);
        want[i * hidden..][..hidden].copy_from_slice(&y.iter().map(|v| weights[i] * v).collect::<Vec<_>>());
        act.extend(own);
    }
    let x = lab.elements(element, &x, Contents::Activations)?;
    let order = lab.words(&order)?;
    let of = [lab.words(&of[0])?, lab.words(&of[1])?, lab.words(&of[2])?];
    let map = || ExpertMap {
        order: View::of(&order),
        block_expert: View::of(&of[0]),
        block_first: View::of(&of[1]),
        block_end: View::of(&of[2]),
        experts: count as u32,
        per_token: per_token as u32,
    };
    let out = lab.elements(element, &vec![0.0; act.len()], Contents::Activations)?;
    let shape = format!(
        "{tokens} tokens, {per_token} of {count}, {hidden} → {width}/{bits} {element:?}{}",
        if same { ", on one" } else { "" }
    );
    lab.check(
        named(body, ["grouped_gate_up", "gate_up tensor", "gate_up mma"]),
        shape.clone(),
        Work::Products((2 * assignments * hidden * width) as u64),
        tolerance(element),
        |gpu| {
            let g = GroupedGateUp {
                body,
                element,
                gate: &gate.device,
                up: &up.device,
                x: View::of(&x),
                tokens: tokens as u32,
                map: Some(map()),
                out: View::of(&out),
            };
            grouped_gate_up(gpu, &g)
        },
        |lab| Ok(difference(&lab.read_elements(element, &out)?, &act)),
    );
    let act = lab.elements(element, &act, Contents::Activations)?;
    let (weights, y) = (lab.input(&weights)?, lab.output(assignments * hidden)?);
    lab.check(
        named(body, ["grouped_down", "down tensor", "down mma"]),
        shape,
        Work::Products((assignments * hidden * width) as u64),
        1e-5,
        |gpu| {
            let g = GroupedDown {
                body,
                element,
                down: &down.device,
                x: View::of(&act),
                tokens: tokens as u32,
                map: Some((map(), View::of(&weights))),
                y: View::of(&y),
            };
            grouped_down(gpu, &g)
        },
        |lab| Ok(difference(&lab.read(&y)?, &want)),
    );
    Ok(())
}

/// Gate and up of the shared expert; its down product is `affine_gemm`.
fn shared<G: Gpu>(lab: &mut Lab<'_, G>, body: Body, element: Element, tokens: usize) -> Result<()> {
    let (hidden, width) = if lab.full { (2048, 512) } else { (128, 64) };
    let (gate, up) = (lab.matrix(width, hidden, 4)?, lab.matrix(width, hidden, 4)?);
    let x = rounded(element, &lab.random.values(tokens * hidden, 1.0));
    let want: Vec<f32> =
        x.chunks_exact(hidden).flat_map(|row| rounded(element, &inner(&gate, &up, element, 0, 1, row))).collect();
    let x = lab.elements(element, &x, Contents::Activations)?;
    let out = lab.elements(element, &vec![0.0; want.len()], Contents::Activations)?;
    lab.check(
        named(body, ["grouped_gate_up", "gate_up tensor", "gate_up mma"]),
        format!("shared expert, {tokens} tokens, {hidden} → {width}/4 {element:?}"),
        Work::Products((2 * tokens * hidden * width) as u64),
        tolerance(element),
        |gpu| {
            let g = GroupedGateUp {
                body,
                element,
                gate: &gate.device,
                up: &up.device,
                x: View::of(&x),
                tokens: tokens as u32,
                map: None,
                out: View::of(&out),
            };
            grouped_gate_up(gpu, &g)
        },
        |lab| Ok(difference(&lab.read_elements(element, &out)?, &want)),
    );
    Ok(())
}
