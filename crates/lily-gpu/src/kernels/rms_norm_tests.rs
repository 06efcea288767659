use proptest::prelude::*;

use super::*;
use crate::gpu::Contents;
use crate::testing::{Random, assert_close, device, floats, output, read_bf16, read_f32, run};

fn reference(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let norm = |row: &[f32]| {
        let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        row.iter().zip(weight).map(|(v, w)| (f64::from(*v) * scale * f64::from(*w)) as f32).collect::<Vec<_>>()
    };
    x.chunks_exact(weight.len()).flat_map(norm).collect()
}

fn check(width: usize, rows: usize, scale: f32, seed: u32, add: bool, (exact, rounded): (bool, bool)) {
    let mut random = Random(u64::from(seed));
    let (x, delta) = (random.values(rows * width, scale), random.values(rows * width, scale));
    let weight = random.values(width, 2.0);
    let mut gpu = device(seed);
    let x_buffer = floats(&gpu, &x, Contents::Activations);
    let delta_buffer = floats(&gpu, &delta, Contents::Activations);
    let weight_buffer = floats(&gpu, &weight, Contents::Weights);
    let y32 = output(&gpu, rows * width);
    let y16 = gpu.allocate((rows * width * 2) as u64, Contents::Activations).unwrap();
    let n = RmsNorm {
        x: View::of(&x_buffer),
        delta: add.then_some(View::of(&delta_buffer)),
        weight: View::of(&weight_buffer),
        outputs: NormOutputs { exact: exact.then_some(View::of(&y32)), rounded: rounded.then_some(View::of(&y16)) },
        rows: rows as u32,
        width: width as u32,
        eps: 1e-6,
    };
    rms_norm(&mut gpu, &n).unwrap();
    run(&mut gpu).unwrap();

    let sum: Vec<f32> = if add { x.iter().zip(&delta).map(|(a, b)| a + b).collect() } else { x };
    assert_eq!(read_f32(&gpu, &x_buffer), sum, "the residual stream");
    let want = reference(&sum, &weight, 1e-6);
    if exact {
        assert_close(&read_f32(&gpu, &y32), &want, 1e-6);
    }
    if rounded {
        for (g, w) in read_bf16(&gpu, &y16).into_iter().zip(&want) {
            assert!((g - w).abs() <= w.abs() / 255.0, "{g}, wanted {w}");
        }
    }
}

const OUTPUTS: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];

#[test]
fn the_full_width() {
    for outputs in OUTPUTS {
        check(2048, 3, 3.0, 5, false, outputs);
        check(2048, 3, 3.0, 5, true, outputs);
    }
}

#[test]
#[should_panic(expected = "a norm that is not kept")]
fn an_output_is_wanted() {
    check(64, 1, 1.0, 1, false, (false, false));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_width(quads in 1usize..600, rows in 1usize..4, exponent in -8i32..8, seed in 1u32.., add: bool,
                 outputs in prop::sample::select(OUTPUTS.to_vec())) {
        check(quads * 4, rows, 10f32.powi(exponent), seed, add, outputs);
    }
}
