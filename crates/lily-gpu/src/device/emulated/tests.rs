//! The emulator stops what a GPU would get wrong in silence.

use super::*;
use crate::args::STRUCTS;
use crate::kernels::{NormOutputs, RmsNorm, View, rms_norm};
use crate::testing::{floats, output, read_f32, read_u32, run, words};

fn device(seed: u32) -> Emulated {
    Emulated::new(1, seed).unwrap()
}

/// Runs a faulty kernel with 64 threads on 64 values.
fn faulty(kernel: &str, seed: u32) -> Result<Vec<u32>, GpuError> {
    let mut gpu = device(seed);
    let (input, out) = (words(&gpu, &(100..164).collect::<Vec<u32>>()), output(&gpu, 64));
    gpu.encode(&Launch {
        kernel,
        constants: &[("FAULTY_CONSTANT", 5)],
        args: &[Arg::Buffer(&input, 0), Arg::Buffer(&out, 0)],
        groups: [if kernel == "faulty_shared_word" { 2 } else { 1 }, 1, 1],
        threads: [64, 1, 1],
    })?;
    run(&mut gpu)?;
    Ok(read_u32(&gpu, &out))
}

#[track_caller]
fn stops(kernel: &str, with: &str) {
    for seed in [0, 3] {
        let text = faulty(kernel, seed).expect_err("a fault").to_string();
        assert!(text.contains(with) && text.contains(kernel), "{text}");
    }
    // A dispatch that was stopped leaves nothing behind.
    assert_eq!(faulty("faulty_none", 0).unwrap(), (105..169).collect::<Vec<u32>>());
}

#[test]
fn function_constants_reach_the_kernel() {
    assert_eq!(faulty("faulty_none", 1).unwrap()[63], 168);
}

#[test]
fn accesses_outside_a_buffer() {
    stops("faulty_load_past_the_end", "load of 4 bytes at byte 256 of `in` (256 bytes): out of bounds");
    stops("faulty_store_before_the_start", "store of 4 bytes at byte -4 of `out`");
}

#[test]
fn misaligned_vectors() {
    stops("faulty_alignment", "load of 16 bytes at byte 4 of `in` (256 bytes): misaligned");
}

#[test]
fn divergence() {
    stops("faulty_barrier_in_a_branch", "");
    stops("faulty_sum_in_a_branch", "simdgroup operation");
    stops("faulty_return_before_a_barrier", "");
}

#[test]
fn threadgroup_memory_over_32_kib() {
    stops("faulty_threadgroup_memory", "more than 32 KiB");
}

#[test]
fn unwritten_threadgroup_memory_is_nan() {
    assert!(faulty("faulty_unwritten", 0).unwrap().iter().all(|&v| f32::from_bits(v).is_nan()));
}

// Faults that only a sanitizer sees: the tests hold for results, and tests/gpu/sanitize.sh asks for the report.

#[test]
fn sanitizer_a_missing_barrier_shows_in_a_shuffled_order() {
    let want: Vec<u32> = (0..64).map(|i| if i > 0 { 99 + i } else { 0 }).collect();
    assert_eq!(faulty("faulty_missing_barrier", 0).unwrap(), want);
    assert!((1..5).any(|seed| faulty("faulty_missing_barrier", seed).unwrap() != want));
}

#[test]
fn sanitizer_two_threadgroups_write_one_word() {
    assert_eq!(faulty("faulty_shared_word", 1).unwrap()[0], 100);
}

#[test]
fn sanitizer_an_index_past_a_threadgroup_array() {
    assert_eq!(faulty("faulty_array_index", 0).unwrap()[1..], (100..163).collect::<Vec<u32>>());
}

#[test]
fn structs_have_one_layout() {
    let cpp: Vec<_> = ffi::layouts().collect();
    let rust: Vec<_> = STRUCTS.iter().flat_map(|s| s.fields.iter().map(|f| (s.name, f.0, f.2, s.size))).collect();
    assert_eq!(cpp, rust);
}

