//! Times of kernels, with their bytes or operations.

use std::time::{Duration, Instant};

use lily_gpu::kernels::*;
use lily_gpu::{Contents, Gpu, GpuError};
use lily_model::{KvType, Shape};

type Done = Result<(), GpuError>;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In ±scale.
    pub fn value(&mut self, scale: f32) -> f32 {
        ((self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
    }

    fn floats<G: Gpu>(&mut self, gpu: &G, n: usize, scale: f32) -> Result<G::Buffer, GpuError> {
        // A period that divides no row.
        let few: Vec<f32> = (0..n.min(999_983)).map(|_| self.value(scale)).collect();
        let bytes: Vec<u8> = (0..n).flat_map(|i| few[i % few.len()].to_ne_bytes()).collect();
        filled(gpu, &bytes, Contents::Activations)
    }

    fn bf16<G: Gpu>(&mut self, gpu: &G, n: usize, scale: f32, contents: Contents) -> Result<G::Buffer, GpuError> {
        let few: Vec<u16> = (0..n.min(999_983)).map(|_| (self.value(scale).to_bits() >> 16) as u16).collect();
        let bytes: Vec<u8> = (0..n).flat_map(|i| few[i % few.len()].to_ne_bytes()).collect();
        filled(gpu, &bytes, contents)
    }

    fn matrix<G: Gpu>(
        &mut self,
        gpu: &G,
        rows: usize,
        cols: usize,
        bits: usize,
    ) -> Result<DeviceMatrix<G::Buffer>, GpuError> {
        let codes: Vec<u8> = (0..rows * cols * bits / 64).flat_map(|_| self.bits().to_ne_bytes()).collect();
        Ok(DeviceMatrix {
            rows: rows as u32,
            cols: cols as u32,
            bits: bits as u32,
            codes: filled(gpu, &codes, Contents::Weights)?,
            scales: self.bf16(gpu, rows * cols / 64, 0.01, Contents::Weights)?,
            biases: self.bf16(gpu, rows * cols / 64, 0.05, Contents::Weights)?,
        })
    }
}

fn filled<G: Gpu>(gpu: &G, bytes: &[u8], contents: Contents) -> Result<G::Buffer, GpuError> {
    let buffer = gpu.allocate(bytes.len() as u64, contents)?;
    gpu.upload(&buffer, 0, bytes)?;
    Ok(buffer)
}

fn words<G: Gpu>(gpu: &G, words: &[u32]) -> Result<G::Buffer, GpuError> {
    filled(gpu, &words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>(), Contents::Activations)
}

fn room<G: Gpu>(gpu: &G, values: usize) -> Result<G::Buffer, GpuError> {
    filled(gpu, &vec![0; 4 * values], Contents::Activations)
}

/// Median over five command buffers of `repeats` calls each, for one call.
fn time<G: Gpu>(gpu: &mut G, repeats: usize, mut one: impl FnMut(&mut G, usize) -> Done) -> Result<Duration, GpuError> {
    let mut times = Vec::new();
    // The first two are slower: kernels are loaded, and a graph is made.
    for round in 0..7 {
        for i in 0..repeats {
            one(gpu, i)?;
        }
        let ticket = gpu.commit()?;
        let gpu_time = gpu.wait(ticket)?.gpu_time.unwrap_or_default();
        if round > 1 {
            times.push(gpu_time / repeats as u32);
        }
    }
    times.sort();
    Ok(times[times.len() / 2])
}

/// `bytes` and `operations`: 0 where they say nothing.
fn line(name: &str, time: Duration, bytes: f64, operations: f64) {
    let seconds = time.as_secs_f64();
    let show = |n: f64, unit: &str, scale: f64| {
        if n > 0.0 { format!("{:8.3} {unit}", n / seconds / scale) } else { String::new() }
    };
    println!(
        "{name:52} {:10.2} µs {:>14} {:>16}",
        seconds * 1e6,
        show(bytes, "TB/s", 1e12),
        show(operations, "TFLOP/s", 1e12)
    );
}

/// What a dispatch costs.
pub fn launches<G: Gpu>(gpu: &mut G, how: &str) -> Done {
    let (from, to) = (room(gpu, 1024)?, room(gpu, 1024)?);
    let slice =
        CopySlices { from: View::of(&from), from_stride: 0, to: View::of(&to), to_stride: 0, bytes: 1024, count: 1 };
    let mut host = Duration::MAX;
    let gpu_time = time(gpu, 300, |g, i| {
        if i == 0 {
            host = Duration::ZERO;
        }
        let start = Instant::now();
        let done = copy_slices(g, &slice);
        host += start.elapsed();
        done
    })?;
    line(&format!("a dispatch of 300, {how}; {:.2?} of host to encode", host / 300), gpu_time, 0.0, 0.0);
    Ok(())
}

/// A table of the kernels that matter, at the full model's shapes.
pub fn kernels<G: Gpu>(gpu: &mut G) -> Done {
    let mut random = Random(1);
    bandwidth(gpu)?;
    projections(gpu, &mut random)?;
    experts(gpu, &mut random)?;
    attention(gpu, &mut random)?;
    linear(gpu, &mut random)
}

fn bandwidth<G: Gpu>(gpu: &mut G) -> Done {
    let bytes = 2u64 << 30;
    let (from, to) = (room(gpu, bytes as usize / 4)?, gpu.allocate(bytes, Contents::Activations)?);
    let copy = CopySlices { from: View::of(&from), from_stride: 0, to: View::of(&to), to_stride: 0, bytes, count: 1 };
    let t = time(gpu, 3, |g, _| copy_slices(g, &copy))?;
    line("copy of 2 GiB", t, 2.0 * bytes as f64, 0.0);
    Ok(())
}

fn projections<G: Gpu>(gpu: &mut G, random: &mut Random) -> Done {
    const HIDDEN: usize = 2048;
    // Sets that the second-level cache does not hold.
    let mut sets = Vec::new();
    for _ in 0..12 {
        let mut set = Vec::new();
        for rows in [8192, 4096, 32, 32] {
            set.push(random.matrix(gpu, rows, HIDDEN, 4)?);
        }
        sets.push(set);
    }
    let (norm, sums) = (random.floats(gpu, HIDDEN, 1.0)?, random.floats(gpu, 256, 1.0)?);
    let x = random.floats(gpu, 8 * HIDDEN, 1.0)?;
    let y = room(gpu, 8 * 248_320)?;
    let norm = StepNorm { weight: View::of(&norm), partials: View::of(&sums), count: 16, eps: 1e-6 };
    let input = GemvInput::Normed { x: View::of(&x), norm };
    for batch in [1, 8] {
        let to = GemvOutput::Rows { y: View::of(&y), stride: 12_352 };
        let t = time(gpu, 48, |g, i| {
            affine_gemv(g, Body::Mma, &sets[i % 12].iter().collect::<Vec<_>>(), &input, &to, batch)
        })?;
        let bytes = 12_352.0 * 2048.0 * (0.5 + 4.0 / 64.0);
        line(&format!("projections of a linear layer, decode, batch {batch}"), t, bytes, 0.0);
    }
    let mut out = Vec::new();
    for _ in 0..24 {
        out.push(random.matrix(gpu, HIDDEN, 4096, 4)?);
    }
    let (inner, partials) = (random.floats(gpu, 8 * 4096, 1.0)?, room(gpu, 8 * 2048)?);
    let to = GemvOutput::Residual { x: View::of(&x), partials: View::of(&partials) };
    let t = time(gpu, 48, |g, i| {
        affine_gemv(g, Body::Mma, &[&out[i % 24]], &GemvInput::Rows { x: View::of(&inner), stride: 4096 }, &to, 1)
    })?;
    line("output projection, decode, batch 1", t, 2048.0 * 4096.0 * (0.5 + 4.0 / 64.0), 0.0);
    let head = random.matrix(gpu, 248_320, HIDDEN, 4)?;
    let to = GemvOutput::Rows { y: View::of(&y), stride: 248_320 };
    let t = time(gpu, 4, |g, _| affine_gemv(g, Body::Mma, &[&head], &input, &to, 1))?;
    line("head, decode, batch 1", t, 248_320.0 * 2048.0 * (0.5 + 4.0 / 64.0), 0.0);

    let rows = 4096;
    let y = room(gpu, rows * 12_352)?;
    for element in [Element::Bf16, Element::F32] {
        let x = match element {
            Element::Bf16 => random.bf16(gpu, rows * HIDDEN, 1.0, Contents::Activations)?,
            Element::F32 => random.floats(gpu, rows * HIDDEN, 1.0)?,
        };
        let t = time(gpu, 2, |g, i| {
            let matrices: Vec<_> = sets[i].iter().collect();
            let product = AffineGemm {
                body: if element == Element::Bf16 { Body::Mma } else { Body::Simdgroup },
                matrices: &matrices,
                x: View::of(&x),
                element,
                y: View::of(&y),
                rows: rows as u32,
                x_stride: HIDDEN as u32,
                y_stride: 12_352,
            };
            affine_gemm(g, &product)
        })?;
        line(
            &format!("projections of a linear layer, 4096 rows, {element:?}"),
            t,
            0.0,
            2.0 * 4096.0 * 2048.0 * 12_352.0,
        );
    }
    gates(gpu, random)
}

/// The products of prefill that stay F32.
fn gates<G: Gpu>(gpu: &mut G, random: &mut Random) -> Done {
    let x = random.floats(gpu, 4096 * 2048, 1.0)?;
    let y = room(gpu, 4096 * 257)?;
    for (name, shapes) in [("gates", [(32, 4), (32, 4)]), ("router", [(256, 8), (1, 8)])] {
        let matrices =
            [random.matrix(gpu, shapes[0].0, 2048, shapes[0].1)?, random.matrix(gpu, shapes[1].0, 2048, shapes[1].1)?];
        let outputs = shapes[0].0 + shapes[1].0;
        for rows in [256, 1024, 4096] {
            for body in [Body::Simdgroup, Body::Mma] {
                let product = AffineGemm {
                    body,
                    matrices: &[&matrices[0], &matrices[1]],
                    x: View::of(&x),
                    element: Element::F32,
                    y: View::of(&y),
                    rows,
                    x_stride: 2048,
                    y_stride: outputs as u32,
                };
                let t = time(gpu, 4, |g, _| affine_gemm(g, &product))?;
                let operations = 2.0 * f64::from(rows) * 2048.0 * outputs as f64;
                line(&format!("{name} of {rows} rows, F32, {body:?}"), t, 0.0, operations);
            }
        }
    }
    Ok(())
}

fn experts<G: Gpu>(gpu: &mut G, random: &mut Random) -> Done {
    const HIDDEN: usize = 2048;
    const WIDTH: usize = 512;
    let (count, chosen, tokens) = (256, 8, 4096);
    let gate = random.matrix(gpu, count * WIDTH, HIDDEN, 4)?;
    let up = random.matrix(gpu, count * WIDTH, HIDDEN, 4)?;
    let down = random.matrix(gpu, count * HIDDEN, WIDTH, 4)?;
    let shared = [(WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH)].map(|(r, c)| random.matrix(gpu, r, c, 4));
    let [shared_gate, shared_up, shared_down] = shared;
    let (shared_gate, shared_up, shared_down) = (shared_gate?, shared_up?, shared_down?);

    // Prefill.
    let assignments = tokens * chosen;
    let ids: Vec<u32> = (0..assignments).map(|_| (random.bits() % count as u64) as u32).collect();
    let (body, element) = (Body::Mma, Element::Bf16);
    let block = body.grouped_rows(element);
    let blocks = grouped_blocks(block, assignments as u32, count as u32);
    let (experts, order) = (words(gpu, &ids)?, room(gpu, assignments)?);
    let map = [(); 3].map(|()| room(gpu, blocks as usize));
    let [block_expert, block_first, block_end] = map;
    let (block_expert, block_first, block_end) = (block_expert?, block_first?, block_end?);
    let sort = MoeMap {
        body: Body::Mma,
        experts: View::of(&experts),
        order: View::of(&order),
        block_expert: View::of(&block_expert),
        block_first: View::of(&block_first),
        block_end: View::of(&block_end),
        rows: assignments as u32,
        count: count as u32,
        block,
        blocks,
    };
    let t = time(gpu, 4, |g, _| moe_map(g, &sort))?;
    line("rows sorted by expert, 4096 tokens", t, 0.0, 0.0);
    let map = || ExpertMap {
        order: View::of(&order),
        block_expert: View::of(&block_expert),
        block_first: View::of(&block_first),
        block_end: View::of(&block_end),
        experts: count as u32,
        per_token: chosen as u32,
    };
    let x = random.bf16(gpu, tokens * HIDDEN, 1.0, Contents::Activations)?;
    let act = random.bf16(gpu, assignments * WIDTH, 1.0, Contents::Activations)?;
    let (weights, y) = (random.floats(gpu, assignments, 1.0)?, room(gpu, assignments * HIDDEN)?);

    let tokens = tokens as u32;
    let t = time(gpu, 2, |g, _| {
        let out = View::of(&act);
        grouped_gate_up(
            g,
            &GroupedGateUp { body, element, gate: &gate, up: &up, x: View::of(&x), tokens, map: Some(map()), out },
        )
    })?;
    let operations = 2.0 * assignments as f64 * (2 * HIDDEN * WIDTH) as f64;
    line("gate and up of the experts, 4096 tokens", t, 0.0, operations);
    let t = time(gpu, 2, |g, _| {
        let map = Some((map(), View::of(&weights)));
        grouped_down(g, &GroupedDown { body, element, down: &down, x: View::of(&act), tokens, map, y: View::of(&y) })
    })?;
    line("down of the experts, 4096 tokens", t, 0.0, operations / 2.0);

    // Decode.
    let (norm, sums) = (random.floats(gpu, HIDDEN, 1.0)?, random.floats(gpu, 2048, 1.0)?);
    let x = random.floats(gpu, 8 * HIDDEN, 1.0)?;
    let logits = random.floats(gpu, 64 * 257, 4.0)?;
    let (experts, act) = (room(gpu, 8 * chosen)?, room(gpu, 8 * (chosen + 1) * WIDTH)?);
    for batch in [1, 8] {
        // Other experts each time, so that the cache does not hold them.
        let first = |i: usize| MoeGateUpStep {
            body: Body::Mma,
            gate: &gate,
            up: &up,
            shared_gate: &shared_gate,
            shared_up: &shared_up,
            x: View::of(&x),
            norm: StepNorm { weight: View::of(&norm), partials: View::of(&sums), count: 16, eps: 1e-6 },
            logits: View::at(&logits, 4 * 257 * (i % 56) as u64),
            stride: 257,
            experts: View::of(&experts),
            act: View::of(&act),
            batch,
            count: count as u32,
            chosen: chosen as u32,
        };
        let bytes = f64::from(batch) * 9.0 * (HIDDEN * WIDTH) as f64 * (0.5 + 4.0 / 64.0);
        let t = time(gpu, 56, |g, i| moe_gate_up_step(g, &first(i)))?;
        line(&format!("experts' choice, gate and up, decode, batch {batch}"), t, 2.0 * bytes, 0.0);
        let second = MoeDownStep {
            body: Body::Mma,
            down: &down,
            shared_down: &shared_down,
            experts: View::of(&experts),
            act: View::of(&act),
            x: View::of(&x),
            partials: View::of(&sums),
            batch,
            count: count as u32,
            chosen: chosen as u32,
        };
        let t = time(gpu, 56, |g, _| moe_down_step(g, &second))?;
        line(&format!("experts' down, decode, batch {batch} (cached)"), t, bytes, 0.0);
    }
    Ok(())
}

fn attention<G: Gpu>(gpu: &mut G, random: &mut Random) -> Done {
    let context = 32_768u32;
    let pages = context / KV_PAGE;
    let page = 2 * 2 * 64 * 256;
    let pool = random.bf16(gpu, pages as usize * page, 1.0, Contents::Cache)?;
    let table: Vec<u32> = (0..pages).map(|p| (p * 167) % pages).collect();
    let table = words(gpu, &table)?;
    let kv = KvPool {
        pool: View::of(&pool),
        kv: KvType::Bf16,
        page_stride: page as u64,
        table: View::of(&table),
        table_stride: pages,
    };
    let (heads, kv_heads, stride) = (16u32, 2u32, 9216u32);
    let rows = 4096u32;
    let projections = random.floats(gpu, (rows * stride) as usize, 1.0)?;
    let q = random.bf16(gpu, (rows * heads * 256) as usize, 0.2, Contents::Activations)?;
    let out = room(gpu, (rows * heads * 256) as usize)?;
    let starts = [0, context - rows];
    for (body, start) in starts.into_iter().flat_map(|s| [(Body::Simdgroup, s), (Body::Mma, s)]) {
        let a = AttentionPrefill {
            body,
            element: Element::Bf16,
            q: View::of(&q),
            kv,
            projections: View::of(&projections),
            stride,
            out: View::of(&out),
            query_heads: heads,
            kv_heads,
            start,
            rows,
        };
        let t = time(gpu, 1, |g, _| attention_prefill(g, &a))?;
        let pairs = f64::from(rows) * (f64::from(start) + f64::from(rows) / 2.0);
        line(&format!("attention of 4096 rows from {start}, {body:?}"), t, 0.0, 4.0 * 256.0 * 16.0 * pairs);
    }
    let q = random.floats(gpu, (8 * heads * 256) as usize, 0.2)?;
    for length in [256, 4096, context] {
        let positions = words(gpu, &[length - 1])?;
        let scratch = gpu.allocate(
            attention_decode_scratch(Body::Mma, KvType::Bf16, 1, heads, length).max(16),
            Contents::Activations,
        )?;
        let a = AttentionDecode {
            body: Body::Mma,
            q: View::of(&q),
            kv,
            positions: View::of(&positions),
            longest: length,
            projections: View::of(&projections),
            stride,
            out: View::of(&out),
            scratch: View::of(&scratch),
            sequences: 1,
            query_heads: heads,
            kv_heads,
        };
        let t = time(gpu, 20, |g, _| attention_decode(g, &a))?;
        line(&format!("attention of a token at {length} (cached)"), t, f64::from(length) * 2048.0, 0.0);
    }
    Ok(())
}

fn linear<G: Gpu>(gpu: &mut G, random: &mut Random) -> Done {
    let shape = Shape::qwen3_6_35b_a3b();
    let (heads, channels, tokens) = (shape.linear_value_heads, shape.conv_dim(), 4096u32);
    let qkv = random.floats(gpu, tokens as usize * channels, 0.1)?;
    let gates = random.floats(gpu, tokens as usize * 2 * heads, 0.01)?;
    let slots = 64;
    let state = random.floats(gpu, slots * heads * 128 * 128, 0.1)?;
    let pair = words(gpu, &[0, 1])?;
    let scratch = gpu.allocate(gated_delta_chunk_scratch(&shape, tokens), Contents::Activations)?;
    let out = room(gpu, tokens as usize * heads * 128)?;
    for (tokens, body) in [(tokens, Body::Simdgroup), (tokens, Body::Mma), (256, Body::Mma)] {
        let d = GatedDeltaChunk {
            body,
            qkv: View::of(&qkv),
            gates: View::of(&gates),
            state: View::of(&state),
            slots: View::of(&pair),
            scratch: View::of(&scratch),
            out: View::of(&out),
            start: 0,
            tokens,
        };
        let t = time(gpu, 1, |g, _| gated_delta_chunk(g, &shape, &d))?;
        line(&format!("delta rule, {tokens} tokens, two dispatches, {body:?}"), t, 0.0, 0.0);
    }

    let projections = random.floats(gpu, 12_352, 0.5)?;
    let conv = random.floats(gpu, slots * 3 * channels, 0.5)?;
    let weights = random.bf16(gpu, channels * 4, 0.5, Contents::Weights)?;
    let (a_log, dt_bias, norm) =
        (random.floats(gpu, heads, 1.0)?, random.floats(gpu, heads, 1.0)?, random.floats(gpu, 128, 1.0)?);
    let pairs: Vec<u32> = (0..slots as u32).collect();
    let pairs = words(gpu, &pairs)?;
    let t = time(gpu, 64, |g, i| {
        let l = LinearStep {
            projections: View::of(&projections),
            stride: 12_352,
            z_at: 8192,
            gates_at: 12_288,
            conv: View::of(&conv),
            state: View::of(&state),
            slots: View::at(&pairs, 8 * (i % 32) as u64),
            weights: View::of(&weights),
            a_log: View::of(&a_log),
            dt_bias: View::of(&dt_bias),
            norm: View::of(&norm),
            y: View::of(&out),
            batch: 1,
        };
        linear_step(g, &shape, &l)
    })?;
    line("linear attention of a token", t, 2.0 * (heads * 128 * 128 * 4) as f64, 0.0);
    Ok(())
}
