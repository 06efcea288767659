use super::*;
use crate::gpu::Contents;
use crate::testing::{Random, bytes, counts, device, run};

fn check(size: u64, (from, from_stride): (u64, u64), (to, to_stride): (u64, u64), count: u32) {
    let mut random = Random(size);
    let mut fresh = |n: u64| (0..n).map(|_| random.bits() as u8).collect::<Vec<_>>();
    let last = u64::from(count - 1);
    let (source, before) = (fresh(from + last * from_stride + size), fresh(to + last * to_stride + size + 64));
    let mut gpu = device(3);
    let (source_buffer, target) = (bytes(&gpu, &source, Contents::State), bytes(&gpu, &before, Contents::State));
    let c = CopySlices {
        from: View::at(&source_buffer, from),
        from_stride,
        to: View::at(&target, to),
        to_stride,
        bytes: size,
        count,
    };
    copy_slices(&mut gpu, &c).unwrap();
    let done = run(&mut gpu).unwrap();

    let mut want = before;
    for i in 0..u64::from(count) {
        let (a, b) = ((from + i * from_stride) as usize, (to + i * to_stride) as usize);
        want[b..b + size as usize].copy_from_slice(&source[a..a + size as usize]);
    }
    let mut got = vec![0; want.len()];
    gpu.read(&target, 0, &mut got).unwrap();
    assert!(got == want, "{count} slices of {size} bytes");
    if !counts() {
        return;
    }
    let traffic = &done.dispatches[0].traffic;
    assert_eq!((traffic[0].loaded, traffic[1].stored), (size * u64::from(count), size * u64::from(count)));
}

#[test]
fn one_slice_on_both_sides_of_a_threadgroup() {
    for words in [1, 255, 256, 257, 1023, 1024, 1025, 5000] {
        check(16 * words, (32, 0), (160, 0), 1);
    }
}

#[test]
fn spaced_slices() {
    check(48, (0, 96), (16, 48), 7);
    check(20_000, (160, 20_480), (0, 40_000), 3);
    // One source for all.
    check(256, (0, 0), (0, 256), 5);
}

/// A slot of a pool to another slot of it, in each of three layers.
#[test]
fn inside_one_buffer() {
    let (slot, layer) = (64u64, 64 * 5);
    let data: Vec<u8> = (0..3 * layer).map(|i| (i / slot) as u8).collect();
    let mut gpu = device(1);
    let pool = bytes(&gpu, &data, Contents::State);
    let (from, to) = (View::at(&pool, slot), View::at(&pool, 4 * slot));
    let c = CopySlices { from, from_stride: layer, to, to_stride: layer, bytes: slot, count: 3 };
    copy_slices(&mut gpu, &c).unwrap();
    run(&mut gpu).unwrap();
    let mut got = vec![0; data.len()];
    gpu.read(&pool, 0, &mut got).unwrap();
    let slots: Vec<u8> = got.chunks(slot as usize).map(|s| s[0]).collect();
    assert_eq!(slots, [0, 1, 2, 3, 1, 5, 6, 7, 8, 6, 10, 11, 12, 13, 11]);
}

#[test]
#[should_panic(expected = "24 bytes")]
fn bytes_that_are_not_words() {
    check(24, (0, 0), (0, 0), 1);
}