/// The same bits for any order of threads and any number of workers.
#[test]
fn results_do_not_depend_on_the_schedule() {
    let x: Vec<f32> = (0..6 * 256).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.1).collect();
    let norm = |workers, seed| {
        let mut gpu = Emulated::new(workers, seed).unwrap();
        let (x, w) = (floats(&gpu, &x, Contents::Activations), floats(&gpu, &[1.5; 256], Contents::Weights));
        let y = output(&gpu, 6 * 256);
        let n = RmsNorm {
            x: View::of(&x),
            delta: None,
            weight: View::of(&w),
            outputs: NormOutputs { exact: Some(View::of(&y)), rounded: None },
            rows: 6,
            width: 256,
            eps: 1e-6,
        };
        rms_norm(&mut gpu, &n).unwrap();
        let done = run(&mut gpu).unwrap();
        (read_f32(&gpu, &y), done.dispatches[0].traffic.clone())
    };
    let one = norm(1, 0);
    assert_eq!(one.1[2].loaded, 6 * 1024, "each row loads the weights once");
    assert_eq!((one.1[3].stored, one.1[3].lines_stored), (6 * 1024, 6 * 1024));
    for (workers, seed) in [(1, 1), (1, 2), (2, 0), (3, 9)] {
        assert_eq!(norm(workers, seed), one);
    }
}

#[test]
fn commands_run_when_they_are_waited_for_in_order() {
    let mut gpu = device(1);
    let buffer = words(&gpu, &[1; 64]);
    let add = |gpu: &mut Emulated| {
        gpu.encode(&Launch {
            kernel: "faulty_none",
            constants: &[("FAULTY_CONSTANT", 1)],
            args: &[Arg::Buffer(&buffer, 0), Arg::Buffer(&buffer, 0)],
            groups: [2, 1, 1],
            threads: [32, 1, 1],
        })
        .unwrap();
        gpu.commit().unwrap()
    };
    let (first, second) = (add(&mut gpu), add(&mut gpu));
    assert_eq!(read_u32(&gpu, &buffer), [1; 64]);
    assert_eq!(gpu.wait(first).unwrap().dispatches.len(), 1);
    assert_eq!(read_u32(&gpu, &buffer), [2; 64]);
    gpu.wait(second).unwrap();
    assert_eq!(read_u32(&gpu, &buffer), [3; 64]);
}

/// 64-bit offsets, without the memory: pages that nobody touches do not exist.
#[test]
fn places_past_4_gib_of_a_buffer() {
    let mut gpu = device(1);
    let far = (4 << 30) + 4096;
    let large = gpu.allocate(6 << 30, Contents::Cache).unwrap();
    let input = words(&gpu, &(0..64).collect::<Vec<u32>>());
    gpu.encode(&Launch {
        kernel: "faulty_none",
        constants: &[],
        args: &[Arg::Buffer(&input, 0), Arg::Buffer(&large, far)],
        groups: [1, 1, 1],
        threads: [64, 1, 1],
    })
    .unwrap();
    run(&mut gpu).unwrap();
    let mut out = [0; 256];
    gpu.read(&large, far, &mut out).unwrap();
    assert_eq!(out[252..], 63u32.to_ne_bytes());
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let mut gpu = device(1);
    let buffer = words(&gpu, &[0; 64]);
    let host = gpu.share(&Bytes::new(vec![0u8; 256]), Contents::Weights).unwrap();
    let b = Arg::Buffer(&buffer, 0);
    let mut refused = |kernel: &str, constants: &[(&str, u32)], args: &[Arg<'_, Buffer>], threads: u32, with: &str| {
        let launch = Launch { kernel, constants, args, groups: [1, 1, 1], threads: [threads, 1, 1] };
        let text = gpu.encode(&launch).expect_err(with).to_string();
        assert!(text.contains(with), "{text}");
    };
    refused("no_such", &[], &[], 32, "not in the shader source");
    refused("faulty_none", &[("NO_SUCH", 1)], &[b, b], 32, "no function constant NO_SUCH");
    refused("faulty_none", &[], &[b], 32, "1 arguments given, 2 wanted");
    refused("faulty_none", &[], &[b, Arg::Value(&[0; 4])], 32, "`out` is a buffer, a value is given");
    refused("faulty_none", &[], &[b, Arg::Buffer(&buffer, 256)], 32, "`out` begins at 256");
    refused("faulty_none", &[], &[b, b], 1025, "1025 threads");
    refused("rms_norm", &[], &[b, b, b, b, b, Arg::Value(&[0; 4])], 256, "`args` is a NormArgs, 4 bytes given");
    refused("rms_norm", &[], &[b, b, b, b, b, Arg::Value(&[0; 16])], 512, "1 to 256 wanted");
    if matches!(&*host.memory, Memory::Host(_)) {
        refused("faulty_none", &[], &[b, Arg::Buffer(&host, 0)], 32, "`out` is written, but shared");
    }
}
