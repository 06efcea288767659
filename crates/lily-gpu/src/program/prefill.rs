//! A chunk of a prompt: one command buffer.

use std::sync::Arc;

use lily_model::{LayerKind, Logits, Rows, Shape};

use super::{Held, Options, Part, Program, full_stride, linear_stride, read_floats, words};
use crate::gpu::{Contents, Gpu, GpuError};
use crate::kernels::{
    self, AffineGemm, AttentionPrefill, Body, ConvSilu, DeviceMatrix, Element, ExpertMap, GatedDeltaChunk, GatedNorm,
    GroupedDown, GroupedGateUp, KV_PAGE, MoeCombine, MoeMap, MoeRoute, NormOutputs, QkNormRope, RmsNorm, View,
    affine_gemm, attention_prefill, conv_silu, embed_gather, gated_delta_chunk, gated_delta_chunk_scratch, gated_norm,
    grouped_blocks, grouped_down, grouped_gate_up, moe_combine, moe_map, moe_route, qk_norm_rope, rms_norm,
};
use crate::weights::DeviceMixer;

/// Rows of logits at once where all rows are wanted.
const HEAD_ROWS: u32 = 64;

/// Memory of a prefill pass, for `rows` tokens.
pub(super) struct Scratch<B> {
    rows: u32,
    element: Element,
    tokens: B,
    slots: B,
    table: B,
    table_stride: u32,
    /// `[rows × hidden]`, the residual stream.
    x: B,
    /// `[rows × hidden]` F32, normalised: for router and gates.
    h: B,
    /// `[rows × hidden]`, normalised: input of products. The same buffer as `h` where they are F32.
    operand: B,
    /// Projections of the mixer; then the outputs of the experts, `[rows · chosen × hidden]`.
    wide: B,
    /// q, k and v after the convolution; queries after norm and rotation; then the output of the shared expert.
    mixer: B,
    /// g and β.
    gates: B,
    /// Output of the delta rule.
    delta: B,
    delta_scratch: B,
    /// Input of the output projection.
    mixed: B,
    /// Output of the output projection.
    out: B,
    router: B,
    experts: B,
    weights: B,
    order: B,
    block_expert: B,
    block_first: B,
    block_end: B,
    /// Of the routed experts, then of the shared one.
    act: B,
    shared_act: B,
    /// `[HEAD_ROWS × vocab]`.
    logits: B,
}

impl<B: Clone> Scratch<B> {
    /// Rows of the memory for a pass of `tokens`.
    pub(super) fn rows_for(options: &Options, tokens: u32) -> u32 {
        tokens.next_power_of_two().clamp(64, options.chunk.next_power_of_two())
    }

    pub(super) fn new<G: Gpu<Buffer = B>>(gpu: &G, s: &Shape, options: &Options, rows: u32) -> Result<Self, GpuError> {
        let element = options.element;
        let n = u64::from(rows);
        let bytes = |bytes: u64| gpu.allocate(bytes, Contents::Activations);
        let f = |values: usize| bytes(4 * n * values as u64);
        let e = |values: usize| bytes(element.size() * n * values as u64);
        let assignments = s.experts_per_token;
        let blocks = 4 * u64::from(grouped_blocks(
            options.body.grouped_rows(element),
            rows * assignments as u32,
            s.experts as u32,
        ));
        let projections = linear_stride(s).max(full_stride(s));
        let h = f(s.hidden)?;
        Ok(Self {
            rows,
            element,
            tokens: f(1)?,
            slots: bytes(8)?,
            table: bytes(4)?,
            table_stride: 1,
            x: f(s.hidden)?,
            operand: if element == Element::F32 { h.clone() } else { e(s.hidden)? },
            h,
            wide: f(projections.max(assignments * s.hidden))?,
            mixer: f(s.conv_dim().max(s.query_dim()).max(s.hidden))?,
            gates: f(2 * s.linear_value_heads)?,
            delta: f(s.value_dim())?,
            delta_scratch: bytes(gated_delta_chunk_scratch(s, rows))?,
            mixed: e(s.value_dim().max(s.query_dim()))?,
            out: f(s.hidden)?,
            router: f(s.experts + 1)?,
            experts: f(assignments)?,
            weights: f(assignments)?,
            order: f(assignments)?,
            block_expert: bytes(blocks)?,
            block_first: bytes(blocks)?,
            block_end: bytes(blocks)?,
            act: e(assignments * s.expert_width)?,
            shared_act: e(s.shared_width)?,
            logits: bytes(4 * u64::from(HEAD_ROWS.min(rows)) * s.vocab as u64)?,
        })
    }
}

