//! With `LILY_TEST_DEVICE=cuda` on a machine with a GPU; the first test everywhere.

use super::*;
use crate::kernels::{CopySlices, View, copy_slices};

fn gpu(graphs: bool) -> Option<Cuda> {
    let wanted = std::env::var("LILY_TEST_DEVICE").is_ok_and(|d| d == "cuda");
    wanted.then(|| Cuda::with(Options { graphs, ..Options::default() }).expect("LILY_TEST_DEVICE=cuda"))
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
