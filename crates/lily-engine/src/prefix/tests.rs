//! The cache alone, against a list of what was put into it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lily_model::{Shared, Snapshot};

use super::*;

const OWN: u64 = 1000;
const BLOCK_BYTES: u64 = 100;

/// Numbers from a seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// A snapshot that holds its tokens, and shares blocks with all whose tokens begin the same.
fn snapshot(tokens: &[u32], ids: &mut HashMap<Vec<u32>, u64>) -> Snapshot {
    let shared: Vec<_> = (1..=tokens.len() / BLOCK)
        .map(|blocks| {
            let fresh = ids.len() as u64;
            Shared { id: *ids.entry(tokens[..blocks * BLOCK].to_vec()).or_insert(fresh), bytes: BLOCK_BYTES }
        })
        .collect();
    let bytes = OWN + BLOCK_BYTES * shared.len() as u64;
    Snapshot { len: tokens.len(), bytes, shared, state: Arc::new(tokens.to_vec()) }
}

fn tokens_of(hit: &Hit) -> &Vec<u32> {
    hit.snapshot.state.downcast_ref().unwrap()
}

fn cache(bytes: u64, exact: bool) -> PrefixCache {
    PrefixCache::new(PrefixOptions { bytes, exact }).unwrap()
}

fn hit(cache: &mut PrefixCache, prompt: &[u32]) -> usize {
    cache.find(prompt).map_or(0, |hit| hit.snapshot.len)
}

#[test]
fn lengths_around_the_borders_of_blocks() {
    let tokens: Vec<u32> = (0..200).collect();
    for len in [1, 2, 62, 63, 64, 65, 66, 127, 128, 129, 130, 192] {
        let mut cache = cache(1 << 30, false);
        cache.insert(&tokens[..len], snapshot(&tokens[..len], &mut HashMap::new()), true);
        for prompt in 1..200 {
            // At least the last token is computed.
            assert_eq!(hit(&mut cache, &tokens[..prompt]), if prompt > len { len } else { 0 }, "{len} {prompt}");
        }
        for wrong in 0..len {
            let mut other = tokens.clone();
            other[wrong] = 999;
            assert_eq!(hit(&mut cache, &other), 0, "{len}: token {wrong} differs");
        }
        assert_eq!(hit(&mut cache, &[]), 0);
    }
}

#[test]
fn places_to_keep_the_state_at() {
    assert!(cuts(1, &[0]).is_empty());
    assert!(cuts(64, &[]).is_empty());
    assert_eq!(cuts(65, &[]), [64]);
    assert_eq!(cuts(1000, &[0, 63, 64, 130, 190, 700, 1000, 5000]), [64, 128, 640, 960]);
    assert_eq!(cuts(9000, &[]), [4096, 8192, 8960]);
}

#[test]
fn exactness_is_kept_apart_and_improves() {
    let (tokens, mut ids) = ((0..300).collect::<Vec<u32>>(), HashMap::new());
    for exact in [false, true] {
        let mut cache = cache(1 << 30, exact);
        cache.insert(&tokens[..64], snapshot(&tokens[..64], &mut ids), true);
        cache.insert(&tokens[..128], snapshot(&tokens[..128], &mut ids), false);
        assert_eq!(hit(&mut cache, &tokens), if exact { 64 } else { 128 });
        assert_eq!(cache.find(&tokens).unwrap().exact, exact);
        assert!(!cache.wants(&tokens[..128], false), "no second copy, and none that exactness forbids");
        assert!(cache.wants(&tokens[..128], true), "a better one");
        assert_eq!(cache.wants(&tokens[..200], false), !exact);
        cache.insert(&tokens[..128], snapshot(&tokens[..128], &mut ids), true);
        assert!(!cache.wants(&tokens[..128], true));
        assert!(cache.find(&tokens).unwrap().exact);
        assert_eq!(hit(&mut cache, &tokens), 128);
        assert_eq!(cache.bytes(), 2 * OWN + 2 * BLOCK_BYTES);
    }
}

