use super::*;
use crate::testing::{Random, assert_close, device, output, read_f32, run, share, words};

/// Every row equals the checkpoint's own expansion, bit for bit up to the fused multiply-add that a compiler may use.
#[test]
fn rows_at_real_and_tiny_width() {
    let mut random = Random(1);
    for (vocab, cols, tokens) in [(37, 2048, 5), (512, 128, 3), (16, 192, 16)] {
        let w = random.affine(vocab, cols, 4);
        let ids: Vec<u32> = (0..tokens).map(|_| random.below(vocab as u64) as u32).collect();
        let mut gpu = device(7);
        let embed = share(&gpu, &w);
        let (ids_buffer, out) = (words(&gpu, &ids), output(&gpu, tokens * cols));
        embed_gather(&mut gpu, &embed, View::of(&ids_buffer), View::of(&out), tokens as u32).unwrap();
        let done = run(&mut gpu).unwrap();

        let all = lily_checkpoint::quant::dequantize(&w);
        let want: Vec<f32> = ids.iter().flat_map(|&id| all[id as usize * cols..][..cols].to_vec()).collect();
        assert_close(&read_f32(&gpu, &out), &want, 1e-7);

        // Codes, scales and biases of the rows, each once.
        let weights: u64 = done.dispatches[0].traffic[..3].iter().map(|t| t.bytes()).sum();
        assert_eq!(weights, (tokens * (cols / 2 + 4 * cols / 64)) as u64);
    }
}
