//! Each baseline gives what the program gives: a broken one would make an idea look good. On an NVIDIA GPU with
//! `LILY_TEST_DEVICE=cuda`.

use lily_checkpoint::{Checkpoint, synthetic};
use lily_model::{Rows, Shape};

use super::experts::sort;
use super::{Ablated, Baseline, KeyReads, SingleLaunches, Switch, Without, key_reads};
use crate::gpu::{Contents, Gpu};
use crate::kernels::{Body, Element, View};
use crate::program::{Choice, Options, Program};
use crate::testing::{
    Random, TestGpu, assert_close, bf16, bodies, bytes, counts, device, floats, output, read_f32, run, to_bf16,
};

impl SingleLaunches for TestGpu {
    fn single_launches(&mut self, on: bool) -> bool {
        match self {
            Self::Emulated(gpu) => gpu.single_launches(on),
            #[cfg(target_os = "linux")]
            Self::Cuda(gpu) => gpu.single_launches(on),
        }
    }
}

/// A linear, two more, and a full layer of the real head sizes; six query heads on two kv heads.
fn checkpoint() -> Checkpoint {
    // Kernels of 4-bit weights on CUDA take multiples of 256 columns.
    let width = if counts() { 64 } else { 256 };
    let shape = Shape {
        vocab: 256,
        hidden: 2 * width,
        query_heads: 6,
        kv_heads: 2,
        linear_key_heads: 2,
        linear_value_heads: 4,
        experts: 16,
        experts_per_token: 4,
        expert_width: width,
        shared_width: width,
        ..synthetic::full_shape(4)
    };
    synthetic::mlx4_in_memory(&shape, 1).unwrap()
}

struct Case {
    program: Program<Ablated<TestGpu>>,
    switch: Switch,
}

impl Case {
    fn new(checkpoint: &Checkpoint, body: Body, element: Element) -> Self {
        let gpu = Ablated::new(device(1));
        let switch = gpu.switch();
        let options = Options { body, element, ..Options::default() };
        let program = Program::new(gpu, checkpoint.shape(), checkpoint.weights(), options).unwrap();
        Self { program, switch }
    }

    /// Logits of all rows of a prompt, and how often something was replaced.
    fn prefill(&mut self, tokens: u32, without: Option<Without>) -> (Vec<f32>, u64) {
        let tokens: Vec<u32> = (0..tokens).map(|i| i * 37 % 256).collect();
        self.switch.set(without);
        self.switch.replaced();
        let mut held = self.program.begin().unwrap();
        let logits = self.program.prefill(&mut held, &tokens, Rows::All).unwrap();
        (logits.data, self.switch.replaced())
    }

    /// Logits of tokens after `context` random keys and values.
    fn decode(&mut self, context: u32, tokens: &[u32], without: Option<Without>) -> (Vec<f32>, u64) {
        self.switch.set(without);
        self.switch.replaced();
        let mut held = self.program.begin_filled(context, 5).unwrap();
        let mut logits = Vec::new();
        for token in tokens {
            let step = self.program.start_step(&mut [&mut held], Some(&[*token]), Choice::None).unwrap();
            logits.extend(self.program.finish_logits(step).unwrap());
        }
        (logits, self.switch.replaced())
    }
}

#[test]
fn expanded_weights_are_those_that_the_product_makes_itself() {
    let checkpoint = checkpoint();
    // With F32 inputs the program's weights are not rounded to BF16.
    for (body, element) in bodies().into_iter().filter(|b| b.1 == Element::Bf16) {
        let mut case = Case::new(&checkpoint, body, element);
        let lengths: &[u32] = if cfg!(sanitized) { &[3] } else { &[3, 40] };
        for &tokens in lengths {
            let (with, _) = case.prefill(tokens, None);
            let (fused, of_fused) = case.prefill(tokens, Some(Without::FusedDequantisation { expanded: false }));
            let (expanded, of_expanded) = case.prefill(tokens, Some(Without::FusedDequantisation { expanded: true }));
            match body {
                Body::Simdgroup | Body::Tensor => {
                    assert_eq!((of_fused, of_expanded), (0, 8), "gate with up, and down, of four layers");
                    assert!(with == fused && with == expanded, "{body:?}, {tokens} tokens");
                }
                Body::Mma => {
                    assert_eq!((of_fused, of_expanded), (8, 16));
                    // The product rounds a weight once, the expansion to F32 and then to BF16.
                    assert_close(&expanded, &fused, 0.02);
                    // The program's kernel sums otherwise: a row may choose another expert where two are as good.
                    let rows = with.chunks(256).zip(fused.chunks(256));
                    let far = rows.filter(|(a, b)| a.iter().zip(*b).any(|(a, b)| (a - b).abs() > 0.5)).count();
                    assert!(far * 5 <= tokens as usize, "{far} of {tokens} rows differ");
                }
            }
        }
    }
}

#[test]
#[cfg_attr(sanitized, ignore = "no kernel of its own")]
fn the_host_sorts_rows_as_the_device_does() {
    let checkpoint = checkpoint();
    for (body, element) in bodies() {
        let mut case = Case::new(&checkpoint, body, element);
        for tokens in [1, 40] {
            let (with, _) = case.prefill(tokens, None);
            let (without, replaced) = case.prefill(tokens, Some(Without::ResidentRouting));
            assert_eq!(replaced, 4, "a cut for each layer");
            assert_eq!(with, without, "{tokens} tokens");
        }
    }
}

