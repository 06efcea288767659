use super::*;
use crate::testing::{Random, assert_close, counts, dense, device, output, read_f32, run, share_matrix, words};

/// Every row equals the checkpoint's own expansion, bit for bit up to the fused multiply-add that a compiler may use.
fn check(vocab: usize, cols: usize, bits: usize, tokens: usize, sums: bool) {
    let mut random = Random(1);
    let w = random.matrix(vocab, cols, bits);
    let ids: Vec<u32> = (0..tokens).map(|_| random.below(vocab as u64) as u32).collect();
    let mut gpu = device(7);
    let embed = share_matrix(&gpu, &w);
    let (ids_buffer, out, partials) = (words(&gpu, &ids), output(&gpu, tokens * cols), output(&gpu, tokens));
    let given = sums.then_some(View::of(&partials));
    embed_gather(&mut gpu, &embed, View::of(&ids_buffer), View::of(&out), given, tokens as u32).unwrap();
    let done = run(&mut gpu).unwrap();

    let all = dense(&w);
    let want: Vec<f32> = ids.iter().flat_map(|&id| all[id as usize * cols..][..cols].to_vec()).collect();
    assert_close(&read_f32(&gpu, &out), &want, 1e-7);
    if sums {
        let squares = |row: &[f32]| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() as f32;
        assert_close(&read_f32(&gpu, &partials), &want.chunks(cols).map(squares).collect::<Vec<_>>(), 1e-6);
    }

    // Codes, scales and biases of the rows, each once.
    if !counts() {
        return;
    }
    let weights: u64 = done.dispatches[0].traffic[..3].iter().map(|t| t.bytes()).sum();
    let groups = if bits == 16 { 0 } else { 4 * cols / 64 };
    assert_eq!(weights, (tokens * (cols * bits / 8 + groups)) as u64);
}

#[test]
fn rows_at_real_and_tiny_width() {
    for bits in [4, 8, 16] {
        for sums in [false, true] {
            check(37, 2048, bits, 5, sums);
            check(512, 128, bits, 3, sums);
            check(16, 192, bits, 16, sums);
            // More than one simdgroup, the last one in part.
            check(8, 1088, bits, 2, sums);
        }
    }
}
