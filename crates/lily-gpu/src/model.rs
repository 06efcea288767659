//! The layer program as a [`Model`].

use std::collections::BTreeMap;
use std::sync::Arc;

use lily_checkpoint::Weights;
use lily_model::{
    KvType, Logits, Model, ModelError, Part, Rows, SeqId, SequenceBytes, Shape, Shared, Snapshot, Stats, Top,
};

use crate::footprint::sequence;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::{KV_PAGE, TOP_K};
use crate::program::{Choice, DECODE_BATCH, Held, Options, Page, Program, Step};

impl From<GpuError> for ModelError {
    fn from(e: GpuError) -> Self {
        Self::Device(e.to_string())
    }
}

struct Sequence {
    held: Held,
    room: usize,
}

/// A step that the device runs before anyone asked for it, with the tokens that it chose itself.
struct Ahead {
    step: Step,
    batch: Vec<(SeqId, u32)>,
    vocab: usize,
}

/// What a snapshot keeps: a copy of the state, and shares of the KV pages, which are copied before they are written.
struct Saved<B> {
    state: B,
    pages: Vec<Arc<Page>>,
}

/// The model on a GPU.
pub struct GpuModel<G: Gpu> {
    program: Program<G>,
    sequences: BTreeMap<SeqId, Sequence>,
    next: u64,
    ahead: Option<Ahead>,
}

impl<G: Gpu> GpuModel<G> {
    /// Shares the weights with the device.
    ///
    /// # Errors
    /// Of the device: memory, or a shader that does not compile.
    pub fn new(gpu: G, shape: &Shape, weights: &Weights, options: Options) -> Result<Self, GpuError> {
        let program = Program::new(gpu, shape, weights, options)?;
        Ok(Self { program, sequences: BTreeMap::new(), next: 0, ahead: None })
    }

    /// The layer program, for counts.
    pub fn program(&self) -> &Program<G> {
        &self.program
    }

    /// As [`Self::program`].
    pub fn program_mut(&mut self) -> &mut Program<G> {
        &mut self.program
    }

    fn insert(&mut self, held: Held, room: usize) -> SeqId {
        let id = SeqId(self.next);
        self.next += 1;
        self.sequences.insert(id, Sequence { held, room });
        self.admit();
        id
    }

    /// Rooms rounded up to pages, and a page each for the one that is copied before it is written.
    fn admit(&mut self) {
        let page = u64::from(KV_PAGE);
        let tokens = self.sequences.values().map(|s| (s.room as u64).next_multiple_of(page) + page).sum();
        self.program.admit(tokens);
    }

    /// Refuses what cannot be appended, before anything changes.
    fn check(&self, seq: SeqId, tokens: &[u32]) -> Result<(), ModelError> {
        let s = self.sequences.get(&seq).ok_or(ModelError::Unknown("no such sequence"))?;
        ModelError::check(tokens, self.program.shape().vocab, self.seen(seq), s.room)
    }

    fn check_batch(&self, batch: &[(SeqId, u32)]) -> Result<(), ModelError> {
        for (i, &(seq, token)) in batch.iter().enumerate() {
            if batch[..i].iter().any(|&(other, _)| other == seq) {
                return Err(ModelError::Unknown("a sequence stands twice in a decode batch"));
            }
            self.check(seq, &[token])?;
        }
        Ok(())
    }

    /// Tokens that the sequence has seen, a step ahead not counted.
    fn seen(&self, seq: SeqId) -> usize {
        let begun = usize::from(self.in_ahead(seq));
        self.sequences.get(&seq).map_or(0, |s| s.held.len as usize - begun)
    }

    fn in_ahead(&self, seq: SeqId) -> bool {
        self.ahead.as_ref().is_some_and(|a| a.batch.iter().any(|&(s, _)| s == seq))
    }

    /// Drops the step ahead where it has one of these sequences: their state is the one before it.
    fn settle(&mut self, mut seqs: impl Iterator<Item = SeqId>) -> Result<(), ModelError> {
        if !seqs.any(|seq| self.in_ahead(seq)) {
            return Ok(());
        }
        match self.ahead.take() {
            Some(ahead) => self.drop_step(ahead.step, &ahead.batch),
            None => Ok(()),
        }
    }

    fn drop_step(&mut self, step: Step, batch: &[(SeqId, u32)]) -> Result<(), ModelError> {
        self.undo(batch);
        Ok(self.program.wait_step(step)?)
    }

    /// The states are those before the last step again.
    fn undo(&mut self, batch: &[(SeqId, u32)]) {
        for (seq, _) in batch {
            if let Some(s) = self.sequences.get_mut(seq) {
                s.held.undo_step();
            }
        }
    }

