//! A decoded token of one to eight sequences: one command buffer.

use lily_model::{LayerKind, Shape, Top};

use super::{Held, Part, Program, full_stride, linear_stride, read_floats, read_words, words};
use crate::gpu::{Contents, Gpu, GpuError, Ticket};
use crate::kernels::{
    ARGMAX_BLOCKS, Argmax, AttentionDecode, Body, DeviceMatrix, EMBED_PARTIALS, Element, GemvInput, GemvOutput,
    LinearStep, MoeDownStep, MoeGateUpStep, NO_TOKEN, QkNormRope, Rows, StepNorm, TOP_K, TopK, View, affine_gemv,
    argmax, attention_decode, attention_decode_scratch, embed_gather, gemv_partials, linear_step, moe_down_step,
    moe_gate_up_step, moe_partials, qk_norm_rope, top_k, top_k_scratch,
};
use crate::weights::DeviceMixer;

/// Sequences of a decode step at most.
pub const DECODE_BATCH: usize = 8;
const BATCH: u64 = DECODE_BATCH as u64;

/// A step in flight.
#[derive(Debug)]
#[must_use = "a step is finished or waited for"]
pub struct Step {
    ticket: Ticket,
    set: usize,
    batch: usize,
}

/// What the device does with the logits of a step. Ids from `vocab` on are padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Nothing: the host reads them.
    None,
    /// The largest one of each sequence is its next token.
    Greedy {
        /// Ids that exist.
        vocab: u32,
    },
    /// The largest ones are read.
    Top {
        /// Ids that exist.
        vocab: u32,
        /// How many, at most [`TOP_K`].
        k: u32,
    },
}

/// What the host writes for a step. There are two, so that it can be written while the step before runs.
struct Set<B> {
    /// `[batch]`: positions of the tokens.
    positions: B,
    /// `[2 × batch]`: past slot, next slot.
    slots: B,
    /// `[batch × table_stride]`: KV pages.
    table: B,
    table_stride: u32,
    /// `[2 × batch]`: the tokens of the step; behind those that the device chose, the first logit of each that is no number.
    tokens: B,
    /// `[batch × vocab]`.
    logits: B,
}

/// Memory of decode steps.
pub(super) struct Steps<B> {
    sets: [Set<B>; 2],
    /// The set of the next step.
    turn: usize,
    /// `[batch × hidden]`, the residual stream.
    x: B,
    /// Partial sums of squares of x.
    partials: B,
    projections: B,
    /// Queries after norm and rotation.
    q: B,
    /// Input of the output projection.
    mixed: B,
    router: B,
    experts: B,
    act: B,
    attention: B,
    attention_bytes: u64,
    block_values: B,
    block_ids: B,
    /// `[batch × k]`.
    top_values: B,
    top_ids: B,
}

impl<B> Steps<B> {
    pub(super) fn new<G: Gpu<Buffer = B>>(gpu: &G, s: &Shape) -> Result<Self, GpuError> {
        let f = |values: usize| gpu.allocate(4 * BATCH * values as u64, Contents::Activations);
        let set = || -> Result<Set<B>, GpuError> {
            Ok(Set {
                positions: f(1)?,
                slots: f(2)?,
                table: f(1)?,
                table_stride: 1,
                tokens: f(2)?,
                logits: f(s.vocab)?,
            })
        };
        // No kernel writes more sums than one for four rows.
        let partials = s.hidden.div_ceil(4).max(EMBED_PARTIALS as usize);
        let blocks = ARGMAX_BLOCKS.max(top_k_scratch(s.vocab as u32, TOP_K));
        Ok(Self {
            sets: [set()?, set()?],
            turn: 0,
            x: f(s.hidden)?,
            partials: f(partials)?,
            projections: f(linear_stride(s).max(full_stride(s)))?,
            q: f(s.query_dim())?,
            mixed: f(s.value_dim().max(s.query_dim()))?,
            router: f(s.experts + 1)?,
            experts: f(s.experts_per_token)?,
            act: f(s.experts_per_token * s.expert_width + s.shared_width)?,
            attention: f(1)?,
            attention_bytes: 4 * BATCH,
            block_values: f(blocks as usize)?,
            block_ids: f(2 * blocks as usize)?,
            top_values: f(TOP_K as usize)?,
            top_ids: f(TOP_K as usize)?,
        })
    }
}

impl Held {
    /// The state is the one before the last step again.
    pub fn undo_step(&mut self) {
        self.slots.swap();
        self.len -= 1;
    }
}

/// What a step is about, for the layers.
struct Now {
    set: usize,
    batch: u32,
    /// Positions of the longest sequence, this token included.
    longest: u32,
}

