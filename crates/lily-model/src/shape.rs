//! Dimensions of the model (`docs/model.md §1`).

/// What mixes tokens in a layer. Every layer is followed by a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LayerKind {
    /// Gated DeltaNet: a recurrent state, no KV cache (`docs/model.md §4.4`).
    Linear,
    /// Gated softmax attention with a KV cache (`docs/model.md §4.2`).
    Full,
}

/// The numbers of one checkpoint. The full model's values stand in brackets.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Rows of embedding and head, padding rows included `[248320]`.
    pub vocab: usize,
    /// Width of the residual stream `[2048]`.
    pub hidden: usize,
    /// One entry a layer `[40; each fourth is full attention]`.
    pub layers: Vec<LayerKind>,
    /// Query heads of full attention `[16]`.
    pub query_heads: usize,
    /// Key/value heads of full attention `[2]`.
    pub kv_heads: usize,
    /// Width of a full-attention head `[256]`.
    pub head_dim: usize,
    /// How many of `head_dim` rotate `[64]`.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies `[1e7]`.
    pub rope_theta: f32,
    /// Key (and query) heads of linear attention `[16]`.
    pub linear_key_heads: usize,
    /// Value heads of linear attention `[32]`.
    pub linear_value_heads: usize,
    /// Width of a linear-attention head, keys and values alike `[128]`.
    pub linear_head_dim: usize,
    /// Taps of the causal convolution `[4]`.
    pub conv_taps: usize,
    /// Routed experts a layer `[256]`.
    pub experts: usize,
    /// Experts chosen for a token `[8]`.
    pub experts_per_token: usize,
    /// Inner width of a routed expert `[512]`.
    pub expert_width: usize,
    /// Inner width of the shared expert `[512]`.
    pub shared_width: usize,
    /// Added to the mean square in every RMS norm `[1e-6]`.
    pub norm_eps: f32,
    /// Positions that the model was made for `[262144]`.
    pub max_context: usize,
}

impl Shape {
    /// Width of the query (or key) part of a linear layer: heads × head width `[2048]`.
    pub fn key_dim(&self) -> usize {
        self.linear_key_heads * self.linear_head_dim
    }

    /// Width of the value part of a linear layer `[4096]`.
    pub fn value_dim(&self) -> usize {
        self.linear_value_heads * self.linear_head_dim
    }

    /// Channels of the convolution: q | k | v `[8192]`.
    pub fn conv_dim(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }

    /// Width of all query heads together, and of the attention output `[4096]`.
    pub fn query_dim(&self) -> usize {
        self.query_heads * self.head_dim
    }

    /// Width of all key (or value) heads of full attention `[512]`.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Layers of one kind.
    pub fn count(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|&&k| k == kind).count()
    }

    /// Bytes of the F32 recurrent state of one sequence, all linear layers `[62,914,560]`.
    pub fn recurrent_bytes(&self) -> u64 {
        (self.count(LayerKind::Linear) * self.linear_value_heads * self.linear_head_dim * self.linear_head_dim * 4)
            as u64
    }

    /// Values (of any type) that one position adds to the KV cache, all full layers `[10,240]`.
    pub fn kv_values_per_token(&self) -> u64 {
        (self.count(LayerKind::Full) * 2 * self.kv_dim()) as u64
    }

    /// The shape of Qwen3.6-35B-A3B itself.
    pub fn qwen3_6_35b_a3b() -> Self {
        Self {
            vocab: 248_320,
            hidden: 2048,
            layers: (0..40).map(|i| if i % 4 == 3 { LayerKind::Full } else { LayerKind::Linear }).collect(),
            query_heads: 16,
            kv_heads: 2,
            head_dim: 256,
            rotary_dim: 64,
            rope_theta: 1e7,
            linear_key_heads: 16,
            linear_value_heads: 32,
            linear_head_dim: 128,
            conv_taps: 4,
            experts: 256,
            experts_per_token: 8,
            expert_width: 512,
            shared_width: 512,
            norm_eps: 1e-6,
            max_context: 262_144,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_dimensions_of_the_full_model() {
        let s = Shape::qwen3_6_35b_a3b();
        assert_eq!((s.key_dim(), s.value_dim(), s.conv_dim()), (2048, 4096, 8192));
        assert_eq!((s.query_dim(), s.kv_dim()), (4096, 512));
        assert_eq!((s.count(LayerKind::Linear), s.count(LayerKind::Full)), (30, 10));
        assert_eq!(s.recurrent_bytes(), 62_914_560);
        assert_eq!(s.kv_values_per_token() * 2, 20_480);
    }
}
