//! Linear attention: convolution, gates, delta rule and gated norm, in prefill and in decode.

use anyhow::Result;
use lily_checkpoint::synthetic::bf16_round;
use lily_cpu::oracle::delta::{convolve, step, unit};
use lily_gpu::kernels::{
    Body, ConvSilu, Element, GatedDeltaChunk, GatedNorm, LinearStep, View, conv_silu, gated_delta_chunk,
    gated_delta_chunk_scratch, gated_norm, linear_step,
};
use lily_gpu::{Contents, Gpu};
use lily_model::Shape;

use super::lab::{Lab, Work, difference, normed, sigmoid, silu};

const HEAD: usize = 128;
const STATE: usize = HEAD * HEAD;

/// A layer's small weights, and where things lie in a row of its projections: q | k | v | z | a | b.
struct Layer {
    shape: Shape,
    conv: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
    stride: usize,
}

impl Layer {
    fn new<G: Gpu>(lab: &mut Lab<'_, G>, keys: usize, values: usize) -> Self {
        let shape = Shape { linear_key_heads: keys, linear_value_heads: values, ..Shape::qwen3_6_35b_a3b() };
        Self {
            conv: lab.random.values(4 * shape.conv_dim(), 0.7).into_iter().map(bf16_round).collect(),
            a_log: lab.random.values(values, 2.0),
            dt_bias: lab.random.values(values, 1.0),
            norm: lab.random.values(HEAD, 1.5),
            stride: shape.conv_dim() + shape.value_dim() + 2 * values,
            shape,
        }
    }

    fn z_at(&self) -> usize {
        self.shape.conv_dim()
    }

    fn gates_at(&self) -> usize {
        self.shape.conv_dim() + self.shape.value_dim()
    }

    /// The kernel's q (scaled), k and v of rows, and the last rows before them.
    fn convolved(&self, rows: &[f32], past: &mut Vec<f32>) -> Vec<f32> {
        let (s, channels) = (&self.shape, self.shape.conv_dim());
        let u: Vec<f32> = rows.chunks_exact(self.stride).flat_map(|r| r[..channels].to_vec()).collect();
        let c = convolve(s, &self.conv, past, &u);
        let mut qkv = Vec::with_capacity(c.len());
        for row in c.chunks_exact(channels) {
            for (h, head) in row.chunks_exact(HEAD).enumerate() {
                match h / s.linear_key_heads {
                    0 => qkv.extend(unit(head, 1.0 / (HEAD as f32).sqrt())),
                    1 => qkv.extend(unit(head, 1.0)),
                    _ => qkv.extend_from_slice(head),
                }
            }
        }
        qkv
    }

    /// Log decay and write strength of rows, `[rows × 2 × value heads]`.
    fn gates(&self, rows: &[f32]) -> Vec<f32> {
        let (at, values) = (self.gates_at(), self.shape.linear_value_heads);
        let mut out = Vec::new();
        for row in rows.chunks_exact(self.stride) {
            let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
            out.extend((0..values).map(|h| {
                (-f64::from(self.a_log[h]).exp() * softplus(f64::from(row[at + h] + self.dt_bias[h]))) as f32
            }));
            out.extend((0..values).map(|h| sigmoid(row[at + values + h])));
        }
        out
    }

    /// The delta rule over rows; the state `[value heads × 128 values × 128 keys]` becomes the one after.
    fn delta(&self, qkv: &[f32], gates: &[f32], state: &mut [f32]) -> Vec<f32> {
        let (s, values) = (&self.shape, self.shape.linear_value_heads);
        let mut out = Vec::new();
        for (c, gate) in qkv.chunks_exact(s.conv_dim()).zip(gates.chunks_exact(2 * values)) {
            for h in 0..values {
                let key = h / (values / s.linear_key_heads) * HEAD;
                let own = &mut state[h * STATE..(h + 1) * STATE];
                let mut turned = transposed(own);
                let (k, v) = (&c[s.key_dim() + key..][..HEAD], &c[2 * s.key_dim() + h * HEAD..][..HEAD]);
                out.extend(step(&mut turned, &c[key..][..HEAD], k, v, gate[h], gate[values + h]));
                own.copy_from_slice(&transposed(&turned));
            }
        }
        out
    }

    /// The gated norm of rows of delta outputs.
    fn gated(&self, out: &[f32], rows: &[f32]) -> Vec<f32> {
        let width = self.shape.value_dim();
        let mut y = normed(out, &self.norm, self.shape.norm_eps);
        for (i, y) in y.iter_mut().enumerate() {
            *y *= silu(rows[i / width * self.stride + self.z_at() + i % width]);
        }
        y
    }
}

fn transposed(m: &[f32]) -> Vec<f32> {
    (0..STATE).map(|i| m[i % HEAD * HEAD + i / HEAD]).collect()
}

