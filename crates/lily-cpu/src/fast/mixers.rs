//! The two token mixers: gated delta net and gated attention.

use lily_checkpoint::{FullAttention, LinearAttention, Mixer};
use lily_model::Shape;

use super::affine4::Pick;
use super::attention::attend;
use super::delta::{self, BLOCK, convolve, gates};
use super::element::KvElement;
use super::kv::KvCache;
use super::matmul::{Activations, Cores, each_token, project, with_scratch};
use super::memory::grow;
use super::pool::Disjoint;
use super::rows::{add, gated_norm, rms_norm, rope, rotary, sigmoid_gate, unit_heads};
use crate::local::{take_floats, write_floats};

/// What a linear layer carries between calls.
#[derive(Clone)]
pub struct LinearState {
    /// S in blocks of columns, [value heads][head_dim / 32][head_dim × 32].
    recurrent: Vec<f32>,
    /// The last three rows of u, oldest first.
    conv: Vec<f32>,
}

impl LinearState {
    pub fn start(s: &Shape) -> Self {
        Self {
            recurrent: vec![0.0; s.linear_value_heads * s.linear_head_dim * s.linear_head_dim],
            conv: vec![0.0; (s.conv_taps - 1) * s.conv_dim()],
        }
    }

    /// Appends the bytes of the state.
    pub fn save(&self, to: &mut Vec<u8>) {
        write_floats(&self.recurrent, to);
        write_floats(&self.conv, to);
    }

    /// Takes what [`Self::save`] appended; `None` where it is too short.
    pub fn load(s: &Shape, bytes: &mut &[u8]) -> Option<Self> {
        let mut state = Self::start(s);
        take_floats(&mut state.recurrent, bytes)?;
        take_floats(&mut state.conv, bytes)?;
        Some(state)
    }

    pub fn bytes(&self) -> u64 {
        4 * (self.recurrent.len() + self.conv.len()) as u64
    }
}

/// Small weights of a linear layer in the order that the kernels want.
pub struct Prepared {
    /// [4][conv_dim].
    conv: Vec<f32>,
    /// −exp(A_log), [value heads].
    rate: Vec<f32>,
}

impl Prepared {
    pub fn of(s: &Shape, mixer: &Mixer) -> Option<Self> {
        let Mixer::Linear(w) = mixer else { return None };
        assert_eq!(s.conv_taps, 4, "the convolution kernel has four taps");
        let conv = (0..4).flat_map(|tap| w.conv.iter().skip(tap).step_by(4).copied()).collect();
        Some(Self { conv, rate: w.a_log.iter().map(|a| -a.exp()).collect() })
    }
}

/// Memory of the mixers, kept between layers.
#[derive(Default)]
pub struct Buffers {
    /// Three rows of the past, then tokens × conv_dim.
    u: Vec<f32>,
    z: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
    /// Delta outputs, [value heads][head_dim / 32][tokens × 32].
    o: Vec<f32>,
    query_gate: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    /// Input of the output projection.
    y: Activations,
    /// Its output.
    out: Vec<f32>,
    /// tokens × rotary_dim / 2.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Buffers {
    /// Bytes that they hold.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        let Self { u, z, a, b, c, decay, beta, o, query_gate, k, v, attended, y, out, cos, sin } = self;
        let all = [u, z, a, b, c, decay, beta, o, query_gate, k, v, attended, out, cos, sin];
        all.iter().map(|v| 4 * v.capacity() as u64).sum::<u64>() + y.bytes()
    }

    /// Angles of `tokens` positions from `start` on; the same for all layers.
    pub fn rotate(&mut self, s: &Shape, start: usize, tokens: usize) {
        let half = s.rotary_dim / 2;
        let inv_freq: Vec<f32> = (0..half).map(|j| crate::oracle::inv_freq(s, j)).collect();
        grow(&mut self.cos, tokens * half);
        grow(&mut self.sin, tokens * half);
        for t in 0..tokens {
            let at = t * half..(t + 1) * half;
            rotary(start + t, &inv_freq, &mut self.cos[at.clone()], &mut self.sin[at]);
        }
    }
}

