//! Mixture of experts (`docs/model.md §4.6`): tokens grouped by expert, so that an expert's weights are read once.

use lily_checkpoint::{Matrix, Moe};
use lily_model::Shape;

use super::affine4::Pick;
use super::matmul::{Activations, Cores, ROWS, block, each_token, project, with_scratch};
use super::memory::grow;
use super::pool::Disjoint;
use super::quantise::{GROUP, quantise_row};
use super::rows::{add, add_scaled, route, swiglu};
use super::simd::sigmoid;

/// Memory of the experts, kept between layers.
#[derive(Default)]
pub struct Buffers {
    router: Vec<f32>,
    shared_gate: Vec<f32>,
    experts: Vec<u32>,
    weights: Vec<f32>,
    /// Slots (token × k + rank) by expert, and where each expert's begin.
    slots: Vec<u32>,
    tokens: Vec<u32>,
    starts: Vec<usize>,
    /// Inner activations: by slot for routed experts, by token for the shared one.
    inner: [Activations; 2],
    /// Outputs, likewise.
    outer: [Vec<f32>; 2],
}

impl Buffers {
    /// Bytes that they hold.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        let Self { router, shared_gate, experts, weights, slots, tokens, starts, inner, outer } = self;
        let [a, b] = outer;
        let floats: usize = [router, shared_gate, weights, a, b].iter().map(|v| v.capacity()).sum();
        let ids: usize = [experts, slots, tokens].iter().map(|v| v.capacity()).sum();
        let inner: u64 = inner.iter().map(Activations::bytes).sum();
        (4 * (floats + ids) + 8 * starts.capacity()) as u64 + inner
    }
}

/// One expert and the rows it works on.
struct Unit<'a> {
    gate: &'a Matrix,
    up: &'a Matrix,
    down: &'a Matrix,
    /// Rows of x.
    tokens: Pick<'a>,
    /// Rows of the inner and outer buffers.
    slots: Pick<'a>,
    /// Which buffers: 0 routed, 1 shared.
    set: usize,
}

/// x += moe(h), with `h` [tokens × hidden] already normalised.
pub fn moe(cores: &Cores, s: &Shape, w: &Moe, b: &mut Buffers, h: &Activations, x: &mut [f32]) {
    let tokens = x.len() / s.hidden;
    let k = s.experts_per_token;
    grow(&mut b.router, tokens * s.experts);
    grow(&mut b.shared_gate, tokens);
    project(
        cores,
        h,
        Pick::First(tokens),
        &mut [(&w.router, &mut b.router), (&w.shared_expert_gate, &mut b.shared_gate)],
    );
    grow(&mut b.experts, tokens * k);
    grow(&mut b.weights, tokens * k);
    for t in 0..tokens {
        let at = t * k..(t + 1) * k;
        route(&b.router[t * s.experts..(t + 1) * s.experts], k, &mut b.experts[at.clone()], &mut b.weights[at]);
    }
    group(b, s.experts, k);

    for (set, (rows, width)) in [(tokens * k, s.expert_width), (tokens, s.shared_width)].into_iter().enumerate() {
        grow(&mut b.inner[set].values, rows * width);
        b.inner[set].quantised.reset(rows, width);
        grow(&mut b.outer[set], rows * s.hidden);
    }
    let mut units = vec![Unit {
        gate: &w.shared_gate,
        up: &w.shared_up,
        down: &w.shared_down,
        tokens: Pick::First(tokens),
        slots: Pick::First(tokens),
        set: 1,
    }];
    for e in 0..s.experts {
        let at = b.starts[e]..b.starts[e + 1];
        if !at.is_empty() {
            units.push(Unit {
                gate: w.gate.expert(e),
                up: w.up.expert(e),
                down: w.down.expert(e),
                tokens: Pick::List(&b.tokens[at.clone()]),
                slots: Pick::List(&b.slots[at]),
                set: 0,
            });
        }
    }
    // The large ones first, so that the section ends evenly.
    units.sort_by_key(|u| std::cmp::Reverse(u.slots.len()));
    gate_up(cores, &units, h, &mut b.inner);
    down(cores, &units, s.hidden, &b.inner, &mut b.outer);

    let x = Disjoint::new(x);
    each_token(&cores.pool, tokens, |t| {
        let mut y = vec![0.0; s.hidden];
        for slot in t * k..(t + 1) * k {
            add_scaled(cores.isa, &mut y, b.weights[slot], &b.outer[0][slot * s.hidden..(slot + 1) * s.hidden]);
        }
        let shared = &b.outer[1][t * s.hidden..(t + 1) * s.hidden];
        add_scaled(cores.isa, &mut y, sigmoid(b.shared_gate[t]), shared);
        // SAFETY: token t writes its own row only.
        add(cores.isa, unsafe { x.part(t * s.hidden, s.hidden) }, &y);
    });
}

