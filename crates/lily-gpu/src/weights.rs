//! The checkpoint's tensors on a device: matrices where they lie in the memory map, small vectors as F32 copies.

use lily_checkpoint::{ExpertStack, FullAttention, Layer, LinearAttention, Matrix, Mixer, Moe, Weights};

use crate::gpu::{Contents, Gpu, GpuError};
use crate::kernels::DeviceMatrix;

/// All the weights of the text model (`docs/model.md §2`).
pub struct DeviceWeights<B> {
    /// `[vocab × hidden]`.
    pub embed: DeviceMatrix<B>,
    /// One entry a layer.
    pub layers: Vec<DeviceLayer<B>>,
    /// `[hidden]` F32.
    pub norm: B,
    /// `[vocab × hidden]`.
    pub lm_head: DeviceMatrix<B>,
}

/// One layer.
pub struct DeviceLayer<B> {
    /// `[hidden]` F32.
    pub input_norm: B,
    /// Mixes tokens.
    pub mixer: DeviceMixer<B>,
    /// `[hidden]` F32.
    pub post_norm: B,
    /// Mixture of experts.
    pub moe: DeviceMoe<B>,
}

/// What mixes tokens.
pub enum DeviceMixer<B> {
    /// Gated DeltaNet.
    Linear(DeviceLinear<B>),
    /// Gated softmax attention.
    Full(DeviceFull<B>),
}

/// `docs/model.md §4.4`.
pub struct DeviceLinear<B> {
    /// qkv | z | a | b, all of width `hidden`.
    pub inputs: [DeviceMatrix<B>; 4],
    /// `[conv_dim × 4]` BF16.
    pub conv: B,
    /// `[value heads]` F32.
    pub a_log: B,
    /// `[value heads]` F32.
    pub dt_bias: B,
    /// `[128]` F32.
    pub norm: B,
    /// `[hidden × value_dim]`.
    pub out: DeviceMatrix<B>,
}

/// `docs/model.md §4.2`.
pub struct DeviceFull<B> {
    /// q with gates | k | v, all of width `hidden`.
    pub inputs: [DeviceMatrix<B>; 3],
    /// `[256]` F32.
    pub q_norm: B,
    /// `[256]` F32.
    pub k_norm: B,
    /// `[hidden × query_dim]`.
    pub out: DeviceMatrix<B>,
}

/// `docs/model.md §4.6`. The experts of a kind are one matrix, rows of expert 0 first.
pub struct DeviceMoe<B> {
    /// Router `[experts × hidden]` | gate of the shared expert `[1 × hidden]`.
    pub router: [DeviceMatrix<B>; 2],
    /// `[experts · width × hidden]`.
    pub gate: DeviceMatrix<B>,
    /// `[experts · width × hidden]`.
    pub up: DeviceMatrix<B>,
    /// `[experts · hidden × width]`.
    pub down: DeviceMatrix<B>,
    /// `[shared width × hidden]`.
    pub shared_gate: DeviceMatrix<B>,
    /// `[shared width × hidden]`.
    pub shared_up: DeviceMatrix<B>,
    /// `[hidden × shared width]`.
    pub shared_down: DeviceMatrix<B>,
}

impl<B: Clone> DeviceWeights<B> {
    /// Shares the checkpoint's bytes with the device. Copied are vectors, tensors that do not begin at a multiple of 16
    /// bytes, and the fused expert tensors of the HF layout; seeded weights are made on the device.
    ///
    /// # Errors
    /// Of the device.
    pub fn share<G: Gpu<Buffer = B>>(gpu: &mut G, w: &Weights) -> Result<Self, GpuError> {
        let weights = Self {
            embed: DeviceMatrix::place(gpu, &w.embed)?,
            layers: w.layers.iter().map(|l| layer(gpu, l)).collect::<Result<_, _>>()?,
            norm: floats(gpu, &w.norm)?,
            lm_head: DeviceMatrix::place(gpu, &w.lm_head)?,
        };
        if gpu.encoded() > 0 {
            let ticket = gpu.commit()?;
            gpu.wait(ticket)?;
        }
        Ok(weights)
    }
}

fn layer<G: Gpu>(gpu: &mut G, w: &Layer) -> Result<DeviceLayer<G::Buffer>, GpuError> {
    Ok(DeviceLayer {
        input_norm: floats(gpu, &w.input_norm)?,
        mixer: match &w.mixer {
            Mixer::Linear(w) => DeviceMixer::Linear(linear(gpu, w)?),
            Mixer::Full(w) => DeviceMixer::Full(full(gpu, w)?),
        },
        post_norm: floats(gpu, &w.post_norm)?,
        moe: moe(gpu, &w.moe)?,
    })
}