impl<G: Gpu> Program<G> {
    /// Starts a step for each sequence: `tokens`, or those that the step before this one chose for the same sequences in
    /// the same order. The states are those
    /// after the step; [`Held::undo_step`] takes one step back.
    ///
    /// # Errors
    /// Of the device; no state has changed.
    pub fn start_step(
        &mut self,
        held: &mut [&mut Held],
        tokens: Option<&[u32]>,
        choice: Choice,
    ) -> Result<Step, GpuError> {
        assert!((1..=DECODE_BATCH).contains(&held.len()), "a batch of {}", held.len());
        for h in held.iter_mut() {
            self.ready_pages(h, 1)?;
        }
        let set = self.steps.turn;
        self.fill_set(set, held, tokens)?;
        let now = Now { set, batch: held.len() as u32, longest: held.iter().map(|h| h.len + 1).max().unwrap_or(1) };
        self.grow_attention(&now)?;
        self.encode_step(&now, choice)?;
        let ticket = self.commit()?;
        self.steps.turn = 1 - set;
        for h in held.iter_mut() {
            h.slots.swap();
            h.len += 1;
        }
        Ok(Step { ticket, set, batch: held.len() })
    }

    /// Waits for a step and reads its logits `[batch × vocab]`.
    ///
    /// # Errors
    /// Of the device.
    pub fn finish_logits(&mut self, step: Step) -> Result<Vec<f32>, GpuError> {
        let values = step.batch * self.shape.vocab;
        let set = step.set;
        self.wait_step(step)?;
        read_floats(&self.gpu, View::of(&self.steps.sets[set].logits), values)
    }

    /// Waits for a step and reads the tokens that it chose.
    ///
    /// # Errors
    /// Of the device; [`GpuError::NotFinite`] where a logit is NaN or +∞.
    pub fn finish_tokens(&mut self, step: Step) -> Result<Vec<u32>, GpuError> {
        let (set, batch) = (step.set, step.batch);
        self.wait_step(step)?;
        let mut tokens = read_words(&self.gpu, &self.steps.sets[1 - set].tokens, 2 * batch)?;
        let broken = tokens.split_off(batch);
        if let Some((row, &id)) = broken.iter().enumerate().find(|(_, id)| **id != NO_TOKEN) {
            let at = 4 * (row as u64 * self.shape.vocab as u64 + u64::from(id));
            let value = read_floats(&self.gpu, View::at(&self.steps.sets[set].logits, at), 1)?[0];
            return Err(GpuError::NotFinite { id, value });
        }
        Ok(tokens)
    }

    /// Waits for a step and reads the largest logits, `k` for each sequence.
    ///
    /// # Errors
    /// Of the device.
    pub fn finish_top(&mut self, step: Step, k: usize) -> Result<Vec<Top>, GpuError> {
        let values = step.batch * k;
        self.wait_step(step)?;
        let logits = read_floats(&self.gpu, View::of(&self.steps.top_values), values)?;
        let ids = read_words(&self.gpu, &self.steps.top_ids, values)?;
        let all: Vec<(u32, f32)> = ids.into_iter().zip(logits).collect();
        Ok(all.chunks(k).map(<[_]>::to_vec).collect())
    }

    /// Waits for a step.
    ///
    /// # Errors
    /// Of the device.
    pub fn wait_step(&mut self, step: Step) -> Result<(), GpuError> {
        self.wait(step.ticket)
    }

    fn fill_set(&mut self, set: usize, held: &[&mut Held], tokens: Option<&[u32]>) -> Result<(), GpuError> {
        let set = &mut self.steps.sets[set];
        let pages = held.iter().map(|h| h.pages.len()).max().unwrap_or(1) as u32;
        if pages > set.table_stride {
            let stride = pages.next_power_of_two();
            set.table = self.gpu.allocate(4 * BATCH * u64::from(stride), Contents::Activations)?;
            set.table_stride = stride;
        }
        let positions: Vec<u32> = held.iter().map(|h| h.len).collect();
        let slots: Vec<u32> = held.iter().flat_map(|h| [h.slots.past(), h.slots.next()]).collect();
        self.gpu.upload(&set.positions, 0, &words(&positions))?;
        self.gpu.upload(&set.slots, 0, &words(&slots))?;
        for (row, h) in held.iter().enumerate() {
            let pages: Vec<u32> = h.pages.iter().map(|p| p.index()).collect();
            self.gpu.upload(&set.table, 4 * row as u64 * u64::from(set.table_stride), &words(&pages))?;
        }
        match tokens {
            Some(tokens) => self.gpu.upload(&set.tokens, 0, &words(tokens)),
            None => Ok(()),
        }
    }