impl<B> Scratch<B> {
    /// Normalised rows: F32 for router and gates, and as the inputs of products.
    fn normed(&self) -> NormOutputs<'_, B> {
        let rounded = (self.element == Element::Bf16).then(|| View::of(&self.operand));
        NormOutputs { exact: Some(View::of(&self.h)), rounded }
    }
}

/// The pass, for the layers.
#[derive(Clone, Copy)]
struct Pass {
    /// Position of the first token.
    start: u32,
    tokens: u32,
}

impl<G: Gpu> Program<G> {
    /// Appends tokens, at most [`super::Options::chunk`], and returns the logits of the rows that are asked for.
    ///
    /// # Errors
    /// Of the device; the sequence is as it was.
    pub fn prefill(&mut self, held: &mut Held, tokens: &[u32], rows: Rows) -> Result<Logits, GpuError> {
        let pass = Pass { start: held.len, tokens: tokens.len() as u32 };
        assert!((1..=self.options.chunk).contains(&pass.tokens), "{} tokens in a pass", pass.tokens);
        self.ready_pages(held, pass.tokens)?;
        let mut scratch = match self.scratch.take().filter(|scratch| scratch.rows >= pass.tokens) {
            Some(scratch) => scratch,
            // The smaller one is gone by now.
            None => {
                let rows = Scratch::<G::Buffer>::rows_for(&self.options, pass.tokens);
                Scratch::new(&self.gpu, &self.shape, &self.options, rows)?
            }
        };
        let done = self.run_pass(&mut scratch, pass, held, tokens, rows);
        self.scratch = Some(scratch);
        let data = done?;
        held.slots.swap();
        held.len += pass.tokens;
        Ok(Logits { vocab: self.shape.vocab, data })
    }

    /// Pages for `more` tokens after those that are there; the page that they begin in is the sequence's own.
    pub(super) fn ready_pages(&mut self, held: &mut Held, more: u32) -> Result<(), GpuError> {
        let first = (held.len / KV_PAGE) as usize;
        if let Some(page) = held.pages.get(first)
            && Arc::strong_count(page) > 1
        {
            let own = self.pools.page(&mut self.gpu)?;
            self.mark(Part::Copy);
            self.pools.copy_page(&mut self.gpu, page, &own)?;
            held.pages[first] = Arc::new(own);
        }
        while (held.pages.len() as u32) < (held.len + more).div_ceil(KV_PAGE) {
            held.pages.push(Arc::new(self.pools.page(&mut self.gpu)?));
        }
        Ok(())
    }

