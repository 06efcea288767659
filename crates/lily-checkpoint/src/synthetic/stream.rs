//! The generator that the reference fixtures were made with. Element i of the stream of (seed, name):
//!
//! ```text
//! z = fnv1a64("{seed}:{name}") + (i + 1) · 0x9E3779B97F4A7C15      (mod 2^64; splitmix64)
//! z = (z ^ (z >> 30)) · 0xBF58476D1CE4E5B9
//! z = (z ^ (z >> 27)) · 0x94D049BB133111EB
//! z =  z ^ (z >> 31)
//! u = f32(z >> 40) · 2^-24;  v = lo + (hi − lo) · u                 (f32, no FMA);  w = bf16(v), ties to even
//! ```

/// FNV-1a, 64 bits.
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}

/// Numbers of one (seed, tensor name), by index.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    base: u64,
}

impl Stream {
    /// The stream of a tensor.
    pub fn new(seed: u64, name: &str) -> Self {
        Self { base: fnv1a64(format!("{seed}:{name}").as_bytes()) }
    }

    /// What the pair of seed and name comes to.
    pub fn base(self) -> u64 {
        self.base
    }

    /// Element `i`.
    #[inline]
    pub fn get(self, i: u64) -> u64 {
        let mut z = self.base.wrapping_add((i.wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Element `i` as a number in `lo..hi`.
    #[inline]
    pub fn uniform(self, i: u64, lo: f32, hi: f32) -> f32 {
        let u = (self.get(i) >> 40) as f32 * 2f32.powi(-24);
        lo + (hi - lo) * u
    }
}

/// The nearest BF16, ties to even, as its 16 bits. For finite values.
#[inline]
pub fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    (bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

/// The nearest BF16, ties to even, as F32.
#[inline]
pub fn bf16_round(x: f32) -> f32 {
    f32::from_bits(u32::from(bf16_bits(x)) << 16)
}

/// The first `n` numbers of a stream in `lo..hi`, rounded to BF16.
pub fn uniform(seed: u64, name: &str, n: usize, lo: f32, hi: f32) -> Vec<f32> {
    let stream = Stream::new(seed, name);
    (0..n as u64).map(|i| bf16_round(stream.uniform(i, lo, hi))).collect()
}

/// Range of a tensor by its Hugging Face name; `fan_in` is its last dimension. Norms are zero-centred there.
pub fn weight_range(name: &str, fan_in: usize) -> (f32, f32) {
    // A uniform distribution of this half-width has the standard deviation s.
    let sd = |s: f64| {
        let a = 3f64.sqrt() * s;
        (-a as f32, a as f32)
    };
    let root = (fan_in as f64).sqrt();
    let ends = |suffix: &str| name.ends_with(suffix);
    let owner = name.rsplit('.').nth(1).unwrap_or("");
    if ends("A_log") {
        (-1.0, 2.0)
    } else if ends("dt_bias") {
        (-6.0, -1.5)
    } else if ends("linear_attn.norm.weight") {
        (0.8, 1.2)
    } else if owner.contains("norm") {
        (-0.2, 0.2)
    } else if ends("conv1d.weight") {
        (-0.5, 0.5)
    } else if ends("embed_tokens.weight") {
        sd(1.0)
    } else if ends("lm_head.weight") {
        sd(3.0 / root)
    } else if ends("mlp.gate.weight") {
        sd(2.0 / root)
    } else {
        sd(1.0 / root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_of_the_reference() {
        assert_eq!(fnv1a64(b"20260416:lm_head.weight"), 0x442b_33cc_0523_32ba);
        let head = Stream::new(20_260_416, "lm_head.weight");
        let first = [0, 1, 2].map(|i| head.get(i));
        assert_eq!(first, [0x3c11_b955_9fee_793c, 0xcbd3_2e9e_80d9_96e8, 0xd3ca_ddf8_9386_ac8a]);

        let name = "model.language_model.layers.0.linear_attn.A_log";
        let (lo, hi) = weight_range(name, 32);
        assert_eq!(uniform(20_260_416, name, 4, lo, hi), [1.171875, 1.75, -0.9765625, 0.57421875]);
        let input = uniform(20_260_416, "blocks.linear.input", 4, -1.7320508, 1.7320508);
        assert_eq!(input, [-1.109375, -1.203125, 0.8984375, 1.6640625]);
    }

    #[test]
    fn bf16_rounds_ties_to_even() {
        assert_eq!(bf16_bits(1.0), 0x3F80);
        assert_eq!(bf16_bits(f32::from_bits(0x3F80_8000)), 0x3F80);
        assert_eq!(bf16_bits(f32::from_bits(0x3F81_8000)), 0x3F82);
        assert_eq!(bf16_bits(f32::from_bits(0x3F80_8001)), 0x3F81);
        assert_eq!(bf16_round(-0.0).to_bits(), (-0f32).to_bits());
    }
}
