//! Memory of sequences: pages of the KV cache, and slots of recurrent and convolution state. Both grow as sequences do.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lily_model::{KvType, LayerKind, Shape};

use crate::gpu::{Contents, Gpu, GpuError};
use crate::kernels::{CopySlices, KV_PAGE, View, copy_slices};

/// Pages that the pool grows by when more than the admitted ones are needed.
const PAGES_BEYOND: u32 = 8;

/// A page of the KV cache: 64 positions of all full layers. Free again when the last holder drops it.
pub struct Page {
    index: u32,
    free: Arc<Mutex<Vec<u32>>>,
}

impl Page {
    /// Its place in the pool.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        lock(&self.free).push(self.index);
    }
}

/// The two slots of a sequence: a step reads one and writes the other, so that a step can be dropped.
pub struct Slots {
    pair: u32,
    /// Which of the two holds the state after the last step.
    current: u32,
    free: Arc<Mutex<Vec<u32>>>,
}

impl Slots {
    /// The slot that a step reads.
    pub fn past(&self) -> u32 {
        2 * self.pair + self.current
    }

    /// The slot that a step writes.
    pub fn next(&self) -> u32 {
        2 * self.pair + (1 - self.current)
    }

    /// The step counts.
    pub fn swap(&mut self) {
        self.current = 1 - self.current;
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        lock(&self.free).push(self.pair);
    }
}

/// Bytes of the state of one sequence outside the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSizes {
    /// Linear layers.
    pub layers: u64,
    /// A layer's recurrent state: `[value heads × 128 × 128]` F32.
    pub recurrent: u64,
    /// A layer's convolution state: `[3 × channels]` F32.
    pub conv: u64,
    /// A page of the KV cache, all full layers.
    pub page: u64,
}

impl StateSizes {
    /// Of a model of this shape with keys and values of type `kv`.
    pub fn of(shape: &Shape, kv: KvType) -> Self {
        let layers = shape.count(LayerKind::Linear) as u64;
        Self {
            layers,
            recurrent: shape.recurrent_bytes() / layers.max(1),
            conv: (4 * (shape.conv_taps - 1) * shape.conv_dim()) as u64,
            page: shape.kv_bytes_per_token(kv) * u64::from(KV_PAGE),
        }
    }

    /// Of all linear layers together.
    pub fn slot(&self) -> u64 {
        self.layers * (self.recurrent + self.conv)
    }
}

/// Device memory of all sequences. A buffer that grows is copied on the device, so that both are there for a moment; what is
/// provided at the start does not grow.
pub struct Pools<B> {
    sizes: StateSizes,
    /// `[pages × page]`.
    kv: B,
    pages: u32,
    /// Pages that the sequences may come to hold together.
    admitted: u32,
    free_pages: Arc<Mutex<Vec<u32>>>,
    /// `[linear layers × slots × recurrent]`.
    recurrent: B,
    /// `[linear layers × slots × conv]`.
    conv: B,
    pairs: u32,
    free_pairs: Arc<Mutex<Vec<u32>>>,
}

impl<B: Clone> Pools<B> {
    /// Room for one sequence of one page.
    pub fn new<G: Gpu<Buffer = B>>(gpu: &G, shape: &Shape, kv: KvType) -> Result<Self, GpuError> {
        let sizes = StateSizes::of(shape, kv);
        let [recurrent, conv] = states(gpu, sizes, 1)?;
        Ok(Self {
            sizes,
            kv: gpu.allocate(sizes.page, Contents::Cache)?,
            pages: 1,
            admitted: 1,
            free_pages: Arc::new(Mutex::new(vec![0])),
            recurrent,
            conv,
            pairs: 1,
            free_pairs: Arc::new(Mutex::new(vec![0])),
        })
    }

