use lily_checkpoint::synthetic::{SeededWeights, Stream, full_shape, mlx4_in_memory};
use lily_checkpoint::{Bytes, Matrix};
use lily_model::Shape;

use super::*;
use crate::gpu::Contents;
use crate::kernels::DeviceMatrix;
use crate::testing::{TestGpu, bytes, device, run};

fn check(numbers: Numbers, first: u64, words: u64) {
    let mut gpu = device(2);
    let out = bytes(&gpu, &vec![0xEE; 8 * words as usize + 24], Contents::Weights);
    random_fill(&mut gpu, &RandomFill { numbers, first, out: View::at(&out, 8), words }).unwrap();
    run(&mut gpu).unwrap();
    let mut got = vec![0; 8 * words as usize + 24];
    gpu.read(&out, 0, &mut got).unwrap();
    let word = |i: u64| match numbers {
        Numbers::Bits(stream) => stream.get(i),
        Numbers::Scales { stream, step, factor } => {
            use lily_checkpoint::synthetic::{bf16_bits, bf16_round};
            let value = |j: u64| bf16_bits(factor * bf16_round(step * stream.uniform(4 * i + j, 0.75, 1.25)));
            (0..4).map(|j| u64::from(value(j)) << (16 * j)).sum()
        }
    };
    let mut want = vec![0xEE; 8];
    want.extend((first..first + words).flat_map(|i| word(i).to_le_bytes()));
    want.extend([0xEE; 16]);
    assert!(got == want, "{numbers:?}: {words} words from {first}");
}

#[test]
fn words_on_both_sides_of_a_threadgroup() {
    let stream = Stream::new(7, "a");
    for words in [1, 255, 1024, 1025, 3000] {
        check(Numbers::Bits(stream), 0, words);
        check(Numbers::Scales { stream, step: 0.0123, factor: 1.0 }, 0, words);
    }
    // From the middle of a tensor, beyond 32 bits too.
    check(Numbers::Bits(stream), (1 << 33) + 5, 70);
    check(Numbers::Scales { stream, step: 3e-4, factor: -127.5 }, (1 << 31) + 1, 70);
}

fn read(gpu: &TestGpu, buffer: &<TestGpu as Gpu>::Buffer) -> Vec<u8> {
    let mut out = vec![0; gpu.bytes(buffer) as usize];
    gpu.read(buffer, 0, &mut out).unwrap();
    out
}

/// What the device makes is what the file holds, whether the kernel makes it or the host has it already.
#[test]
fn matrices_are_those_of_the_file() {
    let shape = Shape { vocab: 256, hidden: 128, experts: 8, expert_width: 64, shared_width: 64, ..full_shape(4) };
    let file = mlx4_in_memory(&shape, 1).unwrap();
    let seeded = SeededWeights::new(&shape, 1);
    let of = |w: &lily_checkpoint::Weights| {
        let moe = &w.layers[3].moe;
        // The last one's scales are no whole words.
        [w.lm_head.clone(), moe.router.clone(), moe.down.stacked().unwrap(), moe.shared_expert_gate.clone()]
    };
    let mut gpu = device(1);
    for (i, (seeded, want)) in of(&seeded.weights).iter().zip(of(file.weights())).enumerate() {
        let placed = DeviceMatrix::place(&mut gpu, seeded).unwrap();
        let encoded = gpu.encoded();
        assert_eq!(encoded, if i == 3 { 1 } else { 3 });
        run(&mut gpu).unwrap();
        let Matrix::Affine(want) = want else { panic!("not quantised") };
        assert_eq!((placed.rows, placed.cols, placed.bits), (want.rows as u32, want.cols as u32, want.bits as u32));
        let same = |buffer, want: &Bytes| read(&gpu, buffer) == want[..];
        assert!(same(&placed.codes, &want.codes), "codes of matrix {i}");
        assert!(same(&placed.scales, &want.scales), "scales of matrix {i}");
        assert!(same(&placed.biases, &want.biases), "biases of matrix {i}");
    }
}
