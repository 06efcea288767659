//! One linear and one full layer at the real dimensions (16 experts) against transformers (`tests/fixtures/blocks`).

mod common;

use common::{Golden, close, repo};
use lily_checkpoint::synthetic::{Blocks, blocks};
use lily_checkpoint::{Bytes, ExpertStack, Layer, Matrix, Mixer, Weights, quant};
use lily_cpu::oracle::{LayerState, Oracle, chunked, delta, layer};
use lily_cpu::{Fast, Forward, Isa, KvElement, Q8};
use lily_model::{LayerKind, Rows, Shape};

const PROMPT: usize = 72;

fn load() -> Blocks {
    blocks(&repo("tests/fixtures/blocks/config.json")).expect("the seeded blocks")
}

fn pick(x: &[f32], rows: &[u32], width: usize) -> Vec<f32> {
    rows.iter().flat_map(|&r| x[r as usize * width..(r as usize + 1) * width].to_vec()).collect()
}

fn check_oracle(s: &Shape, w: &Layer, kind: LayerKind, input: &[f32], golden: &Golden) {
    let h = s.hidden;
    close("generator", &input[..2 * h], &golden.f32("input_first2"), 0.0);
    let rows = golden.ids("rows");
    let mut state = LayerState::start(s, kind);
    let mut x = input[..PROMPT * h].to_vec();
    let trace = layer(s, w, &mut state, 0, &mut x);
    close("mixer", &pick(&trace.mixer, &rows, h), &golden.f32("mixer_output_rows"), 1e-4);
    close("output", &pick(&trace.output, &rows, h), &golden.f32("layer_output_rows"), 1e-4);
    assert_eq!(trace.experts.iter().map(|&e| e as u32).collect::<Vec<_>>(), golden.ids("router_indices"));
    close("router", &trace.expert_weights, &golden.f32("router_weights"), 1e-5);
    match &state {
        LayerState::Linear(d) => {
            let size = s.linear_head_dim * s.linear_head_dim;
            close("S", &pick(&d.recurrent, &golden.ids("recurrent_heads"), size), &golden.f32("recurrent_state"), 1e-4);
            close("convolution", &d.conv, &golden.f32("conv_state"), 1e-4);
        }
        LayerState::Full(c) => {
            close("keys", &pick(&c.k, &rows, s.kv_dim()), &golden.f32("k_rows"), 1e-4);
            close("values", &pick(&c.v, &rows, s.kv_dim()), &golden.f32("v_rows"), 1e-4);
        }
    }
    let mut x = input[PROMPT * h..].to_vec();
    layer(s, w, &mut state, PROMPT, &mut x);
    close("decode", &x, &golden.f32("decode_layer_output"), 1e-4);
}

#[test]
fn oracle_layers_equal_transformers() {
    let b = load();
    let golden = |name: &str| Golden::open(&format!("tests/fixtures/blocks/golden_{name}.safetensors"));
    check_oracle(&b.shape, &b.linear, LayerKind::Linear, &b.linear_input, &golden("linear"));
    check_oracle(&b.shape, &b.full, LayerKind::Full, &b.full_input, &golden("full"));
}

/// A model of one layer whose tokens are the input rows and whose logits are the normalised output rows.
fn one_layer(s: &Shape, kind: LayerKind, w: &Layer, input: &[f32]) -> (Shape, Weights) {
    let bf16 =
        |x: &[f32]| Bytes::new(x.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect::<Vec<_>>());
    let h = s.hidden;
    let identity: Vec<f32> = (0..h * h).map(|i| if i / h == i % h { 1.0 } else { 0.0 }).collect();
    let shape = Shape { vocab: h, layers: vec![kind], ..s.clone() };
    let weights = Weights {
        embed: Matrix::Bf16 { rows: input.len() / h, cols: h, data: bf16(input) },
        layers: vec![w.clone()],
        norm: vec![1.0; h],
        lm_head: Matrix::Bf16 { rows: h, cols: h, data: bf16(&identity) },
    };
    (shape, weights)
}

/// Normalised outputs of 72 prompt tokens and one decoded one.
fn outputs<F: Forward>(mut model: F) -> Vec<f32> {
    let mut state = model.start();
    let prompt: Vec<u32> = (0..PROMPT as u32).collect();
    let mut out = model.forward(&mut state, &prompt, Rows::All).data;
    out.extend(model.forward(&mut state, &[PROMPT as u32], Rows::Last).data);
    out
}

