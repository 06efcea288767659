//! What a cached key or value is kept as (`docs/model.md §6.4`).

use lily_model::KvType;

use crate::local::{read_floats, write_floats};

/// The unit of a cached row: one value, or a group of them with their scale. Plain data without padding.
pub trait KvElement: Copy + Send + Sync + 'static {
    /// Its name and size.
    const TYPE: KvType;
    /// Values of a unit.
    const VALUES: usize;
    /// Of values that are 0.
    const ZERO: Self;

    /// Rounds values to units: from `[n · VALUES]`, to `[n]`.
    fn store(from: &[f32], to: &mut [Self]);
    /// The values of a row of units: from `[n]`, to `[n · VALUES]`.
    fn load(from: &[Self], to: &mut [f32]);
    /// Sixteen values of a row from `at` on, a multiple of 16: what [`Self::load`] gives there.
    fn load16(row: &[Self], at: usize) -> [f32; 16];
    /// Appends the bytes of `units`, little-endian.
    fn write(units: &[Self], to: &mut Vec<u8>);
    /// The units that [`Self::write`] gave bytes of.
    fn read(bytes: &[u8]) -> Box<[Self]>;
}

impl KvElement for f32 {
    const TYPE: KvType = KvType::F32;
    const VALUES: usize = 1;
    const ZERO: Self = 0.0;

    fn store(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn load(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn load16(row: &[Self], at: usize) -> [f32; 16] {
        let mut values = [0.0; 16];
        values.copy_from_slice(&row[at..at + 16]);
        values
    }

    fn write(units: &[Self], to: &mut Vec<u8>) {
        write_floats(units, to);
    }

    fn read(bytes: &[u8]) -> Box<[Self]> {
        read_floats(bytes).into()
    }
}

/// The upper half of an F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Bf16 {
    /// Rounds to nearest, ties to even.
    #[inline(always)]
    fn round(x: f32) -> Self {
        let bits = x.to_bits();
        if x.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x40);
        }
        Bf16(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16)
    }

    /// Exact.
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl KvElement for Bf16 {
    const TYPE: KvType = KvType::Bf16;
    const VALUES: usize = 1;
    const ZERO: Self = Bf16(0);

    fn store(from: &[f32], to: &mut [Self]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = Self::round(*from));
    }

    #[inline(always)]
    fn load(from: &[Self], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }

    #[inline(always)]
    fn load16(row: &[Self], at: usize) -> [f32; 16] {
        let mut values = [0.0; 16];
        for (to, from) in values.iter_mut().zip(&row[at..at + 16]) {
            *to = from.widen();
        }
        values
    }

    fn write(units: &[Self], to: &mut Vec<u8>) {
        let from = to.len();
        to.resize(from + 2 * units.len(), 0);
        to[from..].as_chunks_mut().0.iter_mut().zip(units).for_each(|(to, v)| *to = v.0.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Box<[Self]> {
        bytes.as_chunks().0.iter().map(|b| Self(u16::from_le_bytes(*b))).collect()
    }
}

/// Thirty-two values as whole numbers of ±127 times one scale.
///
/// The scale is the largest magnitude over 127, rounded to BF16: a value is off by at most half a scale, which is 1/253 of
/// the largest. (Rounding makes the largest 127.25 scales at most, which still rounds to 127.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Q8 {
    scale: Bf16,
    codes: [i8; GROUP],
}

const GROUP: usize = KvType::GROUP;
const _: () = assert!(size_of::<Q8>() == 2 + GROUP);

/// Adding this rounds to a whole number, ties to even, and leaves it in the low bits.
const ROUND: f32 = 12_582_912.0;

impl KvElement for Q8 {
    const TYPE: KvType = KvType::Q8;
    const VALUES: usize = GROUP;
    const ZERO: Self = Q8 { scale: Bf16(0), codes: [0; GROUP] };

    fn store(from: &[f32], to: &mut [Self]) {
        for (from, to) in from.as_chunks::<GROUP>().0.iter().zip(to) {
            let largest = from.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let scale = Bf16::round(largest / 127.0);
            // Below the smallest normal number its inverse may not be one.
            if scale.widen() < f32::MIN_POSITIVE {
                *to = Self::ZERO;
                continue;
            }
            to.scale = scale;
            let inverse = 1.0 / scale.widen();
            for (code, x) in to.codes.iter_mut().zip(from) {
                *code = ((x * inverse).clamp(-127.0, 127.0) + ROUND - ROUND) as i8;
            }
        }
    }

