//! A model of a few lines whose prompt's first token says how it behaves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lily_model::{Logits, Model, ModelError, Part, Rows, SeqId, SequenceBytes, Shape, Shared, Snapshot};

/// `<|im_end|>` of the demo tokenizer.
pub(super) const EOS: u32 = 8185;
/// The demo tokenizer has 8,192 ids.
const VOCAB: usize = 8192 + 64;
/// A sequence of exactly this room is refused.
pub(super) const NO_ROOM: usize = 777;

/// Bytes of a snapshot's own state, and of each block that snapshots share.
pub(super) const STATE_BYTES: u64 = 1000;
pub(super) const BLOCK_BYTES: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u32)]
pub(super) enum Op {
    Plain = 1,
    EosAfter4,
    SlowPrefill,
    SlowDecode,
    FailPrefill,
    FailDecode,
    Nan,
    PanicPrefill,
    PanicDecode,
    Padding,
    ScriptedPadding,
    FailSnapshot,
    PanicSnapshot,
}

impl Op {
    fn from(id: u32) -> Self {
        use Op::*;
        let all = [
            Plain,
            EosAfter4,
            SlowPrefill,
            SlowDecode,
            FailPrefill,
            FailDecode,
            Nan,
            PanicPrefill,
            PanicDecode,
            Padding,
            ScriptedPadding,
            FailSnapshot,
            PanicSnapshot,
        ];
        all.into_iter().find(|op| *op as u32 == id).unwrap_or(Plain)
    }
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) begun: usize,
    pub(super) ended: usize,
    pub(super) prefills: usize,
    pub(super) decodes: usize,
    pub(super) widest: usize,
    pub(super) rooms: Vec<usize>,
    pub(super) fed: Vec<u32>,
    pub(super) snapshots: usize,
    pub(super) restored: usize,
    /// Blocks that were turned into bytes.
    pub(super) blocks_saved: usize,
    /// Prompt tokens that prefill was given.
    pub(super) read: usize,
    /// A digest of every row of logits that was asked for.
    pub(super) rows: Vec<u64>,
    /// What is done inside the call of that number, from 1.
    pub(super) in_prefill: Option<(usize, Deed)>,
    pub(super) in_decode: Option<(usize, Deed)>,
}

type Deed = Box<dyn FnOnce() + Send>;

fn due(deed: &mut Option<(usize, Deed)>, call: usize) {
    if let Some((_, deed)) = deed.take_if(|(at, _)| *at == call) {
        deed();
    }
}

#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Counts>>);

impl Log {
    pub(super) fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
struct Seq {
    op: Op,
    len: usize,
    room: usize,
    generated: usize,
    /// A running hash of all tokens: the state that the next token depends on.
    hash: u64,
    /// The hashes at the ends of whole blocks.
    blocks: Vec<u64>,
}

impl Seq {
    fn push(&mut self, token: u32) {
        self.len += 1;
        assert!(self.len <= self.room);
        self.hash = self.hash.wrapping_mul(31).wrapping_add(u64::from(token));
        if self.len.is_multiple_of(64) {
            self.blocks.push(self.hash);
        }
    }
}

pub(super) struct Fake {
    shape: Shape,
    seqs: HashMap<SeqId, Seq>,
    next: u64,
    log: Log,
    /// What follows each part that is saved.
    pub(super) padding: usize,
    pub(super) format: &'static str,
}

/// The hash of a snapshot of the fake's, and those of its blocks.
pub(super) fn state_in(snapshot: &Snapshot) -> (u64, Vec<u64>) {
    let seq: &Seq = snapshot.state.downcast_ref().unwrap();
    (seq.hash, seq.blocks.clone())
}

impl Fake {
    fn snap(state: Seq) -> Snapshot {
        // Blocks of keys and values are the same memory for the same tokens in the same order.
        let shared: Vec<_> = state.blocks.iter().map(|&id| Shared { id, bytes: BLOCK_BYTES }).collect();
        let bytes = STATE_BYTES + BLOCK_BYTES * shared.len() as u64;
        Snapshot { len: state.len, bytes, shared, state: Arc::new(state) }
    }