    /// Scratch of attention for the longest sequence.
    fn grow_attention(&mut self, now: &Now) -> Result<(), GpuError> {
        let (body, kv) = (self.options.body, self.options.kv_type());
        let need = attention_decode_scratch(body, kv, now.batch, self.shape.query_heads as u32, now.longest);
        if need > self.steps.attention_bytes {
            let bytes = need.next_power_of_two();
            self.steps.attention = self.gpu.allocate(bytes, Contents::Activations)?;
            self.steps.attention_bytes = bytes;
        }
        Ok(())
    }

    fn encode_step(&mut self, now: &Now, choice: Choice) -> Result<(), GpuError> {
        self.mark(Part::Embed);
        let tokens = View::of(&self.steps.sets[now.set].tokens);
        let (x, partials) = (View::of(&self.steps.x), Some(View::of(&self.steps.partials)));
        embed_gather(&mut self.gpu, &self.weights.embed, tokens, x, partials, now.batch)?;
        let mut count = EMBED_PARTIALS;
        let (mut linear, mut full) = (0, 0);
        for layer in 0..self.shape.layers.len() {
            let kind = self.shape.layers[layer];
            self.mark(Part::Layer(kind));
            match kind {
                LayerKind::Linear => {
                    count = self.linear_layer(now, layer, linear, count)?;
                    linear += 1;
                }
                LayerKind::Full => {
                    count = self.full_layer(now, layer, full, count)?;
                    full += 1;
                }
            }
            count = self.moe_layer(now, layer, count)?;
        }
        self.mark(Part::Head);
        self.head_layer(now, count, choice)
    }

    /// A linear layer's mixer, added to the residual stream. Returns how many sums of squares the stream has now, as the others do.
    fn linear_layer(&mut self, now: &Now, layer: usize, index: usize, count: u32) -> Result<u32, GpuError> {
        let Self { gpu, shape, weights, pools, steps: s, options, .. } = self;
        let DeviceMixer::Linear(w) = &weights.layers[layer].mixer else { unreachable!("the shape says so") };
        let stride = linear_stride(shape) as u32;
        let [qkv, z, a, b] = &w.inputs;
        let norm = s.norm(&weights.layers[layer].input_norm, count, shape);
        let output = GemvOutput::Rows { y: View::of(&s.projections), stride };
        affine_gemv(
            gpu,
            options.body,
            &[qkv, z, a, b],
            &GemvInput::Normed { x: View::of(&s.x), norm },
            &output,
            now.batch,
        )?;
        linear_step(
            gpu,
            shape,
            &LinearStep {
                projections: View::of(&s.projections),
                stride,
                z_at: shape.conv_dim() as u32,
                gates_at: (shape.conv_dim() + shape.value_dim()) as u32,
                conv: pools.conv(index),
                state: pools.recurrent(index),
                slots: View::of(&s.sets[now.set].slots),
                weights: View::of(&w.conv),
                a_log: View::of(&w.a_log),
                dt_bias: View::of(&w.dt_bias),
                norm: View::of(&w.norm),
                y: View::of(&s.mixed),
                batch: now.batch,
            },
        )?;
        s.add(gpu, options.body, &w.out, now.batch)
    }

    /// A full layer's mixer, added to the residual stream.
    fn full_layer(&mut self, now: &Now, layer: usize, index: usize, count: u32) -> Result<u32, GpuError> {
        let Self { gpu, shape, weights, pools, steps: s, options, frequencies, .. } = self;
        let DeviceMixer::Full(w) = &weights.layers[layer].mixer else { unreachable!("the shape says so") };
        let set = &s.sets[now.set];
        let kv = super::kv(shape, options.kv_type(), pools, index, View::of(&set.table), set.table_stride);
        let stride = full_stride(shape) as u32;
        let [q, k, v] = &w.inputs;
        let norm = s.norm(&weights.layers[layer].input_norm, count, shape);
        let output = GemvOutput::Rows { y: View::of(&s.projections), stride };
        affine_gemv(gpu, options.body, &[q, k, v], &GemvInput::Normed { x: View::of(&s.x), norm }, &output, now.batch)?;
        let (query_heads, kv_heads) = (shape.query_heads as u32, shape.kv_heads as u32);
        let positions = View::of(&set.positions);
        qk_norm_rope(
            gpu,
            &QkNormRope {
                projections: View::of(&s.projections),
                stride,
                q_norm: View::of(&w.q_norm),
                k_norm: View::of(&w.k_norm),
                inv_freq: View::of(frequencies),
                q: View::of(&s.q),
                q_element: Element::F32,
                kv,
                query_heads,
                kv_heads,
                eps: shape.norm_eps,
                rows: now.batch,
                at: Rows::Decode { positions, longest: now.longest },
            },
        )?;
        attention_decode(
            gpu,
            &AttentionDecode {
                body: options.body,
                q: View::of(&s.q),
                kv,
                positions,
                longest: now.longest,
                projections: View::of(&s.projections),
                stride,
                scratch: View::of(&s.attention),
                out: View::of(&s.mixed),
                sequences: now.batch,
                query_heads,
                kv_heads,
            },
        )?;
        s.add(gpu, options.body, &w.out, now.batch)
    }