    #[inline(always)]
    fn load(from: &[Self], to: &mut [f32]) {
        for (unit, to) in from.iter().zip(to.as_chunks_mut::<GROUP>().0) {
            let scale = unit.scale.widen();
            for (to, code) in to.iter_mut().zip(&unit.codes) {
                *to = scale * f32::from(*code);
            }
        }
    }

    #[inline(always)]
    fn load16(row: &[Self], at: usize) -> [f32; 16] {
        let unit = &row[at / GROUP];
        let scale = unit.scale.widen();
        let mut values = [0.0; 16];
        for (to, code) in values.iter_mut().zip(&unit.codes[at % GROUP..at % GROUP + 16]) {
            *to = scale * f32::from(*code);
        }
        values
    }

    fn write(units: &[Self], to: &mut Vec<u8>) {
        let from = to.len();
        to.resize(from + size_of_val(units), 0);
        for (to, unit) in to[from..].as_chunks_mut::<{ 2 + GROUP }>().0.iter_mut().zip(units) {
            to[..2].copy_from_slice(&unit.scale.0.to_le_bytes());
            to[2..].iter_mut().zip(unit.codes).for_each(|(to, code)| *to = code.cast_unsigned());
        }
    }

    fn read(bytes: &[u8]) -> Box<[Self]> {
        let unit = |b: &[u8; 2 + GROUP]| Self {
            scale: Bf16(u16::from_le_bytes([b[0], b[1]])),
            codes: std::array::from_fn(|i| b[2 + i].cast_signed()),
        };
        bytes.as_chunks().0.iter().map(unit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for (x, bits) in [(1.0f32, 0x3F80), (1.003_906_2, 0x3F80), (1.011_718_8, 0x3F82), (-0.1, 0xBDCD)] {
            assert_eq!(Bf16::round(x), Bf16(bits), "{x}");
        }
        assert!(Bf16::round(f32::NAN).widen().is_nan());
        assert_eq!(Bf16::round(f32::INFINITY).widen(), f32::INFINITY);
    }

    fn there_and_back<K: KvElement>(x: &[f32]) -> Vec<f32> {
        let mut units = vec![K::ZERO; x.len() / K::VALUES];
        let mut back = vec![f32::NAN; x.len()];
        K::store(x, &mut units);
        K::load(&units, &mut back);
        for at in (0..x.len()).step_by(16) {
            assert_eq!(K::load16(&units, at), back[at..at + 16]);
        }
        let mut bytes = vec![7];
        K::write(&units, &mut bytes);
        assert_eq!(bytes.len() as u64, 1 + K::TYPE.row_bytes(x.len()));
        let mut again = vec![f32::NAN; x.len()];
        K::load(&K::read(&bytes[1..]), &mut again);
        assert!(again.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()), "bytes and back");
        back
    }

    /// The oracle's rounding is written apart from this one, so a difference of either shows.
    #[test]
    fn all_types_round_as_the_oracle_does() {
        // Groups of very different sizes, one of zeros, one too small for a scale, one with one large value.
        let mut x = noise(1, 64 * GROUP);
        for (g, group) in x.chunks_exact_mut(GROUP).enumerate() {
            let size = (g as f32 - 32.0).exp2();
            group.iter_mut().for_each(|v| *v *= size);
        }
        x[..GROUP].fill(0.0);
        x[GROUP..2 * GROUP].fill(1e-38);
        x[2 * GROUP + 5] = 1e30;
        let rounded = |kv| {
            let mut x = x.clone();
            crate::oracle::round_kv(kv, &mut x);
            x
        };
        assert_eq!(there_and_back::<f32>(&x), x);
        assert_eq!(there_and_back::<Bf16>(&x), rounded(KvType::Bf16));
        assert_eq!(there_and_back::<Q8>(&x), rounded(KvType::Q8));
    }

    #[test]
    fn eight_bits_are_off_by_at_most_half_a_scale_and_do_not_change_again() {
        let mut x = noise(2, 4096 * GROUP);
        for (g, group) in x.chunks_exact_mut(GROUP).enumerate() {
            group.iter_mut().for_each(|v| *v *= 0.001 * (g + 1) as f32);
        }
        let back = there_and_back::<Q8>(&x);
        for (x, back) in x.chunks_exact(GROUP).zip(back.chunks_exact(GROUP)) {
            let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            assert!(x.iter().zip(back).all(|(x, b)| (x - b).abs() <= largest / 253.0), "{x:?} {back:?}");
            assert!(back.iter().any(|b| b.abs() > largest * 0.99), "the range is used");
        }
        assert_eq!(there_and_back::<Q8>(&[f32::NAN; GROUP]).len(), GROUP, "no panic");
    }
}
