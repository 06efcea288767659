//! Whether a device keeps the operands of tensor operations where the kernels with [`super::Body::Tensor`] expect them.

use super::{AffineGemm, Body, DeviceMatrix, Element, View, affine_gemm};
use crate::gpu::{Contents, Gpu, GpuError, Launch};

const LANES: u32 = 32;
/// Elements that a lane holds of the left operand, the right one and the destination.
const ELEMENTS: [u32; 3] = [8, 16, 16];
/// Two indices for each of a lane's elements.
const VALUES: u32 = 2 * (ELEMENTS[0] + ELEMENTS[1] + ELEMENTS[2]);

/// Runs `layout_tensor` in a command buffer of its own; nothing else may be encoded.
///
/// # Errors
/// Of the device.
pub fn tensor_layout<G: Gpu>(gpu: &mut G) -> Result<bool, GpuError> {
    let bytes = 4 * LANES * VALUES;
    let out = gpu.allocate(bytes.into(), Contents::Activations)?;
    gpu.encode(&Launch {
        kernel: "layout_tensor",
        constants: &[],
        args: &[View::of(&out).arg()],
        groups: [1, 1, 1],
        threads: [LANES, 1, 1],
    })?;
    let ticket = gpu.commit()?;
    let _ = gpu.wait(ticket)?;
    let mut found = vec![0; bytes as usize];
    gpu.read(&out, 0, &mut found)?;
    Ok(found == expected())
}

/// Whether a small product comes out the same by both bodies, up to the rounding of sums. Runs in command buffers of its own;
/// nothing else may be encoded.
///
/// # Errors
/// Of the device.
pub fn tensor_parity<G: Gpu>(gpu: &mut G) -> Result<bool, GpuError> {
    const ROWS: u32 = 19;
    const COLUMNS: u32 = 128;
    const OUTPUTS: u32 = 70;
    // Small numbers of both signs in no simple order, exact in BF16.
    let number = |i: u32| ((i.wrapping_mul(2_654_435_761) >> 24) as f32 - 128.0) / 64.0;
    let bf16 = |values: &mut dyn Iterator<Item = f32>| -> Vec<u8> {
        values.flat_map(|v| ((v.to_bits() >> 16) as u16).to_ne_bytes()).collect()
    };
    let place = |bytes: &[u8], contents| -> Result<G::Buffer, GpuError> {
        let buffer = gpu.allocate(bytes.len() as u64, contents)?;
        gpu.upload(&buffer, 0, bytes)?;
        Ok(buffer)
    };
    let groups = OUTPUTS * COLUMNS / 64;
    let codes: Vec<u8> = (0..OUTPUTS * COLUMNS / 2).map(|i| (i.wrapping_mul(2_246_822_519) >> 24) as u8).collect();
    let x = place(&bf16(&mut (0..ROWS * COLUMNS).map(number)), Contents::Activations)?;
    let matrix = DeviceMatrix {
        rows: OUTPUTS,
        cols: COLUMNS,
        bits: 4,
        codes: place(&codes, Contents::Weights)?,
        scales: place(&bf16(&mut (0..groups).map(|i| number(i + 7))), Contents::Weights)?,
        biases: place(&bf16(&mut (0..groups).map(|i| number(i + 99))), Contents::Weights)?,
    };
    let mut product = |body| -> Result<Vec<f32>, GpuError> {
        let y = gpu.allocate(u64::from(4 * ROWS * OUTPUTS), Contents::Activations)?;
        let a = AffineGemm {
            body,
            matrices: &[&matrix],
            x: View::of(&x),
            element: Element::Bf16,
            y: View::of(&y),
            rows: ROWS,
            x_stride: COLUMNS,
            y_stride: OUTPUTS,
        };
        affine_gemm(gpu, &a)?;
        let ticket = gpu.commit()?;
        let _ = gpu.wait(ticket)?;
        let mut out = vec![0; (4 * ROWS * OUTPUTS) as usize];
        gpu.read(&y, 0, &mut out)?;
        Ok(out.as_chunks().0.iter().map(|c| f32::from_ne_bytes(*c)).collect())
    };
    let (want, got) = (product(Body::Simdgroup)?, product(Body::Tensor)?);
    let largest = want.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    Ok(largest > 0.0 && want.iter().zip(&got).all(|(w, g)| (w - g).abs() <= 1e-5 * largest))
}

/// The indices as `product_tensor.metal` assumes them, innermost first.
fn expected() -> Vec<u8> {
    let mut out = Vec::new();
    for lane in 0..LANES {
        let (row, column) = ((lane & 16) >> 2 | lane >> 1 & 3, (lane & 8) | (lane & 1) << 2);
        for (operand, count) in ELEMENTS.into_iter().enumerate() {
            for e in 0..count {
                let (row, column, second) = (row + e % 8 / 4 * 8, column + e % 4, e / 8 * 16);
                // The right operand's second half is 16 rows of W on, the destination's 16 columns.
                let index = if operand == 1 { [column, row + second] } else { [column + second, row] };
                out.extend(index.into_iter().flat_map(u32::to_ne_bytes));
            }
        }
    }
    out
}

#[cfg(all(test, feature = "emulated"))]
mod tests {
    use super::*;
    use crate::msl::Program;

    #[test]
    fn the_emulator_has_the_layout() {
        if !crate::testing::counts() {
            println!("skipped: tensor operations are not CUDA's");
            return;
        }
        assert!(tensor_layout(&mut crate::testing::device(1)).unwrap());
    }

    #[test]
    fn both_bodies_give_one_product() {
        if !crate::testing::counts() {
            println!("skipped: tensor operations are not CUDA's");
            return;
        }
        assert!(tensor_parity(&mut crate::testing::device(1)).unwrap());
    }

    /// Each element of the three operands is in one lane.
    #[test]
    fn the_layout_is_a_whole_one() {
        let words: Vec<u32> = expected().chunks_exact(4).map(|c| u32::from_ne_bytes(c.try_into().unwrap())).collect();
        for (first, count, size) in [(0, 8, [16, 16]), (16, 16, [16, 32]), (48, 16, [32, 16])] {
            let mut seen = vec![0; size[0] * size[1]];
            for lane in words.chunks_exact(VALUES as usize) {
                for index in lane[first..first + 2 * count].chunks_exact(2) {
                    seen[index[1] as usize * size[0] + index[0] as usize] += 1;
                }
            }
            assert!(seen.iter().all(|&n| n == 1), "{first}: {seen:?}");
        }
    }

    /// Metal compiles the texts apart: each must be whole, and hold its kernels only.
    #[test]
    fn libraries_share_no_kernel() {
        let of = |text: &str| Program::parse(text, &[]).unwrap();
        let (first, second, ablate) = (of(&crate::source()), of(&crate::tensor_source()), of(&crate::ablate_source()));
        assert!(first.kernels().iter().all(|k| !crate::is_tensor(&k.name) && !crate::is_ablate(&k.name)));
        assert!(second.kernels().iter().all(|k| crate::is_tensor(&k.name)));
        assert!(ablate.kernels().iter().all(|k| crate::is_ablate(&k.name)));
        let kernels: usize = [&first, &second, &ablate].iter().map(|p| p.kernels().len()).sum();
        assert_eq!(kernels, crate::program().kernels().len());
        // A tensor kernel takes its twin's arguments.
        for k in second.kernels().iter().filter(|k| k.name != "layout_tensor") {
            let twin = first.kernel(k.name.trim_end_matches("_tensor")).unwrap();
            assert_eq!(twin.arguments, k.arguments, "{}", k.name);
        }
    }
}