/// The same layer with its products in 4 bits (gates 8), as a converter makes it.
fn quantised(w: &Layer) -> Layer {
    let with = |m: &Matrix, bits| {
        let mut values = vec![0.0; m.rows() * m.cols()];
        for (r, row) in values.chunks_exact_mut(m.cols()).enumerate() {
            m.row_f32(r, row);
        }
        Matrix::Affine(quant::quantize(m.rows(), m.cols(), bits, &values))
    };
    let stack = |e: &ExpertStack| ExpertStack(e.0.iter().map(|m| with(m, 4)).collect());
    let mut w = w.clone();
    match &mut w.mixer {
        Mixer::Linear(l) => {
            for m in [&mut l.in_qkv, &mut l.in_z, &mut l.in_a, &mut l.in_b, &mut l.out] {
                *m = with(m, 4);
            }
        }
        Mixer::Full(f) => {
            for m in [&mut f.q, &mut f.k, &mut f.v, &mut f.o] {
                *m = with(m, 4);
            }
        }
    }
    let m = &mut w.moe;
    (m.gate, m.up, m.down) = (stack(&m.gate), stack(&m.up), stack(&m.down));
    for matrix in [&mut m.shared_gate, &mut m.shared_up, &mut m.shared_down] {
        *matrix = with(matrix, 4);
    }
    (m.router, m.shared_expert_gate) = (with(&m.router, 8), with(&m.shared_expert_gate, 8));
    w
}

fn check_fast<K: KvElement>(s: &Shape, kind: LayerKind, w: &Layer, input: &[f32], bound: f32) {
    let (shape, weights) = one_layer(s, kind, w, input);
    let want = outputs(Oracle::with_kv(&shape, &weights, K::TYPE));
    let got = outputs(Fast::<K>::with_isa(&shape, &weights, 2, Isa::detect()));
    close(&format!("fast {kind:?} {}", K::TYPE.name()), &got, &want, bound);
}

#[test]
fn fast_layers_equal_the_oracle_at_the_real_dimensions() {
    let b = load();
    for (kind, w, input) in [(LayerKind::Linear, &b.linear, &b.linear_input), (LayerKind::Full, &b.full, &b.full_input)]
    {
        check_fast::<f32>(&b.shape, kind, w, input, 1e-4);
        check_fast::<f32>(&b.shape, kind, &quantised(w), input, 1e-3);
    }
    check_fast::<Q8>(&b.shape, LayerKind::Full, &b.full, &b.full_input, 1e-4);
}

#[test]
fn the_chunked_delta_rule_equals_the_recurrent_one() {
    const D: usize = 128;
    for (tokens, size, gate) in [(150, 64, 0.3), (64, 64, 0.0), (65, 64, 80.0), (33, 16, 2.0), (5, 64, 80.0)] {
        let noise = |seed: &str, n| lily_checkpoint::synthetic::uniform(11, seed, n, -1.0, 1.0);
        let rows = |seed: &str, scale| -> Vec<f32> {
            noise(seed, tokens * D).chunks_exact(D).flat_map(|r| delta::unit(r, scale)).collect()
        };
        let (q, k, v) = (rows("q", 1.0 / (D as f32).sqrt()), rows("k", 1.0), noise("v", tokens * D));
        let g: Vec<f32> = noise("g", tokens).iter().map(|x| -x.abs() * gate).collect();
        let beta: Vec<f32> = noise("b", tokens).iter().map(|x| x.abs()).collect();
        let start = noise("s", D * D);

        let (mut recurrent, mut want) = (start.clone(), Vec::new());
        for t in 0..tokens {
            let at = t * D..(t + 1) * D;
            want.extend(delta::step(&mut recurrent, &q[at.clone()], &k[at.clone()], &v[at], g[t], beta[t]));
        }
        let (mut state, mut got) = (start, Vec::new());
        for first in (0..tokens).step_by(size) {
            let last = tokens.min(first + size);
            let at = first * D..last * D;
            let chunk = chunked::Chunk {
                q: &q[at.clone()],
                k: &k[at.clone()],
                v: &v[at],
                g: &g[first..last],
                beta: &beta[first..last],
            };
            got.extend(chunked::chunk(&mut state, &chunk));
        }
        close(&format!("{tokens} tokens in chunks of {size}, outputs"), &got, &want, 5e-6);
        close("state", &state, &recurrent, 2e-5);
    }
}
