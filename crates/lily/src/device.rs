//! From `--device` to a running model.

use anyhow::Result;
use lily_checkpoint::Weights;
use lily_cpu::{Bf16, Fast, Local, Oracle, Q8};
use lily_gpu::kernels::Element;
use lily_gpu::{Gpu, GpuModel, Options};
use lily_model::{Footprint, KvType, Model, Shape};

use crate::cli::{Device, EngineKind};
use crate::memory;

/// A device that is there.
pub enum Chosen {
    /// All cores.
    Cpu,
    /// The GPU of a Mac, with the shader compiled.
    #[cfg(target_os = "macos")]
    Metal(lily_gpu::device::metal::Metal),
    /// An NVIDIA GPU.
    #[cfg(target_os = "linux")]
    Cuda(Box<lily_gpu::device::cuda::Cuda>),
    /// The kernels on the CPU.
    #[cfg(feature = "emulated")]
    Emulated(lily_gpu::device::emulated::Emulated),
}

/// Open what was asked for.
pub fn choose(device: Device) -> Result<Chosen> {
    match device {
        Device::Cpu => Ok(Chosen::Cpu),
        Device::Auto => Ok(automatic()),
        Device::Metal => metal(),
        Device::Cuda => cuda(),
        #[cfg(feature = "emulated")]
        Device::Emulated => Ok(Chosen::Emulated(emulated()?)),
    }
}

/// The emulator on all cores, threads in a random order of a fixed seed.
#[cfg(feature = "emulated")]
pub fn emulated() -> Result<lily_gpu::device::emulated::Emulated> {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    Ok(lily_gpu::device::emulated::Emulated::new(workers, 1)?)
}

#[cfg(target_os = "macos")]
fn metal() -> Result<Chosen> {
    Ok(Chosen::Metal(lily_gpu::device::metal::Metal::open()?))
}

#[cfg(not(target_os = "macos"))]
fn metal() -> Result<Chosen> {
    anyhow::bail!("--device metal needs a Mac; this lily was built for {}", std::env::consts::OS)
}

#[cfg(target_os = "linux")]
fn cuda() -> Result<Chosen> {
    Ok(Chosen::Cuda(Box::new(lily_gpu::device::cuda::Cuda::open()?)))
}

#[cfg(not(target_os = "linux"))]
fn cuda() -> Result<Chosen> {
    anyhow::bail!("--device cuda needs Linux; this lily was built for {}", std::env::consts::OS)
}

/// The GPU of a Mac, or a line that says why not.
#[cfg(target_os = "macos")]
fn automatic() -> Chosen {
    metal().unwrap_or_else(|error| {
        eprintln!("Computing on the CPU: {error:#}");
        Chosen::Cpu
    })
}

#[cfg(not(target_os = "macos"))]
fn automatic() -> Chosen {
    Chosen::Cpu
}

impl Chosen {
    /// How the model is computed, on a GPU.
    fn options(&self, kv: KvType) -> Result<Option<Options>> {
        Ok(match self {
            Self::Cpu => None,
            #[cfg(target_os = "macos")]
            Self::Metal(gpu) => Some(Options { body: gpu.body(), ..gpu_options(kv) }),
            #[cfg(target_os = "linux")]
            Self::Cuda(gpu) => Some(Options { body: gpu.body()?, ..gpu_options(kv) }),
            #[cfg(feature = "emulated")]
            Self::Emulated(_) => Some(gpu_options(kv)),
        })
    }

    /// What the model takes on it: `weights` bytes of weights, contexts up to `context`, `parallel` at once.
    pub fn footprint(
        &self,
        shape: &Shape,
        weights: u64,
        threads: usize,
        parallel: usize,
        kv: Option<KvType>,
    ) -> Result<impl Fn(usize) -> Footprint + use<>> {
        let kv = kv.unwrap_or_default();
        let options = self.options(kv)?;
        let shape = shape.clone();
        Ok(move |context| match (&options, kv) {
            (None, KvType::F32) => Fast::<f32>::footprint(&shape, weights, threads, context, parallel),
            (None, KvType::Bf16) => Fast::<Bf16>::footprint(&shape, weights, threads, context, parallel),
            (None, KvType::Q8) => Fast::<Q8>::footprint(&shape, weights, threads, context, parallel),
            (Some(options), _) => lily_gpu::footprint(&shape, weights, options, context, parallel)
                .expect("the device that only counts gives all memory"),
        })
    }

