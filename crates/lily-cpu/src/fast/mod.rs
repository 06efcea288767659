//! The model on all cores of a CPU, on the quantised weights as they lie in the memory map.
//!
//! The arithmetic of a token is the same in prefill and decode, for every number of threads and every way a prompt is
//! cut: products are exact in integers per group ([`affine4`]), sums have fixed orders, attention blocks stand at fixed
//! positions, and the delta rule is recurrent. What differs from the oracle: 16-bit activations in products with 4-bit
//! weights, keys and values in BF16 (F32 and 8 bits can be chosen), an exponential good to 2 units in the last place.

#![allow(clippy::too_many_arguments, reason = "kernels take their operands one by one")]

mod affine4;
mod attention;
pub mod bench;
mod delta;
mod dense;
mod element;
mod kv;
mod matmul;
mod memory;
mod mixers;
mod moe;
mod pool;
mod quantise;
mod rows;
mod simd;

pub use element::{Bf16, KvElement, Q8};
pub use simd::Isa;

use lily_checkpoint::{Mixer, Weights};
use lily_model::{KvType, LayerKind, Logits, Part, Rows, SequenceBytes, Shape, Shared};

use crate::Forward;
use affine4::Pick;
use kv::KvCache;
use matmul::{Activations, Cores, each_token, project};
use memory::grow;
use mixers::LinearState;
use pool::{Disjoint, Pool};

/// Tokens of a prefill pass at most.
const CHUNK: usize = 512;

/// The fast path; `K` is what keys and values are cached as.
pub struct Fast<K = Bf16> {
    shape: Shape,
    weights: Weights,
    /// One entry a layer; what linear layers need in another order.
    prepared: Vec<Option<mixers::Prepared>>,
    cores: Cores,
    buffers: Buffers,
    kv: std::marker::PhantomData<K>,
}

/// What a sequence carries between calls.
#[derive(Clone)]
pub struct State<K> {
    len: usize,
    layers: Vec<LayerState<K>>,
}

#[derive(Clone)]
enum LayerState<K> {
    Linear(LinearState),
    Full(KvCache<K>),
}

/// Memory for the values on the way, kept between calls.
#[derive(Default)]
struct Buffers {
    /// The residual stream [tokens × hidden].
    x: Vec<f32>,
    /// Normalised rows, input of products.
    h: Activations,
    mixer: mixers::Buffers,
    moe: moe::Buffers,
}

impl Buffers {
    /// Bytes that they hold.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        4 * self.x.capacity() as u64 + self.h.bytes() + self.mixer.bytes() + self.moe.bytes()
    }
}

impl<K: KvElement> Fast<K> {
    /// On `threads` threads (0: one a core) with the best instructions of this machine. Clones of `weights` share the
    /// memory map.
    pub fn new(shape: &Shape, weights: &Weights, threads: usize) -> Self {
        Self::with_isa(shape, weights, threads, Isa::detect())
    }

    /// With an instruction set of the caller's choice (one of [`Isa::available`]).
    pub fn with_isa(shape: &Shape, weights: &Weights, threads: usize, isa: Isa) -> Self {
        assert!(isa.runs_here(), "this machine cannot run {}", isa.name());
        let threads = if threads > 0 { threads } else { std::thread::available_parallelism().map_or(1, |n| n.get()) };
        Self {
            shape: shape.clone(),
            weights: weights.clone(),
            prepared: weights.layers.iter().map(|l| mixers::Prepared::of(shape, &l.mixer)).collect(),
            cores: Cores { pool: Pool::new(threads), isa },
            buffers: Buffers::default(),
            kv: std::marker::PhantomData,
        }
    }
}

impl<K: KvElement> Forward for Fast<K> {
    type State = State<K>;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn device(&self) -> String {
        let threads = self.cores.pool.threads();
        let plural = if threads == 1 { "" } else { "s" };
        format!("cpu ({}, {threads} thread{plural}, {} KV cache)", self.cores.isa.name(), K::TYPE.name())
    }

    fn kv_type(&self) -> KvType {
        K::TYPE
    }

    fn prefill_chunk(&self) -> usize {
        CHUNK
    }

    fn start(&self) -> State<K> {
        let s = &self.shape;
        let layers = s
            .layers
            .iter()
            .map(|kind| match kind {
                LayerKind::Linear => LayerState::Linear(LinearState::start(s)),
                LayerKind::Full => LayerState::Full(KvCache::new(s.kv_heads, s.head_dim)),
            })
            .collect();
        State { len: 0, layers }
    }