    /// A snapshot after `tokens`.
    pub(super) fn after(&mut self, tokens: &[u32]) -> Snapshot {
        let seq = self.begin(tokens.len()).unwrap();
        self.prefill(seq, tokens, Rows::None).unwrap();
        let snapshot = self.snapshot(seq).unwrap();
        self.end(seq);
        snapshot
    }

    pub(super) fn new() -> (Self, Log) {
        let shape = Shape { vocab: VOCAB, ..Shape::qwen3_6_35b_a3b() };
        let log = Log::default();
        (Self { shape, seqs: HashMap::new(), next: 0, log: log.clone(), padding: 64, format: "fake" }, log)
    }

    fn row(seq: &Seq) -> Vec<f32> {
        let mut row: Vec<f32> =
            (0..VOCAB as u64).map(|i| (((i * 2_654_435_761) ^ seq.hash) % 97) as f32 * 0.02).collect();
        row[300 + (seq.hash % 200) as usize] = 9.0;
        match seq.op {
            Op::EosAfter4 if seq.generated == 4 => row[EOS as usize] = 20.0,
            Op::Nan if seq.generated == 2 => row[17] = f32::NAN,
            Op::Padding | Op::ScriptedPadding => row[8192..].fill(100.0),
            _ => {}
        }
        row
    }
}

impl Model for Fake {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn device(&self) -> String {
        "fake".into()
    }

    fn prefill_chunk(&self) -> usize {
        64
    }

    fn begin(&mut self, room: usize) -> Result<SeqId, ModelError> {
        if room == NO_ROOM {
            return Err(ModelError::Device("no memory".into()));
        }
        let seq = SeqId(self.next);
        self.next += 1;
        self.seqs.insert(seq, Seq { op: Op::Plain, len: 0, room, generated: 0, hash: 7, blocks: Vec::new() });
        let mut log = self.log.lock();
        log.begun += 1;
        log.rooms.push(room);
        Ok(seq)
    }

    fn end(&mut self, seq: SeqId) {
        if self.seqs.remove(&seq).is_some() {
            self.log.lock().ended += 1;
        }
    }

    fn len(&self, seq: SeqId) -> usize {
        self.seqs.get(&seq).map_or(0, |s| s.len)
    }

    fn prefill(&mut self, seq: SeqId, tokens: &[u32], rows: Rows) -> Result<Logits, ModelError> {
        let mut log = self.log.lock();
        log.prefills += 1;
        log.read += tokens.len();
        let call = log.prefills;
        due(&mut log.in_prefill, call);
        drop(log);
        let state = self.seqs.get_mut(&seq).ok_or(ModelError::Unknown("no such sequence"))?;
        if state.len == 0 {
            state.op = Op::from(tokens[0]);
        }
        match state.op {
            Op::SlowPrefill => std::thread::sleep(Duration::from_millis(5)),
            Op::FailPrefill if state.len > 0 => return Err(ModelError::Device("prefill failed".into())),
            Op::PanicPrefill if state.len > 0 => panic!("prefill panicked"),
            _ => {}
        }
        tokens.iter().for_each(|&token| state.push(token));
        let data = if rows == Rows::Last { Self::row(state) } else { Vec::new() };
        if rows == Rows::Last {
            self.log.lock().rows.push(state.hash);
        }
        Ok(Logits { vocab: VOCAB, data })
    }

