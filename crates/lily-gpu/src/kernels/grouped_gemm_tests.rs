use lily_checkpoint::Matrix;
use proptest::prelude::*;

use super::*;
use crate::gpu::{Contents, Finished};
use crate::testing::*;
use crate::testing::{Buffer, TestGpu, bodies, counts};

/// The experts of a layer and a few tokens.
struct Layer {
    body: Body,
    element: Element,
    hidden: usize,
    width: usize,
    experts: usize,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Layer {
    fn new(body: (Body, Element), hidden: usize, width: usize, experts: usize, bits: usize) -> Self {
        let mut random = Random((hidden + width + experts + bits) as u64);
        let mut matrix = |rows, cols| random.matrix(experts * rows, cols, bits);
        let (gate, up, down) = (matrix(width, hidden), matrix(width, hidden), matrix(hidden, width));
        Self { body: body.0, element: body.1, hidden, width, experts, gate, up, down }
    }

    /// `rows` of expert `e` times x, in f64.
    fn times(&self, matrix: &Matrix, e: usize, rows: usize, x: &[f32]) -> Vec<f64> {
        let cols = x.len();
        let weights = multiplied(matrix, self.element);
        let row = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
        weights[e * rows * cols..(e + 1) * rows * cols].chunks_exact(cols).map(row).collect()
    }

    fn act(&self, e: usize, x: &[f32]) -> Vec<f32> {
        let (gate, up) = (self.times(&self.gate, e, self.width, x), self.times(&self.up, e, self.width, x));
        gate.iter().zip(up).map(|(g, u)| (g / (1.0 + (-g).exp()) * u) as f32).collect()
    }
}

/// What the map's kernel makes of the experts of each token.
struct Sorted {
    order: Vec<u32>,
    blocks: [Vec<u32>; 3],
    buffers: Vec<Buffer>,
    experts: u32,
    per_token: u32,
}

impl Sorted {
    fn new(gpu: &TestGpu, l: &Layer, chosen: &[u32], experts: usize, per_token: usize) -> Self {
        let mut order: Vec<u32> = (0..chosen.len() as u32).collect();
        order.sort_by_key(|&a| chosen[a as usize]);
        let most = l.body.grouped_rows(l.element);
        // Past the last block nothing but the expert is defined.
        let count = grouped_blocks(most, chosen.len() as u32, experts as u32) as usize;
        let (mut expert, mut first, mut end) = (Vec::new(), Vec::new(), Vec::new());
        let mut r = 0;
        while r < order.len() {
            let e = chosen[order[r] as usize];
            let rows = order[r..].iter().take_while(|&&a| chosen[a as usize] == e).count().min(most as usize);
            expert.push(e);
            first.push(r as u32);
            end.push((r + rows) as u32);
            r += rows;
        }
        assert!(expert.len() <= count, "{} blocks in a grid of {count}", expert.len());
        expert.resize(count, u32::MAX);
        first.resize(count, 0x7fff_ffff);
        end.resize(count, 0);
        let blocks = [expert, first, end];
        let buffers = std::iter::once(&order).chain(&blocks).map(|v| words(gpu, v)).collect();
        Self { order, blocks, buffers, experts: experts as u32, per_token: per_token as u32 }
    }

    fn map(&self) -> ExpertMap<'_, Buffer> {
        ExpertMap {
            order: View::of(&self.buffers[0]),
            block_expert: View::of(&self.buffers[1]),
            block_first: View::of(&self.buffers[2]),
            block_end: View::of(&self.buffers[3]),
            experts: self.experts,
            per_token: self.per_token,
        }
    }
}

fn read(gpu: &TestGpu, buffer: &Buffer, element: Element) -> Vec<f32> {
    match element {
        Element::F32 => read_f32(gpu, buffer),
        Element::Bf16 => read_u32(gpu, buffer)
            .into_iter()
            .flat_map(|w| [f32::from_bits(w << 16), f32::from_bits(w & 0xffff_0000)])
            .collect(),
    }
}

fn gate_up(gpu: &mut TestGpu, l: &Layer, x: &[f32], sorted: Option<&Sorted>) -> (Vec<f32>, Finished) {
    let tokens = x.len() / l.hidden;
    let rows = sorted.map_or(tokens, |s| s.order.len());
    let (gate, up) = (share_matrix(gpu, &l.gate), share_matrix(gpu, &l.up));
    let x = elements(gpu, x, l.element, Contents::Activations);
    let out = gpu.allocate((rows * l.width) as u64 * l.element.size(), Contents::Activations).unwrap();
    let g = GroupedGateUp {
        body: l.body,
        element: l.element,
        gate: &gate,
        up: &up,
        x: View::of(&x),
        tokens: tokens as u32,
        map: sorted.map(Sorted::map),
        out: View::of(&out),
    };
    grouped_gate_up(gpu, &g).unwrap();
    let done = run(gpu).unwrap();
    (read(gpu, &out, l.element), done)
}