/// `conv_silu`, `gated_delta_chunk`, `gated_norm`, `linear_step`.
pub fn check<G: Gpu>(lab: &mut Lab<'_, G>) -> Result<()> {
    let (keys, values) = if lab.full { (16, 32) } else { (2, 4) };
    let layer = Layer::new(lab, keys, values);
    for tokens in [1, 2, 3, 4, 9] {
        conv(lab, &layer, tokens)?;
    }
    for output in [Element::F32, Element::Bf16] {
        norm(lab, &layer, 5, output)?;
    }
    for batch in [1, 3, 8] {
        decode(lab, &layer, batch)?;
    }
    if lab.full {
        conv(lab, &layer, 256)?;
    }
    Ok(())
}

/// The delta rule over blocks of 64 tokens.
pub fn check_prefill<G: Gpu>(lab: &mut Lab<'_, G>, body: Body) -> Result<()> {
    let (keys, values) = if lab.full { (16, 32) } else { (2, 4) };
    let layer = Layer::new(lab, keys, values);
    for (start, tokens) in [(0, 1), (0, 63), (0, 64), (0, 65), (30, 100)] {
        chunk(lab, &layer, body, start, tokens)?;
    }
    if lab.full {
        chunk(lab, &layer, body, 0, 256)?;
    }
    Ok(())
}

fn conv<G: Gpu>(lab: &mut Lab<'_, G>, l: &Layer, tokens: usize) -> Result<()> {
    let (channels, values) = (l.shape.conv_dim(), l.shape.linear_value_heads);
    let rows = lab.random.values(tokens * l.stride, 2.0);
    let pool = lab.random.values(2 * 3 * channels, 2.0);
    let mut after = pool[3 * channels..].to_vec();
    let qkv = l.convolved(&rows, &mut after);
    let gates = l.gates(&rows);
    // Slot 1 is read and slot 0 written.
    let (rows, state, slots) = (lab.input(&rows)?, lab.floats(&pool, Contents::State)?, lab.words(&[1, 0])?);
    let weights = lab.elements(Element::Bf16, &l.conv, Contents::Weights)?;
    let a_log = lab.floats(&l.a_log, Contents::Weights)?;
    let dt_bias = lab.floats(&l.dt_bias, Contents::Weights)?;
    let (qkv_out, gates_out) = (lab.output(tokens * channels)?, lab.output(tokens * 2 * values)?);
    lab.check(
        "conv_silu",
        format!("{tokens} tokens, {channels} channels"),
        Work::Bytes((8 * tokens * channels) as u64),
        5e-6,
        |gpu| {
            let c = ConvSilu {
                projections: View::of(&rows),
                stride: l.stride as u32,
                gates_at: l.gates_at() as u32,
                state: View::of(&state),
                slots: View::of(&slots),
                weights: View::of(&weights),
                a_log: View::of(&a_log),
                dt_bias: View::of(&dt_bias),
                qkv: View::of(&qkv_out),
                gates: View::of(&gates_out),
                sequences: 1,
                tokens: tokens as u32,
            };
            conv_silu(gpu, &l.shape, &c)
        },
        |lab| {
            let state = difference(&lab.read(&state)?[..3 * channels], &after);
            Ok(difference(&lab.read(&qkv_out)?, &qkv).max(difference(&lab.read(&gates_out)?, &gates)).max(state))
        },
    );
    Ok(())
}

fn chunk<G: Gpu>(lab: &mut Lab<'_, G>, l: &Layer, body: Body, start: usize, tokens: usize) -> Result<()> {
    let (channels, width) = (l.shape.conv_dim(), l.shape.value_dim());
    let rows = lab.random.values(tokens * l.stride, 2.0);
    let qkv = l.convolved(&rows, &mut lab.random.values(3 * channels, 2.0));
    let gates = l.gates(&rows);
    let pool = lab.random.values(2 * width * HEAD, 0.3);
    let mut after = pool[width * HEAD..].to_vec();
    let want = l.delta(&qkv, &gates, &mut after);
    let (qkv, gates) = (lab.input(&qkv)?, lab.input(&gates)?);
    let (state, slots) = (lab.floats(&pool, Contents::State)?, lab.words(&[1, 0])?);
    let scratch = lab.gpu.allocate(gated_delta_chunk_scratch(&l.shape, tokens as u32), Contents::Activations)?;
    let out = lab.output(tokens * width)?;
    lab.check(
        if body == Body::Mma { "delta_chunk mma" } else { "gated_delta_chunk" },
        format!("{tokens} tokens from {start}, {} heads", l.shape.linear_value_heads),
        // Of the recurrent form: three products of the state with a vector, a token.
        Work::Products((3 * tokens * width * HEAD) as u64),
        5e-5,
        |gpu| {
            let d = GatedDeltaChunk {
                body,
                qkv: View::of(&qkv),
                gates: View::of(&gates),
                state: View::of(&state),
                slots: View::of(&slots),
                scratch: View::of(&scratch),
                out: View::of(&out),
                start: start as u32,
                tokens: tokens as u32,
            };
            gated_delta_chunk(gpu, &l.shape, &d)
        },
        |lab| {
            let state = difference(&lab.read(&state)?[..width * HEAD], &after);
            Ok(difference(&lab.read(&out)?, &want).max(state))
        },
    );
    Ok(())
}

