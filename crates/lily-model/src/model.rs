//! The contract between the engine and a device.

use std::any::Any;
use std::sync::Arc;

use crate::{KvType, Shape};

/// A sequence that a model holds state for. Ids are never used twice by one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// For which of the tokens given to [`Model::prefill`] logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// None: the head is not computed.
    None,
    /// Only the last token.
    Last,
    /// Every token (perplexity, echo).
    All,
}

/// Logits, row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logits {
    /// Width of a row: [`Shape::vocab`], padding ids included (the sampler masks them).
    pub vocab: usize,
    /// rows × vocab.
    pub data: Vec<f32>,
}

impl Logits {
    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.data.len().checked_div(self.vocab).unwrap_or(0)
    }

    /// Row `i`, `[vocab]`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.vocab..(i + 1) * self.vocab]
    }
}

/// The largest logits of a row with their ids, in descending order, ties to the lower id.
pub type Top = Vec<(u32, f32)>;

/// A copy of a sequence's state at one length. It never aliases the sequence it was taken from.
#[derive(Clone)]
pub struct Snapshot {
    /// Tokens that the state has seen.
    pub len: usize,
    /// Bytes of memory that the copy holds, `shared` included.
    pub bytes: u64,
    /// The memory among them that other snapshots and sequences may hold too, so that who keeps many snapshots can count
    /// it once.
    pub shared: Vec<Shared>,
    /// What the device keeps; only the model that made it can read it.
    pub state: Arc<dyn Any + Send + Sync>,
}

/// Memory that several snapshots of one model may hold together: a block of keys and values, which is never written while
/// two hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The same for the same memory, for as long as a snapshot holds it.
    pub id: u64,
    /// Bytes of it.
    pub bytes: u64,
}

/// A part of a snapshot that is turned into bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What the snapshot holds alone.
    Own,
    /// The memory at this place of [`Snapshot::shared`].
    Shared(usize),
}

/// Most memory that a sequence comes to hold, so that it can be admitted before it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceBytes {
    /// Bytes whatever its length: recurrent and convolution state.
    pub state: u64,
    /// Bytes of keys and values of [`Self::BLOCK`] positions, all layers.
    pub block: u64,
}

impl SequenceBytes {
    /// Positions that get their memory together.
    pub const BLOCK: usize = 64;

    /// Bytes of a sequence with room for `room` tokens.
    pub fn of(&self, room: usize) -> u64 {
        self.state.saturating_add(self.block.saturating_mul(room.div_ceil(Self::BLOCK) as u64))
    }
}

/// Why a device could not do what was asked. The sequence named is as it was before the call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ModelError {
    /// More tokens than the sequence was admitted for.
    #[error("the sequence would have {asked} tokens, but its room is {room}")]
    OutOfRoom {
        /// Tokens after the call.
        asked: usize,
        /// Tokens admitted by [`Model::begin`].
        room: usize,
    },
    /// A token id that has no embedding row.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    BadToken {
        /// The id given.
        id: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// No such sequence, or a snapshot of another model.
    #[error("{0}")]
    Unknown(&'static str),
    /// The device itself failed.
    #[error("device: {0}")]
    Device(String),
}

impl ModelError {
    /// Refuses `tokens` that cannot follow `len` others in a sequence with room for `room`, before anything changes.
    pub fn check(tokens: &[u32], vocab: usize, len: usize, room: usize) -> Result<(), Self> {
        if let Some(&id) = tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(Self::BadToken { id, vocab });
        }
        match len + tokens.len() {
            asked if asked > room => Err(Self::OutOfRoom { asked, room }),
            _ => Ok(()),
        }
    }
}

/// What a device counts about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Most bytes of device memory held at once so far, weights included. `None`: its memory is the process's, or it
    /// does not count.
    pub peak_device_bytes: Option<u64>,
    /// Dispatches started so far. `None`: it has none, or does not count.
    pub dispatches: Option<u64>,
}

/// The model on some device. One thread owns it and calls it; the device may use many threads or a GPU inside.
///
/// Prefill has one arithmetic per row, however the prompt is cut into calls: cuts at multiples of 64 give the same
/// bits as one call. Decode may have an arithmetic of its own (on the CPU it is the same).
pub trait Model: Send {
    /// The numbers of the checkpoint.
    fn shape(&self) -> &Shape;