#[test]
fn sorted_rows_keep_their_order_and_blocks_end_with_their_expert() {
    let (order, blocks) = sort(&[2, 0, 2, 2, 0, 5, 2, 2], 2);
    assert_eq!(order, [1, 4, 0, 2, 3, 6, 7, 5]);
    assert_eq!(blocks, [[0, 0, 2], [2, 2, 4], [2, 4, 6], [2, 6, 7], [5, 7, 8]]);
}

#[test]
#[cfg_attr(sanitized, ignore = "no kernel of its own")]
fn single_launches_change_nothing() {
    let checkpoint = checkpoint();
    let (body, element) = bodies()[1];
    let mut case = Case::new(&checkpoint, body, element);
    // Three times, as command buffers become graphs when they come again.
    let with: Vec<_> = (0..3).map(|_| (case.prefill(20, None).0, case.decode(300, &[3, 5, 7], None).0)).collect();
    let (prefill, cut) = case.prefill(20, Some(Without::OneCommandBuffer));
    let (decode, cut_again) = case.decode(300, &[3, 5, 7], Some(Without::OneCommandBuffer));
    assert!(cut > 30 && cut_again > 3 * 20, "{cut} and {cut_again} launches");
    for (with_prefill, with_decode) in &with {
        assert!(*with_prefill == prefill && *with_decode == decode);
    }
    // And on again.
    assert_eq!(case.prefill(20, None), (prefill, 0));
}

#[test]
fn attention_of_every_baseline_is_the_programs() {
    let checkpoint = checkpoint();
    // Tensor operations are prefill's alone.
    for (body, element) in bodies().into_iter().filter(|b| b.0 != Body::Tensor) {
        // Matrix instructions take softmax's weights as two BF16 parts.
        let tolerance = if body == Body::Mma { 1e-3 } else { 1e-4 };
        let mut case = Case::new(&checkpoint, body, element);
        // One block; several; parts of more than one block, and parts that some sequences do not have.
        let contexts = [(40, vec![None, Some(3)]), (700, vec![None, Some(1), Some(3), Some(32)])];
        let contexts = if cfg!(sanitized) { &contexts[..1] } else { &contexts };
        for (context, splits) in contexts {
            let context = *context;
            let (with, _) = case.decode(context, &[3, 5], None);
            for packed in [false, true] {
                for &splits in splits {
                    let baseline = Baseline { packed, splits, longest: context + 2 };
                    let (without, replaced) = case.decode(context, &[3, 5], Some(Without::Attention(baseline)));
                    assert_eq!(replaced, 2, "one full layer, two steps");
                    assert_close(&without, &with, tolerance);
                }
            }
        }
        // Blocks of 512.
        if element == Element::Bf16 && !cfg!(sanitized) {
            let (with, _) = case.decode(16_500, &[3], None);
            for (packed, splits) in [(false, None), (true, Some(4))] {
                let baseline = Baseline { packed, splits, longest: 16_501 };
                let (without, _) = case.decode(16_500, &[3], Some(Without::Attention(baseline)));
                assert_close(&without, &with, tolerance);
            }
        }
    }
}

#[test]
#[cfg_attr(sanitized, ignore = "no kernel of its own")]
fn what_was_kept_runs_again() {
    let checkpoint = checkpoint();
    let mut case = Case::new(&checkpoint, Body::Simdgroup, Element::Bf16);
    case.switch.keep(Some("attention_"));
    let (before, _) = case.decode(700, &[3, 5, 7], None);
    case.switch.keep(None);
    let (kept, finished) = case.program.gpu_mut().repeat().unwrap();
    assert_eq!((kept, finished.dispatches.len()), (6, 6), "spans and their sums, three steps");
    case.program.gpu_mut().forget();
    assert_eq!(case.program.gpu_mut().repeat().unwrap().0, 0);
    assert_eq!(case.decode(700, &[3, 5, 7], None).0, before);
}

#[test]
fn keys_are_the_same_whoever_reads_them() {
    let (kv_heads, positions) = (2, 700);
    let mut random = Random(9);
    let q = random.values(kv_heads * 256, 1.0);
    let keys = random.values(kv_heads * positions * 256, 1.0);
    let row = |head: usize, p: usize| &keys[(head * positions + p) * 256..][..256];
    let score = |head: usize, p: usize| -> f64 {
        q[head * 256..].iter().zip(row(head, p)).map(|(&a, &b)| f64::from(a) * f64::from(bf16(b))).sum()
    };
    let want: Vec<f32> =
        (0..kv_heads).flat_map(|h| (0..positions).map(move |p| (h, p))).map(|(h, p)| score(h, p) as f32).collect();
    for how in [KeyReads::Rows, KeyReads::Lanes, KeyReads::Values] {
        let mut gpu = device(2);
        let (q, keys) = (floats(&gpu, &q, Contents::Activations), bytes(&gpu, &to_bf16(&keys), Contents::Cache));
        let scores = output(&gpu, kv_heads * positions);
        let shape = [kv_heads as u32, positions as u32];
        key_reads(&mut gpu, how, View::of(&q), View::of(&keys), View::of(&scores), shape).unwrap();
        let finished = run(&mut gpu).unwrap();
        assert_close(&read_f32(&gpu, &scores), &want, 1e-5);
        if counts() {
            let read = finished.dispatches[0].traffic.iter().find(|t| t.argument == "keys").unwrap().loaded;
            assert_eq!(read, (kv_heads * positions * 512) as u64);
        }
        assert!(gpu.encoded() == 0);
    }
}