/// x += delta_net(h) (`docs/model.md §4.4`).
pub fn linear(
    cores: &Cores,
    s: &Shape,
    w: &LinearAttention,
    prepared: &Prepared,
    state: &mut LinearState,
    m: &mut Buffers,
    h: &Activations,
    x: &mut [f32],
) {
    let tokens = x.len() / s.hidden;
    let (width, heads, d) = (s.conv_dim(), s.linear_value_heads, s.linear_head_dim);
    let past = 3 * width;
    grow(&mut m.u, past + tokens * width);
    m.u[..past].copy_from_slice(&state.conv);
    grow(&mut m.z, tokens * s.value_dim());
    grow(&mut m.a, tokens * heads);
    grow(&mut m.b, tokens * heads);
    project(
        cores,
        h,
        Pick::First(tokens),
        &mut [(&w.in_qkv, &mut m.u[past..]), (&w.in_z, &mut m.z), (&w.in_a, &mut m.a), (&w.in_b, &mut m.b)],
    );
    state.conv.copy_from_slice(&m.u[m.u.len() - past..]);

    grow(&mut m.c, tokens * width);
    grow(&mut m.decay, tokens * heads);
    grow(&mut m.beta, tokens * heads);
    let (c, decay, beta) = (Disjoint::new(&mut m.c), Disjoint::new(&mut m.decay), Disjoint::new(&mut m.beta));
    each_token(&cores.pool, tokens, |t| {
        // SAFETY: token t writes its own rows only.
        let (c, decay, beta) =
            unsafe { (c.part(t * width, width), decay.part(t * heads, heads), beta.part(t * heads, heads)) };
        let row = |j: usize| &m.u[(t + j) * width..(t + j + 1) * width];
        convolve(cores.isa, [row(0), row(1), row(2), row(3)], &prepared.conv, c);
        let (q, k) = c[..2 * s.key_dim()].split_at_mut(s.key_dim());
        unit_heads(cores.isa, q, d, 1.0 / (d as f32).sqrt());
        unit_heads(cores.isa, k, d, 1.0);
        let at = t * heads..(t + 1) * heads;
        gates(cores.isa, &m.a[at.clone()], &m.b[at], &prepared.rate, &w.dt_bias, decay, beta);
    });

    let blocks = d / BLOCK;
    grow(&mut m.o, tokens * s.value_dim());
    let (o, recurrent) = (Disjoint::new(&mut m.o), Disjoint::new(&mut state.recurrent));
    cores.pool.run(heads * blocks, |task| {
        let (head, block) = (task / blocks, task % blocks);
        let key = head / (heads / s.linear_key_heads) * d;
        let inputs = delta::Head {
            k: &m.c[s.key_dim() + key..],
            q: &m.c[key..],
            key_stride: width,
            v: &m.c[2 * s.key_dim() + head * d + block * BLOCK..],
            value_stride: width,
            decay: &m.decay[head..],
            beta: &m.beta[head..],
            gate_stride: heads,
        };
        // SAFETY: each task has its own block of the state and of the output.
        let (state, o) =
            unsafe { (recurrent.part(task * d * BLOCK, d * BLOCK), o.part(task * tokens * BLOCK, tokens * BLOCK)) };
        delta::pass(cores.isa, state, &inputs, o);
    });

    let (o, z) = (&m.o, &m.z);
    m.y.fill(cores, tokens, s.value_dim(), |t, row| {
        for (task, row) in row.chunks_exact_mut(BLOCK).enumerate() {
            row.copy_from_slice(&o[(task * tokens + t) * BLOCK..][..BLOCK]);
        }
        gated_norm(cores.isa, row, &w.norm, &z[t * s.value_dim()..(t + 1) * s.value_dim()], s.norm_eps);
    });
    grow(&mut m.out, x.len());
    project(cores, &m.y, Pick::First(tokens), &mut [(&w.out, &mut m.out)]);
    add(cores.isa, x, &m.out);
}

