//! What the checks share: seeded inputs, buffers, and a row of the table for each check.

use std::time::Duration;

use anyhow::Result;
use lily_checkpoint::synthetic::{Stream, bf16_bits, bf16_round};
use lily_gpu::kernels::{Body, DeviceMatrix, Element};
use lily_gpu::{Contents, Gpu, GpuError};

/// Seeded numbers, one after another.
pub struct Random {
    stream: Stream,
    at: u64,
}

impl Random {
    /// From the start of the stream with this name.
    pub fn new(name: &str) -> Self {
        Self { stream: Stream::new(1, name), at: 0 }
    }

    fn next(&mut self) -> u64 {
        self.at += 1;
        self.at
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let i = self.next();
        self.stream.get(i)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// In ±scale.
    pub fn value(&mut self, scale: f32) -> f32 {
        let i = self.next();
        self.stream.uniform(i, -scale, scale)
    }

    /// `n` values in ±scale.
    pub fn values(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.value(scale)).collect()
    }
}

/// Each value as the element holds it.
pub fn rounded(element: Element, values: &[f32]) -> Vec<f32> {
    match element {
        Element::F32 => values.to_vec(),
        Element::Bf16 => values.iter().copied().map(bf16_round).collect(),
    }
}

/// What a dispatch moves and computes at least, for its speed.
#[derive(Clone, Copy)]
pub enum Work {
    /// Bytes read and written.
    Bytes(u64),
    /// Multiply-adds.
    Products(u64),
}

/// A check that was made.
pub struct Outcome {
    /// Which kernels.
    pub kernel: &'static str,
    /// At which shape.
    pub shape: String,
    /// The largest difference from the reference over the largest reference value, or why there is none.
    pub error: Result<f32, String>,
    /// What it may be.
    pub tolerance: f32,
    /// Of one run, where the device tells.
    pub time: Option<Duration>,
    /// For the speed.
    pub work: Work,
}

impl Outcome {
    /// Whether the device computed what it should.
    pub fn holds(&self) -> bool {
        self.error.as_ref().is_ok_and(|e| *e <= self.tolerance)
    }
}

/// A matrix on the device and its values, `[rows × cols]`.
pub struct TestMatrix<B> {
    /// On the device.
    pub device: DeviceMatrix<B>,
    /// Dequantised.
    pub values: Vec<f32>,
}

impl<B> TestMatrix<B> {
    /// x `[n × cols]` times the transposed matrix, in f64; with BF16 the weights are rounded as the prefill kernels do.
    pub fn times(&self, element: Element, x: &[f32]) -> Vec<f32> {
        let weights = rounded(element, &self.values);
        let cols = self.device.cols as usize;
        let mut y = Vec::with_capacity(x.len() / cols * self.device.rows as usize);
        for x in x.chunks_exact(cols) {
            y.extend(weights.chunks_exact(cols).map(|w| dot(x, w)));
        }
        y
    }

    /// The bytes of codes, scales and biases.
    pub fn bytes(&self) -> u64 {
        let values = u64::from(self.device.rows) * u64::from(self.device.cols);
        let groups = if self.device.bits == 16 { 0 } else { values / 16 };
        values * u64::from(self.device.bits) / 8 + groups
    }
}

/// Elements of the inputs that a body multiplies with kernels of its own, or with those of all devices.
pub fn elements(body: Body) -> &'static [Element] {
    if body == Body::Simdgroup { &[Element::F32, Element::Bf16] } else { &[Element::Bf16] }
}

