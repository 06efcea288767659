//! The three CUDA texts, and which kernels of them a device has.

use std::sync::{LazyLock, Mutex, PoisonError};

use super::Call;
use super::compile::Compiler;
use super::context::{Context, lock};
use crate::gpu::GpuError;
use crate::msl::{Kernel, Program};

/// The shader source as this device sees it: all kernels but those with matrix instructions, these, and those of ablations.
pub(super) fn programs() -> &'static [Program; 3] {
    static PROGRAMS: LazyLock<[Program; 3]> = LazyLock::new(|| {
        [crate::source(), crate::mma_source(), crate::ablate_source()].map(|source| {
            match Program::parse(&source, &["LILY_CUDA"]) {
                Ok(program) => program,
                Err(e) => panic!("{e}"),
            }
        })
    });
    &PROGRAMS
}

/// In which of these a kernel stands.
pub(super) fn text(kernel: &str) -> usize {
    if crate::is_ablate(kernel) { 2 } else { usize::from(crate::is_mma(kernel)) }
}

/// Where a kernel stands.
pub(super) fn program(kernel: &str) -> &'static Program {
    &programs()[text(kernel)]
}

/// A kernel's name with the size of its machine code or the compiler's text.
pub type Compiled = (String, Result<usize, String>);

/// Compiles every kernel for a compute capability, with no device needed.
///
/// # Errors
/// [`GpuError::Device`] without NVRTC.
pub fn compile_for(capability: (i32, i32)) -> Result<Vec<Compiled>, GpuError> {
    let compiler = Compiler::new(capability, 0, None)?;
    let done = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    compile_in_parallel(capability, workers, |kernel| {
        let code = compiler.kernel(kernel, &Context::constants(&kernel.name, &[]));
        lock(&done).push((kernel.name.clone(), code.map(|c| c.len()).map_err(|e| e.to_string())));
        Ok(())
    })?;
    Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Whether a compute capability has the instructions of `kernels/hopper/`, which no other generation keeps.
pub(super) fn is_hopper(capability: (i32, i32)) -> bool {
    capability == (9, 0)
}

/// Calls `one` for every kernel of a device; the first error ends it.
pub(super) fn compile_in_parallel(
    capability: (i32, i32),
    workers: usize,
    one: impl Fn(&'static Kernel) -> Call<()> + Sync,
) -> Call<()> {
    // The second text repeats kernels of the first.
    let stands = |i: usize, k: &Kernel| i == text(&k.name) && (i != 1 || is_hopper(capability));
    let all = programs().iter().enumerate();
    let kernels = Mutex::new(all.flat_map(|(i, p)| p.kernels().iter().filter(move |k| stands(i, k))));
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let next = lock(&kernels).next();
                    let Some(kernel) = next.filter(|_| lock(&failed).is_none()) else { break };
                    if let Err(e) = one(kernel) {
                        lock(&failed).get_or_insert(e);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
