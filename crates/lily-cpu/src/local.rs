//! Sequences held in this process: what the oracle and the fast path share to become a [`Model`].

use std::collections::BTreeMap;
use std::sync::Arc;

use lily_model::{KvType, Logits, Model, ModelError, Part, Rows, SeqId, SequenceBytes, Shape, Shared, Snapshot};

/// A way to compute the model, with the state of one sequence as a value of its own.
pub trait Forward: Send {
    /// What a sequence carries between calls.
    type State: Clone + Send + Sync + 'static;

    /// The numbers of the checkpoint.
    fn shape(&self) -> &Shape;
    /// For people.
    fn device(&self) -> String;
    /// What it caches keys and values as.
    fn kv_type(&self) -> KvType;
    /// Tokens a call should get at most.
    fn prefill_chunk(&self) -> usize;
    /// The state before the first token.
    fn start(&self) -> Self::State;
    /// Bytes that a state holds now.
    fn state_bytes(&self, state: &Self::State) -> u64;
    /// What a state comes to hold at most; zeros where nobody admits by it.
    fn sequence_bytes(&self) -> SequenceBytes {
        SequenceBytes::default()
    }
    /// The memory among them that clones of the state share.
    fn shared(&self, _state: &Self::State) -> Vec<Shared> {
        Vec::new()
    }
    /// As [`Model::state_format`].
    fn state_format(&self) -> String;
    /// As [`Model::save`], of a part that the state has.
    fn save(&self, state: &Self::State, part: Part) -> Vec<u8>;
    /// As [`Model::load`]; `None` where the parts are not those of a state of this length.
    fn load(&self, len: usize, parts: &mut dyn Iterator<Item = Vec<u8>>) -> Option<Self::State>;
    /// Append `tokens` (checked, at least one) and return the logits of the rows asked for.
    fn forward(&mut self, state: &mut Self::State, tokens: &[u32], rows: Rows) -> Logits;
}

struct Sequence<S> {
    state: S,
    len: usize,
    room: usize,
}

/// A [`Model`] made of a [`Forward`] and the sequences it serves.
pub struct Local<F: Forward> {
    forward: F,
    sequences: BTreeMap<SeqId, Sequence<F::State>>,
    next: u64,
}

impl<F: Forward> Local<F> {
    /// No sequence yet.
    pub fn new(forward: F) -> Self {
        Self { forward, sequences: BTreeMap::new(), next: 0 }
    }

    fn insert(&mut self, state: F::State, len: usize, room: usize) -> SeqId {
        let id = SeqId(self.next);
        self.next += 1;
        self.sequences.insert(id, Sequence { state, len, room });
        id
    }

    /// Refuses what cannot be appended, before anything changes.
    fn check(&self, seq: SeqId, tokens: &[u32]) -> Result<(), ModelError> {
        let s = self.sequences.get(&seq).ok_or(ModelError::Unknown("no such sequence"))?;
        ModelError::check(tokens, self.forward.shape().vocab, s.len, s.room)
    }

    fn unpack(snapshot: &Snapshot) -> Result<&F::State, ModelError> {
        snapshot.state.downcast_ref().ok_or(ModelError::Unknown("the snapshot was made by another model"))
    }

    fn pack(&self, state: F::State, len: usize) -> Snapshot {
        let (bytes, shared) = (self.forward.state_bytes(&state), self.forward.shared(&state));
        Snapshot { len, bytes, shared, state: Arc::new(state) }
    }

    fn append(&mut self, seq: SeqId, tokens: &[u32], rows: Rows) -> Logits {
        let s = self.sequences.get_mut(&seq).expect("checked by the caller");
        s.len += tokens.len();
        self.forward.forward(&mut s.state, tokens, rows)
    }
}

impl<F: Forward> Model for Local<F> {
    fn shape(&self) -> &Shape {
        self.forward.shape()
    }

    fn device(&self) -> String {
        self.forward.device()
    }

    fn kv_type(&self) -> KvType {
        self.forward.kv_type()
    }

