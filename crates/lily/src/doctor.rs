//! `lily doctor`: whether this machine's GPU computes what it should, and how fast.

use std::process::ExitCode;

use anyhow::Result;

use lily_gpu::kernels::Body;

use crate::cli::DoctorArgs;
use crate::device::{Chosen, choose};

/// Check the device that was asked for; exit status 1 where a kernel computes something else than it should.
pub fn doctor(args: DoctorArgs) -> Result<ExitCode> {
    match choose(args.device)? {
        Chosen::Cpu => anyhow::bail!("lily doctor checks GPU kernels, and there is no GPU here to check"),
        #[cfg(target_os = "macos")]
        Chosen::Metal(mut gpu) => {
            let without = gpu.without_tensor().map(str::to_owned);
            crate::checks::examine(&mut gpu, without.as_deref().map_or(Ok(Body::Tensor), Err), args.full)
        }
        #[cfg(target_os = "linux")]
        Chosen::Cuda(mut gpu) => {
            let body = gpu.body()?;
            let fast = if body == Body::Mma { Ok(body) } else { Err("faster kernels are for Hopper GPUs") };
            crate::checks::examine(&mut *gpu, fast, args.full)
        }
        #[cfg(feature = "emulated")]
        Chosen::Emulated(mut gpu) => crate::checks::examine(&mut gpu, Ok(Body::Tensor), args.full),
    }
}