    fn decode(&mut self, batch: &[(SeqId, u32)]) -> Result<Logits, ModelError> {
        let mut log = self.log.lock();
        log.decodes += 1;
        log.widest = log.widest.max(batch.len());
        log.fed.extend(batch.iter().map(|(_, token)| token));
        let call = log.decodes;
        due(&mut log.in_decode, call);
        drop(log);
        let third = |op| batch.iter().any(|(s, _)| self.seqs[s].op == op && self.seqs[s].generated == 2);
        if third(Op::FailDecode) {
            return Err(ModelError::Device("decode failed".into()));
        }
        assert!(!third(Op::PanicDecode), "decode panicked");
        let mut data = Vec::new();
        for (seq, token) in batch {
            let state = self.seqs.get_mut(seq).ok_or(ModelError::Unknown("no such sequence"))?;
            if state.op == Op::SlowDecode {
                std::thread::sleep(Duration::from_millis(3));
            }
            state.generated += 1;
            state.push(*token);
            self.log.lock().rows.push(state.hash);
            data.extend(Self::row(state));
        }
        Ok(Logits { vocab: VOCAB, data })
    }

    fn sequence_bytes(&self) -> SequenceBytes {
        SequenceBytes { state: STATE_BYTES, block: BLOCK_BYTES }
    }

    fn scripted(&self, seq: SeqId) -> Option<u32> {
        let state = self.seqs.get(&seq)?;
        (state.op == Op::ScriptedPadding).then_some(if state.generated % 2 == 0 { 400 } else { 8192 })
    }

    fn snapshot(&mut self, seq: SeqId) -> Result<Snapshot, ModelError> {
        let state = self.seqs.get(&seq).ok_or(ModelError::Unknown("no such sequence"))?;
        match state.op {
            Op::FailSnapshot => return Err(ModelError::Device("snapshot failed".into())),
            Op::PanicSnapshot => panic!("snapshot panicked"),
            _ => {}
        }
        self.log.lock().snapshots += 1;
        Ok(Self::snap(state.clone()))
    }

    fn restore(&mut self, snapshot: &Snapshot, room: usize) -> Result<SeqId, ModelError> {
        let state = snapshot.state.downcast_ref::<Seq>().ok_or(ModelError::Unknown("not of the fake"))?;
        assert!(snapshot.len == state.len && state.len <= room);
        let seq = SeqId(self.next);
        self.next += 1;
        self.seqs.insert(seq, Seq { room, generated: 0, ..state.clone() });
        let mut log = self.log.lock();
        log.begun += 1;
        log.restored += 1;
        log.rooms.push(room);
        Ok(seq)
    }

    fn state_format(&self) -> Option<String> {
        Some(self.format.into())
    }

    fn save(&mut self, snapshot: &Snapshot, part: Part) -> Result<Vec<u8>, ModelError> {
        let state = snapshot.state.downcast_ref::<Seq>().ok_or(ModelError::Unknown("not of the fake"))?;
        let mut bytes = match part {
            Part::Own => [state.op as u64, state.hash].map(u64::to_le_bytes).concat(),
            Part::Shared(i) => {
                self.log.lock().blocks_saved += 1;
                state.blocks[i].to_le_bytes().to_vec()
            }
        };
        bytes.resize(bytes.len() + self.padding, bytes[0]);
        Ok(bytes)
    }

    fn load(&mut self, len: usize, parts: &mut dyn Iterator<Item = Vec<u8>>) -> Result<Snapshot, ModelError> {
        const WRONG: ModelError = ModelError::Unknown("not a state of the fake");
        let word = |bytes: &[u8], i: usize| bytes.as_chunks().0.get(i).map(|b| u64::from_le_bytes(*b)).ok_or(WRONG);
        let own = parts.next().ok_or(WRONG)?;
        let blocks = parts.map(|part| word(&part, 0)).collect::<Result<Vec<_>, _>>()?;
        if blocks.len() != len / 64 {
            return Err(WRONG);
        }
        let (op, hash) = (Op::from(word(&own, 0)? as u32), word(&own, 1)?);
        Ok(Self::snap(Seq { op, len, room: len, generated: 0, hash, blocks }))
    }
}