    fn prefill_chunk(&self) -> usize {
        self.forward.prefill_chunk()
    }

    fn begin(&mut self, room: usize) -> Result<SeqId, ModelError> {
        let state = self.forward.start();
        Ok(self.insert(state, 0, room))
    }

    fn end(&mut self, seq: SeqId) {
        self.sequences.remove(&seq);
    }

    fn len(&self, seq: SeqId) -> usize {
        self.sequences.get(&seq).map_or(0, |s| s.len)
    }

    fn prefill(&mut self, seq: SeqId, tokens: &[u32], rows: Rows) -> Result<Logits, ModelError> {
        self.check(seq, tokens)?;
        let mut all = Logits { vocab: self.shape().vocab, data: Vec::new() };
        let mut parts = tokens.chunks(self.prefill_chunk()).peekable();
        while let Some(part) = parts.next() {
            let rows = if rows == Rows::Last && parts.peek().is_some() { Rows::None } else { rows };
            all.data.append(&mut self.append(seq, part, rows).data);
        }
        Ok(all)
    }

    fn decode(&mut self, batch: &[(SeqId, u32)]) -> Result<Logits, ModelError> {
        for (i, &(seq, token)) in batch.iter().enumerate() {
            if batch[..i].iter().any(|&(other, _)| other == seq) {
                return Err(ModelError::Unknown("a sequence stands twice in a decode batch"));
            }
            self.check(seq, &[token])?;
        }
        let mut all = Logits { vocab: self.shape().vocab, data: Vec::new() };
        for &(seq, token) in batch {
            all.data.append(&mut self.append(seq, &[token], Rows::Last).data);
        }
        Ok(all)
    }

    fn snapshot(&mut self, seq: SeqId) -> Result<Snapshot, ModelError> {
        let s = self.sequences.get(&seq).ok_or(ModelError::Unknown("no such sequence"))?;
        Ok(self.pack(s.state.clone(), s.len))
    }

    fn restore(&mut self, snapshot: &Snapshot, room: usize) -> Result<SeqId, ModelError> {
        let state = Self::unpack(snapshot)?;
        if snapshot.len > room {
            return Err(ModelError::OutOfRoom { asked: snapshot.len, room });
        }
        Ok(self.insert(state.clone(), snapshot.len, room))
    }

    fn state_format(&self) -> Option<String> {
        Some(self.forward.state_format())
    }

    fn save(&mut self, snapshot: &Snapshot, part: Part) -> Result<Vec<u8>, ModelError> {
        if matches!(part, Part::Shared(i) if i >= snapshot.shared.len()) {
            return Err(ModelError::Unknown("the snapshot has no such part"));
        }
        Ok(self.forward.save(Self::unpack(snapshot)?, part))
    }

    fn load(&mut self, len: usize, parts: &mut dyn Iterator<Item = Vec<u8>>) -> Result<Snapshot, ModelError> {
        let state = self.forward.load(len, parts);
        let state = state.ok_or(ModelError::Unknown("the parts are not those of a state of this length"))?;
        Ok(self.pack(state, len))
    }

    fn sequence_bytes(&self) -> SequenceBytes {
        self.forward.sequence_bytes()
    }

    fn state_bytes(&self) -> u64 {
        self.sequences.values().map(|s| self.forward.state_bytes(&s.state)).sum()
    }
}

/// Appends the bytes of `values`, little-endian.
pub(crate) fn write_floats(values: &[f32], to: &mut Vec<u8>) {
    let from = to.len();
    to.resize(from + 4 * values.len(), 0);
    to[from..].as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, v)| *to = v.to_le_bytes());
}

/// The values that [`write_floats`] gave bytes of.
pub(crate) fn read_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Takes the next values of a state that is loaded, as many as `values` has; `None` where there are fewer.
pub(crate) fn take_floats(values: &mut Vec<f32>, bytes: &mut &[u8]) -> Option<()> {
    let (taken, rest) = bytes.split_at_checked(4 * values.len())?;
    (*values, *bytes) = (read_floats(taken), rest);
    Some(())
}
