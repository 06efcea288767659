//! Bytes that the layer program takes, before it takes them (`docs/memory.md`). What allocates is run on a device that only
//! counts, so that there is no second list of buffers.

use std::cell::Cell;

use lily_checkpoint::Bytes;
use lily_model::{Footprint, SequenceBytes, Shape};

use crate::gpu::{Contents, Finished, Gpu, GpuError, Launch, Ticket};
use crate::program::{DECODE_BATCH, Options, StateSizes, working_memory};

/// Adds up what is allocated, and has none of it.
#[derive(Default)]
struct Tally(Cell<u64>);

impl Gpu for Tally {
    type Buffer = u64;

    fn name(&self) -> String {
        "a count".into()
    }

    fn allocate(&self, bytes: u64, _contents: Contents) -> Result<u64, GpuError> {
        self.0.set(self.0.get() + bytes);
        Ok(bytes)
    }

    fn share(&self, host: &Bytes, contents: Contents) -> Result<u64, GpuError> {
        self.allocate(host.len() as u64, contents)
    }

    fn bytes(&self, buffer: &u64) -> u64 {
        *buffer
    }

    fn upload(&self, _buffer: &u64, _offset: u64, _data: &[u8]) -> Result<(), GpuError> {
        Ok(())
    }

    fn read(&self, _buffer: &u64, _offset: u64, _out: &mut [u8]) -> Result<(), GpuError> {
        Ok(())
    }

    fn encode(&mut self, _launch: &Launch<'_, u64>) -> Result<(), GpuError> {
        Ok(())
    }

    fn encoded(&self) -> usize {
        0
    }

    fn commit(&mut self) -> Result<Ticket, GpuError> {
        Ok(Ticket(0))
    }

    fn wait(&mut self, _ticket: Ticket) -> Result<Finished, GpuError> {
        Ok(Finished::default())
    }
}

/// What a sequence comes to hold: two slots of state, and a page besides those of its positions, because one that others
/// hold is copied before it is written.
pub(crate) fn sequence(sizes: StateSizes) -> SequenceBytes {
    SequenceBytes { state: 2 * sizes.slot() + sizes.page, block: sizes.page }
}

/// What a GPU takes for a checkpoint of this shape with `weights` bytes of weights, for contexts up to `context`, of which
/// `parallel` decode at once.
///
/// # Errors
/// None that a device could cause.
pub fn footprint(
    shape: &Shape,
    weights: u64,
    options: &Options,
    context: usize,
    parallel: usize,
) -> Result<Footprint, GpuError> {
    let tally = Tally::default();
    working_memory(&tally, shape, options, context, parallel.min(DECODE_BATCH))?;
    let sequence = sequence(StateSizes::of(shape, options.kv_type()));
    Ok(Footprint { weights, mapped: false, sequence, scratch: tally.0.get() })
}
