//! The layer program: which kernels a prefill chunk and a decoded token run, in which order, on which memory.
//!
//! - `prefill`: a chunk of one sequence in one command buffer, routing and experts included.
//! - `decode`: one token of up to eight sequences in one command buffer; the device chooses the next tokens itself, so
//!   that the next step can follow without the host.
//! - `pools`: pages of the KV cache, slots of recurrent state.
//!
//! It is written once for every device. `docs/metal.md` counts its dispatches and bytes.

mod decode;
mod pools;
mod prefill;

pub use decode::{Choice, DECODE_BATCH, Step};
pub use pools::{Direction, Page, Pools, Slots, StateSizes};

use std::collections::BTreeMap;
use std::sync::Arc;

use lily_checkpoint::Weights;
use lily_model::{KvType, LayerKind, Shape};

use crate::gpu::{Contents, Dispatched, Gpu, GpuError, Ticket};
use crate::kernels::{self, Body, Element, KV_PAGE, KvPool, View, kv_unit};
use crate::weights::DeviceWeights;
use decode::Steps;
use prefill::Scratch;

/// How the model is computed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Type of the inputs of prefill's matrix products, and of cached keys and values: BF16 as shipped, F32 for tests.
    pub element: Element,
    /// Keys and values are cached in 8 bits instead ([`KvType::Q8`]).
    pub q8: bool,
    /// Matrix tiles of the BF16 products.
    pub body: Body,
    /// Most tokens of a prefill pass, a multiple of 64.
    pub chunk: u32,
}

impl Options {
    /// Tokens of a prefill pass unless something else is asked for.
    pub const CHUNK: u32 = 4096;

    /// What keys and values are cached as.
    pub fn kv_type(&self) -> KvType {
        if self.q8 { KvType::Q8 } else { self.element.into() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { element: Element::Bf16, q8: false, body: Body::Simdgroup, chunk: Self::CHUNK }
    }
}

/// Pages of random keys and values that [`Program::begin_filled`] draws.
const FILLED_PAGES: usize = 16;

/// A part of the model, for counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Embedding rows, and the first norm.
    Embed,
    /// A layer, mixer and experts.
    Layer(LayerKind),
    /// Final norm, head and choice.
    Head,
    /// Copies of state.
    Copy,
}

/// What a sequence holds on the device.
pub struct Held {
    /// State slots.
    pub slots: Slots,
    /// Pages of the KV cache, in the order of positions.
    pub pages: Vec<Arc<Page>>,
    /// Tokens seen.
    pub len: u32,
}

/// The model on a device.
pub struct Program<G: Gpu> {
    gpu: G,
    shape: Shape,
    options: Options,
    weights: DeviceWeights<G::Buffer>,
    pools: Pools<G::Buffer>,
    /// Rotary frequencies `[32]` F32.
    frequencies: G::Buffer,
    scratch: Option<Scratch<G::Buffer>>,
    steps: Steps<G::Buffer>,
    /// Parts of the open command buffer, and how many dispatches it had when each began.
    marks: Vec<(Part, usize)>,
    /// Of command buffers in flight.
    marked: BTreeMap<Ticket, Vec<(Part, usize)>>,
    /// What command buffers did, where it is counted.
    counted: Option<Vec<(Part, Dispatched)>>,
    /// Of all command buffers so far.
    dispatches: u64,
}

impl<G: Gpu> Program<G> {
    /// Shares the weights with the device.
    ///
    /// # Errors
    /// Of the device: memory, or a shader that does not compile.
    pub fn new(mut gpu: G, shape: &Shape, weights: &Weights, options: Options) -> Result<Self, GpuError> {
        assert!(options.chunk > 0 && options.chunk.is_multiple_of(64), "chunks of {} tokens", options.chunk);
        let half = shape.rotary_dim / 2;
        // docs/model.md §4.3: rounded once to F32.
        let frequency = |j: usize| f64::from(shape.rope_theta).powf(-2.0 * j as f64 / shape.rotary_dim as f64) as f32;
        let frequencies: Vec<u8> = (0..half).flat_map(|j| frequency(j).to_ne_bytes()).collect();
        let buffer = gpu.allocate(frequencies.len() as u64, Contents::Weights)?;
        gpu.upload(&buffer, 0, &frequencies)?;
        Ok(Self {
            weights: DeviceWeights::share(&mut gpu, weights)?,
            pools: Pools::new(&gpu, shape, options.kv_type())?,
            steps: Steps::new(&gpu, shape)?,
            frequencies: buffer,
            scratch: None,
            shape: shape.clone(),
            options,
            gpu,
            marks: Vec::new(),
            marked: BTreeMap::new(),
            counted: None,
            dispatches: 0,
        })
    }

    /// The device.
    pub fn gpu(&self) -> &G {
        &self.gpu
    }

    /// As [`Self::gpu`]; not while a command buffer is open.
    pub fn gpu_mut(&mut self) -> &mut G {
        &mut self.gpu
    }

    /// The numbers of the checkpoint.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How the model is computed.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Bytes of device memory held for sequences.
    pub fn state_bytes(&self) -> u64 {
        self.pools.bytes()
    }

