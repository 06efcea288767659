//! The device that the tests of kernels run on: the emulator, or with `LILY_TEST_DEVICE=cuda` an NVIDIA GPU. Tests that count
//! traffic ask [`counts`].

use std::ops::Not;

use lily_checkpoint::Bytes;

#[cfg(target_os = "linux")]
use crate::device::cuda::{self, Cuda};
use crate::device::emulated::{self, Emulated};
use crate::gpu::{Arg, Contents, Finished, Gpu, GpuError, Launch, Ticket};
use crate::kernels::{Body, Element};

/// Buffers up to this size are filled with NaN on every device, as the emulator does.
#[cfg(target_os = "linux")]
const FILLED: u64 = 256 << 20;

pub enum TestGpu {
    Emulated(Emulated),
    #[cfg(target_os = "linux")]
    Cuda(Box<Cuda>),
}

#[derive(Clone)]
pub enum Buffer {
    Emulated(emulated::Buffer),
    #[cfg(target_os = "linux")]
    Cuda(cuda::Buffer),
}

impl TestGpu {
    /// Threads of the emulator run in an order that `seed` shuffles.
    pub fn new(seed: u32) -> Self {
        match std::env::var("LILY_TEST_DEVICE").as_deref() {
            Err(_) | Ok("" | "emulated") => {
                Self::Emulated(Emulated::new(1, seed).expect("tests run where the emulator does"))
            }
            #[cfg(target_os = "linux")]
            Ok("cuda") => Self::Cuda(Box::new(Cuda::open().expect("LILY_TEST_DEVICE=cuda"))),
            Ok(other) => panic!("LILY_TEST_DEVICE={other}"),
        }
    }
}

/// Whether the device counts bytes.
pub fn counts() -> bool {
    std::env::var("LILY_TEST_DEVICE").is_ok_and(|d| d == "cuda").not()
}

/// The body that is the device's own.
pub fn body() -> Body {
    if counts() { Body::Tensor } else { Body::Mma }
}

/// What multiplies in prefill's products on this device.
pub fn bodies() -> Vec<(Body, Element)> {
    let mut all = vec![(Body::Simdgroup, Element::F32), (Body::Simdgroup, Element::Bf16), (body(), Element::Bf16)];
    // Tensor operations leave F32 to the other body.
    if body() == Body::Mma {
        all.push((Body::Mma, Element::F32));
    }
    all
}

/// What multiplies in a decoded token's products on this device.
pub fn step_bodies() -> Vec<Body> {
    if counts() { vec![Body::Simdgroup] } else { vec![Body::Simdgroup, Body::Mma] }
}

/// The same on each device.
macro_rules! each {
    ($self:expr, $gpu:ident => $call:expr) => {
        match $self {
            TestGpu::Emulated($gpu) => $call,
            #[cfg(target_os = "linux")]
            TestGpu::Cuda($gpu) => $call,
        }
    };
}

impl Gpu for TestGpu {
    type Buffer = Buffer;

    fn name(&self) -> String {
        each!(self, g => g.name())
    }

    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Buffer, GpuError> {
        Ok(match self {
            Self::Emulated(g) => Buffer::Emulated(g.allocate(bytes, contents)?),
            #[cfg(target_os = "linux")]
            Self::Cuda(g) => {
                let buffer = g.allocate(bytes, contents)?;
                if bytes <= FILLED {
                    g.fill(&buffer, 0xff)?;
                }
                Buffer::Cuda(buffer)
            }
        })
    }

    fn share(&self, host: &Bytes, contents: Contents) -> Result<Buffer, GpuError> {
        Ok(match self {
            Self::Emulated(g) => Buffer::Emulated(g.share(host, contents)?),
            #[cfg(target_os = "linux")]
            Self::Cuda(g) => Buffer::Cuda(g.share(host, contents)?),
        })
    }

    fn bytes(&self, buffer: &Buffer) -> u64 {
        each!(self, g => g.bytes(buffer.into()))
    }

    fn upload(&self, buffer: &Buffer, offset: u64, data: &[u8]) -> Result<(), GpuError> {
        each!(self, g => g.upload(buffer.into(), offset, data))
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), GpuError> {
        each!(self, g => g.read(buffer.into(), offset, out))
    }

    fn encode(&mut self, launch: &Launch<'_, Buffer>) -> Result<(), GpuError> {
        each!(self, g => {
            let args: Vec<_> = launch
                .args
                .iter()
                .map(|a| match a {
                    Arg::Buffer(b, offset) => Arg::Buffer((*b).into(), *offset),
                    Arg::Value(v) => Arg::Value(v),
                })
                .collect();
            let Launch { kernel, constants, groups, threads, .. } = *launch;
            g.encode(&Launch { kernel, constants, args: &args, groups, threads })
        })
    }

    fn encoded(&self) -> usize {
        each!(self, g => g.encoded())
    }

    fn commit(&mut self) -> Result<Ticket, GpuError> {
        each!(self, g => g.commit())
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Finished, GpuError> {
        each!(self, g => g.wait(ticket))
    }
}

impl<'a> From<&'a Buffer> for &'a emulated::Buffer {
    fn from(b: &'a Buffer) -> Self {
        match b {
            Buffer::Emulated(b) => b,
            #[cfg(target_os = "linux")]
            Buffer::Cuda(_) => panic!("a buffer of another device"),
        }
    }
}

#[cfg(target_os = "linux")]
impl<'a> From<&'a Buffer> for &'a cuda::Buffer {
    fn from(b: &'a Buffer) -> Self {
        match b {
            Buffer::Cuda(b) => b,
            Buffer::Emulated(_) => panic!("a buffer of another device"),
        }
    }
}