    /// Has at least so many pages and pairs of slots. Only while none is held: nothing is copied then, and the old memory goes
    /// before the new one comes. Otherwise nothing changes, and both grow as sequences do.
    pub fn provide<G: Gpu<Buffer = B>>(&mut self, gpu: &G, pages: u32, pairs: u32) -> Result<(), GpuError> {
        let idle = |free: &Mutex<Vec<u32>>, all: u32| lock(free).len() == all as usize;
        let enough = pages <= self.pages && pairs <= self.pairs;
        if enough || !idle(&self.free_pages, self.pages) || !idle(&self.free_pairs, self.pairs) {
            return Ok(());
        }
        // The smallest ones in between: what is replaced is free before more is asked for, and there is a pool if that fails.
        for pages in [1, pages.max(self.pages)] {
            self.kv = gpu.allocate(u64::from(pages) * self.sizes.page, Contents::Cache)?;
            self.pages = pages;
            *lock(&self.free_pages) = (0..pages).rev().collect();
        }
        for pairs in [1, pairs.max(self.pairs)] {
            [self.recurrent, self.conv] = states(gpu, self.sizes, pairs)?;
            self.pairs = pairs;
            *lock(&self.free_pairs) = (0..pairs).rev().collect();
        }
        Ok(())
    }

    /// Bytes by part.
    pub fn sizes(&self) -> StateSizes {
        self.sizes
    }

    /// The KV pool.
    pub fn kv(&self) -> &B {
        &self.kv
    }

