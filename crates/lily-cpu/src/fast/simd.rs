//! Which vector instructions this machine has, and arithmetic that compiles well to all of them.
//!
//! Functions made by [`multiversion!`] are plain Rust, compiled once for each instruction set. They use `mul_add` and fixed
//! orders of summation, so that all versions give the same bits.

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Whatever the target has by itself.
    Portable,
    /// aarch64; NEON is part of it.
    Neon,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, DQ and VNNI (Ice Lake, Zen 4 and later).
    Avx512,
}

impl Isa {
    /// From the slowest to the fastest.
    const ALL: [Self; 4] = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// The best one of this machine.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rfind(|isa| isa.runs_here()).unwrap_or(Isa::Portable)
    }

    /// All that this machine can run, the best one last.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.runs_here()).collect()
    }

    /// Whether this machine (and its operating system) can run it. Kernels must not be called with one that it cannot.
    pub fn runs_here(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.runs_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            _ => false,
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Neon => "NEON",
            Isa::Avx2 => "AVX2",
            Isa::Avx512 => "AVX-512 VNNI",
        }
    }
}

/// Defines `fn name(isa: Isa, …)` with a body that is compiled for every instruction set that the target does not have by
/// itself.
macro_rules! multiversion {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $(<$g:ident: $bound:ident>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        $vis fn $name $(<$g: $bound>)? (isa: $crate::fast::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body $(<$g: $bound>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2 $(<$g: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
            fn avx512 $(<$g: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            match isa {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `Isa::runs_here` has seen AVX2 and FMA on this machine.
                $crate::fast::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `Isa::runs_here` has seen these features on this machine.
                $crate::fast::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;

/// eˣ within 2 units in the last place; 0 below −87.3 (also for −∞), 1 exactly at 0, finite for all finite x.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2²³ rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; the first has few enough bits that n · LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let y = x.clamp(-87.3, 88.3);
    let shifted = y.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = (-n).mul_add(LN2_LOW, (-n).mul_add(LN2_HIGH, y));
    // Taylor series to r⁷; |r| ≤ ln 2 / 2.
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = r.mul_add(p, c);
    }
    let power = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    if x < -87.3 { 0.0 } else { p * power }
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x · sigmoid(x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// Σ a·b in sixteen partial sums, whatever the instruction set.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (a16, b16) = (a.chunks_exact(16), b.chunks_exact(16));
    let mut tail = 0.0f32;
    for (x, y) in a16.remainder().iter().zip(b16.remainder()) {
        tail = x.mul_add(*y, tail);
    }
    for (x, y) in a16.zip(b16) {
        for i in 0..16 {
            lanes[i] = x[i].mul_add(y[i], lanes[i]);
        }
    }
    sum_lanes(lanes) + tail
}

/// [`dot`] of four rows with the same vector, whose length is a multiple of 16, in the same bits.
#[inline(always)]
pub fn dot4(rows: [&[f32]; 4], b: &[f32]) -> [f32; 4] {
    let [mut l0, mut l1, mut l2, mut l3] = [[0.0f32; 16]; 4];
    let b = b.as_chunks::<16>().0;
    let [a0, a1, a2, a3] = rows.map(|row| &row.as_chunks::<16>().0[..b.len()]);
    for c in 0..b.len() {
        multiply_add(&mut l0, &a0[c], &b[c]);
        multiply_add(&mut l1, &a1[c], &b[c]);
        multiply_add(&mut l2, &a2[c], &b[c]);
        multiply_add(&mut l3, &a3[c], &b[c]);
    }
    // Through memory: a compiler that sees how lanes are summed splits them into pairs for the loop above too.
    std::hint::black_box([l0, l1, l2, l3]).map(sum_lanes)
}

/// sums += x · y, lane by lane.
#[inline(always)]
fn multiply_add(sums: &mut [f32; 16], x: &[f32; 16], y: &[f32; 16]) {
    for i in 0..16 {
        sums[i] = x[i].mul_add(y[i], sums[i]);
    }
}

/// Sum of sixteen lanes by halves.
#[inline(always)]
pub fn sum_lanes(mut lanes: [f32; 16]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_instruction_set_is_the_last_of_those_that_run_here() {
        let available = Isa::available();
        println!("this machine runs: {}", available.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "));
        assert_eq!(available.first(), Some(&Isa::Portable));
        assert_eq!(available.last(), Some(&Isa::detect()));
        assert_eq!(Isa::Neon.runs_here(), cfg!(target_arch = "aarch64"));
        assert!(Isa::Avx2.runs_here() || !Isa::Avx512.runs_here());
    }

    #[test]
    fn four_dots_are_those_of_each_row_alone() {
        let values = |n: usize, step: usize| (0..n).map(|i| ((i * step) % 89) as f32 - 44.3).collect::<Vec<f32>>();
        for len in [16, 48, 256] {
            let (rows, b) = (values(4 * len, 37), values(len, 53));
            let row = |r: usize| &rows[r * len..(r + 1) * len];
            let four = dot4([row(0), row(1), row(2), row(3)], &b);
            assert_eq!(four.map(f32::to_bits), [0, 1, 2, 3].map(|r| dot(row(r), &b).to_bits()));
        }
    }

    #[test]
    fn exp_is_accurate_everywhere() {
        let mut worst = 0.0f64;
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max(((f64::from(exp(x)) - exact) / exact).abs());
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "relative error {worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert!(exp(1e30).is_finite());
        assert!(sigmoid(-1e4) < 1e-37 && sigmoid(1e4) == 1.0);
        assert!(silu(-80.0).abs() < 1e-30 && silu(80.0) == 80.0);
    }
}