    /// Starts a step; the states of the sequences are those after it.
    fn start(&mut self, batch: &[(SeqId, u32)], tokens: bool, choice: Choice) -> Result<Step, ModelError> {
        let tokens: Option<Vec<u32>> = tokens.then(|| batch.iter().map(|b| b.1).collect());
        // All are there and different, as `check_batch` saw: taken out, so that each can be borrowed.
        let mut taken: Vec<(SeqId, Sequence)> =
            batch.iter().filter_map(|&(seq, _)| self.sequences.remove_entry(&seq)).collect();
        let mut held: Vec<&mut Held> = taken.iter_mut().map(|(_, s)| &mut s.held).collect();
        let step = self.program.start_step(&mut held, tokens.as_deref(), choice);
        self.sequences.extend(taken);
        Ok(step?)
    }
}

impl<G> GpuModel<G>
where
    G: Gpu,
    G::Buffer: Send + Sync + 'static,
{
    fn pack(&self, saved: Saved<G::Buffer>, len: usize) -> Snapshot {
        let sizes = self.program.state_sizes();
        let bytes = sizes.slot() + saved.pages.len() as u64 * sizes.page;
        let page = |page: &Arc<Page>| Shared { id: u64::from(page.index()), bytes: sizes.page };
        let shared = saved.pages.iter().map(page).collect();
        Snapshot { len, bytes, shared, state: Arc::new(saved) }
    }

    fn unpack(snapshot: &Snapshot) -> Result<&Saved<G::Buffer>, ModelError> {
        snapshot.state.downcast_ref().ok_or(ModelError::Unknown("the snapshot was made by another model"))
    }
}