    /// Bytes that may be taken of its memory, those of this program on the CPU included.
    pub fn limit(&self) -> Option<u64> {
        match self {
            Self::Cpu => memory::available_bytes().map(|free| free + self.program()),
            #[cfg(target_os = "macos")]
            Self::Metal(gpu) => gpu.advised_bytes(),
            #[cfg(target_os = "linux")]
            Self::Cuda(gpu) => gpu.advised_bytes(),
            #[cfg(feature = "emulated")]
            Self::Emulated(gpu) => gpu.advised_bytes(),
        }
    }

    /// Bytes that this program holds of its memory before there is a model.
    pub fn program(&self) -> u64 {
        match self {
            Self::Cpu => memory::resident_bytes(),
            #[allow(unreachable_patterns, reason = "there may be no other device")]
            _ => 0,
        }
    }

    /// Whether a real GPU computes; an emulated one is measured and fed as the CPU is.
    pub fn is_gpu(&self) -> bool {
        match self {
            Self::Cpu => false,
            #[cfg(target_os = "macos")]
            Self::Metal(_) => true,
            #[cfg(target_os = "linux")]
            Self::Cuda(_) => true,
            #[cfg(feature = "emulated")]
            Self::Emulated(_) => false,
        }
    }

    /// Which one of its kind it is, where devices say so.
    pub fn uuid(&self) -> Option<String> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Cuda(gpu) => gpu.uuid().ok(),
            _ => None,
        }
    }

    /// Its highest clocks, where devices say so.
    pub fn clocks(&self) -> Option<String> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Cuda(gpu) => gpu.clocks().ok(),
            _ => None,
        }
    }

    /// Ready the model. `engine` and `threads` are the CPU's; without a `kv` keys and values are cached as the implementation
    /// does by itself.
    pub fn model(
        self,
        shape: &Shape,
        weights: &Weights,
        engine: EngineKind,
        threads: usize,
        kv: Option<KvType>,
    ) -> Result<Box<dyn Model>> {
        if engine == EngineKind::Oracle {
            let kv = kv.unwrap_or(KvType::F32);
            return Ok(Box::new(Local::new(Oracle::with_kv(shape, weights, kv))));
        }
        let kv = kv.unwrap_or_default();
        Ok(match self {
            Self::Cpu => match kv {
                KvType::F32 => Box::new(Local::new(Fast::<f32>::new(shape, weights, threads))),
                KvType::Bf16 => Box::new(Local::new(Fast::<Bf16>::new(shape, weights, threads))),
                KvType::Q8 => Box::new(Local::new(Fast::<Q8>::new(shape, weights, threads))),
            },
            #[cfg(target_os = "macos")]
            Self::Metal(gpu) => {
                let options = Options { body: gpu.body(), ..gpu_options(kv) };
                Box::new(GpuModel::new(gpu, shape, weights, options)?)
            }
            #[cfg(target_os = "linux")]
            Self::Cuda(gpu) => {
                let options = Options { body: gpu.body()?, ..gpu_options(kv) };
                Box::new(GpuModel::new(*gpu, shape, weights, options)?)
            }
            #[cfg(feature = "emulated")]
            Self::Emulated(gpu) => Box::new(GpuModel::new(gpu, shape, weights, gpu_options(kv))?),
        })
    }
}

/// How a GPU computes with keys and values cached as `kv`.
#[cfg_attr(not(any(target_os = "macos", target_os = "linux", feature = "emulated")), expect(dead_code))]
fn gpu_options(kv: KvType) -> Options {
    let element = if kv == KvType::F32 { Element::F32 } else { Element::Bf16 };
    Options { element, q8: kv == KvType::Q8, ..Options::default() }
}
