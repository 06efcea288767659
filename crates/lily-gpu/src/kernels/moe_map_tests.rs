use proptest::prelude::*;

use super::*;
use crate::testing::{Random, body, device, output, read_u32, run, words};

fn check(experts: &[u32], count: u32, block: u32, spare: u32, seed: u32) {
    let rows = experts.len();
    let blocks = (rows as u32).div_ceil(block) + count.min(rows as u32) + spare;
    let mut gpu = device(seed);
    let experts_buffer = words(&gpu, experts);
    let order = output(&gpu, rows);
    let [block_expert, block_first, block_end] = [(); 3].map(|()| output(&gpu, blocks as usize));
    let m = MoeMap {
        body: body(),
        experts: View::of(&experts_buffer),
        order: View::of(&order),
        block_expert: View::of(&block_expert),
        block_first: View::of(&block_first),
        block_end: View::of(&block_end),
        rows: rows as u32,
        count,
        block,
        blocks,
    };
    moe_map(&mut gpu, &m).unwrap();
    run(&mut gpu).unwrap();

    let mut want: Vec<u32> = (0..rows as u32).collect();
    want.sort_by_key(|&row| experts[row as usize]); // stable
    assert_eq!(read_u32(&gpu, &order), want);
    let mut map = Vec::new();
    let mut first = 0;
    for expert in 0..count {
        let end = first + experts.iter().filter(|&&e| e == expert).count() as u32;
        while first < end {
            let last = end.min(first + block);
            map.push((expert, first, last));
            first = last;
        }
    }
    assert!(map.len() <= (blocks - spare) as usize);
    map.resize(blocks as usize, (u32::MAX, 0, 0));
    let got = [block_expert, block_first, block_end].map(|b| read_u32(&gpu, &b));
    let got: Vec<_> = (0..blocks as usize).map(|i| (got[0][i], got[1][i], got[2][i])).collect();
    assert_eq!(got, map);
}

/// Distinct experts for each token, as the router chooses them.
fn routed(tokens: usize, count: u32, chosen: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    let mut experts = Vec::new();
    for _ in 0..tokens {
        let mut all: Vec<u32> = (0..count).collect();
        for i in 0..chosen {
            all.swap(i, i + random.below((count as usize - i) as u64) as usize);
            experts.push(all[i]);
        }
    }
    experts
}

#[test]
fn one_token() {
    check(&[200, 0, 255, 3, 4, 5, 100, 31], 256, 32, 0, 1);
    check(&[7], 8, 32, 3, 2);
}

#[test]
fn all_rows_on_one_expert() {
    for expert in [0, 17, 255] {
        check(&vec![expert; 3000], 256, 64, 0, 1);
    }
}

#[test]
fn both_sides_of_a_block() {
    for rows in [31, 32, 33, 64, 65] {
        check(&vec![5; rows], 256, 32, 0, 1);
    }
    // As many rows on each expert, whole blocks and one row over.
    for each in [32, 33] {
        check(&(0..256 * each).map(|i| i % 256).collect::<Vec<_>>(), 256, 32, 5, 2);
    }
}

#[test]
fn a_full_chunk() {
    check(&routed(4096, 256, 8, 3), 256, 64, 0, 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_rows(tokens in 1usize..200, count in 8u32..257, chosen in 1usize..9, block in 1u32..70, seed in 1u32..) {
        check(&routed(tokens, count, chosen, seed.into()), count, block, seed % 3, seed);
    }
}