fn down(gpu: &mut TestGpu, l: &Layer, x: &[f32], tokens: usize, sorted: Option<(&Sorted, &[f32])>) -> Vec<f32> {
    let matrix = share_matrix(gpu, &l.down);
    let x_buffer = elements(gpu, x, l.element, Contents::Activations);
    let y = output(gpu, x.len() / l.width * l.hidden);
    let weights = floats(gpu, sorted.map_or(&[1.0], |s| s.1), Contents::Activations);
    let g = GroupedDown {
        body: l.body,
        element: l.element,
        down: &matrix,
        x: View::of(&x_buffer),
        tokens: tokens as u32,
        map: sorted.map(|s| (s.0.map(), View::of(&weights))),
        y: View::of(&y),
    };
    grouped_down(gpu, &g).unwrap();
    run(gpu).unwrap();
    read_f32(gpu, &y)
}

fn rounding(element: Element) -> f32 {
    match element {
        Element::F32 => 1e-5,
        Element::Bf16 => 1.0 / 256.0,
    }
}

/// Both products of the routed experts. `chosen`: `[tokens × per_token]`.
fn check(l: &Layer, chosen: &[u32], per_token: usize, seed: u32) -> Finished {
    let mut random = Random(u64::from(seed));
    let mut gpu = device(seed);
    let tokens = chosen.len() / per_token;
    let sorted = Sorted::new(&gpu, l, chosen, l.experts, per_token);
    let x = random.bf16_values(tokens * l.hidden, 1.0);
    let (out, done) = gate_up(&mut gpu, l, &x, Some(&sorted));
    let mut want = Vec::new();
    for &a in &sorted.order {
        let t = a as usize / per_token;
        want.extend(l.act(chosen[a as usize] as usize, &x[t * l.hidden..][..l.hidden]));
    }
    assert_close(&out, &want, rounding(l.element));

    let act = random.bf16_values(chosen.len() * l.width, 1.0);
    let weights = random.values(chosen.len(), 1.0);
    let y = down(&mut gpu, l, &act, tokens, Some((&sorted, &weights)));
    let mut want = vec![f32::NAN; chosen.len() * l.hidden];
    for (r, &a) in sorted.order.iter().enumerate() {
        let a = a as usize;
        let product = l.times(&l.down, chosen[a] as usize, l.hidden, &act[r * l.width..][..l.width]);
        for (to, v) in want[a * l.hidden..][..l.hidden].iter_mut().zip(product) {
            *to = (v * f64::from(weights[a])) as f32;
        }
    }
    assert_close(&y, &want, 1e-5);
    done
}

/// `per_token` different experts for each token.
fn random_experts(tokens: usize, experts: usize, per_token: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    let mut chosen = Vec::new();
    for _ in 0..tokens {
        let mut all: Vec<u32> = (0..experts as u32).collect();
        for i in 0..per_token {
            let j = i + random.below((experts - i) as u64) as usize;
            all.swap(i, j);
        }
        chosen.extend(&all[..per_token]);
    }
    chosen
}

#[cfg_attr(sanitized, ignore = "large")]
#[test]
fn random_loads_of_every_kind_of_weight() {
    for body in bodies() {
        for bits in [4, 8, 16] {
            let l = Layer::new(body, 128, 64, 8, bits);
            check(&l, &random_experts(21, 8, 4, 3), 4, 1);
        }
    }
}

#[test]
fn all_rows_on_one_expert_on_both_sides_of_a_block() {
    for body in bodies() {
        let l = Layer::new(body, 64, 64, 5, 4);
        let wide = Layer::new(body, 256, 256, 2, 4);
        for rows in [1, 64, 65, 128, 129] {
            check(&wide, &vec![1; rows], 1, rows as u32);
        }
        for rows in [1, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129] {
            check(&l, &vec![3; rows], 1, rows as u32);
        }
    }
}

#[test]
fn one_token_and_the_real_widths_of_an_expert() {
    for body in bodies() {
        check(&Layer::new(body, 2048, 64, 2, 4), &[1, 0], 2, 1);
        check(&Layer::new(body, 64, 512, 3, 4), &[2, 0], 2, 2);
    }
}

