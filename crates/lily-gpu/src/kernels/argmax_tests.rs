use proptest::prelude::*;

use super::*;
use crate::gpu::Contents;
use crate::testing::{Random, device, floats, output, read_u32, run};

fn check(logits: &[f32], vocab: usize, stride: usize, seed: u32) {
    let rows = logits.len() / stride;
    let mut gpu = device(seed);
    let buffer = floats(&gpu, logits, Contents::Activations);
    let scratch = rows * ARGMAX_BLOCKS as usize;
    let (values, indices, tokens) = (output(&gpu, scratch), output(&gpu, 2 * scratch), output(&gpu, 2 * rows));
    let a = Argmax {
        logits: View::of(&buffer),
        stride: stride as u32,
        vocab: vocab as u32,
        block_values: View::of(&values),
        block_indices: View::of(&indices),
        tokens: View::of(&tokens),
        rows: rows as u32,
    };
    argmax(&mut gpu, &a).unwrap();
    run(&mut gpu).unwrap();
    let got = read_u32(&gpu, &tokens);
    for (r, row) in logits.chunks_exact(stride).enumerate() {
        let broken = row[..vocab].iter().position(|v| v.is_nan() || *v == f32::INFINITY);
        assert_eq!(got[rows + r], broken.map_or(NO_TOKEN, |i| i as u32), "row {r}");
        if broken.is_some() {
            assert!((got[r] as usize) < vocab, "row {r}");
            continue;
        }
        let top = row[..vocab].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(Some(got[r] as usize), row.iter().position(|&v| v == top), "row {r}");
    }
}

/// A NaN or +∞ is found wherever it stands, the first one of the row, and not among the padding; -∞ is no error.
#[test]
fn logits_that_are_no_numbers() {
    let (vocab, stride) = (3001, 3010);
    for (seed, bad) in [f32::NAN, -f32::NAN, f32::INFINITY].into_iter().enumerate() {
        let mut logits = Random(7).values(5 * stride, 20.0);
        logits[stride + 2000] = bad;
        logits[stride + 2001] = f32::NAN;
        logits[2 * stride] = bad;
        logits[3 * stride + vocab - 1] = bad;
        logits[4 * stride + vocab] = bad;
        logits[4 * stride + 17] = f32::NEG_INFINITY;
        check(&logits, vocab, stride, seed as u32 + 1);
    }
    check(&[f32::NAN; 300], 300, 300, 4);
    check(&[f32::NEG_INFINITY; 300], 300, 300, 5);
}

#[test]
fn the_real_vocabulary_with_its_padding() {
    let mut logits = Random(1).values(248_320, 20.0);
    // The largest values of all stand on ids that do not exist.
    for v in &mut logits[248_077..] {
        *v = 1000.0;
    }
    check(&logits, 248_077, 248_320, 1);
    // The last id that exists, and a tie with it far before.
    logits[248_076] = 999.0;
    check(&logits, 248_077, 248_320, 2);
    logits[5] = 999.0;
    check(&logits, 248_077, 248_320, 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_rows(rows in 1usize..4, vocab in 1usize..3000, padding in 0usize..70, levels in 1u64..1000, seed in 1u32..) {
        let mut random = Random(u64::from(seed));
        let logits: Vec<f32> = (0..rows * (vocab + padding)).map(|_| random.below(levels) as f32 - 500.0).collect();
        check(&logits, vocab, vocab + padding, seed);
    }
}
