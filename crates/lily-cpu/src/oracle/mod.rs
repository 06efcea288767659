//! The model in plain F32 (`docs/model.md §4`). Written to be read beside the text: no threads, no SIMD by hand, no
//! reordering. Each function takes T rows and returns T rows.

mod attention;
pub mod chunked;
pub mod delta;
pub mod moe;
mod ops;

use lily_checkpoint::{Mixer, Weights};
use lily_model::{KvType, LayerKind, Logits, Part, Rows, Shape};

use crate::Forward;
use crate::local::{take_floats, write_floats};
use delta::DeltaState;
use ops::{add, linear, rms_norm};

pub use attention::{KvCache, inv_freq, rope, round_kv};

/// The oracle: shape and weights.
pub struct Oracle {
    shape: Shape,
    weights: Weights,
    kv: KvType,
}

/// What a sequence carries between calls.
#[derive(Clone)]
pub struct State {
    /// Tokens seen.
    pub len: usize,
    /// One entry a layer.
    pub layers: Vec<LayerState>,
}

/// The state of one layer.
#[derive(Clone)]
pub enum LayerState {
    /// Of a linear layer.
    Linear(DeltaState),
    /// Of a full layer.
    Full(KvCache),
}

/// Values on the way, for goldens. All row-major, T rows.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// [T × hidden].
    pub embed: Vec<f32>,
    /// One entry a layer.
    pub layers: Vec<LayerTrace>,
    /// [T × hidden].
    pub final_norm: Vec<f32>,
}

/// Values of one layer.
#[derive(Clone, Debug, Default)]
pub struct LayerTrace {
    /// [T × hidden], before it is added to the residual stream.
    pub mixer: Vec<f32>,
    /// [T × experts_per_token], in descending weight.
    pub experts: Vec<usize>,
    /// [T × experts_per_token].
    pub expert_weights: Vec<f32>,
    /// [T × hidden], the residual stream after the layer.
    pub output: Vec<f32>,
}

impl Oracle {
    /// Clones of `weights` share the memory map.
    pub fn new(shape: &Shape, weights: &Weights) -> Self {
        Self::with_kv(shape, weights, KvType::F32)
    }

    /// The same with keys and values rounded to `kv` when they are appended: what a faster path that keeps them so is held
    /// to. They are still held, and multiplied, in F32.
    pub fn with_kv(shape: &Shape, weights: &Weights, kv: KvType) -> Self {
        Self { shape: shape.clone(), weights: weights.clone(), kv }
    }

    /// Append `tokens`; the hidden rows after the final norm [T × hidden], and what happened on the way.
    pub fn hidden(&self, state: &mut State, tokens: &[u32]) -> (Vec<f32>, Trace) {
        let s = &self.shape;
        let mut trace = Trace::default();
        let mut x = vec![0.0; tokens.len() * s.hidden];
        for (row, &token) in x.chunks_exact_mut(s.hidden).zip(tokens) {
            self.weights.embed.row_f32(token as usize, row);
        }
        trace.embed = x.clone();
        for (weights, state_of_layer) in self.weights.layers.iter().zip(&mut state.layers) {
            trace.layers.push(layer(s, weights, state_of_layer, state.len, &mut x));
        }
        state.len += tokens.len();
        let h = rms_norm(&x, &self.weights.norm, s.norm_eps);
        trace.final_norm = h.clone();
        (h, trace)
    }

    /// Logits [T × vocab] of hidden rows [T × hidden].
    pub fn head(&self, hidden: &[f32]) -> Vec<f32> {
        linear(hidden, &self.weights.lm_head)
    }
}

