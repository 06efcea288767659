//! Times attention over a BF16 cache on one thread: `cargo bench -p lily-cpu --bench attention`.
//!
//! Prints G multiply-adds a second of one key/value head with 256 values, for the rows of a decoded token (4), of a small tile of
//! a prompt (64 = 8 tokens of 8 heads) and for one that fills no quad.

use std::time::Instant;

use lily_cpu::Isa;
use lily_cpu::bench::Attention;

fn main() {
    println!("{:>12} {:>5} {:>8} {:>8}", "", "rows", "context", "GMAC/s");
    for isa in Isa::available() {
        for (rows, context) in [(1, 4096), (4, 4096), (64, 1024), (64, 8192)] {
            let mut attention = Attention::new(isa, rows, context);
            let mut best = f64::INFINITY;
            let begin = Instant::now();
            while begin.elapsed().as_millis() < 300 {
                let start = Instant::now();
                attention.run();
                best = best.min(start.elapsed().as_secs_f64());
            }
            let macs = (2 * 256 * rows * context) as f64;
            println!("{:>12} {rows:>5} {context:>8} {:>8.2}", isa.name(), macs / best / 1e9);
        }
    }
}