fn linear<G: Gpu>(gpu: &mut G, w: &LinearAttention) -> Result<DeviceLinear<G::Buffer>, GpuError> {
    // The file's values are BF16, so that this is exact.
    let conv: Vec<u8> = w.conv.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_ne_bytes()).collect();
    Ok(DeviceLinear {
        inputs: [
            DeviceMatrix::place(gpu, &w.in_qkv)?,
            DeviceMatrix::place(gpu, &w.in_z)?,
            DeviceMatrix::place(gpu, &w.in_a)?,
            DeviceMatrix::place(gpu, &w.in_b)?,
        ],
        conv: filled(gpu, &conv, Contents::Weights)?,
        a_log: floats(gpu, &w.a_log)?,
        dt_bias: floats(gpu, &w.dt_bias)?,
        norm: floats(gpu, &w.norm)?,
        out: DeviceMatrix::place(gpu, &w.out)?,
    })
}

fn full<G: Gpu>(gpu: &mut G, w: &FullAttention) -> Result<DeviceFull<G::Buffer>, GpuError> {
    Ok(DeviceFull {
        inputs: [DeviceMatrix::place(gpu, &w.q)?, DeviceMatrix::place(gpu, &w.k)?, DeviceMatrix::place(gpu, &w.v)?],
        q_norm: floats(gpu, &w.q_norm)?,
        k_norm: floats(gpu, &w.k_norm)?,
        out: DeviceMatrix::place(gpu, &w.o)?,
    })
}

fn moe<G: Gpu>(gpu: &mut G, w: &Moe) -> Result<DeviceMoe<G::Buffer>, GpuError> {
    Ok(DeviceMoe {
        router: [DeviceMatrix::place(gpu, &w.router)?, DeviceMatrix::place(gpu, &w.shared_expert_gate)?],
        gate: stack(gpu, &w.gate)?,
        up: stack(gpu, &w.up)?,
        down: stack(gpu, &w.down)?,
        shared_gate: DeviceMatrix::place(gpu, &w.shared_gate)?,
        shared_up: DeviceMatrix::place(gpu, &w.shared_up)?,
        shared_down: DeviceMatrix::place(gpu, &w.shared_down)?,
    })
}

/// Experts as one matrix: where they lie when they are adjacent, else a copy of each in turn.
fn stack<G: Gpu>(gpu: &mut G, experts: &ExpertStack) -> Result<DeviceMatrix<G::Buffer>, GpuError> {
    if let Some(all) = experts.stacked() {
        return DeviceMatrix::place(gpu, &all);
    }
    let gather = |part: fn(&Matrix) -> &[u8]| {
        let bytes: Vec<u8> = experts.0.iter().flat_map(|m| part(m).iter().copied()).collect();
        filled(gpu, &bytes, Contents::Weights)
    };
    let (rows, cols) = (experts.0.iter().map(|m| m.rows() as u32).sum(), experts.expert(0).cols() as u32);
    match experts.expert(0) {
        Matrix::Affine(first) => Ok(DeviceMatrix {
            rows,
            cols,
            bits: first.bits as u32,
            codes: gather(codes)?,
            scales: gather(|m| if let Matrix::Affine(a) = m { &a.scales } else { &[] })?,
            biases: gather(|m| if let Matrix::Affine(a) = m { &a.biases } else { &[] })?,
        }),
        Matrix::Bf16 { .. } => {
            let codes = gather(codes)?;
            Ok(DeviceMatrix { rows, cols, bits: 16, scales: codes.clone(), biases: codes.clone(), codes })
        }
    }
}

fn codes(m: &Matrix) -> &[u8] {
    match m {
        Matrix::Affine(a) => &a.codes,
        Matrix::Bf16 { data, .. } => data,
    }
}

fn floats<G: Gpu>(gpu: &G, values: &[f32]) -> Result<G::Buffer, GpuError> {
    // Every threadgroup reads a norm's weight, as it reads the row that it multiplies: counted with that.
    filled(gpu, &values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>(), Contents::Activations)
}

fn filled<G: Gpu>(gpu: &G, bytes: &[u8], contents: Contents) -> Result<G::Buffer, GpuError> {
    let buffer = gpu.allocate(bytes.len() as u64, contents)?;
    gpu.upload(&buffer, 0, bytes)?;
    Ok(buffer)
}