#[test]
fn old_conversations_are_thinned_then_dropped_and_the_newest_goes_last() {
    let mut ids = HashMap::new();
    let mut cache = cache(1 << 30, false);
    let talk = |n: u32| (0..400).map(|i| n * 1000 + i).collect::<Vec<u32>>();
    for n in 0..3 {
        for len in [64, 128, 320] {
            cache.insert(&talk(n)[..len], snapshot(&talk(n)[..len], &mut ids), true);
        }
    }
    // The first is used again.
    assert_eq!(hit(&mut cache, &talk(0)), 320);
    let lengths = |cache: &PrefixCache| {
        let mut all: Vec<(u32, usize)> = cache
            .tree
            .places()
            .iter()
            .map(|p| {
                let s = &cache.tree.get(p.id).snapshot;
                (s.state.downcast_ref::<Vec<u32>>().unwrap()[0] / 1000, s.len)
            })
            .collect();
        all.sort_unstable();
        all
    };
    let mut gone = Vec::new();
    while cache.bytes() > 0 {
        let before = lengths(&cache);
        cache.shrink(cache.bytes() - 1);
        let after = lengths(&cache);
        gone.extend(before.into_iter().filter(|e| !after.contains(e)));
    }
    let thinned = [(1, 64), (1, 128), (2, 64), (2, 128)];
    assert_eq!(gone, [&thinned[..], &[(1, 320), (2, 320), (0, 64), (0, 128), (0, 320)]].concat());
    assert_eq!(cache.tree.nodes(), 1, "only the root is left");
}

#[test]
fn a_fork_outlives_what_lies_between() {
    let mut ids = HashMap::new();
    let mut cache = cache(1 << 30, false);
    let line = |end: u32| (0..64).chain((0..200).map(|i| end + i)).collect::<Vec<u32>>();
    for end in [1000, 2000] {
        for len in [64, 128, 192] {
            cache.insert(&line(end)[..len], snapshot(&line(end)[..len], &mut ids), true);
        }
    }
    cache.insert(&[7], snapshot(&[7], &mut ids), true);
    cache.shrink(cache.bytes() - 2 * OWN);
    assert_eq!(hit(&mut cache, &line(3000)), 64, "the common beginning is there");
    assert_eq!(hit(&mut cache, &line(1000)[..150]), 64, "what lay between is not");
    assert_eq!(hit(&mut cache, &line(1000)), 192);
}

#[test]
fn random_use_agrees_with_a_list() {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let (mut ids, mut list) = (HashMap::new(), BTreeMap::<Vec<u32>, bool>::new());
        let (exact, tight) = (seed % 4 == 1, seed % 2 == 0);
        let budget = if tight { 6000 } else { 1 << 30 };
        let mut cache = cache(budget, exact);
        let mut talks: Vec<Vec<u32>> = vec![Vec::new(); 8];
        let mut hits = 0;
        for _ in 0..150 {
            let n = dice.below(8);
            match dice.below(6) {
                // Talks of few tokens meet again and again.
                0 => talks[n] = talks[dice.below(8)].clone(),
                1 => {
                    let len = talks[n].len();
                    talks[n].truncate(dice.below(len + 1));
                }
                _ => {
                    let (more, token) = (1 + dice.below(100), dice.below(2) as u32);
                    talks[n].extend(std::iter::repeat_n(token, more));
                }
            }
            let talk = &talks[n];
            let found = cache.find(talk);
            if let Some(hit) = &found {
                hits += 1;
                let tokens = tokens_of(hit);
                assert!(talk.starts_with(tokens) && tokens.len() < talk.len() && tokens.len() == hit.snapshot.len);
                assert_eq!(list.get(tokens), Some(&hit.exact));
                assert!(hit.exact || !exact);
            }
            if !tight {
                let best = (0..talk.len()).rev().find(|&l| list.get(&talk[..l]).is_some_and(|&e| e || !exact));
                assert_eq!(found.map(|hit| hit.snapshot.len), best, "seed {seed}");
            }
            let clean = dice.below(3) > 0;
            if cache.wants(talk, clean) {
                cache.make_room();
                cache.insert(talk, snapshot(talk, &mut ids), clean);
                list.insert(talk.clone(), clean);
            }
            // What it says it holds is what its entries hold.
            let kept: Vec<_> = cache.tree.places().iter().map(|p| cache.tree.get(p.id).snapshot.clone()).collect();
            let shared: HashMap<u64, u64> = kept.iter().flat_map(|s| &s.shared).map(|s| (s.id, s.bytes)).collect();
            assert_eq!(cache.bytes(), kept.len() as u64 * OWN + shared.values().sum::<u64>());
            assert!(cache.bytes() <= budget);
        }
        assert!(hits > 20, "seed {seed}: {hits} hits");
    }
}
