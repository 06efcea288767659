//! The experts' products in prefill, over rows sorted by expert, and the shared expert's (`docs/model.md §4.6`).

use super::affine_gemm::{AffineGemm, affine_gemm, need_rows};
use super::{Body, DeviceMatrix, Element, View, need};
use crate::args::GroupedArgs;
use crate::gpu::{Arg, Gpu, GpuError, Launch};

/// Blocks of the grid: as many as there can be, whatever the experts' loads. `rows`: [`Body::grouped_rows`].
pub fn grouped_blocks(rows: u32, assignments: u32, experts: u32) -> u32 {
    assignments.div_ceil(rows) + experts.min(assignments)
}

/// Which rows belong to which expert. An assignment is token · per_token + place.
pub struct ExpertMap<'a, B> {
    /// `[assignments]` u32: the assignment of each sorted row.
    pub order: View<'a, B>,
    /// `[grouped_blocks]` u32: the expert of each block, 0xffffffff past the last.
    pub block_expert: View<'a, B>,
    /// `[grouped_blocks]` u32: the first sorted row of each block.
    pub block_first: View<'a, B>,
    /// `[grouped_blocks]` u32: the end of its rows, at most [`Body::grouped_rows`] after the first.
    pub block_end: View<'a, B>,
    /// Experts of the layer.
    pub experts: u32,
    /// Experts of a token.
    pub per_token: u32,
}

impl<B> Clone for ExpertMap<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for ExpertMap<'_, B> {}

impl<B> ExpertMap<'_, B> {
    /// Panics unless everything lies in its buffer; the blocks of the grid.
    fn check<G: Gpu<Buffer = B>>(&self, gpu: &G, rows: u32, assignments: u32) -> u32 {
        let blocks = grouped_blocks(rows, assignments, self.experts);
        need(gpu, self.order, u64::from(assignments), 4, "order of the assignments");
        for view in [self.block_expert, self.block_first, self.block_end] {
            need(gpu, view, u64::from(blocks), 4, "blocks of the experts");
        }
        blocks
    }
}

/// Where everything of [`grouped_gate_up`] lies.
pub struct GroupedGateUp<'a, B> {
    /// What multiplies.
    pub body: Body,
    /// Type of x and out. With [`Element::Bf16`] a dequantised weight is rounded to BF16 too; sums and SiLU are F32.
    pub element: Element,
    /// `[experts · width × hidden]`; of the shared expert `[width × hidden]`.
    pub gate: &'a DeviceMatrix<B>,
    /// As `gate`, of as many bits.
    pub up: &'a DeviceMatrix<B>,
    /// `[tokens × hidden]` of `element`, at a multiple of 16 bytes.
    pub x: View<'a, B>,
    /// Rows of x.
    pub tokens: u32,
    /// The routed experts' rows; none for the shared expert, whose row r is token r.
    pub map: Option<ExpertMap<'a, B>>,
    /// Out: `[assignments × width]` of `element` in sorted order; of the shared expert `[tokens × width]`.
    pub out: View<'a, B>,
}

/// out = silu(gate_e · x_t) ⊙ (up_e · x_t) for each sorted row, e its expert and t its token. With one body a row is the same, bit for bit,
/// whatever the others are.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn grouped_gate_up<G: Gpu>(gpu: &mut G, g: &GroupedGateUp<'_, G::Buffer>) -> Result<(), GpuError> {
    let (experts, per_token) = g.map.as_ref().map_or((1, 1), |m| (m.experts, m.per_token));
    let args = arguments(g.gate, experts, g.tokens, per_token);
    assert_eq!((g.up.rows, g.up.cols, g.up.bits), (g.gate.rows, g.gate.cols, g.gate.bits), "gate and up");
    let assignments = g.tokens * per_token;
    need_rows(gpu, g.x, g.tokens, args.columns, args.columns, g.element);
    need(gpu, g.out, u64::from(assignments) * u64::from(args.outputs), g.element.size(), "products of gate and up");
    let bytes = args.to_bytes();
    let mut bound = Vec::with_capacity(13);
    for m in [g.gate, g.up] {
        bound.extend([Arg::Buffer(&m.codes, 0), Arg::Buffer(&m.scales, 0), Arg::Buffer(&m.biases, 0)]);
    }
    bound.push(g.x.arg());
    let four_bit = g.body.four_bit(g.element, g.gate.bits, g.gate.cols);
    let (names, blocks) = match &g.map {
        Some(m) => {
            bound.extend([m.order.arg(), m.block_expert.arg(), m.block_first.arg(), m.block_end.arg()]);
            let names = [
                "grouped_gate_up_f32",
                "grouped_gate_up_bf16",
                "grouped_gate_up_bf16_tensor",
                if four_bit { "grouped_gate_up_w4_mma" } else { "grouped_gate_up_bf16_mma" },
            ];
            (names, m.check(gpu, g.body.grouped_rows(g.element), assignments))
        }
        None => {
            let names = [
                "shared_gate_up_f32",
                "shared_gate_up_bf16",
                "shared_gate_up_bf16_tensor",
                if four_bit { "shared_gate_up_w4_mma" } else { "shared_gate_up_bf16_mma" },
            ];
            (names, g.tokens.div_ceil(g.body.of(g.element).rows()))
        }
    };
    bound.extend([g.out.arg(), Arg::Value(&bytes)]);
    gpu.encode(&Launch {
        kernel: g.body.kernel(g.element, names),
        constants: &[],
        args: &bound,
        groups: [args.outputs.div_ceil(g.body.of(g.element).columns() / 2), blocks, 1],
        threads: [g.body.of(g.element).threads(), 1, 1],
    })
}

