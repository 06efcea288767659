use super::*;
use crate::gpu::Contents;
use crate::testing::{Random, assert_close, bf16, device, floats, output, read_f32, read_u32, run};

fn reference(o: &[f32], z: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let heads = o.chunks_exact(128).zip(z.chunks_exact(128));
    let head = |(o, z): (&[f32], &[f32])| {
        let mean = o.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>() / 128.0;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        let y = |((o, z), w): ((&f32, &f32), &f32)| {
            let z = f64::from(*z);
            (f64::from(*o) * scale * f64::from(*w) * z / (1.0 + (-z).exp())) as f32
        };
        o.iter().zip(z).zip(weight).map(y).collect::<Vec<_>>()
    };
    heads.flat_map(head).collect()
}

/// z lies `before` values into rows that are `after` values longer.
fn check(heads: usize, rows: usize, before: usize, after: usize, z_scale: f32, element: Element) {
    let s = Shape { linear_key_heads: 1, linear_value_heads: heads, ..Shape::qwen3_6_35b_a3b() };
    let mut random = Random((heads + rows + before) as u64);
    let (width, stride) = (heads * 128, before + heads * 128 + after);
    let o = random.values(rows * width, 3.0);
    let projections = random.values(rows * stride, z_scale);
    let weight = random.values(128, 2.0);
    let mut gpu = device(rows as u32);
    let [o_buffer, p_buffer] = [&o, &projections].map(|v| floats(&gpu, v, Contents::Activations));
    let w_buffer = floats(&gpu, &weight, Contents::Weights);
    let y = output(&gpu, rows * width / if element == Element::F32 { 1 } else { 2 });
    let n = GatedNorm {
        o: View::of(&o_buffer),
        z: View::at(&p_buffer, 4 * before as u64),
        stride: stride as u32,
        weight: View::of(&w_buffer),
        y: View::of(&y),
        output: element,
        rows: rows as u32,
    };
    gated_norm(&mut gpu, &s, &n).unwrap();
    run(&mut gpu).unwrap();
    let z: Vec<f32> = projections.chunks_exact(stride).flat_map(|r| r[before..before + width].to_vec()).collect();
    let want = reference(&o, &z, &weight, s.norm_eps);
    match element {
        Element::F32 => assert_close(&read_f32(&gpu, &y), &want, 2e-6),
        Element::Bf16 => {
            let pairs = read_u32(&gpu, &y);
            let got = pairs.into_iter().flat_map(|p| [p << 16, p & 0xffff_0000]).map(f32::from_bits);
            for (i, (got, want)) in got.zip(want.into_iter().map(bf16)).enumerate() {
                // Where F32 lies close to the middle of two BF16 values the two may round apart.
                assert!((got - want).abs() <= want.abs() / 127.0, "value {i}: {got}, wanted {want}");
            }
        }
    }
}

#[test]
fn heads_that_do_and_do_not_fill_a_threadgroup() {
    for (heads, rows) in [(32, 3), (8, 1), (4, 5), (9, 2)] {
        check(heads, rows, 64, 8, 4.0, Element::F32);
        check(heads, rows, 0, 0, 4.0, Element::Bf16);
    }
}

#[test]
fn gates_far_from_zero() {
    check(4, 2, 4, 4, 300.0, Element::F32);
}
