use proptest::prelude::*;

use super::*;
use crate::gpu::Contents;
use crate::testing::{Random, device, floats, output, read_f32, read_u32, run};

fn check(logits: &[f32], vocab: usize, stride: usize, k: usize, seed: u32) {
    let rows = logits.len() / stride;
    let mut gpu = device(seed);
    let buffer = floats(&gpu, logits, Contents::Activations);
    let scratch = rows * top_k_scratch(vocab as u32, k as u32) as usize;
    let (block_values, block_ids) = (output(&gpu, scratch), output(&gpu, scratch));
    let (values, ids) = (output(&gpu, rows * k), output(&gpu, rows * k));
    let t = TopK {
        logits: View::of(&buffer),
        stride: stride as u32,
        vocab: vocab as u32,
        k: k as u32,
        block_values: View::of(&block_values),
        block_ids: View::of(&block_ids),
        values: View::of(&values),
        ids: View::of(&ids),
        rows: rows as u32,
    };
    top_k(&mut gpu, &t).unwrap();
    run(&mut gpu).unwrap();
    let (mut want_values, mut want_ids) = (Vec::new(), Vec::new());
    for row in logits.chunks(stride) {
        let mut order: Vec<usize> = (0..vocab).collect();
        order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap().then(a.cmp(&b)));
        order.truncate(k);
        want_values.extend(order.iter().map(|&i| row[i]));
        want_ids.extend(order.iter().map(|&i| i as u32));
    }
    assert_eq!(read_u32(&gpu, &ids), want_ids);
    assert_eq!(read_f32(&gpu, &values), want_values);
}

#[cfg_attr(sanitized, ignore = "large")]
#[test]
fn the_real_vocabulary_with_its_padding() {
    let mut logits = Random(1).values(248_320, 20.0);
    // The largest values of all stand on ids that do not exist.
    for v in &mut logits[248_077..] {
        *v = 1000.0;
    }
    check(&logits, 248_077, 248_320, 64, 1);
    check(&logits, 248_077, 248_320, 1, 2);
    // All the best in one simdgroup of one block; then a tie for every place.
    for i in 0..64 {
        logits[8192 + i % 32 + 256 * (i / 32)] = 50.0 + (i * 7 % 64) as f32;
    }
    check(&logits, 248_077, 248_320, 64, 3);
    logits.fill(-3.0);
    check(&logits, 248_077, 248_320, 64, 4);
}

#[test]
fn both_sides_of_a_block_and_all_of_a_small_vocabulary() {
    let mut random = Random(5);
    for vocab in [63, 64, 4095, 4096, 4097, 8192] {
        let logits = random.values(2 * (vocab + 3), 10.0);
        check(&logits, vocab, vocab + 3, 63, vocab as u32);
    }
    check(&random.values(64, 1.0), 64, 64, 64, 1);
    check(&[-80.0], 1, 1, 1, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_rows(rows in 1usize..4, vocab in 64usize..13_000, padding in 0usize..70, k in 1usize..65,
                levels in prop::sample::select(vec![1, 2, 50, 1 << 20]), seed in 1u32..) {
        let mut random = Random(u64::from(seed));
        let logits: Vec<f32> = (0..rows * (vocab + padding)).map(|_| random.below(levels) as f32 - 500.0).collect();
        check(&logits, vocab, vocab + padding, k, seed);
    }
}