/// Where everything of [`grouped_down`] lies.
pub struct GroupedDown<'a, B> {
    /// What multiplies.
    pub body: Body,
    /// Type of x; see [`GroupedGateUp::element`].
    pub element: Element,
    /// `[experts · hidden × width]`; of the shared expert `[hidden × width]`.
    pub down: &'a DeviceMatrix<B>,
    /// The output of [`grouped_gate_up`], at a multiple of 16 bytes.
    pub x: View<'a, B>,
    /// Tokens.
    pub tokens: u32,
    /// The routed experts' rows with their weights, `[assignments]` F32 by token; none for the shared expert.
    pub map: Option<(ExpertMap<'a, B>, View<'a, B>)>,
    /// Out: `[assignments × hidden]` F32 by token; of the shared expert `[tokens × hidden]`.
    pub y: View<'a, B>,
}

/// y = w_a · (down_e · x_r) at row a = order\[r\] for each sorted row r, e its expert; of the shared expert down · x_r at row r. With one
/// body a row is the same, bit for bit, whatever the others are.
///
/// # Errors
/// Of [`Gpu::encode`].
pub fn grouped_down<G: Gpu>(gpu: &mut G, g: &GroupedDown<'_, G::Buffer>) -> Result<(), GpuError> {
    let Some((map, weights)) = &g.map else {
        let product = AffineGemm {
            body: g.body,
            matrices: &[g.down],
            x: g.x,
            element: g.element,
            y: g.y,
            rows: g.tokens,
            x_stride: g.down.cols,
            y_stride: g.down.rows,
        };
        return affine_gemm(gpu, &product);
    };
    let args = arguments(g.down, map.experts, g.tokens, map.per_token);
    let assignments = g.tokens * map.per_token;
    need_rows(gpu, g.x, assignments, args.columns, args.columns, g.element);
    need(gpu, *weights, u64::from(assignments), 4, "expert weights");
    need(gpu, g.y, u64::from(assignments) * u64::from(args.outputs), 4, "products of down");
    let blocks = map.check(gpu, g.body.grouped_rows(g.element), assignments);
    gpu.encode(&Launch {
        kernel: g.body.kernel(
            g.element,
            [
                "grouped_down_f32",
                "grouped_down_bf16",
                "grouped_down_bf16_tensor",
                if g.body.four_bit(g.element, g.down.bits, g.down.cols) {
                    "grouped_down_w4_mma"
                } else {
                    "grouped_down_bf16_mma"
                },
            ],
        ),
        constants: &[],
        args: &[
            Arg::Buffer(&g.down.codes, 0),
            Arg::Buffer(&g.down.scales, 0),
            Arg::Buffer(&g.down.biases, 0),
            g.x.arg(),
            map.order.arg(),
            map.block_expert.arg(),
            map.block_first.arg(),
            map.block_end.arg(),
            weights.arg(),
            g.y.arg(),
            Arg::Value(&args.to_bytes()),
        ],
        groups: [args.outputs.div_ceil(g.body.of(g.element).columns()), blocks, 1],
        threads: [g.body.of(g.element).threads(), 1, 1],
    })
}

fn arguments<B>(m: &DeviceMatrix<B>, experts: u32, tokens: u32, per_token: u32) -> GroupedArgs {
    assert!(tokens > 0 && per_token > 0 && experts > 0, "{tokens} tokens, {per_token} of {experts} experts");
    assert!(m.rows > 0 && m.rows.is_multiple_of(experts), "{} rows of {experts} experts", m.rows);
    assert!(m.cols > 0 && m.cols.is_multiple_of(64), "{} columns", m.cols);
    assert!(matches!(m.bits, 4 | 8 | 16), "{} bits", m.bits);
    GroupedArgs { outputs: m.rows / experts, columns: m.cols, bits: m.bits, per_token, tokens }
}

#[cfg(all(test, feature = "emulated"))]
#[path = "grouped_gemm_tests.rs"]
mod tests;