    /// What runs it, for people: `"cpu (AVX2, 2 threads)"`.
    fn device(&self) -> String;

    /// What it caches keys and values as.
    fn kv_type(&self) -> KvType {
        KvType::Bf16
    }

    /// Tokens that one [`Model::prefill`] call should get at most, so that a request can be cancelled between calls.
    /// A multiple of 64.
    fn prefill_chunk(&self) -> usize;

    /// Take the memory for `sequences` of `room` tokens now, before there are any, so that none is missing later and nothing is
    /// copied as they grow. A device for which that makes no difference does nothing.
    fn provide(&mut self, _room: usize, _sequences: usize) -> Result<(), ModelError> {
        Ok(())
    }

    /// Begin an empty sequence with room for `room` tokens.
    fn begin(&mut self, room: usize) -> Result<SeqId, ModelError>;

    /// Forget a sequence and free its memory. Unknown ids are ignored.
    fn end(&mut self, seq: SeqId);

    /// Tokens that the sequence has seen.
    fn len(&self, seq: SeqId) -> usize;

    /// Append prompt tokens and return the logits that `rows` asks for.
    fn prefill(&mut self, seq: SeqId, tokens: &[u32], rows: Rows) -> Result<Logits, ModelError>;

    /// Append one generated token to each sequence of the batch (all different); row i belongs to `batch[i]`.
    /// On an error no sequence has changed.
    fn decode(&mut self, batch: &[(SeqId, u32)]) -> Result<Logits, ModelError>;

    /// As [`Self::decode`], but the device chooses too: the id of the largest logit below `vocab` for each sequence, ties
    /// to the lower id. It may begin the next step with its choice before it is asked to; what it began is dropped where
    /// the next call for one of the sequences is another. `None`: this device leaves the choice to the caller, and no
    /// sequence has changed.
    fn decode_greedy(&mut self, _batch: &[(SeqId, u32)], _vocab: usize) -> Result<Option<Vec<u32>>, ModelError> {
        Ok(None)
    }

    /// As [`Self::decode`], but only the `k` largest logits below `vocab` of each sequence. `None`: this device gives whole rows only (or not so many), and no sequence has changed.
    fn decode_top(
        &mut self,
        _batch: &[(SeqId, u32)],
        _k: usize,
        _vocab: usize,
    ) -> Result<Option<Vec<Top>>, ModelError> {
        Ok(None)
    }

    /// Copy the state of a sequence.
    fn snapshot(&mut self, seq: SeqId) -> Result<Snapshot, ModelError>;

    /// Begin a new sequence with room for `room` tokens from a snapshot of this model.
    fn restore(&mut self, snapshot: &Snapshot, room: usize) -> Result<SeqId, ModelError>;

    /// What the bytes of [`Self::save`] mean, and whose arithmetic made them: a state may be loaded only by a model of the
    /// same checkpoint and the same build that says the same here. `None`: this model's states cannot be saved.
    fn state_format(&self) -> Option<String> {
        None
    }

    /// A part of a snapshot of this model as bytes, to be kept outside this process.
    fn save(&mut self, _snapshot: &Snapshot, _part: Part) -> Result<Vec<u8>, ModelError> {
        Err(ModelError::Unknown("states of this model cannot be saved"))
    }

    /// A snapshot of `len` tokens from the bytes that [`Self::save`] gave, in this process or another one: `parts` are
    /// [`Part::Own`] and then every [`Part::Shared`] in order. Fewer, more, or of another length: an error.
    fn load(&mut self, _len: usize, _parts: &mut dyn Iterator<Item = Vec<u8>>) -> Result<Snapshot, ModelError> {
        Err(ModelError::Unknown("states of this model cannot be loaded"))
    }

    /// The token that a scripted model insists on next (tests); real models have no say.
    fn scripted(&self, _seq: SeqId) -> Option<u32> {
        None
    }

    /// What a sequence comes to hold at most. Zeros: nothing worth counting.
    fn sequence_bytes(&self) -> SequenceBytes {
        SequenceBytes::default()
    }

    /// Bytes held for sequences now (weights not counted).
    fn state_bytes(&self) -> u64 {
        0
    }

    /// What the device counts about itself, for measurements.
    fn stats(&self) -> Stats {
        Stats::default()
    }
}
