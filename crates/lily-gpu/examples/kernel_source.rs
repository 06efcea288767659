//! Prints the kernels for another compiler, for the scripts in `tests/gpu`: `kernel_source metal|strict|cuda|cuda-mma|cuda-ablate`.

use lily_gpu::msl::Program;
use lily_gpu::{ablate_source, mma_source, program, source};

fn main() {
    let form = std::env::args().nth(1).unwrap_or_default();
    let text = match form.as_str() {
        "metal" => Ok(source()),
        "strict" => program().strict(),
        // Tensor operations are Metal's alone.
        "cuda" => Program::parse(&source(), &["LILY_CUDA"]).and_then(|program| program.cuda()),
        "cuda-mma" => Program::parse(&mma_source(), &["LILY_CUDA"]).and_then(|program| program.cuda()),
        "cuda-ablate" => Program::parse(&ablate_source(), &["LILY_CUDA"]).and_then(|program| program.cuda()),
        _ => {
            eprintln!("usage: kernel_source metal|strict|cuda|cuda-mma|cuda-ablate");
            std::process::exit(2);
        }
    };
    match text {
        Ok(text) => print!("{text}"),
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
}
