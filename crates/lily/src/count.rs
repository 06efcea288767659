//! `lily bench --count`: what the GPU program does for a token and for a chunk, counted by the emulator.

use anyhow::Result;

/// Without the emulator nothing counts bytes.
#[cfg(not(feature = "emulated"))]
pub fn count(_chunk: u32) -> Result<()> {
    anyhow::bail!("--count needs the emulator; build with `--features emulated` (x86-64 Linux and a C++ compiler)")
}

/// One linear and one full layer with random weights: a decoded token at two contexts, and a chunk of `chunk` tokens.
#[cfg(feature = "emulated")]
pub fn count(chunk: u32) -> Result<()> {
    use lily_checkpoint::synthetic;
    use lily_gpu::Options;
    use lily_gpu::count::{Count, Minimum};
    use lily_gpu::program::{Choice, Program};
    use lily_model::{LayerKind, Rows, Shape};

    anyhow::ensure!(chunk <= Options::CHUNK, "--prompt-tokens {chunk}: one pass has at most {}", Options::CHUNK);
    let shape = Shape { layers: vec![LayerKind::Linear, LayerKind::Full], ..Shape::qwen3_6_35b_a3b() };
    let checkpoint = synthetic::mlx4_in_memory(&shape, 1)?;
    let gpu = crate::device::emulated()?;
    let mut program = Program::new(gpu, &shape, checkpoint.weights(), Options::default())?;
    println!(
        "Bytes of one linear and one full layer at the dimensions of the 35B model. Weights, cache and state count"
    );
    println!("every load and store of a lane, activations each 128-byte line once a dispatch.");
    for context in [256, 4096] {
        let mut held = program.begin_filled(context, 1)?;
        program.count();
        let step = program.start_step(&mut [&mut held], Some(&[1]), Choice::Greedy { vocab: shape.vocab as u32 })?;
        program.finish_tokens(step)?;
        let count = Count::of(&shape, &program.counted());
        println!("\none token after {context}");
        print!("{}", count.table(&shape, Minimum::Decode(u64::from(context))));
    }
    let tokens: Vec<u32> = (0..u64::from(chunk)).map(|i| (i * 7_919 % shape.vocab as u64) as u32).collect();
    let mut held = program.begin()?;
    program.count();
    program.prefill(&mut held, &tokens, Rows::Last)?;
    let count = Count::of(&shape, &program.counted());
    println!("\na prompt of {chunk} tokens in one pass");
    print!("{}", count.table(&shape, Minimum::Prefill(u64::from(chunk))));
    Ok(())
}
