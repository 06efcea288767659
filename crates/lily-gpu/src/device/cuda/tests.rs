//! With `LILY_TEST_DEVICE=cuda` on a machine with a GPU; the first test everywhere.

use super::*;
use crate::kernels::{Body, CopySlices, DeviceMatrix, GemvInput, GemvOutput, View, affine_gemv, copy_slices};

fn gpu(graphs: bool) -> Option<Cuda> {
    with(Options { graphs, ..Options::default() })
}

fn with(options: Options) -> Option<Cuda> {
    let wanted = std::env::var("LILY_TEST_DEVICE").is_ok_and(|d| d == "cuda");
    wanted.then(|| Cuda::with(options).expect("LILY_TEST_DEVICE=cuda"))
}

#[test]
fn a_machine_without_cuda_gets_a_sentence() {
    match Cuda::open() {
        Ok(gpu) => assert!(!gpu.name().is_empty()),
        Err(GpuError::Device(text)) => assert!(!text.is_empty()),
        Err(other) => panic!("{other}"),
    }
}

fn bytes(gpu: &Cuda, data: &[u8]) -> Buffer {
    let buffer = gpu.allocate(data.len() as u64, Contents::Activations).unwrap();
    gpu.upload(&buffer, 0, data).unwrap();
    buffer
}

fn read(gpu: &Cuda, buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; gpu.bytes(buffer) as usize];
    gpu.read(buffer, 0, &mut out).unwrap();
    out
}

/// Moves `size` bytes from buffer to buffer, each step after the one before it.
fn chain(gpu: &mut Cuda, buffers: &[&Buffer], size: u64) -> Ticket {
    for pair in buffers.windows(2) {
        let (from, to) = (View::of(pair[0]), View::of(pair[1]));
        copy_slices(gpu, &CopySlices { from, from_stride: 0, to, to_stride: 0, bytes: size, count: 1 }).unwrap();
    }
    gpu.commit().unwrap()
}

/// The same kernels again and again, with other buffers and grids, several command buffers in flight.
#[test]
fn graphs_do_what_single_launches_do() {
    for graphs in [false, true] {
        let Some(mut gpu) = gpu(graphs) else { return };
        let mut tickets = Vec::new();
        for round in 0..6u8 {
            let size = if round % 2 == 0 { 1 << 20 } else { 4096 };
            let data: Vec<u8> = (0..size).map(|i| (i % 251) as u8 ^ round).collect();
            let buffers: Vec<Buffer> =
                std::iter::once(bytes(&gpu, &data)).chain((0..6).map(|_| bytes(&gpu, &vec![0; data.len()]))).collect();
            let ticket = chain(&mut gpu, &buffers.iter().collect::<Vec<_>>(), size);
            tickets.push((ticket, data, buffers[6].clone()));
        }
        for (ticket, data, last) in tickets {
            let done = gpu.wait(ticket).unwrap();
            assert_eq!(done.dispatches.len(), 6);
            assert!(done.gpu_time.is_some_and(|t| !t.is_zero()));
            assert!(read(&gpu, &last) == data, "graphs: {graphs}");
        }
    }
}

/// Products each of which needs all of the one before, in graphs whose kernels begin early and in others.
#[test]
fn kernels_that_overlap_wait_for_one_another() {
    const SIZE: usize = 2048;
    let mut all: Vec<Vec<u8>> = Vec::new();
    for (graphs, overlap) in [(false, false), (true, false), (true, true)] {
        let Some(mut gpu) = with(Options { graphs, overlap, ..Options::default() }) else { return };
        let mut state = 1u64;
        let mut random = |bytes: usize| -> Vec<u8> {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u8
            };
            (0..bytes).map(|_| next()).collect()
        };
        // Codes times 1/256 minus 7.5/256: a product keeps the size of what it is given.
        let matrices: Vec<DeviceMatrix<Buffer>> = (0..5)
            .map(|_| DeviceMatrix {
                rows: SIZE as u32,
                cols: SIZE as u32,
                bits: 4,
                codes: bytes(&gpu, &random(SIZE * SIZE / 2)),
                scales: bytes(&gpu, &[0x80u8, 0x3b].repeat(SIZE * SIZE / 64)),
                biases: bytes(&gpu, &[0xf0u8, 0xbc].repeat(SIZE * SIZE / 64)),
            })
            .collect();
        let from: Vec<u8> = random(SIZE).iter().flat_map(|&b| (f32::from(b) / 128.0 - 1.0).to_ne_bytes()).collect();
        let rows: Vec<Buffer> = (0..2).map(|_| bytes(&gpu, &from)).collect();
        for _ in 0..6 {
            for i in 0..30 {
                let (x, y) = (View::of(&rows[i % 2]), View::of(&rows[1 - i % 2]));
                let (input, output) =
                    (GemvInput::Rows { x, stride: SIZE as u32 }, GemvOutput::Rows { y, stride: SIZE as u32 });
                affine_gemv(&mut gpu, Body::Mma, &[&matrices[i % 5]], &input, &output, 1).unwrap();
            }
            let ticket = gpu.commit().unwrap();
            gpu.wait(ticket).unwrap();
            all.push(read(&gpu, &rows[0]));
        }
    }
    assert!(all[0].iter().any(|b| *b != 0) && all[0] != all[1]);
    let first = &all[..6];
    assert!(all.chunks(6).all(|c| c == first), "the same bits in each way");
}

/// Buffers may be dropped as soon as the commands are encoded.
#[test]
fn commands_keep_their_buffers() {
    let Some(mut gpu) = gpu(true) else { return };
    let out = bytes(&gpu, &[0; 4096]);
    for round in 0..4 {
        let data = vec![round + 1; 4096];
        let (from, middle) = (bytes(&gpu, &data), bytes(&gpu, &[0; 4096]));
        let size = 4096;
        let slices = |from, to| CopySlices { from, from_stride: 0, to, to_stride: 0, bytes: size, count: 1 };
        copy_slices(&mut gpu, &slices(View::of(&from), View::of(&middle))).unwrap();
        copy_slices(&mut gpu, &slices(View::of(&middle), View::of(&out))).unwrap();
        drop((from, middle));
        let others: Vec<Buffer> = (0..8).map(|_| bytes(&gpu, &[99; 4096])).collect();
        let ticket = gpu.commit().unwrap();
        drop(others);
        gpu.wait(ticket).unwrap();
        assert_eq!(read(&gpu, &out), data);
    }
}

#[test]
fn what_is_shared_is_read_only() {
    let Some(mut gpu) = gpu(true) else { return };
    let shared = gpu.share(&Bytes::new(vec![7u8; 64]), Contents::Weights).unwrap();
    assert_eq!(read(&gpu, &shared), [7; 64]);
    assert!(gpu.upload(&shared, 0, &[1]).unwrap_err().to_string().contains("read-only"));
    let from = bytes(&gpu, &[0; 64]);
    let slices =
        CopySlices { from: View::of(&from), from_stride: 0, to: View::of(&shared), to_stride: 0, bytes: 64, count: 1 };
    assert!(copy_slices(&mut gpu, &slices).unwrap_err().to_string().contains("is written, but shared"));
}

#[test]
fn too_much_memory_is_refused() {
    let Some(gpu) = gpu(true) else { return };
    assert!(matches!(gpu.allocate(1 << 50, Contents::Cache), Err(GpuError::Memory(_))));
    let (free, all) = gpu.memory().unwrap();
    assert!(free > 0 && free <= all && gpu.uuid().unwrap().len() == 36);
}