    /// Dispatches committed so far.
    pub fn dispatches(&self) -> u64 {
        self.dispatches
    }

    /// Memory for so many pages and sequences, while there are none ([`Pools::provide`]).
    ///
    /// # Errors
    /// Of the device: memory.
    pub fn provide(&mut self, pages: u32, sequences: u32) -> Result<(), GpuError> {
        self.pools.provide(&self.gpu, pages, sequences)
    }

    /// The sequences may come to hold this many tokens together.
    pub fn admit(&mut self, tokens: u64) {
        self.pools.admit(tokens);
    }

    /// Bytes of a sequence's state by part.
    pub fn state_sizes(&self) -> StateSizes {
        self.pools.sizes()
    }

    /// An empty sequence.
    ///
    /// # Errors
    /// Of the device: memory.
    pub fn begin(&mut self) -> Result<Held, GpuError> {
        let slots = self.slots()?;
        self.pools.clear_slot(&self.gpu, slots.past())?;
        Ok(Held { slots, pages: Vec::new(), len: 0 })
    }

    /// A sequence that has seen `len` tokens with random keys, values and state, for counts and benchmarks.
    ///
    /// # Errors
    /// Of the device: memory.
    pub fn begin_filled(&mut self, len: u32, seed: u64) -> Result<Held, GpuError> {
        let mut held = self.begin()?;
        self.ready_pages(&mut held, len)?;
        self.run()?;
        let sizes = self.pools.sizes();
        let mut state = seed;
        // BF16 values of ±0.5 to ±1; as F32, pairs of them; in 8 bits, codes and scales.
        let mut random = |bytes: u64| -> Vec<u8> {
            (0..bytes / 2)
                .flat_map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (((state >> 33) as u16 & 0x807f) | 0x3f00).to_ne_bytes()
                })
                .collect()
        };
        // Long contexts repeat some pages: no two neighbours are alike.
        let drawn: Vec<Vec<u8>> = held.pages.iter().take(FILLED_PAGES).map(|_| random(sizes.page)).collect();
        for (page, values) in held.pages.iter().zip(drawn.iter().cycle()) {
            self.gpu.upload(self.pools.kv(), u64::from(page.index()) * sizes.page, values)?;
        }
        let slot = u64::from(held.slots.past());
        for layer in 0..sizes.layers as usize {
            for (pool, size) in [(self.pools.recurrent(layer), sizes.recurrent), (self.pools.conv(layer), sizes.conv)] {
                self.gpu.upload(pool.buffer, pool.offset + slot * size, &random(size))?;
            }
        }
        held.len = len;
        Ok(held)
    }

    /// A copy of a sequence's recurrent state. Its KV pages need none: who writes a page that others hold copies it.
    ///
    /// # Errors
    /// Of the device.
    pub fn save(&mut self, held: &Held) -> Result<G::Buffer, GpuError> {
        let saved = self.gpu.allocate(self.pools.sizes().slot(), Contents::State)?;
        self.mark(Part::Copy);
        self.pools.copy_slot(&mut self.gpu, held.slots.past(), &saved, Direction::Save)?;
        self.run()?;
        Ok(saved)
    }

    /// A sequence of `len` tokens with a saved state.
    ///
    /// # Errors
    /// Of the device.
    pub fn load(&mut self, saved: &G::Buffer, pages: Vec<Arc<Page>>, len: u32) -> Result<Held, GpuError> {
        let slots = self.slots()?;
        self.mark(Part::Copy);
        self.pools.copy_slot(&mut self.gpu, slots.past(), saved, Direction::Load)?;
        self.run()?;
        Ok(Held { slots, pages, len })
    }

    /// The bytes of a saved state.
    ///
    /// # Errors
    /// Of the device.
    pub fn read_state(&self, saved: &G::Buffer) -> Result<Vec<u8>, GpuError> {
        self.read_bytes(View::of(saved), self.pools.sizes().slot())
    }

    /// The bytes of a page. What no token has written is whatever lay there.
    ///
    /// # Errors
    /// Of the device.
    pub fn read_page(&self, page: &Page) -> Result<Vec<u8>, GpuError> {
        let size = self.pools.sizes().page;
        self.read_bytes(View::at(self.pools.kv(), u64::from(page.index()) * size), size)
    }

    fn read_bytes(&self, view: View<'_, G::Buffer>, bytes: u64) -> Result<Vec<u8>, GpuError> {
        let mut out = vec![0; bytes as usize];
        self.gpu.read(view.buffer, view.offset, &mut out)?;
        Ok(out)
    }

    /// A saved state of the bytes that [`Self::read_state`] gave.
    ///
    /// # Errors
    /// Of the device.
    pub fn write_state(&self, bytes: &[u8]) -> Result<G::Buffer, GpuError> {
        let saved = self.gpu.allocate(self.pools.sizes().slot(), Contents::State)?;
        self.gpu.upload(&saved, 0, bytes)?;
        Ok(saved)
    }

    /// Room for as many pages.
    ///
    /// # Errors
    /// Of the device: memory.
    pub fn reserve_pages(&mut self, count: u32) -> Result<(), GpuError> {
        self.mark(Part::Copy);
        self.pools.reserve(&mut self.gpu, count)?;
        if self.gpu.encoded() > 0 {
            self.run()?;
        }
        Ok(())
    }

    /// A page of the bytes that [`Self::read_page`] gave; [`Self::reserve_pages`] has made room for it.
    ///
    /// # Errors
    /// Of the device.
    pub fn write_page(&mut self, bytes: &[u8]) -> Result<Page, GpuError> {
        let page = self.pools.page(&mut self.gpu)?;
        self.gpu.upload(self.pools.kv(), u64::from(page.index()) * self.pools.sizes().page, bytes)?;
        Ok(page)
    }

    fn slots(&mut self) -> Result<Slots, GpuError> {
        self.mark(Part::Copy);
        let slots = self.pools.slots(&mut self.gpu)?;
        if self.gpu.encoded() > 0 {
            self.run()?;
        }
        Ok(slots)
    }

    /// From now on, keep what each dispatch did; [`Self::counted`] has it.
    pub fn count(&mut self) {
        self.counted = Some(Vec::new());
    }

    /// The dispatches since [`Self::count`] or the last call.
    pub fn counted(&mut self) -> Vec<(Part, Dispatched)> {
        self.counted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Dispatches encoded from now on belong to `part`.
    fn mark(&mut self, part: Part) {
        self.marks.push((part, self.gpu.encoded()));
    }

    fn commit(&mut self) -> Result<Ticket, GpuError> {
        self.dispatches += self.gpu.encoded() as u64;
        let ticket = self.gpu.commit()?;
        self.marked.insert(ticket, std::mem::take(&mut self.marks));
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), GpuError> {
        let marks = self.marked.remove(&ticket).unwrap_or_default();
        let finished = self.gpu.wait(ticket)?;
        if let Some(counted) = &mut self.counted {
            for (i, dispatched) in finished.dispatches.into_iter().enumerate() {
                let part = marks.iter().rev().find(|(_, from)| *from <= i).map_or(Part::Copy, |m| m.0);
                counted.push((part, dispatched));
            }
        }
        Ok(())
    }

    /// Commits and waits.
    fn run(&mut self) -> Result<(), GpuError> {
        let ticket = self.commit()?;
        self.wait(ticket)
    }
}