/// x += attention(h) (`docs/model.md §4.2`); the first row stands at position `start`.
pub fn full<K: KvElement>(
    cores: &Cores,
    s: &Shape,
    w: &FullAttention,
    cache: &mut KvCache<K>,
    start: usize,
    m: &mut Buffers,
    h: &Activations,
    x: &mut [f32],
) {
    let tokens = x.len() / s.hidden;
    let (d, half, isa) = (s.head_dim, s.rotary_dim / 2, cores.isa);
    grow(&mut m.query_gate, tokens * 2 * s.query_dim());
    grow(&mut m.k, tokens * s.kv_dim());
    grow(&mut m.v, tokens * s.kv_dim());
    project(cores, h, Pick::First(tokens), &mut [(&w.q, &mut m.query_gate), (&w.k, &mut m.k), (&w.v, &mut m.v)]);

    let mut keys = vec![0.0; s.kv_dim()];
    for t in 0..tokens {
        let at = t * s.kv_dim()..(t + 1) * s.kv_dim();
        for (raw, key) in m.k[at.clone()].chunks_exact(d).zip(keys.chunks_exact_mut(d)) {
            rms_norm(isa, raw, &w.k_norm, s.norm_eps, key);
            rope(key, &m.cos[t * half..(t + 1) * half], &m.sin[t * half..(t + 1) * half]);
        }
        cache.append(&keys, &m.v[at]);
    }
    let cache = &*cache;

    // A task is a few tokens with all the query heads of a key/value head, which share each read of the cache; a decoded
    // token's heads are split, so that there is work for several cores.
    let group = s.query_heads / s.kv_heads;
    let (tile, heads) = if tokens >= 8 { (8, group) } else { (1, group.min(4)) };
    let (tiles, splits) = (tokens.div_ceil(tile), group.div_ceil(heads));
    grow(&mut m.attended, tokens * s.query_dim());
    let attended = Disjoint::new(&mut m.attended);
    let scale = 1.0 / (d as f32).sqrt();
    cores.pool.run(tiles * s.kv_heads * splits, |task| {
        // The last tokens see the most positions: begin with them.
        let first = (tiles - 1 - task / (s.kv_heads * splits)) * tile;
        let last = tokens.min(first + tile);
        let kv = task / splits % s.kv_heads;
        let split = task % splits * heads;
        let heads = kv * group + split..kv * group + group.min(split + heads);
        with_scratch(|scratch| {
            let rows = (last - first) * heads.len();
            scratch.q.resize(rows * d, 0.0);
            scratch.o.resize(rows * d, 0.0);
            scratch.positions.clear();
            let places = || (first..last).flat_map(|t| heads.clone().map(move |head| (t, head)));
            for ((t, head), q) in places().zip(scratch.q.chunks_exact_mut(d)) {
                let raw = &m.query_gate[(t * s.query_heads + head) * 2 * d..][..d];
                rms_norm(isa, raw, &w.q_norm, s.norm_eps, q);
                rope(q, &m.cos[t * half..(t + 1) * half], &m.sin[t * half..(t + 1) * half]);
                q.iter_mut().for_each(|v| *v *= scale);
                scratch.positions.push(start + t);
            }
            attend(isa, &scratch.q, &scratch.positions, cache, kv, &mut scratch.attention, &mut scratch.o);
            for ((t, head), o) in places().zip(scratch.o.chunks_exact_mut(d)) {
                sigmoid_gate(isa, o, &m.query_gate[(t * s.query_heads + head) * 2 * d + d..][..d]);
                // SAFETY: each token and head belongs to one task.
                unsafe { attended.part((t * s.query_heads + head) * d, d) }.copy_from_slice(o);
            }
        });
    });

    let attended = &m.attended;
    m.y.fill(cores, tokens, s.query_dim(), |t, row| {
        row.copy_from_slice(&attended[t * s.query_dim()..(t + 1) * s.query_dim()]);
    });
    grow(&mut m.out, x.len());
    project(cores, &m.y, Pick::First(tokens), &mut [(&w.o, &mut m.out)]);
    add(isa, x, &m.out);
}
