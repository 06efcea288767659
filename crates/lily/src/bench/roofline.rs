//! What the device does at most, measured by Lily's own kernels.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use lily_cpu::{Isa, bench::Product};

use super::report::Roofline;
use crate::device::Chosen;

impl Chosen {
    /// A large copy and a large product. `None` on a device that tells no times. `threads`: the CPU's.
    pub fn roofline(&mut self, threads: usize) -> Result<Option<Roofline>> {
        match self {
            Self::Cpu => Ok(Some(cpu(threads))),
            #[cfg(target_os = "macos")]
            Self::Metal(metal) => {
                let body = metal.body();
                gpu::measure(metal, body)
            }
            #[cfg(target_os = "linux")]
            Self::Cuda(_) => {
                // Another one, whose memory does not count as the model's.
                let mut cuda = lily_gpu::device::cuda::Cuda::open()?;
                let body = cuda.body()?;
                gpu::measure(&mut cuda, body)
            }
            #[cfg(feature = "emulated")]
            Self::Emulated(_) => Ok(None),
        }
    }
}

/// All threads at once: copies of 128 MiB together, products with a 4-bit matrix that stays in the caches.
fn cpu(threads: usize) -> Roofline {
    const COPY: usize = 128 << 20;
    const ROWS: usize = 512;
    const COLS: usize = 2048;
    const TOKENS: usize = 64;
    let isa = Isa::detect();
    let part = COPY / threads;
    let copies = sum(threads, || {
        let (from, mut to) = (vec![1_u8; part], vec![0_u8; part]);
        move || {
            to.copy_from_slice(black_box(&from));
            black_box(&to);
            2.0 * part as f64
        }
    });
    let products = sum(threads, || {
        let mut product = Product::new(isa, ROWS, COLS, TOKENS);
        move || {
            product.run(true);
            2.0 * (ROWS * COLS * TOKENS) as f64
        }
    });
    Roofline { copy_gb_s: copies / 1e9, matmul_tflops: products / 1e12, source: "measured by Lily on the CPU".into() }
}

/// Amount a second of all threads together, each one at its best.
fn sum<F: FnMut() -> f64>(threads: usize, make: impl Fn() -> F + Sync) -> f64 {
    let ready = std::sync::Barrier::new(threads);
    let best = || {
        let mut work = make();
        work();
        ready.wait();
        let (begin, mut best) = (Instant::now(), 0.0_f64);
        while begin.elapsed().as_millis() < 150 {
            let start = Instant::now();
            let amount = work();
            best = best.max(amount / start.elapsed().as_secs_f64());
        }
        best
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(best)).collect();
        workers.into_iter().map(|w| w.join().unwrap_or(0.0)).sum()
    })
}

#[cfg(any(target_os = "macos", target_os = "linux"))]
mod gpu {
    use std::time::Duration;

    use lily_checkpoint::synthetic::{Numbers, Stream};
    use lily_gpu::kernels::{
        AffineGemm, Body, CopySlices, DeviceMatrix, Element, RandomFill, View, affine_gemm, copy_slices, random_fill,
    };
    use lily_gpu::{Contents, Gpu, GpuError};

    use super::{Result, Roofline};
    use crate::checks::time;

    /// `copy_slices` of 1 GiB; `affine_gemm` of 4,096 rows of 4,096 BF16 values with 8,192 rows of weights, BF16 or 4-bit,
    /// whichever is faster.
    pub fn measure<G: Gpu>(gpu: &mut G, body: Body) -> Result<Option<Roofline>> {
        // A small copy first: a large one is long on a device that tells nothing.
        if copy(gpu, 1 << 16)?.is_none() {
            return Ok(None);
        }
        const ROWS: u32 = 4096;
        const COLUMNS: u32 = 4096;
        const OUTPUTS: u32 = 8192;
        const BYTES: u64 = 1 << 30;
        let mut products = Vec::new();
        for bits in [4, 16] {
            products.extend(product(gpu, body, bits, [ROWS, COLUMNS, OUTPUTS])?);
        }
        let (Some(copied), Some(multiplied)) = (copy(gpu, BYTES)?, products.into_iter().min()) else {
            return Ok(None);
        };
        let operations = 2.0 * f64::from(ROWS) * f64::from(COLUMNS) * f64::from(OUTPUTS);
        Ok(Some(Roofline {
            copy_gb_s: 2.0 * BYTES as f64 / copied.as_secs_f64() / 1e9,
            matmul_tflops: operations / multiplied.as_secs_f64() / 1e12,
            source: "measured by Lily's kernels copy_slices and affine_gemm".into(),
        }))
    }

    fn copy<G: Gpu>(gpu: &mut G, bytes: u64) -> Result<Option<Duration>, GpuError> {
        let (from, to) = (random(gpu, bytes, numbers(1.0))?, random(gpu, bytes, numbers(1.0))?);
        let (from, to) = (View::of(&from), View::of(&to));
        let slice = CopySlices { from, from_stride: bytes, to, to_stride: bytes, bytes, count: 1 };
        Ok(time(gpu, &mut |gpu: &mut G| copy_slices(gpu, &slice)))
    }

    fn product<G: Gpu>(
        gpu: &mut G,
        body: Body,
        bits: u32,
        [rows, cols, outputs]: [u32; 3],
    ) -> Result<Option<Duration>, GpuError> {
        let bytes = |rows: u32, bits: u32| u64::from(bits) * u64::from(rows) * u64::from(cols) / 8;
        let x = random(gpu, bytes(rows, 16), numbers(1.0))?;
        let y = gpu.allocate(4 * u64::from(rows) * u64::from(outputs), Contents::Activations)?;
        let matrix = match bits {
            16 => {
                let codes = random(gpu, bytes(outputs, 16), numbers(1.0))?;
                DeviceMatrix { rows: outputs, cols, bits, scales: codes.clone(), biases: codes.clone(), codes }
            }
            _ => {
                let groups = bytes(outputs, 16) / 64;
                DeviceMatrix {
                    rows: outputs,
                    cols,
                    bits,
                    codes: random(gpu, bytes(outputs, bits), Numbers::Bits(stream()))?,
                    scales: random(gpu, groups, numbers(1.0))?,
                    biases: random(gpu, groups, numbers(-7.5))?,
                }
            }
        };
        let a = AffineGemm {
            body,
            matrices: &[&matrix],
            x: View::of(&x),
            element: Element::Bf16,
            y: View::of(&y),
            rows,
            x_stride: cols,
            y_stride: outputs,
        };
        Ok(time(gpu, &mut |gpu: &mut G| affine_gemm(gpu, &a)))
    }

    fn stream() -> Stream {
        Stream::new(1, "roofline")
    }

    /// BF16 values around `factor`.
    fn numbers(factor: f32) -> Numbers {
        Numbers::Scales { stream: stream(), step: 1.0, factor }
    }

    fn random<G: Gpu>(gpu: &mut G, bytes: u64, numbers: Numbers) -> Result<G::Buffer, GpuError> {
        let out = gpu.allocate(bytes, Contents::Activations)?;
        random_fill(gpu, &RandomFill { numbers, first: 0, out: View::of(&out), words: bytes / 8 })?;
        let ticket = gpu.commit()?;
        gpu.wait(ticket)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_cpu_has_both_rates() {
        let roofline = super::cpu(2);
        assert!(roofline.copy_gb_s > 0.1 && roofline.matmul_tflops > 1e-4, "{roofline:?}");
    }
}
