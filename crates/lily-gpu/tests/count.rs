//! Bytes that decode moves, beside the least possible, at the real dimensions (`docs/model.md §5`).
#![cfg(feature = "emulated")]

use lily_checkpoint::synthetic;
use lily_gpu::Options;
use lily_gpu::count::{Count, Minimum};
use lily_gpu::device::emulated::Emulated;
use lily_gpu::kernels::ATTENTION_BLOCK;
use lily_gpu::program::{Choice, Part, Program};
use lily_model::{LayerKind, Shape};

const LINEAR: Part = Part::Layer(LayerKind::Linear);
const FULL: Part = Part::Layer(LayerKind::Full);

/// One layer of each kind.
fn shape() -> Shape {
    Shape { layers: vec![LayerKind::Linear, LayerKind::Full], ..Shape::qwen3_6_35b_a3b() }
}

#[test]
#[ignore = "takes 2 GB of memory and a minute; tests/run.sh runs it"]
fn decode_moves_each_byte_once() {
    let shape = shape();
    let checkpoint = synthetic::mlx4_in_memory(&shape, 1).expect("random weights");
    let gpu = Emulated::new(2, 1).expect("tests run where the emulator does");
    let mut program = Program::new(gpu, &shape, checkpoint.weights(), Options::default()).expect("the model");
    for context in [255, 256, 4096] {
        let mut held = program.begin_filled(context, 5).expect("a cache of random values");
        program.count();
        let step =
            program.start_step(&mut [&mut held], Some(&[17]), Choice::Greedy { vocab: 248_077 }).expect("a step");
        program.finish_tokens(step).expect("a token");
        let (count, minimum) = (Count::of(&shape, &program.counted()), Minimum::Decode(u64::from(context)));
        println!("one token after {context}\n{}", count.table(&shape, minimum));
        for part in [LINEAR, FULL, Part::Head] {
            let ratio = count.ratio(&shape, part, minimum).expect("a floor");
            assert!((0.99..1.03).contains(&ratio), "{part:?}: {ratio}");
        }
        let (_, whole) = count.whole(&shape, minimum, [30, 10]);
        assert!(whole < 1.03, "{whole}");
        // Dispatches of a layer, as few as they are now: three of the mixer (a full layer has its cache write and its
        // two passes of attention besides), three of router and experts.
        assert_eq!(count.part(LINEAR).dispatches, 6);
        assert_eq!(count.part(FULL).dispatches, if context < ATTENTION_BLOCK { 7 } else { 8 });
        assert_eq!(count.part(Part::Embed).dispatches, 1);
        assert_eq!(count.part(Part::Head).dispatches, 3);
    }
}