    fn state_bytes(&self, state: &State<K>) -> u64 {
        state
            .layers
            .iter()
            .map(|l| match l {
                LayerState::Linear(l) => l.bytes(),
                LayerState::Full(f) => f.bytes(),
            })
            .sum()
    }

    fn sequence_bytes(&self) -> SequenceBytes {
        Self::sequence(&self.shape)
    }

    fn shared(&self, state: &State<K>) -> Vec<Shared> {
        let caches = state.layers.iter().filter_map(|l| match l {
            LayerState::Linear(_) => None,
            LayerState::Full(f) => Some(f.shared()),
        });
        caches.flatten().collect()
    }

    fn state_format(&self) -> String {
        format!("cpu 1, {}, {} KV cache", self.cores.isa.name(), K::TYPE.name())
    }

    fn save(&self, state: &State<K>, part: Part) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut before = 0;
        for layer in &state.layers {
            match (layer, part) {
                (LayerState::Linear(l), Part::Own) => l.save(&mut bytes),
                (LayerState::Full(f), Part::Shared(i)) => {
                    // As `shared` lists them: layer by layer.
                    if (before..before + f.blocks()).contains(&i) {
                        return f.save_block(i - before);
                    }
                    before += f.blocks();
                }
                _ => {}
            }
        }
        bytes
    }

    fn load(&self, len: usize, parts: &mut dyn Iterator<Item = Vec<u8>>) -> Option<State<K>> {
        let own = parts.next()?;
        let mut own = own.as_slice();
        let s = &self.shape;
        let layers = s.layers.iter().map(|kind| match kind {
            LayerKind::Linear => LinearState::load(s, &mut own).map(LayerState::Linear),
            LayerKind::Full => KvCache::load(s.kv_heads, s.head_dim, len, parts).map(LayerState::Full),
        });
        let layers = layers.collect::<Option<_>>()?;
        (own.is_empty() && parts.next().is_none()).then_some(State { len, layers })
    }

    fn forward(&mut self, state: &mut State<K>, tokens: &[u32], rows: Rows) -> Logits {
        let Self { shape: s, weights, prepared, cores, buffers: b, .. } = self;
        let n = tokens.len();
        grow(&mut b.x, n * s.hidden);
        let x = Disjoint::new(&mut b.x);
        each_token(&cores.pool, n, |t| {
            // SAFETY: token t writes its own row only.
            let row = unsafe { x.part(t * s.hidden, s.hidden) };
            dense::expand_row(cores.isa, &weights.embed, tokens[t] as usize, row, cores.isa);
        });
        b.mixer.rotate(s, state.len, n);
        for ((layer, prepared), state_of_layer) in weights.layers.iter().zip(prepared).zip(&mut state.layers) {
            normalise(cores, s, &layer.input_norm, &b.x, &mut b.h);
            match (&layer.mixer, state_of_layer) {
                (Mixer::Linear(w), LayerState::Linear(l)) => {
                    let prepared = prepared.as_ref().expect("made for every linear layer");
                    mixers::linear(cores, s, w, prepared, l, &mut b.mixer, &b.h, &mut b.x);
                }
                (Mixer::Full(w), LayerState::Full(f)) => {
                    mixers::full(cores, s, w, f, state.len, &mut b.mixer, &b.h, &mut b.x);
                }
                _ => unreachable!("Fast::start makes the state of a layer from its kind"),
            }
            normalise(cores, s, &layer.post_norm, &b.x, &mut b.h);
            moe::moe(cores, s, &layer.moe, &mut b.moe, &b.h, &mut b.x);
        }
        state.len += n;

        let wanted = match rows {
            Rows::None => 0,
            Rows::Last => 1,
            Rows::All => n,
        };
        let mut data = vec![0.0; wanted * s.vocab];
        if wanted > 0 {
            normalise(cores, s, &weights.norm, &b.x[(n - wanted) * s.hidden..], &mut b.h);
            project(cores, &b.h, Pick::First(wanted), &mut [(&weights.lm_head, &mut data)]);
        }
        Logits { vocab: s.vocab, data }
    }
}

/// h = rms_norm(x) · weight.
fn normalise(cores: &Cores, s: &Shape, weight: &[f32], x: &[f32], h: &mut Activations) {
    h.fill(cores, x.len() / s.hidden, s.hidden, |t, row| {
        rows::rms_norm(cores.isa, &x[t * s.hidden..(t + 1) * s.hidden], weight, s.norm_eps, row);
    });
}
