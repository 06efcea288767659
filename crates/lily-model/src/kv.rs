//! What cached keys and values are kept as.

use crate::{LayerKind, Shape};

/// The type of cached keys and values. All devices keep the same one alike, but for where its parts lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// As they were computed.
    F32,
    /// Rounded to the upper half of an F32.
    #[default]
    Bf16,
    /// Whole numbers of ±127, with a BF16 scale for each [`KvType::GROUP`] values of a head. Rounded once, when a position
    /// is appended, from that position's values alone: so how a prompt is cut changes nothing.
    Q8,
}

impl KvType {
    /// Values of a head that share a scale in [`KvType::Q8`].
    pub const GROUP: usize = 32;

    /// For people and for names of files: `F32`, `BF16`, `Q8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::Q8 => "Q8",
        }
    }

    /// Bytes of the key (or value) of one position and one head of width `head_dim` `[BF16: 512, Q8: 272]`. In
    /// [`KvType::Q8`] the width must be a multiple of the group.
    pub fn row_bytes(self, head_dim: usize) -> u64 {
        let bytes = match self {
            Self::F32 => 4 * head_dim,
            Self::Bf16 => 2 * head_dim,
            Self::Q8 => head_dim + 2 * (head_dim / Self::GROUP),
        };
        bytes as u64
    }
}

impl Shape {
    /// Bytes that one position adds to the KV cache, all full layers `[F32: 40,960, BF16: 20,480, Q8: 10,880]`.
    pub fn kv_bytes_per_token(&self, kv: KvType) -> u64 {
        (self.count(LayerKind::Full) * 2 * self.kv_heads) as u64 * kv.row_bytes(self.head_dim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_the_full_model() {
        let s = Shape::qwen3_6_35b_a3b();
        assert_eq!(
            [KvType::F32, KvType::Bf16, KvType::Q8].map(|kv| s.kv_bytes_per_token(kv)),
            [40_960, 20_480, 10_880]
        );
        assert_eq!(s.kv_bytes_per_token(KvType::Bf16), 2 * s.kv_values_per_token());
        // 131,072 positions: 2.68 GB and 1.43 GB.
        assert_eq!([KvType::Bf16, KvType::Q8].map(|kv| s.kv_bytes_per_token(kv) << 17), [2_684_354_560, 1_426_063_360]);
    }
}
