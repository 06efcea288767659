//! A model that is watched.

use std::sync::{Arc, Mutex};

use lily_engine::Answer;
use lily_model::{Logits, Model, ModelError, Part, Rows, SeqId, SequenceBytes, Shape, Snapshot};

/// What a token was chosen from.
#[derive(Debug, PartialEq)]
pub enum Row {
    /// The bits of the logits.
    Logits(Vec<u32>),
    /// The device chose it itself.
    Chosen(u32),
}

impl Row {
    pub fn logits(row: &[f32]) -> Self {
        Self::Logits(row.iter().map(|v| v.to_bits()).collect())
    }

    /// The token: the largest logit below `vocab`, ties to the lower id.
    pub fn token(&self, vocab: usize) -> u32 {
        let bits = match self {
            Self::Chosen(id) => return *id,
            Self::Logits(bits) => &bits[..vocab.min(bits.len())],
        };
        let value = |i: usize| f32::from_bits(bits[i]);
        (1..bits.len()).fold(0, |best, i| if value(i) > value(best) { i } else { best }) as u32
    }
}

/// Whether the device chooses the token after `len` others, if it can: both ways are seen, in any order.
fn on_device(len: usize) -> bool {
    len % 5 < 2
}

/// One step of a run that nothing else disturbs.
pub fn step(model: &mut dyn Model, seq: SeqId, token: u32, vocab: usize) -> Row {
    if on_device(model.len(seq))
        && let Some(chosen) = model.decode_greedy(&[(seq, token)], vocab).unwrap()
    {
        return Row::Chosen(chosen[0]);
    }
    Row::logits(model.decode(&[(seq, token)]).unwrap().row(0))
}

impl Seen {
    /// Rows of one sequence, which are taken out.
    pub fn rows_of(&mut self, seq: SeqId) -> Vec<Row> {
        self.rows.extract_if(.., |row| row.0 == seq).map(|row| row.1).collect()
    }
}

/// What went in and came out of the model.
#[derive(Default)]
pub struct Seen {
    /// Of every sequence, in the order of time.
    pub rows: Vec<(SeqId, Row)>,
    /// Tokens that prefill was given, and in how many calls.
    pub read: usize,
    pub calls: usize,
    /// Sequences in the order in which they began, and how many tokens each began with.
    pub began: Vec<(SeqId, usize)>,
    /// An answer that is left inside the call of that number.
    pub leaves: Option<(usize, Answer)>,
}

pub struct Watched {
    pub model: Box<dyn Model>,
    pub chunk: usize,
    pub seen: Arc<Mutex<Seen>>,
}

impl Watched {
    fn note(&self, seqs: impl Iterator<Item = SeqId>, logits: &Logits) {
        let mut seen = self.seen.lock().unwrap();
        seen.rows.extend(seqs.enumerate().take(logits.rows()).map(|(i, seq)| (seq, Row::logits(logits.row(i)))));
    }

    fn began(&self, seq: SeqId, len: usize) -> SeqId {
        self.seen.lock().unwrap().began.push((seq, len));
        seq
    }
}

impl Model for Watched {
    fn shape(&self) -> &Shape {
        self.model.shape()
    }
    fn device(&self) -> String {
        self.model.device()
    }
    fn prefill_chunk(&self) -> usize {
        self.chunk
    }
    fn begin(&mut self, room: usize) -> Result<SeqId, ModelError> {
        let seq = self.model.begin(room)?;
        Ok(self.began(seq, 0))
    }
    fn end(&mut self, seq: SeqId) {
        self.model.end(seq);
    }
    fn len(&self, seq: SeqId) -> usize {
        self.model.len(seq)
    }
    fn prefill(&mut self, seq: SeqId, tokens: &[u32], rows: Rows) -> Result<Logits, ModelError> {
        let mut seen = self.seen.lock().unwrap();
        seen.read += tokens.len();
        seen.calls += 1;
        let call = seen.calls;
        let left = seen.leaves.take_if(|(at, _)| *at == call);
        drop((seen, left));
        let logits = self.model.prefill(seq, tokens, rows)?;
        self.note(std::iter::repeat(seq), &logits);
        Ok(logits)
    }
    fn decode(&mut self, batch: &[(SeqId, u32)]) -> Result<Logits, ModelError> {
        let logits = self.model.decode(batch)?;
        self.note(batch.iter().map(|b| b.0), &logits);
        Ok(logits)
    }
    fn decode_greedy(&mut self, batch: &[(SeqId, u32)], vocab: usize) -> Result<Option<Vec<u32>>, ModelError> {
        if !batch.iter().all(|(seq, _)| on_device(self.model.len(*seq))) {
            return Ok(None);
        }
        let chosen = self.model.decode_greedy(batch, vocab)?;
        let rows = batch.iter().zip(chosen.iter().flatten()).map(|(&(seq, _), &id)| (seq, Row::Chosen(id)));
        self.seen.lock().unwrap().rows.extend(rows);
        Ok(chosen)
    }
    fn snapshot(&mut self, seq: SeqId) -> Result<Snapshot, ModelError> {
        self.model.snapshot(seq)
    }
    fn restore(&mut self, snapshot: &Snapshot, room: usize) -> Result<SeqId, ModelError> {
        let seq = self.model.restore(snapshot, room)?;
        Ok(self.began(seq, snapshot.len))
    }
    fn state_format(&self) -> Option<String> {
        self.model.state_format()
    }
    fn save(&mut self, snapshot: &Snapshot, part: Part) -> Result<Vec<u8>, ModelError> {
        self.model.save(snapshot, part)
    }
    fn load(&mut self, len: usize, parts: &mut dyn Iterator<Item = Vec<u8>>) -> Result<Snapshot, ModelError> {
        self.model.load(len, parts)
    }
    fn sequence_bytes(&self) -> SequenceBytes {
        self.model.sequence_bytes()
    }
}