/// A kernel's name in the table, by body.
pub fn named(body: Body, [simdgroup, tensor, mma]: [&'static str; 3]) -> &'static str {
    match body {
        Body::Simdgroup => simdgroup,
        Body::Tensor => tensor,
        Body::Mma => mma,
    }
}

/// In f64.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

/// x / sqrt(mean(x²) + eps) · weight for each row.
pub fn normed(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let mean = row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        y.extend(row.iter().zip(weight).map(|(v, w)| (f64::from(*v) * scale * f64::from(*w)) as f32));
    }
    y
}

/// 1 / (1 + e^-x).
pub fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

/// x · sigmoid(x).
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// The largest difference over the largest wanted value; infinite where a value is not finite or the lengths differ.
pub fn difference(got: &[f32], want: &[f32]) -> f32 {
    if got.len() != want.len() || got.iter().any(|v| !v.is_finite()) {
        return f32::INFINITY;
    }
    let scale = want.iter().fold(1e-30f32, |m, v| m.max(v.abs()));
    got.iter().zip(want).fold(0.0f32, |m, (g, w)| m.max((g - w).abs())) / scale
}

/// 0 where all are equal, else infinite.
pub fn equal<T: PartialEq>(got: &[T], want: &[T]) -> f32 {
    if got == want { 0.0 } else { f32::INFINITY }
}

/// A device under test.
pub struct Lab<'g, G: Gpu> {
    /// The device.
    pub gpu: &'g mut G,
    /// Of all inputs.
    pub random: Random,
    /// The dimensions of the 35B model.
    pub full: bool,
    /// What multiplies in the kernels of a decoded token.
    pub step: Body,
    /// Told of each check when it is over.
    report: &'g mut dyn FnMut(&Outcome),
    /// Every check so far.
    pub outcomes: Vec<Outcome>,
}

impl<'g, G: Gpu> Lab<'g, G> {
    /// No check made yet.
    pub fn new(gpu: &'g mut G, full: bool, report: &'g mut dyn FnMut(&Outcome)) -> Self {
        Self { gpu, random: Random::new("doctor"), full, step: Body::Simdgroup, report, outcomes: Vec::new() }
    }

