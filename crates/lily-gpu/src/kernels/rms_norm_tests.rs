use proptest::prelude::*;

use super::*;
use crate::gpu::Contents;
use crate::testing::{Random, assert_close, bf16, device, floats, read_f32, run};

fn reference(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let norm = |row: &[f32]| {
        let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        row.iter().zip(weight).map(|(v, w)| (f64::from(*v) * scale * f64::from(*w)) as f32).collect::<Vec<_>>()
    };
    x.chunks_exact(weight.len()).flat_map(norm).collect()
}

fn check(width: usize, rows: usize, scale: f32, seed: u32, add: bool, output: Element) {
    let mut random = Random(u64::from(seed));
    let (x, delta) = (random.values(rows * width, scale), random.values(rows * width, scale));
    let weight = random.values(width, 2.0);
    let mut gpu = device(seed);
    let x_buffer = floats(&gpu, &x, Contents::Activations);
    let delta_buffer = floats(&gpu, &delta, Contents::Activations);
    let weight_buffer = floats(&gpu, &weight, Contents::Weights);
    let y = gpu.allocate((rows * width) as u64 * output.size(), Contents::Activations).unwrap();
    let (xv, dv, wv, yv) = (View::of(&x_buffer), View::of(&delta_buffer), View::of(&weight_buffer), View::of(&y));
    let args = NormArgs { width: width as u32, eps: 1e-6 };
    if add {
        add_rms_norm(&mut gpu, xv, dv, wv, yv, output, rows as u32, args).unwrap();
    } else {
        rms_norm(&mut gpu, xv, wv, yv, output, rows as u32, args).unwrap();
    }
    run(&mut gpu).unwrap();

    let sum: Vec<f32> = if add { x.iter().zip(&delta).map(|(a, b)| a + b).collect() } else { x };
    assert_eq!(read_f32(&gpu, &x_buffer), sum, "the residual stream");
    let want = reference(&sum, &weight, 1e-6);
    match output {
        Element::F32 => assert_close(&read_f32(&gpu, &y), &want, 1e-6),
        Element::Bf16 => {
            let mut raw = vec![0; 2 * want.len()];
            gpu.read(&y, 0, &mut raw).unwrap();
            let half = |c: &[u8]| f32::from_bits(u32::from(u16::from_ne_bytes([c[0], c[1]])) << 16);
            let got: Vec<f32> = raw.chunks_exact(2).map(half).collect();
            assert_close(&got, &want.iter().map(|&v| bf16(v)).collect::<Vec<_>>(), 1.0 / 128.0);
        }
    }
}

#[test]
fn the_full_width() {
    for (add, output) in [(false, Element::F32), (true, Element::F32), (false, Element::Bf16), (true, Element::Bf16)] {
        check(2048, 3, 3.0, 5, add, output);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_width(quads in 1usize..600, rows in 1usize..4, exponent in -8i32..8, seed in 1u32.., add: bool) {
        check(quads * 4, rows, 10f32.powi(exponent), seed, add, Element::F32);
    }
}
