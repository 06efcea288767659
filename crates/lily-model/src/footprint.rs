//! Bytes that a model takes, known before it is loaded (`docs/memory.md`).

use crate::SequenceBytes;

/// What a model takes on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Weights.
    pub weights: u64,
    /// Whether the weights are read where they lie in a memory map: the system can drop them and read them again, so that
    /// they need not fit, only should.
    pub mapped: bool,
    /// A sequence.
    pub sequence: SequenceBytes,
    /// Values on the way through a pass and a step, at most.
    pub scratch: u64,
}