/// Experts without a row, and one with a tail.
#[test]
fn uneven_loads() {
    for body in bodies() {
        let l = Layer::new(body, 64, 128, 6, 4);
        let mut chosen = vec![5; 40];
        chosen.extend([0, 2, 2]);
        check(&l, &chosen, 1, 4);
    }
}

/// Each expert's matrices are loaded once for each of its blocks; blocks past the last load nothing.
#[test]
fn only_the_chosen_experts_are_loaded() {
    let l = Layer::new((Body::Simdgroup, Element::Bf16), 128, 64, 8, 4);
    let mut chosen = vec![1; 33];
    chosen.extend([7; 5]);
    let done = check(&l, &chosen, 1, 2);
    if !counts() {
        return;
    }
    let loaded = |argument: usize| done.dispatches[0].traffic[argument].bytes();
    let of_one = (l.hidden * l.width / 2) as u64;
    assert_eq!((loaded(0), loaded(3)), (3 * of_one, 3 * of_one));
    assert_eq!((loaded(1), loaded(2)), (3 * of_one / 16, 3 * of_one / 16));
}

#[test]
fn the_shared_expert_takes_every_token() {
    for body in bodies() {
        let l = Layer::new(body, 128, 64, 1, 4);
        for tokens in [1, 32, 33, 64, 65, 97] {
            let mut random = Random(tokens as u64);
            let x = random.bf16_values(tokens * l.hidden, 1.0);
            let (out, _) = gate_up(&mut device(2), &l, &x, None);
            let want: Vec<f32> = x.chunks_exact(l.hidden).flat_map(|x| l.act(0, x)).collect();
            assert_close(&out, &want, rounding(l.element));
            let act = random.bf16_values(tokens * l.width, 1.0);
            let y = down(&mut device(3), &l, &act, tokens, None);
            let want: Vec<f32> =
                act.chunks_exact(l.width).flat_map(|x| l.times(&l.down, 0, l.hidden, x)).map(|v| v as f32).collect();
            assert_close(&y, &want, 1e-5);
        }
    }
}

/// A token's row for an expert has the same bits whatever the other rows are, and the shared kernel's are the grouped one's.
#[test]
fn a_row_does_not_depend_on_the_others() {
    for (body, hidden) in bodies().into_iter().flat_map(|body| [(body, 192), (body, 256)]) {
        let l = Layer::new(body, hidden, 64, 3, 4);
        let mut gpu = device(5);
        let x = Random(9).bf16_values(70 * l.hidden, 1.0);
        let of =
            |rows: &[f32], r: usize| rows[r * l.width..][..l.width].iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        // Token t on expert (t + shift) % 2: places in blocks differ.
        let all: Vec<u32> = (0..70).map(|t| t % 2).collect();
        let sorted = Sorted::new(&gpu, &l, &all, 3, 1);
        let (whole, _) = gate_up(&mut gpu, &l, &x, Some(&sorted));
        for token in [0usize, 33, 66, 69] {
            let alone = Sorted::new(&gpu, &l, &[all[token]], 3, 1);
            let (one, _) = gate_up(&mut gpu, &l, &x[token * l.hidden..][..l.hidden], Some(&alone));
            let place = sorted.order.iter().position(|&a| a as usize == token).unwrap();
            assert_eq!(of(&one, 0), of(&whole, place), "token {token}");
            if all[token] == 0 {
                let mut first = Layer::new(body, hidden, 64, 3, 4);
                (first.gate, first.up) = (part(&l.gate), part(&l.up));
                let (shared, _) = gate_up(&mut gpu, &first, &x[..(token + 1) * l.hidden], None);
                assert_eq!(of(&shared, token), of(&whole, place), "token {token} of the shared kernel");
            }
        }
    }
}

/// The first of three experts.
fn part(m: &Matrix) -> Matrix {
    let Matrix::Affine(a) = m else { panic!("affine") };
    let third = |b: &lily_checkpoint::Bytes| lily_checkpoint::Bytes::new(b[..b.len() / 3].to_vec());
    Matrix::Affine(lily_checkpoint::Affine {
        rows: a.rows / 3,
        codes: third(&a.codes),
        scales: third(&a.scales),
        biases: third(&a.biases),
        ..a.clone()
    })
}