fn norm<G: Gpu>(lab: &mut Lab<'_, G>, l: &Layer, tokens: usize, output: Element) -> Result<()> {
    let width = l.shape.value_dim();
    let rows = lab.random.values(tokens * l.stride, 2.0);
    let o = lab.random.values(tokens * width, 1.0);
    let want = l.gated(&o, &rows);
    let (rows, o) = (lab.input(&rows)?, lab.input(&o)?);
    let weight = lab.floats(&l.norm, Contents::Weights)?;
    let y = lab.elements(output, &vec![0.0; want.len()], Contents::Activations)?;
    lab.check(
        "gated_norm",
        format!("{tokens} tokens, {} heads, {output:?}", l.shape.linear_value_heads),
        Work::Bytes(want.len() as u64 * (8 + output.size())),
        if output == Element::Bf16 { 0.005 } else { 5e-6 },
        |gpu| {
            let n = GatedNorm {
                o: View::of(&o),
                z: View::at(&rows, 4 * l.z_at() as u64),
                stride: l.stride as u32,
                weight: View::of(&weight),
                y: View::of(&y),
                output,
                rows: tokens as u32,
            };
            gated_norm(gpu, &l.shape, &n)
        },
        |lab| Ok(difference(&lab.read_elements(output, &y)?, &want)),
    );
    Ok(())
}

fn decode<G: Gpu>(lab: &mut Lab<'_, G>, l: &Layer, batch: usize) -> Result<()> {
    let (channels, width) = (l.shape.conv_dim(), l.shape.value_dim());
    let rows = lab.random.values(batch * l.stride, 2.0);
    let (conv_slot, state_slot) = (3 * channels, width * HEAD);
    let conv = lab.random.values(2 * batch * conv_slot, 2.0);
    let state = lab.random.values(2 * batch * state_slot, 0.3);
    // Sequence i reads slot 2 i + 1 and writes slot 2 i.
    let slots: Vec<u32> = (0..batch as u32).flat_map(|i| [2 * i + 1, 2 * i]).collect();
    let (mut want, mut conv_after, mut state_after) = (Vec::new(), conv.clone(), state.clone());
    for (i, row) in rows.chunks_exact(l.stride).enumerate() {
        let mut own_conv = conv[(2 * i + 1) * conv_slot..][..conv_slot].to_vec();
        let mut own_state = state[(2 * i + 1) * state_slot..][..state_slot].to_vec();
        let qkv = l.convolved(row, &mut own_conv);
        let o = l.delta(&qkv, &l.gates(row), &mut own_state);
        want.extend(l.gated(&o, row));
        conv_after[2 * i * conv_slot..][..conv_slot].copy_from_slice(&own_conv);
        state_after[2 * i * state_slot..][..state_slot].copy_from_slice(&own_state);
    }
    let (rows, slots) = (lab.input(&rows)?, lab.words(&slots)?);
    let (conv, state) = (lab.floats(&conv, Contents::State)?, lab.floats(&state, Contents::State)?);
    let weights = lab.elements(Element::Bf16, &l.conv, Contents::Weights)?;
    let a_log = lab.floats(&l.a_log, Contents::Weights)?;
    let dt_bias = lab.floats(&l.dt_bias, Contents::Weights)?;
    let norm = lab.floats(&l.norm, Contents::Weights)?;
    let y = lab.output(batch * width)?;
    lab.check(
        "linear_step",
        format!("{batch} rows, {} heads", l.shape.linear_value_heads),
        Work::Bytes((8 * batch * (state_slot + conv_slot)) as u64),
        2e-5,
        |gpu| {
            let s = LinearStep {
                projections: View::of(&rows),
                stride: l.stride as u32,
                z_at: l.z_at() as u32,
                gates_at: l.gates_at() as u32,
                conv: View::of(&conv),
                state: View::of(&state),
                slots: View::of(&slots),
                weights: View::of(&weights),
                a_log: View::of(&a_log),
                dt_bias: View::of(&dt_bias),
                norm: View::of(&norm),
                y: View::of(&y),
                batch: batch as u32,
            };
            linear_step(gpu, &l.shape, &s)
        },
        |lab| {
            let held = difference(&lab.read(&conv)?, &conv_after).max(difference(&lab.read(&state)?, &state_after));
            Ok(difference(&lab.read(&y)?, &want).max(held))
        },
    );
    Ok(())
}