/// Counting sort of the slots by expert.
fn group(b: &mut Buffers, experts: usize, k: usize) {
    b.starts.clear();
    grow(&mut b.starts, experts + 1);
    for &e in &b.experts {
        b.starts[e as usize + 1] += 1;
    }
    for e in 0..experts {
        b.starts[e + 1] += b.starts[e];
    }
    let mut next = b.starts.clone();
    grow(&mut b.slots, b.experts.len());
    grow(&mut b.tokens, b.experts.len());
    for (slot, &e) in b.experts.iter().enumerate() {
        b.slots[next[e as usize]] = slot as u32;
        b.tokens[next[e as usize]] = (slot / k) as u32;
        next[e as usize] += 1;
    }
}

/// inner[slot] = silu(gate · x) ⊙ (up · x), quantised as it is made.
fn gate_up(cores: &Cores, units: &[Unit<'_>], x: &Activations, inner: &mut [Activations; 2]) {
    let tasks: Vec<(usize, usize)> = units
        .iter()
        .enumerate()
        .flat_map(|(u, unit)| (0..unit.gate.rows()).step_by(ROWS).map(move |first| (u, first)))
        .collect();
    let parts = inner.each_mut().map(|a| {
        let q = &mut a.quantised;
        (
            q.stride(),
            Disjoint::new(&mut a.values),
            Disjoint::new(&mut q.codes),
            Disjoint::new(&mut q.scales),
            Disjoint::new(&mut q.sums),
        )
    });
    cores.pool.run(tasks.len(), |i| {
        let (u, first) = tasks[i];
        let unit = &units[u];
        let (stride, values, codes, scales, sums) = &parts[unit.set];
        let width = unit.gate.rows();
        with_scratch(|s| {
            block(cores.isa, unit.gate, first, ROWS, x, unit.tokens, &mut s.panel, &mut s.a);
            block(cores.isa, unit.up, first, ROWS, x, unit.tokens, &mut s.panel, &mut s.b);
            swiglu(cores.isa, &mut s.a, &s.b);
            for (i, row) in s.a.chunks_exact(ROWS).enumerate() {
                let slot = unit.slots.at(i);
                let at = slot * width + first;
                // SAFETY: this task alone writes this group of these slots.
                unsafe {
                    values.part(at, ROWS).copy_from_slice(row);
                    let (scales, sums) = (scales.part(at / GROUP, 1), sums.part(at / GROUP, 1));
                    quantise_row(cores.isa, row, codes.part(slot * stride + first, GROUP), scales, sums);
                }
            }
        });
    });
}

/// outer[slot] = down · inner[slot].
fn down(cores: &Cores, units: &[Unit<'_>], hidden: usize, inner: &[Activations; 2], outer: &mut [Vec<f32>; 2]) {
    let tasks: Vec<(usize, usize)> =
        units.iter().enumerate().flat_map(|(u, _)| (0..hidden).step_by(ROWS).map(move |first| (u, first))).collect();
    let outer = outer.each_mut().map(|o| Disjoint::new(o));
    cores.pool.run(tasks.len(), |i| {
        let (u, first) = tasks[i];
        let unit = &units[u];
        let rows = ROWS.min(hidden - first);
        with_scratch(|s| {
            block(cores.isa, unit.down, first, rows, &inner[unit.set], unit.slots, &mut s.panel, &mut s.a);
            for (i, values) in s.a.chunks_exact(ROWS).enumerate() {
                // SAFETY: this task alone writes these columns of these slots.
                unsafe { outer[unit.set].part(unit.slots.at(i) * hidden + first, rows) }
                    .copy_from_slice(&values[..rows]);
            }
        });
    });
}