/// Gates far from 0 on both sides: SiLU is the gate itself or 0, and nothing overflows on the way.
#[test]
fn large_gates_stay_finite() {
    for body in bodies() {
        let l = Layer::new(body, 64, 64, 2, 8);
        let mut gpu = device(6);
        let x: Vec<f32> = Random(3).bf16_values(4 * l.hidden, 1.0).into_iter().map(|v| v * 1024.0).collect();
        let sorted = Sorted::new(&gpu, &l, &[0, 1, 1, 0], 2, 1);
        let (out, _) = gate_up(&mut gpu, &l, &x, Some(&sorted));
        let mut want = Vec::new();
        for &a in &sorted.order {
            want.extend(l.act([0, 1, 1, 0][a as usize], &x[a as usize * l.hidden..][..l.hidden]));
        }
        let gates = l.times(&l.gate, 0, l.width, &x[..l.hidden]);
        assert!(gates.iter().any(|g| *g > 80.0) && gates.iter().any(|g| *g < -80.0), "{gates:?}");
        assert_close(&out, &want, rounding(l.element));
    }
}

/// An expert that begins 2^32 weights into its matrix gives what it gives as the first.
#[test]
fn b133_basert_0_2_0_experts_past_the_range_of_32_bits() {
    const EXPERTS: u32 = (1 << 20) + 1;
    for body in bodies() {
        let l = Layer::new(body, 64, 64, 1, 4);
        let mut gpu = device(7);
        let (gate, up) = (share_matrix(&gpu, &l.gate), share_matrix(&gpu, &l.up));
        // Too large to be filled: only what is touched takes memory.
        let far = |gpu: &TestGpu, m: &Matrix| {
            let Matrix::Affine(a) = m else { panic!("affine") };
            let place = |data: &[u8], least: u64| {
                let at = data.len() as u64 * u64::from(EXPERTS - 1);
                let buffer = gpu.allocate((at + data.len() as u64).max(least), Contents::Weights).unwrap();
                gpu.upload(&buffer, at, data).unwrap();
                buffer
            };
            let least = (256 << 20) + 1;
            let (codes, scales, biases) = (place(&a.codes, least), place(&a.scales, least), place(&a.biases, least));
            DeviceMatrix { rows: EXPERTS * 64, cols: 64, bits: 4, codes, scales, biases }
        };
        let (far_gate, far_up) = (far(&gpu, &l.gate), far(&gpu, &l.up));
        let x = elements(&gpu, &Random(2).bf16_values(64, 1.0), l.element, Contents::Activations);
        let mut results = Vec::new();
        for (gate, up, expert, experts) in [(&gate, &up, 0, 1), (&far_gate, &far_up, EXPERTS - 1, EXPERTS)] {
            let map = [vec![0], vec![expert, u32::MAX], vec![0, 0], vec![1, 0]].map(|v| words(&gpu, &v));
            let out = gpu.allocate(64 * l.element.size(), Contents::Activations).unwrap();
            let map = ExpertMap {
                order: View::of(&map[0]),
                block_expert: View::of(&map[1]),
                block_first: View::of(&map[2]),
                block_end: View::of(&map[3]),
                experts,
                per_token: 1,
            };
            let (body, element) = (l.body, l.element);
            let (x, y) = (View::of(&x), View::of(&out));
            let g = GroupedGateUp { body, element, gate, up, x, tokens: 1, map: Some(map), out: y };
            grouped_gate_up(&mut gpu, &g).unwrap();
            run(&mut gpu).unwrap();
            results.push(read(&gpu, &out, l.element));
        }
        assert_eq!(results[0], results[1]);
    }
}

#[test]
fn the_grid_holds_every_load() {
    assert_eq!(grouped_blocks(32, 1, 256), 2);
    assert_eq!(grouped_blocks(32, 8, 256), 9);
    assert_eq!(grouped_blocks(32, 4096 * 8, 256), 1024 + 256);
    assert_eq!(grouped_blocks(Body::Mma.grouped_rows(Element::Bf16), 4096 * 8, 256), 256 + 256);
    assert_eq!(Body::Mma.grouped_rows(Element::F32), 32);
}

#[test]
#[should_panic(expected = "blocks of the experts")]
fn a_map_that_is_too_small_is_refused() {
    let l = Layer::new(bodies()[0], 64, 64, 2, 4);
    let mut gpu = device(1);
    let mut sorted = Sorted::new(&gpu, &l, &[0, 1], 2, 1);
    sorted.blocks[0].pop();
    sorted.buffers[1] = words(&gpu, &sorted.blocks[0]);
    gate_up(&mut gpu, &l, &[0.0; 128], Some(&sorted));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_load(tokens in 1usize..40, experts in 1usize..10, hidden in 1usize..4, width in 1usize..3,
                bits in 0usize..3, body in 0usize..bodies().len(), seed in 1u32..) {
        let per_token = 1 + seed as usize % experts.min(4);
        let l = Layer::new(bodies()[body], hidden * 64, width * 64, experts, [4, 8, 16][bits]);
        check(&l, &random_experts(tokens, experts, per_token, u64::from(seed)), per_token, seed);
    }
}