    /// Recurrent states of a linear layer, by slot.
    pub fn recurrent(&self, layer: usize) -> View<'_, B> {
        View::at(&self.recurrent, layer as u64 * u64::from(2 * self.pairs) * self.sizes.recurrent)
    }

    /// Convolution states of a linear layer, by slot.
    pub fn conv(&self, layer: usize) -> View<'_, B> {
        View::at(&self.conv, layer as u64 * u64::from(2 * self.pairs) * self.sizes.conv)
    }

    /// Bytes of device memory held.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * self.sizes.page + u64::from(2 * self.pairs) * self.sizes.slot()
    }

    /// The sequences may come to hold this many tokens together: the pool grows by doubling up to there, and beyond it by
    /// little, for what snapshots hold.
    pub fn admit(&mut self, tokens: u64) {
        self.admitted = u32::try_from(tokens.div_ceil(u64::from(KV_PAGE))).unwrap_or(u32::MAX);
    }

    /// A free page; the pool grows where there is none. What the page holds is undefined.
    pub fn page<G: Gpu<Buffer = B>>(&mut self, gpu: &mut G) -> Result<Page, GpuError> {
        if let Some(index) = pop(&self.free_pages) {
            return Ok(Page { index, free: self.free_pages.clone() });
        }
        let more = match self.pages < self.admitted {
            true => (2 * self.pages).min(self.admitted),
            false => self.pages + PAGES_BEYOND,
        };
        self.grow(gpu, more)?;
        let index = pop(&self.free_pages).ok_or(GpuError::Memory(self.sizes.page))?;
        Ok(Page { index, free: self.free_pages.clone() })
    }

    /// As many free pages at once, so that the pool is copied once.
    pub fn reserve<G: Gpu<Buffer = B>>(&mut self, gpu: &mut G, count: u32) -> Result<(), GpuError> {
        let free = lock(&self.free_pages).len() as u32;
        match count.saturating_sub(free) {
            0 => Ok(()),
            missing => self.grow(gpu, self.pages + missing),
        }
    }

    fn grow<G: Gpu<Buffer = B>>(&mut self, gpu: &mut G, pages: u32) -> Result<(), GpuError> {
        let kv = gpu.allocate(u64::from(pages) * self.sizes.page, Contents::Cache)?;
        slices(gpu, View::of(&self.kv), View::of(&kv), [self.sizes.page; 2], self.sizes.page, self.pages)?;
        let mut free = lock(&self.free_pages);
        // Popped from the end: lower pages first.
        free.extend((self.pages..pages).rev());
        (self.kv, self.pages) = (kv, pages);
        Ok(())
    }

    /// Two free slots; what they hold is undefined.
    pub fn slots<G: Gpu<Buffer = B>>(&mut self, gpu: &mut G) -> Result<Slots, GpuError> {
        if let Some(pair) = pop(&self.free_pairs) {
            return Ok(Slots { pair, current: 0, free: self.free_pairs.clone() });
        }
        let more = 2 * self.pairs;
        let [recurrent, conv] = [(&self.recurrent, self.sizes.recurrent), (&self.conv, self.sizes.conv)].map(
            |(old, size)| -> Result<B, GpuError> {
                let new = gpu.allocate(u64::from(2 * more) * self.sizes.layers * size, Contents::State)?;
                let (from, to) = (u64::from(2 * self.pairs) * size, u64::from(2 * more) * size);
                slices(gpu, View::of(old), View::of(&new), [from, to], from, self.sizes.layers as u32)?;
                Ok(new)
            },
        );
        (self.recurrent, self.conv) = (recurrent?, conv?);
        let mut free = lock(&self.free_pairs);
        free.extend((self.pairs..more).rev());
        self.pairs = more;
        let pair = free.pop().ok_or(GpuError::Memory(self.sizes.slot()))?;
        drop(free);
        Ok(Slots { pair, current: 0, free: self.free_pairs.clone() })
    }

    /// Zeros in `slot`: the state before the first token. Only while nothing in flight uses the slot.
    pub fn clear_slot<G: Gpu<Buffer = B>>(&self, gpu: &G, slot: u32) -> Result<(), GpuError> {
        for layer in 0..self.sizes.layers as usize {
            for (pool, size) in [(self.recurrent(layer), self.sizes.recurrent), (self.conv(layer), self.sizes.conv)] {
                gpu.upload(pool.buffer, pool.offset + u64::from(slot) * size, &vec![0; size as usize])?;
            }
        }
        Ok(())
    }

    /// Copies the state in `slot` to `saved`, or from it.
    pub fn copy_slot<G: Gpu<Buffer = B>>(
        &self,
        gpu: &mut G,
        slot: u32,
        saved: &B,
        direction: Direction,
    ) -> Result<(), GpuError> {
        let StateSizes { layers, recurrent, conv, .. } = self.sizes;
        for (pool, size, at) in [(self.recurrent(0), recurrent, 0), (self.conv(0), conv, layers * recurrent)] {
            let pool = View::at(pool.buffer, pool.offset + u64::from(slot) * size);
            let (saved, apart) = (View::at(saved, at), u64::from(2 * self.pairs) * size);
            match direction {
                Direction::Save => slices(gpu, pool, saved, [apart, size], size, layers as u32)?,
                Direction::Load => slices(gpu, saved, pool, [size, apart], size, layers as u32)?,
            }
        }
        Ok(())
    }

    /// Copies a page into another.
    pub fn copy_page<G: Gpu<Buffer = B>>(&self, gpu: &mut G, from: &Page, to: &Page) -> Result<(), GpuError> {
        let at = |page: &Page| View::at(&self.kv, u64::from(page.index) * self.sizes.page);
        slices(gpu, at(from), at(to), [0, 0], self.sizes.page, 1)
    }
}

/// Of [`Pools::copy_slot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Out of the slot.
    Save,
    /// Into the slot.
    Load,
}

/// `count` slices of `bytes`, `strides` apart where they come from and where they go.
fn slices<G: Gpu>(
    gpu: &mut G,
    from: View<'_, G::Buffer>,
    to: View<'_, G::Buffer>,
    strides: [u64; 2],
    bytes: u64,
    count: u32,
) -> Result<(), GpuError> {
    let [from_stride, to_stride] = strides;
    copy_slices(gpu, &CopySlices { from, from_stride, to, to_stride, bytes, count })
}

/// Recurrent and convolution states of all linear layers, for so many pairs of slots.
fn states<G: Gpu>(gpu: &G, sizes: StateSizes, pairs: u32) -> Result<[G::Buffer; 2], GpuError> {
    let slots = u64::from(2 * pairs) * sizes.layers;
    Ok([gpu.allocate(slots * sizes.recurrent, Contents::State)?, gpu.allocate(slots * sizes.conv, Contents::State)?])
}

fn lock(free: &Mutex<Vec<u32>>) -> MutexGuard<'_, Vec<u32>> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pop(free: &Mutex<Vec<u32>>) -> Option<u32> {
    lock(free).pop()
}
