//! Bytes and FLOPs of a token, for rooflines (`docs/model.md §5`).

use crate::{KvType, LayerKind, Shape};

/// What one token costs at least. Multiply-add counts as 2 FLOPs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Weight bytes read for a decoded token, in the 4-bit layout `[1,669,561,728]`.
    pub decode_weight_bytes: u64,
    /// Recurrent state (F32) and convolution state (BF16), read and written `[128,778,240]`.
    pub decode_state_bytes: u64,
    /// KV bytes of one cached position `[BF16: 20,480]`.
    pub kv_bytes_per_position: u64,
    /// FLOPs of a decoded token at position 0 `[6,002,615,680]`.
    pub decode_flops: u64,
    /// FLOPs of the head, which a prefill runs only for its last token.
    pub head_flops: u64,
    /// FLOPs that one attended position adds to a token `[163,840]`.
    pub attention_flops_per_position: u64,
}

/// Bytes of a [rows × cols] matrix with `bits` bits a code and BF16 scale and bias per 64 columns.
fn affine_bytes(rows: usize, cols: usize, bits: usize) -> u64 {
    (rows * cols * bits / 8 + 4 * rows * (cols / 64)) as u64
}

/// Least bytes of weights and state that the parts of one decoded token move, in the 4-bit layout: each byte once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartBytes {
    /// A linear layer with its experts: weights.
    pub linear_weights: u64,
    /// A linear layer: recurrent state (F32) and convolution state (BF16), read and written.
    pub linear_state: u64,
    /// A full layer with its experts: weights.
    pub full_weights: u64,
    /// A full layer: BF16 keys and values of one position.
    pub full_position: u64,
    /// One routed expert.
    pub expert: u64,
    /// Final norm and head.
    pub head: u64,
    /// An embedding row.
    pub embed: u64,
}

impl PartBytes {
    /// Of a checkpoint of this shape (gates 8 bit).
    pub fn of(s: &Shape) -> Self {
        let h = s.hidden;
        let q4 = |rows, cols| affine_bytes(rows, cols, 4);
        let small_rows = 2 * s.linear_value_heads;
        let linear = q4(s.conv_dim(), h)
            + q4(s.value_dim(), h)
            + q4(small_rows, h)
            + q4(h, s.value_dim())
            + (2 * (s.conv_dim() * s.conv_taps + s.linear_head_dim + small_rows)) as u64;
        let full = q4(2 * s.query_dim(), h) + 2 * q4(s.kv_dim(), h) + q4(h, s.query_dim()) + 4 * s.head_dim as u64;
        let mlp = |width| 2 * q4(width, h) + q4(h, width);
        let expert = mlp(s.expert_width);
        let moe = affine_bytes(s.experts, h, 8)
            + mlp(s.shared_width)
            + affine_bytes(1, h, 8)
            + s.experts_per_token as u64 * expert;
        let norms = 4 * h as u64;
        let recurrent = 4 * s.linear_value_heads * s.linear_head_dim * s.linear_head_dim;
        let convolution = 2 * (s.conv_taps - 1) * s.conv_dim();
        Self {
            linear_weights: linear + moe + norms,
            linear_state: 2 * (recurrent + convolution) as u64,
            full_weights: full + moe + norms,
            full_position: 4 * s.kv_dim() as u64,
            expert,
            head: q4(s.vocab, h) + 2 * h as u64,
            embed: q4(1, h),
        }
    }
}

impl Costs {
    /// The costs of a checkpoint of this shape in the 4-bit layout (gates 8 bit), with keys and values in BF16.
    pub fn of(s: &Shape) -> Self {
        let h = s.hidden;
        let (lin, full, all) = (s.count(LayerKind::Linear), s.count(LayerKind::Full), s.layers.len());
        let small_rows = 2 * s.linear_value_heads;
        let parts = PartBytes::of(s);

        let linear_macs =
            h * (s.conv_dim() + s.value_dim() + small_rows) + s.value_dim() * h + s.conv_dim() * s.conv_taps;
        // Decay 1, read 2, write 2, output 2 FLOPs for each element of the state.
        let delta_flops = 7 * s.linear_value_heads * s.linear_head_dim * s.linear_head_dim;
        let full_macs = h * (2 * s.query_dim() + 2 * s.kv_dim()) + s.query_dim() * h;
        let moe_macs = h * s.experts + 3 * h * (s.experts_per_token * s.expert_width + s.shared_width) + h;
        let layer_flops = lin * (2 * linear_macs + delta_flops) + full * 2 * full_macs + all * 2 * moe_macs;
        let head_flops = (2 * s.vocab * h) as u64;

        Self {
            decode_weight_bytes: lin as u64 * parts.linear_weights
                + full as u64 * parts.full_weights
                + parts.head
                + parts.embed,
            decode_state_bytes: lin as u64 * parts.linear_state,
            kv_bytes_per_position: full as u64 * parts.full_position,
            decode_flops: layer_flops as u64 + head_flops,
            head_flops,
            attention_flops_per_position: (full * 4 * s.query_dim()) as u64,
        }
    }

    /// The same with keys and values cached as `kv`; `s` is the shape that the costs were made of.
    #[must_use]
    pub fn with_kv(self, s: &Shape, kv: KvType) -> Self {
        Self { kv_bytes_per_position: s.kv_bytes_per_token(kv), ..self }
    }

    /// Bytes that a decoded token moves with `context` positions already cached.
    pub fn decode_bytes(&self, context: usize) -> u64 {
        self.decode_weight_bytes + self.decode_state_bytes + self.kv_bytes_per_position * (context as u64 + 1)
    }

    /// FLOPs of a prefill of `tokens` tokens with the head for the last one; attention is causal, the delta rule
    /// counted in its recurrent form.
    pub fn prefill_flops(&self, tokens: usize) -> u64 {
        let t = tokens as u64;
        (self.decode_flops - self.head_flops) * t
            + self.attention_flops_per_position * t * (t + 1) / 2
            + self.head_flops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_model_costs_what_the_specification_says() {
        let c = Costs::of(&Shape::qwen3_6_35b_a3b());
        assert_eq!(c.decode_weight_bytes, 1_669_561_728);
        assert_eq!(c.decode_state_bytes, 125_829_120 + 2_949_120);
        assert_eq!(c.decode_flops, 5_892_505_600 + 110_100_480);
        assert_eq!(c.attention_flops_per_position, 163_840);
        // docs/model.md §5: 1.804 GB at 256 positions, 4.483 GB at 131,072.
        assert_eq!(c.decode_bytes(256) / 1_000_000, 1_803);
        assert_eq!(c.decode_bytes(131_072) / 1_000_000, 4_482);
        let s = Shape::qwen3_6_35b_a3b();
        assert_eq!(c.with_kv(&s, KvType::Bf16), c);
        assert_eq!(c.with_kv(&s, KvType::Q8).decode_bytes(131_072), 3_224_414_208);
    }
}
