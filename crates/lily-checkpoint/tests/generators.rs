//! The affine encoder, the seeded blocks and the synthetic checkpoint against the reference.

mod common;

use common::{Parts, fixture};
use lily_checkpoint::{Checkpoint, Matrix, Mixer, quant, synthetic};
use lily_model::{LayerKind, Shape};

#[test]
fn affine_codes_are_those_of_mlx() {
    let golden = Parts::read(&fixture("quant/golden_quant.safetensors"));
    let x = golden.f32("x");
    for bits in [4, 8] {
        let key = |what: &str| format!("w{bits}{what}");
        let ours = quant::quantize(24, 256, bits, &golden.f32(&key("")));
        assert_eq!(&*ours.codes, golden.bytes(&key(".packed")), "{bits} bit codes");
        let bf16 = |bytes: &[u8]| -> Vec<f32> {
            let wide = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            bytes.chunks_exact(2).map(wide).collect()
        };
        assert_eq!(bf16(&ours.scales), golden.f32(&key(".scales")), "{bits} bit scales");
        assert_eq!(bf16(&ours.biases), golden.f32(&key(".biases")), "{bits} bit biases");
        let dequantised = quant::dequantize(&ours);
        assert_eq!(dequantised, golden.f32(&key(".dequant")), "{bits} bit values");

        let product = x.chunks_exact(256).flat_map(|x| {
            dequantised.chunks_exact(256).map(|w| x.iter().zip(w).map(|(x, w)| f64::from(x * w)).sum::<f64>() as f32)
        });
        for (i, (ours, theirs)) in product.zip(golden.f32(&key(".y"))).enumerate() {
            assert!((ours - theirs).abs() < 1e-5, "{bits} bit product {i}: {ours} and {theirs}");
        }
    }
}

#[test]
fn blocks_have_the_real_dimensions_and_the_golden_input() {
    let b = synthetic::blocks(&fixture("blocks/config.json")).unwrap();
    assert_eq!((b.shape.hidden, b.shape.experts, b.shape.experts_per_token), (2048, 16, 8));
    for (kind, input) in [("linear", &b.linear_input), ("full", &b.full_input)] {
        let golden = Parts::read(&fixture(&format!("blocks/golden_{kind}.safetensors")));
        assert_eq!(input.len(), 73 * 2048);
        assert_eq!(input[..2 * 2048], golden.f32("input_first2"), "{kind}");
    }
    let Mixer::Linear(linear) = &b.linear.mixer else { panic!("layer 0 is linear") };
    assert_eq!(linear.a_log[..4], [1.171875, 1.75, -0.9765625, 0.57421875]);
    assert_eq!((linear.in_qkv.rows(), linear.in_qkv.cols()), (8192, 2048));
    // The Hugging Face layout stores w of 1 + w, but the gated norm's multiplier itself.
    assert!(b.linear.input_norm.iter().all(|w| (0.79..1.21).contains(w)));
    assert!(linear.norm.iter().all(|w| (0.79..1.21).contains(w)));
    let Mixer::Full(full) = &b.full.mixer else { panic!("layer 3 is full") };
    assert_eq!((full.q.rows(), full.o.cols()), (8192, 4096));

    // Gate and up are halves of one tensor: element [e, 512 + r, c] is up's [r, c] of expert e.
    let name = "model.language_model.layers.3.mlp.experts.gate_up_proj";
    let (lo, hi) = synthetic::weight_range(name, 2048);
    let stream = synthetic::Stream::new(20_260_416, name);
    let mut row = vec![0.0; 2048];
    b.full.moe.up.expert(5).row_f32(17, &mut row);
    let index = (5 * 1024 + 512 + 17) * 2048 + 9;
    assert_eq!(row[9], synthetic::bf16_round(stream.uniform(index, lo, hi)));
}

#[test]
fn a_synthetic_checkpoint_opens_and_has_sane_weights() {
    let shape = Shape {
        vocab: 512,
        hidden: 128,
        layers: vec![LayerKind::Linear, LayerKind::Linear, LayerKind::Linear, LayerKind::Full],
        query_heads: 4,
        linear_key_heads: 2,
        linear_value_heads: 4,
        experts: 8,
        experts_per_token: 4,
        expert_width: 64,
        shared_width: 64,
        max_context: 4096,
        ..Shape::qwen3_6_35b_a3b()
    };
    let dir = tempfile::tempdir().unwrap();
    let mut seen = (0, 0);
    let total = synthetic::write_mlx4(dir.path(), &shape, 7, &mut |done, all| seen = (done, all)).unwrap();
    assert_eq!(seen, (total, total));
    let c = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(c.shape(), &shape);
    assert_eq!(c.generation().eos, [510, 511]);

    let spread = |m: &Matrix| {
        let mut row = vec![0.0; m.cols()];
        let (mut sum, mut squares) = (0.0, 0.0);
        for r in 0..m.rows() {
            m.row_f32(r, &mut row);
            sum += row.iter().map(|&w| f64::from(w)).sum::<f64>();
            squares += row.iter().map(|&w| f64::from(w * w)).sum::<f64>();
        }
        let n = (m.rows() * m.cols()) as f64;
        (sum / n, (squares / n).sqrt())
    };
    let weights = c.weights();
    for (what, matrix, sigma) in [
        ("embedding", &weights.embed, 1.0),
        ("head", &weights.lm_head, 3.0 / 128f64.sqrt()),
        ("router", &weights.layers[0].moe.router, 2.0 / 128f64.sqrt()),
        ("down", weights.layers[3].moe.down.expert(7), 0.125),
    ] {
        let (mean, sd) = spread(matrix);
        assert!(mean.abs() < 0.1 * sigma && (0.9..1.15).contains(&(sd / sigma)), "{what}: mean {mean}, sd {sd}");
    }
}