/// One layer over T rows of the residual stream, in place; the first row stands at position `start`.
pub fn layer(s: &Shape, w: &lily_checkpoint::Layer, state: &mut LayerState, start: usize, x: &mut [f32]) -> LayerTrace {
    let h = rms_norm(x, &w.input_norm, s.norm_eps);
    let mixer = match (&w.mixer, state) {
        (Mixer::Linear(w), LayerState::Linear(state)) => delta::linear_attention(s, w, state, &h),
        (Mixer::Full(w), LayerState::Full(cache)) => attention::full_attention(s, w, cache, start, &h),
        _ => unreachable!("Oracle::start makes the state of a layer from its kind"),
    };
    add(x, &mixer);
    let h = rms_norm(x, &w.post_norm, s.norm_eps);
    let (y, experts, expert_weights) = moe::moe(s, &w.moe, &h);
    add(x, &y);
    LayerTrace { mixer, experts, expert_weights, output: x.to_vec() }
}

impl LayerState {
    /// Before the first token; keys and values in F32.
    pub fn start(s: &Shape, kind: LayerKind) -> Self {
        Self::start_with(s, kind, KvType::F32)
    }

    fn start_with(s: &Shape, kind: LayerKind, kv: KvType) -> Self {
        match kind {
            LayerKind::Linear => LayerState::Linear(DeltaState::start(s)),
            LayerKind::Full => LayerState::Full(KvCache::new(kv)),
        }
    }
}

impl Forward for Oracle {
    type State = State;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn device(&self) -> String {
        match self.kv {
            KvType::F32 => "cpu oracle (plain F32, 1 thread)".into(),
            kv => format!("cpu oracle (plain F32, 1 thread, {} KV cache)", kv.name()),
        }
    }

    fn kv_type(&self) -> KvType {
        self.kv
    }

    fn prefill_chunk(&self) -> usize {
        512
    }

    fn start(&self) -> State {
        State {
            len: 0,
            layers: self.shape.layers.iter().map(|&k| LayerState::start_with(&self.shape, k, self.kv)).collect(),
        }
    }

    fn state_bytes(&self, state: &State) -> u64 {
        let values: usize = state
            .layers
            .iter()
            .map(|l| match l {
                LayerState::Linear(d) => d.recurrent.len() + d.conv.len(),
                LayerState::Full(c) => c.k.len() + c.v.len(),
            })
            .sum();
        4 * values as u64
    }

    fn state_format(&self) -> String {
        format!("oracle 1, {} KV cache", self.kv.name())
    }

    /// Nothing of a state is shared: its own part is all of it.
    fn save(&self, state: &State, _part: Part) -> Vec<u8> {
        let mut bytes = Vec::new();
        for layer in &state.layers {
            let (a, b) = match layer {
                LayerState::Linear(d) => (&d.recurrent, &d.conv),
                LayerState::Full(c) => (&c.k, &c.v),
            };
            write_floats(a, &mut bytes);
            write_floats(b, &mut bytes);
        }
        bytes
    }

    fn load(&self, len: usize, parts: &mut dyn Iterator<Item = Vec<u8>>) -> Option<State> {
        let own = parts.next()?;
        let mut own = own.as_slice();
        let mut state = State { len, ..self.start() };
        for layer in &mut state.layers {
            let (a, b) = match layer {
                LayerState::Linear(d) => (&mut d.recurrent, &mut d.conv),
                LayerState::Full(c) => {
                    // No more than the bytes can hold, whatever `len` says.
                    let values = len
                        .checked_mul(self.shape.kv_dim())
                        .filter(|n| n.checked_mul(4).is_some_and(|n| n <= own.len()))?;
                    (c.k, c.v) = (vec![0.0; values], vec![0.0; values]);
                    (&mut c.k, &mut c.v)
                }
            };
            take_floats(a, &mut own)?;
            take_floats(b, &mut own)?;
        }
        (own.is_empty() && parts.next().is_none()).then_some(state)
    }

    fn forward(&mut self, state: &mut State, tokens: &[u32], rows: Rows) -> Logits {
        let (h, _) = self.hidden(state, tokens);
        let wanted = match rows {
            Rows::None => &h[h.len()..],
            Rows::Last => &h[h.len() - self.shape.hidden..],
            Rows::All => &h[..],
        };
        Logits { vocab: self.shape.vocab, data: self.head(wanted) }
    }
}
