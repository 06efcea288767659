//! Times the products with 4-bit weights on one thread: `cargo bench -p lily-cpu --bench matmul`.
//!
//! Prints GB/s of weights read and G multiply-adds a second for one token (GEMV) up to 512 (GEMM) at the shapes of the
//! full model, so that the threshold between the two and the effect of a change can be read off.

use std::time::Instant;

use lily_cpu::Isa;
use lily_cpu::bench::Product;

fn main() {
    println!("{:>12} {:>6} {:>6} {:>7} {:>5} {:>8} {:>8}", "", "rows", "cols", "tokens", "kind", "GB/s", "GMAC/s");
    for isa in Isa::available() {
        for (rows, cols) in [(8192, 2048), (2048, 4096), (512, 2048), (2048, 512)] {
            for tokens in [1, 2, 3, 4, 8, 16, 64, 512] {
                for gemm in [false, true] {
                    if gemm || tokens <= 8 {
                        measure(isa, rows, cols, tokens, gemm);
                    }
                }
            }
        }
    }
}

fn measure(isa: Isa, rows: usize, cols: usize, tokens: usize, gemm: bool) {
    let mut product = Product::new(isa, rows, cols, tokens);
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    while begin.elapsed().as_millis() < 100 {
        let start = Instant::now();
        product.run(gemm);
        best = best.min(start.elapsed().as_secs_f64());
    }
    let bytes = product.bytes() as f64 * if gemm { 1.0 } else { tokens as f64 };
    let (kind, macs) = (if gemm { "gemm" } else { "gemv" }, (rows * cols * tokens) as f64);
    let (name, gb, gmac) = (isa.name(), bytes / best / 1e9, macs / best / 1e9);
    println!("{name:>12} {rows:>6} {cols:>6} {tokens:>7} {kind:>5} {gb:>8.2} {gmac:>8.2}");
}