impl<G> Model for GpuModel<G>
where
    G: Gpu + Send,
    G::Buffer: Send + Sync + 'static,
{
    fn shape(&self) -> &Shape {
        self.program.shape()
    }

    fn device(&self) -> String {
        match self.kv_type() {
            KvType::Q8 => format!("{}, Q8 KV cache", self.program.gpu().name()),
            _ => self.program.gpu().name(),
        }
    }

    fn kv_type(&self) -> KvType {
        self.program.options().kv_type()
    }

    fn prefill_chunk(&self) -> usize {
        self.program.options().chunk as usize
    }

    fn provide(&mut self, room: usize, sequences: usize) -> Result<(), ModelError> {
        // As `SequenceBytes` counts.
        let pages = sequences * (room.div_ceil(KV_PAGE as usize) + 1);
        let pages = u32::try_from(pages).map_err(|_| ModelError::Unknown("more pages than a pool can have"))?;
        Ok(self.program.provide(pages, sequences as u32)?)
    }

    fn begin(&mut self, room: usize) -> Result<SeqId, ModelError> {
        let held = self.program.begin()?;
        Ok(self.insert(held, room))
    }

    fn end(&mut self, seq: SeqId) {
        if let Err(error) = self.settle(std::iter::once(seq)) {
            tracing::error!(%error, "a step that nobody waits for failed");
        }
        self.sequences.remove(&seq);
        self.admit();
    }

    fn len(&self, seq: SeqId) -> usize {
        self.seen(seq)
    }

    fn prefill(&mut self, seq: SeqId, tokens: &[u32], rows: Rows) -> Result<Logits, ModelError> {
        self.check(seq, tokens)?;
        self.settle(std::iter::once(seq))?;
        let s = self.sequences.get_mut(&seq).ok_or(ModelError::Unknown("no such sequence"))?;
        let mut all = Logits { vocab: self.program.shape().vocab, data: Vec::new() };
        let mut parts = tokens.chunks(self.program.options().chunk as usize).peekable();
        while let Some(part) = parts.next() {
            let rows = if rows == Rows::Last && parts.peek().is_some() { Rows::None } else { rows };
            all.data.append(&mut self.program.prefill(&mut s.held, part, rows)?.data);
        }
        Ok(all)
    }

    fn decode(&mut self, batch: &[(SeqId, u32)]) -> Result<Logits, ModelError> {
        self.check_batch(batch)?;
        self.settle(batch.iter().map(|b| b.0))?;
        let mut all = Logits { vocab: self.program.shape().vocab, data: Vec::new() };
        let mut begun = 0;
        for part in batch.chunks(DECODE_BATCH) {
            let done = self.start(part, true, Choice::None).and_then(|step| {
                begun += part.len();
                Ok(self.program.finish_logits(step)?)
            });
            match done {
                Ok(mut logits) => all.data.append(&mut logits),
                Err(e) => {
                    self.undo(&batch[..begun]);
                    return Err(e);
                }
            }
        }
        Ok(all)
    }

    fn decode_greedy(&mut self, batch: &[(SeqId, u32)], vocab: usize) -> Result<Option<Vec<u32>>, ModelError> {
        if batch.is_empty() || batch.len() > DECODE_BATCH {
            return Ok(None);
        }
        self.check_batch(batch)?;
        let choice = Choice::Greedy { vocab: vocab as u32 };
        let begun = match self.ahead.take() {
            Some(a) if a.batch == batch && a.vocab == vocab => Some(a.step),
            other => {
                self.ahead = other;
                self.settle(batch.iter().map(|b| b.0))?;
                None
            }
        };
        let step = match begun {
            Some(step) => step,
            None => self.start(batch, true, choice)?,
        };
        // The next step follows with the tokens as they lie on the device, if nobody else's is in flight.
        let room = batch.iter().all(|(seq, _)| self.sequences.get(seq).is_some_and(|s| (s.held.len as usize) < s.room));
        let next = match room && self.ahead.is_none() {
            // Where it cannot begin, the call that asks for it says why.
            true => self.start(batch, false, choice).ok(),
            false => None,
        };
        let tokens = match self.program.finish_tokens(step) {
            Ok(tokens) => tokens,
            Err(e) => {
                let dropped = next.map_or(Ok(()), |next| self.drop_step(next, batch));
                self.undo(batch);
                return dropped.and(Err(e.into()));
            }
        };
        self.ahead = next.map(|step| Ahead {
            step,
            batch: batch.iter().zip(&tokens).map(|(&(seq, _), &token)| (seq, token)).collect(),
            vocab,
        });
        Ok(Some(tokens))
    }

    fn decode_top(&mut self, batch: &[(SeqId, u32)], k: usize, vocab: usize) -> Result<Option<Vec<Top>>, ModelError> {
        if batch.is_empty() || batch.len() > DECODE_BATCH || k > TOP_K as usize {
            return Ok(None);
        }
        self.check_batch(batch)?;
        self.settle(batch.iter().map(|b| b.0))?;
        let k = k.min(vocab).min(self.program.shape().vocab);
        let step = self.start(batch, true, Choice::Top { vocab: vocab as u32, k: k as u32 })?;
        self.program.finish_top(step, k).map(Some).map_err(|e| {
            self.undo(batch);
            e.into()
        })
    }

    fn snapshot(&mut self, seq: SeqId) -> Result<Snapshot, ModelError> {
        self.settle(std::iter::once(seq))?;
        let s = self.sequences.get(&seq).ok_or(ModelError::Unknown("no such sequence"))?;
        let state = self.program.save(&s.held)?;
        Ok(self.pack(Saved { state, pages: s.held.pages.clone() }, s.held.len as usize))
    }

    fn restore(&mut self, snapshot: &Snapshot, room: usize) -> Result<SeqId, ModelError> {
        let saved = Self::unpack(snapshot)?;
        if snapshot.len > room {
            return Err(ModelError::OutOfRoom { asked: snapshot.len, room });
        }
        let held = self.program.load(&saved.state, saved.pages.clone(), snapshot.len as u32)?;
        Ok(self.insert(held, room))
    }

    fn state_format(&self) -> Option<String> {
        let Options { element, body, .. } = self.program.options();
        let kv = self.kv_type().name();
        Some(format!("gpu 1, {}, {element:?} products, {kv} KV cache, {body:?}", self.program.gpu().name()))
    }

    fn save(&mut self, snapshot: &Snapshot, part: Part) -> Result<Vec<u8>, ModelError> {
        let saved = Self::unpack(snapshot)?;
        // Nothing that runs ahead writes what a snapshot holds.
        Ok(match part {
            Part::Own => self.program.read_state(&saved.state)?,
            Part::Shared(i) => {
                let page = saved.pages.get(i).ok_or(ModelError::Unknown("the snapshot has no such part"))?;
                self.program.read_page(page)?
            }
        })
    }

    fn load(&mut self, len: usize, parts: &mut dyn Iterator<Item = Vec<u8>>) -> Result<Snapshot, ModelError> {
        const WRONG: ModelError = ModelError::Unknown("the parts are not those of a state of this length");
        let sizes = self.program.state_sizes();
        let mut part = |bytes: u64| parts.next().filter(|part| part.len() as u64 == bytes).ok_or(WRONG);
        let state = self.program.write_state(&part(sizes.slot())?)?;
        let count = u32::try_from(len.div_ceil(KV_PAGE as usize)).map_err(|_| WRONG)?;
        self.program.reserve_pages(count)?;
        let pages = (0..count).map(|_| Ok(Arc::new(self.program.write_page(&part(sizes.page)?)?)));
        let pages = pages.collect::<Result<_, ModelError>>()?;
        match parts.next() {
            None => Ok(self.pack(Saved { state, pages }, len)),
            Some(_) => Err(WRONG),
        }
    }

    fn sequence_bytes(&self) -> SequenceBytes {
        sequence(self.program.state_sizes())
    }

    fn state_bytes(&self) -> u64 {
        self.program.state_bytes()
    }

    fn stats(&self) -> Stats {
        let peak_device_bytes = self.program.gpu().peak_bytes();
        Stats { peak_device_bytes, dispatches: Some(self.program.dispatches()) }
    }
}