    /// A kernel of a decoded token by what multiplies.
    pub fn step_name(&self, plain: &'static str, mma: &'static str) -> &'static str {
        if self.step == Body::Mma { mma } else { plain }
    }

    /// Runs once what `encode` encodes and has `error` compare; where the device tells times, runs it again for them.
    /// `encode` may run many times over its own outputs.
    pub fn check(
        &mut self,
        kernel: &'static str,
        shape: String,
        work: Work,
        tolerance: f32,
        mut encode: impl FnMut(&mut G) -> Result<(), GpuError>,
        error: impl FnOnce(&Self) -> Result<f32, GpuError>,
    ) {
        let first = encode(self.gpu).and_then(|()| run(self.gpu)).and_then(|_| error(self));
        let time = first.is_ok().then(|| time(self.gpu, &mut encode)).flatten();
        let error = first.map_err(|e| e.to_string());
        let outcome = Outcome { kernel, shape, error, tolerance, time, work };
        (self.report)(&outcome);
        self.outcomes.push(outcome);
    }

    /// A buffer with these bytes.
    pub fn bytes(&self, data: &[u8], contents: Contents) -> Result<G::Buffer> {
        let buffer = self.gpu.allocate(data.len() as u64, contents)?;
        self.gpu.upload(&buffer, 0, data)?;
        Ok(buffer)
    }

    /// A buffer of F32 values.
    pub fn floats(&self, values: &[f32], contents: Contents) -> Result<G::Buffer> {
        self.bytes(&values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>(), contents)
    }

    /// A buffer of F32 activations.
    pub fn input(&self, values: &[f32]) -> Result<G::Buffer> {
        self.floats(values, Contents::Activations)
    }

    /// A buffer of values that are exact in the element.
    pub fn elements(&self, element: Element, values: &[f32], contents: Contents) -> Result<G::Buffer> {
        match element {
            Element::F32 => self.floats(values, contents),
            Element::Bf16 => {
                let bytes: Vec<u8> = values.iter().flat_map(|v| bf16_bits(*v).to_ne_bytes()).collect();
                self.bytes(&bytes, contents)
            }
        }
    }

    /// A buffer of u32 values.
    pub fn words(&self, values: &[u32]) -> Result<G::Buffer> {
        self.bytes(&values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>(), Contents::Activations)
    }

    /// A buffer for `n` values of 4 bytes.
    pub fn output(&self, n: usize) -> Result<G::Buffer> {
        Ok(self.gpu.allocate(4 * n.max(1) as u64, Contents::Activations)?)
    }

    /// A random matrix of 4, 8 or 16 bits.
    pub fn matrix(&mut self, rows: usize, cols: usize, bits: u32) -> Result<TestMatrix<G::Buffer>> {
        let count = rows * cols;
        let (rows32, cols32) = (rows as u32, cols as u32);
        if bits == 16 {
            let values = rounded(Element::Bf16, &self.random.values(count, 0.1));
            let codes = self.elements(Element::Bf16, &values, Contents::Weights)?;
            let (scales, biases) = (codes.clone(), codes.clone());
            let device = DeviceMatrix { rows: rows32, cols: cols32, bits, codes, scales, biases };
            return Ok(TestMatrix { device, values });
        }
        let codes: Vec<u8> = (0..count * bits as usize / 8).map(|_| self.random.bits() as u8).collect();
        let step = if bits == 4 { 0.01 } else { 0.0006 };
        let scales = rounded(Element::Bf16, &self.random.values(count / 64, step));
        let biases = rounded(Element::Bf16, &self.random.values(count / 64, 0.05));
        let code = |i: usize| match bits {
            4 => codes[i / 2] >> (4 * (i % 2)) & 15,
            _ => codes[i],
        };
        let values = (0..count).map(|i| f32::from(code(i)).mul_add(scales[i / 64], biases[i / 64])).collect();
        let device = DeviceMatrix {
            rows: rows32,
            cols: cols32,
            bits,
            codes: self.bytes(&codes, Contents::Weights)?,
            scales: self.elements(Element::Bf16, &scales, Contents::Weights)?,
            biases: self.elements(Element::Bf16, &biases, Contents::Weights)?,
        };
        Ok(TestMatrix { device, values })
    }

    /// The words of a buffer.
    pub fn read_words(&self, buffer: &G::Buffer) -> Result<Vec<u32>, GpuError> {
        let mut out = vec![0; self.gpu.bytes(buffer) as usize];
        self.gpu.read(buffer, 0, &mut out)?;
        Ok(out.as_chunks().0.iter().map(|c| u32::from_ne_bytes(*c)).collect())
    }

    /// The F32 values of a buffer.
    pub fn read(&self, buffer: &G::Buffer) -> Result<Vec<f32>, GpuError> {
        Ok(self.read_words(buffer)?.into_iter().map(f32::from_bits).collect())
    }

    /// The values of a buffer of elements, an even number of them.
    pub fn read_elements(&self, element: Element, buffer: &G::Buffer) -> Result<Vec<f32>, GpuError> {
        let words = self.read_words(buffer)?;
        Ok(match element {
            Element::F32 => words.into_iter().map(f32::from_bits).collect(),
            Element::Bf16 => words.into_iter().flat_map(|w| [w << 16, w & 0xffff_0000]).map(f32::from_bits).collect(),
        })
    }
}

/// Runs what was encoded; the time that the device says.
pub fn run<G: Gpu>(gpu: &mut G) -> Result<Option<Duration>, GpuError> {
    let ticket = gpu.commit()?;
    Ok(gpu.wait(ticket)?.gpu_time)
}

/// Time of one run: the best of five command buffers that are long enough to hide what starting one takes.
pub fn time<G: Gpu>(gpu: &mut G, encode: &mut impl FnMut(&mut G) -> Result<(), GpuError>) -> Option<Duration> {
    encode(gpu).ok()?;
    let once = run(gpu).ok()??;
    let runs = (Duration::from_millis(2).as_nanos() / once.as_nanos().max(1)).clamp(1, 200) as u32;
    let mut best = once;
    for _ in 0..5 {
        for _ in 0..runs {
            encode(gpu).ok()?;
        }
        best = best.min(run(gpu).ok()?? / runs);
    }
    Some(best)
}
