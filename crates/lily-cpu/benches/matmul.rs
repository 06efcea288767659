//! Times the products with 4-bit weights on one thread: `cargo bench -p lily-cpu --bench matmul`.
//!
//! Prints GB/s of weights read and G multiply-adds a second for one token (GEMV) up to 512 (GEMM) at the shapes of the
//! full model, so that the threshold between the two and the effect of a change can be read off.

use std::time::Instant;

use lily_cpu::bench::Product;

fn main() {
    println!("{:>6} {:>6} {:>7} {:>6} {:>10} {:>10}", "rows", "cols", "tokens", "kind", "GB/s", "GMAC/s");
    for (rows, cols) in [(8192, 2048), (2048, 4096), (512, 2048), (2048, 512)] {
        for tokens in [1, 2, 3, 4, 5, 8, 16, 64, 512] {
            let mut product = Product::new(rows, cols, tokens);
            for kind in ["gemv", "gemm"] {
                if kind == "gemv" && tokens > 8 {
                    continue;
                }
                let mut best = f64::INFINITY;
                let begin = Instant::now();
                while begin.elapsed().as_millis() < 150 {
                    let start = Instant::now();
                    product.run(kind == "gemm");
                    best = best.min(start.elapsed().as_secs_f64());
                }
                let bytes = product.bytes() as f64 * if kind == "gemv" { tokens as f64 } else { 1.0 };
                println!(
                    "{rows:>6} {cols:>6} {tokens:>7} {kind:>6} {:>10.2} {:>10.2}",
                    bytes / best / 1e9,
                    (rows * cols * tokens) as f64 / best / 1e9
                );
            }
        }
    }
}