    fn run_pass(
        &mut self,
        s: &mut Scratch<G::Buffer>,
        pass: Pass,
        held: &Held,
        tokens: &[u32],
        rows: Rows,
    ) -> Result<Vec<f32>, GpuError> {
        if held.pages.len() as u32 > s.table_stride {
            s.table_stride = (held.pages.len() as u32).next_power_of_two();
            s.table = self.gpu.allocate(4 * u64::from(s.table_stride), Contents::Activations)?;
        }
        let pages: Vec<u32> = held.pages.iter().map(|p| p.index()).collect();
        self.gpu.upload(&s.table, 0, &words(&pages))?;
        self.gpu.upload(&s.slots, 0, &words(&[held.slots.past(), held.slots.next()]))?;
        self.gpu.upload(&s.tokens, 0, &words(tokens))?;

        self.encode_pass(s, pass)?;
        let wanted = match rows {
            Rows::None => pass.tokens..pass.tokens,
            Rows::Last => pass.tokens - 1..pass.tokens,
            Rows::All => 0..pass.tokens,
        };
        let mut logits = Vec::with_capacity(wanted.len() * self.shape.vocab);
        for from in wanted.clone().step_by(HEAD_ROWS as usize) {
            let count = HEAD_ROWS.min(wanted.end - from);
            self.encode_head(s, from, count)?;
            let ticket = self.commit()?;
            self.wait(ticket)?;
            logits.extend(read_floats(&self.gpu, View::of(&s.logits), count as usize * self.shape.vocab)?);
        }
        if wanted.is_empty() {
            let ticket = self.commit()?;
            self.wait(ticket)?;
        }
        Ok(logits)
    }

    fn encode_pass(&mut self, s: &Scratch<G::Buffer>, pass: Pass) -> Result<(), GpuError> {
        self.mark(Part::Embed);
        let (tokens, x) = (View::of(&s.tokens), View::of(&s.x));
        embed_gather(&mut self.gpu, &self.weights.embed, tokens, x, None, pass.tokens)?;
        rms_norm(
            &mut self.gpu,
            &RmsNorm {
                x,
                delta: None,
                weight: View::of(&self.weights.layers[0].input_norm),
                outputs: s.normed(),
                rows: pass.tokens,
                width: self.shape.hidden as u32,
                eps: self.shape.norm_eps,
            },
        )?;
        let (mut linear, mut full) = (0, 0);
        for layer in 0..self.shape.layers.len() {
            match self.shape.layers[layer] {
                LayerKind::Linear => {
                    self.mark(Part::Layer(LayerKind::Linear));
                    self.linear_pass(s, pass, layer, linear)?;
                    linear += 1;
                }
                LayerKind::Full => {
                    self.mark(Part::Layer(LayerKind::Full));
                    self.full_pass(s, pass, layer, full)?;
                    full += 1;
                }
            }
            self.moe_pass(s, pass, layer)?;
        }
        Ok(())
    }

    /// Logits of `count` rows from row `from` on. The final norm is done: the last layer's combination ends with it.
    fn encode_head(&mut self, s: &Scratch<G::Buffer>, from: u32, count: u32) -> Result<(), GpuError> {
        self.mark(Part::Head);
        let hidden = self.shape.hidden as u32;
        let offset = u64::from(from) * u64::from(hidden) * s.element.size();
        affine_gemm(
            &mut self.gpu,
            &AffineGemm {
                body: self.options.body,
                matrices: &[&self.weights.lm_head],
                x: View::at(&s.operand, offset),
                element: s.element,
                y: View::of(&s.logits),
                rows: count,
                x_stride: hidden,
                y_stride: self.shape.vocab as u32,
            },
        )
    }

