//! A decoded token of the whole model at its real dimensions, with random weights made in memory:
//! `cuda_check token [layers [context …]]`.

use std::time::{Duration, Instant};

use lily_checkpoint::{Affine, Bytes, ExpertStack, FullAttention, Layer, LinearAttention, Matrix, Mixer, Moe, Weights};
use lily_gpu::device::cuda::{Cuda, Options};
use lily_gpu::kernels::Body;
use lily_gpu::program::{Choice, Program};
use lily_gpu::{GpuError, Options as ModelOptions};
use lily_model::{LayerKind, Shape};

use super::times::Random;

/// All matrices are parts of the same random bytes. Each becomes a buffer of its own on the device.
struct Maker {
    random: Random,
    codes: Bytes,
    scales: Bytes,
    biases: Bytes,
}

const CODES: usize = 320 << 20;
const GROUPS: usize = 10 << 20;

impl Maker {
    fn new() -> Self {
        let mut random = Random(1);
        let codes: Vec<u8> = (0..CODES / 8).flat_map(|_| random.bits().to_ne_bytes()).collect();
        let steps: Vec<f32> = (0..GROUPS).map(|_| random.value(0.004)).collect();
        let bf16 = |v: f32| ((v.to_bits() >> 16) as u16).to_ne_bytes();
        let bytes = |of: &dyn Fn(f32) -> f32| Bytes::new(steps.iter().flat_map(|&s| bf16(of(s))).collect::<Vec<u8>>());
        // Zero mean, so that routing spreads.
        Self { scales: bytes(&|s| s), biases: bytes(&|s| -7.5 * s), codes: Bytes::new(codes), random }
    }

    fn matrix(&mut self, rows: usize, cols: usize, bits: usize) -> Matrix {
        let (size, groups) = (rows * cols * bits / 8, rows * cols / 64);
        let from = (self.random.bits() as usize % (CODES - size)) & !63;
        let first = (self.random.bits() as usize % (GROUPS - groups)) & !63;
        let of_groups = 2 * first..2 * (first + groups);
        Matrix::Affine(Affine {
            rows,
            cols,
            bits,
            codes: self.codes.slice(from..from + size),
            scales: self.scales.slice(of_groups.clone()),
            biases: self.biases.slice(of_groups),
        })
    }

    fn experts(&mut self, count: usize, rows: usize, cols: usize) -> ExpertStack {
        let all = self.matrix(count * rows, cols, 4);
        ExpertStack((0..count).map(|e| all.slice_rows(e * rows, rows)).collect())
    }

    fn values(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.random.value(scale)).collect()
    }

    fn layer(&mut self, s: &Shape, kind: LayerKind) -> Layer {
        let h = s.hidden;
        let mixer = match kind {
            LayerKind::Linear => Mixer::Linear(LinearAttention {
                in_qkv: self.matrix(s.conv_dim(), h, 4),
                in_z: self.matrix(s.value_dim(), h, 4),
                in_a: self.matrix(s.linear_value_heads, h, 4),
                in_b: self.matrix(s.linear_value_heads, h, 4),
                conv: self.values(s.conv_dim() * 4, 0.5),
                a_log: self.values(s.linear_value_heads, 1.0),
                dt_bias: self.values(s.linear_value_heads, 1.0),
                norm: vec![1.0; 128],
                out: self.matrix(h, s.value_dim(), 4),
            }),
            LayerKind::Full => Mixer::Full(FullAttention {
                q: self.matrix(2 * s.query_dim(), h, 4),
                k: self.matrix(s.kv_dim(), h, 4),
                v: self.matrix(s.kv_dim(), h, 4),
                o: self.matrix(h, s.query_dim(), 4),
                q_norm: vec![1.0; 256],
                k_norm: vec![1.0; 256],
            }),
        };
        let (count, width) = (s.experts, s.expert_width);
        Layer {
            input_norm: vec![1.0; h],
            mixer,
            post_norm: vec![1.0; h],
            moe: Moe {
                router: self.matrix(count, h, 8),
                gate: self.experts(count, width, h),
                up: self.experts(count, width, h),
                down: self.experts(count, h, width),
                shared_gate: self.matrix(s.shared_width, h, 4),
                shared_up: self.matrix(s.shared_width, h, 4),
                shared_down: self.matrix(h, s.shared_width, 4),
                shared_expert_gate: self.matrix(1, h, 8),
            },
        }
    }
}

/// Times steps at each context, with the kernels of a step overlapping and without.
pub fn token(layers: usize, contexts: &[u32]) -> Result<(), GpuError> {
    let start = Instant::now();
    let mut shape = Shape::qwen3_6_35b_a3b();
    shape.layers.truncate(layers);
    let mut maker = Maker::new();
    let weights = Weights {
        embed: maker.matrix(shape.vocab, shape.hidden, 4),
        layers: shape.layers.clone().iter().map(|&kind| maker.layer(&shape, kind)).collect(),
        norm: vec![1.0; shape.hidden],
        lm_head: maker.matrix(shape.vocab, shape.hidden, 4),
    };
    println!("{layers} layers drawn in {:.1?}", start.elapsed());
    for overlap in [true, false] {
        let start = Instant::now();
        let gpu = Cuda::with(Options { overlap, ..Options::default() })?;
        let options = ModelOptions { body: Body::Mma, ..ModelOptions::default() };
        let mut program = Program::new(gpu, &shape, &weights, options)?;
        println!("kernels overlap: {overlap}; loaded in {:.1?}", start.elapsed());
        for &context in contexts {
            steps(&mut program, context)?;
        }
    }
    Ok(())
}

fn steps(program: &mut Program<Cuda>, context: u32) -> Result<(), GpuError> {
    const WARM: usize = 8;
    const TIMED: usize = 64;
    let vocab = program.shape().vocab as u32;
    let start = Instant::now();
    program.admit(u64::from(context) + 256);
    let mut held = program.begin_filled(context, 1)?;
    let filled = start.elapsed();
    let choice = Choice::Greedy { vocab };
    let mut step = program.start_step(&mut [&mut held], Some(&[17]), choice)?;
    let (mut begun, mut host) = (Instant::now(), Duration::ZERO);
    let mut tokens = Vec::new();
    for i in 0..WARM + TIMED {
        if i == WARM {
            (begun, host) = (Instant::now(), Duration::ZERO);
        }
        let now = Instant::now();
        let next = program.start_step(&mut [&mut held], None, choice)?;
        host += now.elapsed();
        tokens.extend(program.finish_tokens(step)?);
        step = next;
    }
    let seconds = begun.elapsed().as_secs_f64() / TIMED as f64;
    program.wait_step(step)?;
    let digest = tokens.iter().fold(0u64, |d, &t| d.wrapping_mul(1_000_003).wrapping_add(u64::from(t)));
    println!(
        "context {context:7}: {:8.1} tok/s, {:8.1} µs a token, {:6.1} µs of host to begin one; filled in {filled:.1?}; {digest:016x}",
        1.0 / seconds,
        seconds * 1e6,
        host.as_secs_f64() * 1e6 / TIMED as f64
    );
    Ok(())
}