/// Allocates what a program for contexts up to `context`, of which `batch` decode at once, holds besides weights and
/// sequences, in the sizes that it grows to.
///
/// # Errors
/// Of the device: memory.
pub(crate) fn working_memory<G: Gpu>(
    gpu: &G,
    shape: &Shape,
    options: &Options,
    context: usize,
    batch: usize,
) -> Result<(), GpuError> {
    let context = u32::try_from(context).unwrap_or(u32::MAX);
    Scratch::new(gpu, shape, options, Scratch::<G::Buffer>::rows_for(options, context.min(options.chunk)))?;
    Steps::new(gpu, shape)?;
    let heads = shape.query_heads as u32;
    let need = kernels::attention_decode_scratch(options.body, options.kv_type(), batch as u32, heads, context);
    gpu.allocate(need.next_power_of_two(), Contents::Activations)?;
    // A table of pages for the prefill pass, and one for each sequence of the two sets of a step.
    let table = 4 * u64::from(context.div_ceil(KV_PAGE).next_power_of_two());
    gpu.allocate((1 + 2 * batch as u64) * table, Contents::Activations)?;
    Ok(())
}

/// Values of a row of a linear layer's projections: q | k | v | z | a | b.
fn linear_stride(s: &Shape) -> usize {
    s.conv_dim() + s.value_dim() + 2 * s.linear_value_heads
}

/// Values of a row of a full layer's projections: q with gates | k | v.
fn full_stride(s: &Shape) -> usize {
    2 * s.query_dim() + 2 * s.kv_dim()
}

/// Keys and values of full layer `index`.
fn kv<'a, B: Clone>(
    s: &Shape,
    kv: KvType,
    pools: &'a Pools<B>,
    index: usize,
    table: View<'a, B>,
    table_stride: u32,
) -> KvPool<'a, B> {
    let layer = 2 * s.kv_heads as u64 * u64::from(KV_PAGE) * kv.row_bytes(s.head_dim);
    let pool = View::at(pools.kv(), index as u64 * layer);
    KvPool { pool, kv, page_stride: pools.sizes().page / kv_unit(kv), table, table_stride }
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn read_floats<G: Gpu>(gpu: &G, view: View<'_, G::Buffer>, values: usize) -> Result<Vec<f32>, GpuError> {
    let mut bytes = vec![0; 4 * values];
    gpu.read(view.buffer, view.offset, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect())
}

fn read_words<G: Gpu>(gpu: &G, buffer: &G::Buffer, count: usize) -> Result<Vec<u32>, GpuError> {
    let mut bytes = vec![0; 4 * count];
    gpu.read(buffer, 0, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|b| u32::from_ne_bytes(*b)).collect())
}