    /// The mixer of a linear layer; its output is in `s.out`.
    fn linear_pass(&mut self, s: &Scratch<G::Buffer>, pass: Pass, layer: usize, index: usize) -> Result<(), GpuError> {
        let Self { gpu, shape, weights, pools, options, .. } = self;
        let DeviceMixer::Linear(w) = &weights.layers[layer].mixer else { unreachable!("the shape says so") };
        let stride = linear_stride(shape) as u32;
        let (z_at, gates_at) = (shape.conv_dim() as u32, (shape.conv_dim() + shape.value_dim()) as u32);
        let [qkv, z, a, b] = &w.inputs;
        let hidden = shape.hidden as u32;
        let product = |gpu: &mut G, body, matrices: &[&DeviceMatrix<G::Buffer>], x, element, at: u32| {
            let y = View::at(&s.wide, 4 * u64::from(at));
            let rows = pass.tokens;
            affine_gemm(gpu, &AffineGemm { body, matrices, x, element, y, rows, x_stride: hidden, y_stride: stride })
        };
        product(gpu, options.body, &[qkv, z], View::of(&s.operand), s.element, 0)?;
        product(gpu, options.body, &[a, b], View::of(&s.h), Element::F32, gates_at)?;
        conv_silu(
            gpu,
            shape,
            &ConvSilu {
                projections: View::of(&s.wide),
                stride,
                gates_at,
                state: pools.conv(index),
                slots: View::of(&s.slots),
                weights: View::of(&w.conv),
                a_log: View::of(&w.a_log),
                dt_bias: View::of(&w.dt_bias),
                qkv: View::of(&s.mixer),
                gates: View::of(&s.gates),
                sequences: 1,
                tokens: pass.tokens,
            },
        )?;
        gated_delta_chunk(
            gpu,
            shape,
            &GatedDeltaChunk {
                body: options.body,
                qkv: View::of(&s.mixer),
                gates: View::of(&s.gates),
                state: pools.recurrent(index),
                slots: View::of(&s.slots),
                scratch: View::of(&s.delta_scratch),
                out: View::of(&s.delta),
                start: pass.start,
                tokens: pass.tokens,
            },
        )?;
        gated_norm(
            gpu,
            shape,
            &GatedNorm {
                o: View::of(&s.delta),
                z: View::at(&s.wide, 4 * u64::from(z_at)),
                stride,
                weight: View::of(&w.norm),
                y: View::of(&s.mixed),
                output: s.element,
                rows: pass.tokens,
            },
        )?;
        out_product(gpu, shape, options.body, s, &w.out, pass)
    }

    /// The mixer of a full layer; its output is in `s.out`.
    fn full_pass(&mut self, s: &Scratch<G::Buffer>, pass: Pass, layer: usize, index: usize) -> Result<(), GpuError> {
        let Self { gpu, shape, weights, pools, options, frequencies, .. } = self;
        let kv = super::kv(shape, options.kv_type(), pools, index, View::of(&s.table), s.table_stride);
        let DeviceMixer::Full(w) = &weights.layers[layer].mixer else { unreachable!("the shape says so") };
        let stride = full_stride(shape) as u32;
        let [q, k, v] = &w.inputs;
        affine_gemm(
            gpu,
            &AffineGemm {
                body: options.body,
                matrices: &[q, k, v],
                x: View::of(&s.operand),
                element: s.element,
                y: View::of(&s.wide),
                rows: pass.tokens,
                x_stride: shape.hidden as u32,
                y_stride: stride,
            },
        )?;
        let (query_heads, kv_heads) = (shape.query_heads as u32, shape.kv_heads as u32);
        qk_norm_rope(
            gpu,
            &QkNormRope {
                projections: View::of(&s.wide),
                stride,
                q_norm: View::of(&w.q_norm),
                k_norm: View::of(&w.k_norm),
                inv_freq: View::of(frequencies),
                q: View::of(&s.mixer),
                q_element: s.element,
                kv,
                query_heads,
                kv_heads,
                eps: shape.norm_eps,
                rows: pass.tokens,
                at: kernels::Rows::Prefill { start: pass.start },
            },
        )?;
        attention_prefill(
            gpu,
            &AttentionPrefill {
                body: options.body,
                element: s.element,
                q: View::of(&s.mixer),
                kv,
                projections: View::of(&s.wide),
                stride,
                out: View::of(&s.mixed),
                query_heads,
                kv_heads,
                start: pass.start,
                rows: pass.tokens,
            },
        )?;
        out_product(gpu, shape, options.body, s, &w.out, pass)
    }

