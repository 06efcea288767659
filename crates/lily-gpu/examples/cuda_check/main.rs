//! Times the kernels at the full model's shapes on an NVIDIA GPU; with the argument `compile` compiles each of them for Hopper,
//! which needs NVRTC and no GPU, and with `token` it times whole decoded tokens. Their results are tested by `LILY_TEST_DEVICE=cuda cargo test -p lily-gpu --features emulated`.

#[cfg(all(any(target_os = "linux", windows), any(target_arch = "x86_64", target_arch = "aarch64")))]
mod times;
#[cfg(all(any(target_os = "linux", windows), any(target_arch = "x86_64", target_arch = "aarch64")))]
mod token;

#[cfg(all(any(target_os = "linux", windows), any(target_arch = "x86_64", target_arch = "aarch64")))]
fn main() -> Result<(), lily_gpu::GpuError> {
    use lily_gpu::device::cuda::{Cuda, Options, compile_for};
    use std::time::Instant;

    let start = Instant::now();
    if std::env::args().nth(1).as_deref() == Some("compile") {
        let done = compile_for((9, 0))?;
        let mut errors = std::collections::BTreeSet::new();
        for (name, result) in &done {
            match result {
                Ok(bytes) => println!("{name:32} {bytes:8} bytes"),
                Err(text) => {
                    println!("{name:32} does not compile");
                    // The same error shows in every kernel.
                    errors.insert(text.split_once(": ").map_or(text.as_str(), |t| t.1));
                }
            }
        }
        errors.iter().for_each(|e| println!("{e}"));
        println!("{} kernels in {:.1} s", done.len(), start.elapsed().as_secs_f64());
        std::process::exit(i32::from(!errors.is_empty()));
    }
    if std::env::args().nth(1).as_deref() == Some("token") {
        let numbers: Vec<u32> = std::env::args().skip(2).filter_map(|a| a.parse().ok()).collect();
        let (layers, contexts) = numbers.split_first().map_or((40, &[][..]), |(l, c)| (*l as usize, c));
        return token::token(layers, if contexts.is_empty() { &[256, 4096, 32_768, 131_072] } else { contexts });
    }
    let gpu = Cuda::open()?;
    println!("{} ({}), {:.0?} to open", lily_gpu::Gpu::name(&gpu), gpu.uuid()?, start.elapsed());
    let (free, all) = gpu.memory()?;
    println!("{:.1} of {:.1} GB free", free as f64 / 1e9, all as f64 / 1e9);
    let compile = Instant::now();
    gpu.compile_all()?;
    println!("all kernels compiled or loaded in {:.1?}", compile.elapsed());
    drop(gpu);
    for graphs in [false, true] {
        let mut gpu = Cuda::with(Options { graphs, ..Options::default() })?;
        times::launches(&mut gpu, if graphs { "in a graph" } else { "one by one" })?;
    }
    times::kernels(&mut Cuda::open()?)?;
    println!("{:.1?} in all", start.elapsed());
    Ok(())
}

#[cfg(not(all(any(target_os = "linux", windows), any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn main() {
    println!("there is no CUDA on this system");
}