    /// Router and experts, added to the residual stream.
    fn moe_layer(&mut self, now: &Now, layer: usize, count: u32) -> Result<u32, GpuError> {
        let Self { gpu, shape, weights, steps: s, options, .. } = self;
        let w = &weights.layers[layer];
        let (experts, chosen) = (shape.experts as u32, shape.experts_per_token as u32);
        let norm = s.norm(&w.post_norm, count, shape);
        let x = View::of(&s.x);
        let [router, gate] = &w.moe.router;
        let output = GemvOutput::Rows { y: View::of(&s.router), stride: experts + 1 };
        affine_gemv(gpu, options.body, &[router, gate], &GemvInput::Normed { x, norm }, &output, now.batch)?;
        moe_gate_up_step(
            gpu,
            &MoeGateUpStep {
                body: options.body,
                gate: &w.moe.gate,
                up: &w.moe.up,
                shared_gate: &w.moe.shared_gate,
                shared_up: &w.moe.shared_up,
                x,
                norm,
                logits: View::of(&s.router),
                stride: experts + 1,
                experts: View::of(&s.experts),
                act: View::of(&s.act),
                batch: now.batch,
                count: experts,
                chosen,
            },
        )?;
        moe_down_step(
            gpu,
            &MoeDownStep {
                body: options.body,
                down: &w.moe.down,
                shared_down: &w.moe.shared_down,
                experts: View::of(&s.experts),
                act: View::of(&s.act),
                x,
                partials: View::of(&s.partials),
                batch: now.batch,
                count: experts,
                chosen,
            },
        )?;
        Ok(moe_partials(options.body, &w.moe.down, &w.moe.shared_down, chosen))
    }

    /// Final norm, head, and the choice of the next tokens.
    fn head_layer(&mut self, now: &Now, count: u32, choice: Choice) -> Result<(), GpuError> {
        let Self { gpu, shape, weights, steps: s, options, .. } = self;
        let (set, next) = (&s.sets[now.set], &s.sets[1 - now.set]);
        let stride = shape.vocab as u32;
        let input = GemvInput::Normed { x: View::of(&s.x), norm: s.norm(&weights.norm, count, shape) };
        let output = GemvOutput::Rows { y: View::of(&set.logits), stride };
        affine_gemv(gpu, options.body, &[&weights.lm_head], &input, &output, now.batch)?;
        match choice {
            Choice::None => Ok(()),
            Choice::Greedy { vocab } => argmax(
                gpu,
                &Argmax {
                    logits: View::of(&set.logits),
                    stride,
                    vocab: vocab.min(stride),
                    block_values: View::of(&s.block_values),
                    block_indices: View::of(&s.block_ids),
                    tokens: View::of(&next.tokens),
                    rows: now.batch,
                },
            ),
            Choice::Top { vocab, k } => top_k(
                gpu,
                &TopK {
                    logits: View::of(&set.logits),
                    stride,
                    vocab: vocab.min(stride),
                    k,
                    block_values: View::of(&s.block_values),
                    block_ids: View::of(&s.block_ids),
                    values: View::of(&s.top_values),
                    ids: View::of(&s.top_ids),
                    rows: now.batch,
                },
            ),
        }
    }
}

impl<B> Steps<B> {
    /// The norm of the residual stream with this weight.
    fn norm<'a>(&'a self, weight: &'a B, count: u32, shape: &Shape) -> StepNorm<'a, B> {
        StepNorm { weight: View::of(weight), partials: View::of(&self.partials), count, eps: shape.norm_eps }
    }

    /// Output projection of a mixer, added to the residual stream.
    fn add<G: Gpu<Buffer = B>>(
        &self,
        gpu: &mut G,
        body: Body,
        out: &DeviceMatrix<B>,
        batch: u32,
    ) -> Result<u32, GpuError> {
        let input = GemvInput::Rows { x: View::of(&self.mixed), stride: out.cols };
        let output = GemvOutput::Residual { x: View::of(&self.x), partials: View::of(&self.partials) };
        affine_gemv(gpu, body, &[out], &input, &output, batch)?;
        Ok(gemv_partials(body, out))
    }
}