    /// Residual addition and norm, the experts, and the norm of what follows. Nothing is read back: the grouped products
    /// cover the worst case, and blocks without rows end at once.
    fn moe_pass(&mut self, s: &Scratch<G::Buffer>, pass: Pass, layer: usize) -> Result<(), GpuError> {
        let Self { gpu, shape, weights, options, .. } = self;
        let next = weights.layers.get(layer + 1).map_or(&weights.norm, |l| &l.input_norm);
        let w = &weights.layers[layer];
        let (body, element) = (options.body, s.element);
        let (hidden, experts, chosen) = (shape.hidden as u32, shape.experts as u32, shape.experts_per_token as u32);
        let (stride, assignments) = (experts + 1, pass.tokens * chosen);
        rms_norm(
            gpu,
            &RmsNorm {
                x: View::of(&s.x),
                delta: Some(View::of(&s.out)),
                weight: View::of(&w.post_norm),
                outputs: s.normed(),
                rows: pass.tokens,
                width: hidden,
                eps: shape.norm_eps,
            },
        )?;
        let [router, shared_gate] = &w.moe.router;
        affine_gemm(
            gpu,
            &AffineGemm {
                body,
                matrices: &[router, shared_gate],
                x: View::of(&s.h),
                element: Element::F32,
                y: View::of(&s.router),
                rows: pass.tokens,
                x_stride: hidden,
                y_stride: stride,
            },
        )?;
        moe_route(
            gpu,
            &MoeRoute {
                logits: View::of(&s.router),
                stride,
                experts: View::of(&s.experts),
                weights: View::of(&s.weights),
                tokens: pass.tokens,
                count: experts,
                chosen,
            },
        )?;
        let block = body.grouped_rows(element);
        let blocks = grouped_blocks(block, assignments, experts);
        moe_map(
            gpu,
            &MoeMap {
                body,
                experts: View::of(&s.experts),
                order: View::of(&s.order),
                block_expert: View::of(&s.block_expert),
                block_first: View::of(&s.block_first),
                block_end: View::of(&s.block_end),
                rows: assignments,
                count: experts,
                block,
                blocks,
            },
        )?;
        let map = ExpertMap {
            order: View::of(&s.order),
            block_expert: View::of(&s.block_expert),
            block_first: View::of(&s.block_first),
            block_end: View::of(&s.block_end),
            experts,
            per_token: chosen,
        };
        let operand = View::of(&s.operand);
        let tokens = pass.tokens;
        for (map, gate, up, down, act, y) in [
            (Some(map), &w.moe.gate, &w.moe.up, &w.moe.down, &s.act, &s.wide),
            (None, &w.moe.shared_gate, &w.moe.shared_up, &w.moe.shared_down, &s.shared_act, &s.mixer),
        ] {
            let act = View::of(act);
            grouped_gate_up(gpu, &GroupedGateUp { body, element, gate, up, x: operand, tokens, map, out: act })?;
            let map = map.map(|map| (map, View::of(&s.weights)));
            grouped_down(gpu, &GroupedDown { body, element, down, x: act, tokens, map, y: View::of(y) })?;
        }
        moe_combine(
            gpu,
            &MoeCombine {
                x: View::of(&s.x),
                experts: View::of(&s.wide),
                shared: View::of(&s.mixer),
                shared_gate: View::at(&s.router, 4 * u64::from(experts)),
                stride,
                norm: Some((View::of(next), s.normed())),
                tokens,
                chosen,
                width: hidden,
                eps: shape.norm_eps,
            },
        )
    }
}

/// Output projection of a mixer: `s.mixed` to `s.out`.
fn out_product<G: Gpu>(
    gpu: &mut G,
    shape: &Shape,
    body: Body,
    s: &Scratch<G::Buffer>,
    out: &DeviceMatrix<G::Buffer>,
    pass: Pass,
) -> Result<(), GpuError> {
    affine_gemm(
        gpu,
        &AffineGemm {
            body,
            matrices: &[out],
            x: View::of(&s.mixed),
            element: s.element,
            y: View::of(&s.out),
            rows: pass.tokens,
            x_stride: out.cols,
            y_stride: shape.hidden as u32,
        },
    )
}
