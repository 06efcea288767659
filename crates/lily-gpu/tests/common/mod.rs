//! The device that tests of the whole model run on: the emulator, or with `LILY_TEST_DEVICE=cuda` an NVIDIA GPU.

#![allow(dead_code, reason = "each test file uses a part")]

use lily_checkpoint::Weights;
use lily_gpu::device::emulated::Emulated;
use lily_gpu::kernels::{Body, Element};
use lily_gpu::{GpuModel, Options};
use lily_model::{Model, Shape};

/// Whether the tests run on an NVIDIA GPU.
pub fn cuda() -> bool {
    match std::env::var("LILY_TEST_DEVICE").as_deref() {
        Err(_) | Ok("" | "emulated") => false,
        Ok("cuda") => true,
        Ok(other) => panic!("LILY_TEST_DEVICE={other}"),
    }
}

/// The bodies of BF16 products there; the last one is the fastest.
pub fn bodies() -> [Body; 2] {
    [Body::Simdgroup, if cuda() { Body::Mma } else { Body::Tensor }]
}

/// What ships: tensor operations are not on every Mac.
pub fn shipped() -> Body {
    bodies()[usize::from(cuda())]
}

/// The model on the device. Threads of the emulator run in an order that `seed` shuffles.
pub fn model(shape: &Shape, weights: &Weights, element: Element, body: Body, seed: u32) -> Box<dyn Model> {
    model_with(shape, weights, Options { element, body, ..Options::default() }, seed)
}

/// As [`model`].
pub fn model_with(shape: &Shape, weights: &Weights, options: Options, seed: u32) -> Box<dyn Model> {
    #[cfg(target_os = "linux")]
    if cuda() {
        let gpu = lily_gpu::device::cuda::Cuda::open().expect("LILY_TEST_DEVICE=cuda");
        return Box::new(GpuModel::new(gpu, shape, weights, options).expect("the model"));
    }
    let gpu = Emulated::new(2, seed).expect("tests run where the emulator does");
    Box::new(GpuModel::new(gpu, shape, weights, options).expect("the model"))
}
