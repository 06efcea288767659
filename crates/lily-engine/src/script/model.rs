//! The script as a [`Model`].

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use lily_model::{Logits, Model, ModelError, Rows, SeqId, Shape, Snapshot};

use super::{End, Line};

/// Tokens that `prefill_ms` is spent for.
const PREFILL_BLOCK: usize = 64;
/// What masks and penalties see of the tokens that the script does not name; the scripted token has 0.
const OTHER_LOGIT: f32 = -20.0;

/// One line of the script with its pieces as token ids.
pub(super) struct ScriptedAnswer {
    tokens: Vec<u32>,
    eos: u32,
    end: End,
    delay: Duration,
    prefill: Duration,
    fail_after: Option<usize>,
}

impl ScriptedAnswer {
    pub(super) fn new(line: &Line, tokens: Vec<u32>, eos: u32) -> Self {
        Self {
            tokens,
            eos,
            end: line.end,
            delay: Duration::from_millis(line.delay_ms),
            prefill: Duration::from_millis(line.prefill_ms),
            fail_after: line.fail_after,
        }
    }

    /// The token at position `i` of the answer.
    fn token(&self, i: usize) -> u32 {
        match self.tokens.get(i) {
            Some(&id) => id,
            None if self.end == End::Length => self.tokens[i % self.tokens.len()],
            None => self.eos,
        }
    }

    fn check(&self, i: usize) -> Result<(), ModelError> {
        match self.fail_after {
            Some(n) if i >= n => Err(ModelError::Device(format!("the script fails after {n} pieces"))),
            _ => Ok(()),
        }
    }
}

struct Sequence {
    len: usize,
    room: usize,
    /// Number of the request in the order of the script, from 0.
    request: usize,
    /// Generated tokens that were fed back.
    fed: usize,
    /// Whether the line is used up. A cell, because asking for the first token uses it.
    used: Cell<bool>,
}

/// Plays a [`super::Script`]. A sequence holds the first line that is free; it is used up when the sequence starts
/// generating, and free again when the sequence ends before that.
pub struct ScriptedModel {
    shape: Shape,
    answers: Vec<ScriptedAnswer>,
    sequences: HashMap<SeqId, Sequence>,
    next_seq: u64,
    next_request: usize,
    given_back: BTreeSet<usize>,
}

impl ScriptedModel {
    pub(super) fn new(answers: Vec<ScriptedAnswer>, tokens: usize, context: usize) -> Self {
        // Always some padding rows, so that masking them is exercised as with a real head.
        let vocab = (tokens / 64 + 1) * 64;
        let shape = Shape { vocab, max_context: context, ..Shape::qwen3_6_35b_a3b() };
        Self { shape, answers, sequences: HashMap::new(), next_seq: 0, next_request: 0, given_back: BTreeSet::new() }
    }

    fn answer(&self, request: usize) -> &ScriptedAnswer {
        &self.answers[request.min(self.answers.len() - 1)]
    }

    fn get(&self, seq: SeqId) -> Result<&Sequence, ModelError> {
        self.sequences.get(&seq).ok_or(ModelError::Unknown("no such sequence"))
    }

    fn claim(&mut self, len: usize, room: usize) -> SeqId {
        let request = self.given_back.pop_first().unwrap_or_else(|| {
            self.next_request += 1;
            self.next_request - 1
        });
        let seq = SeqId(self.next_seq);
        self.next_seq += 1;
        self.sequences.insert(seq, Sequence { len, room, request, fed: 0, used: Cell::new(false) });
        seq
    }

    fn check_room(&self, seq: &Sequence, tokens: &[u32]) -> Result<(), ModelError> {
        ModelError::check(tokens, self.shape.vocab, seq.len, seq.room)
    }

    fn logits(&self, tokens: &[u32]) -> Logits {
        let vocab = self.shape.vocab;
        let mut data = vec![OTHER_LOGIT; vocab * tokens.len()];
        for (row, &token) in tokens.iter().enumerate() {
            data[row * vocab + token as usize] = 0.0;
        }
        Logits { vocab, data }
    }
}

impl Model for ScriptedModel {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn device(&self) -> String {
        "script".into()
    }

    fn prefill_chunk(&self) -> usize {
        PREFILL_BLOCK
    }

    fn begin(&mut self, room: usize) -> Result<SeqId, ModelError> {
        Ok(self.claim(0, room))
    }

    fn end(&mut self, seq: SeqId) {
        if let Some(ended) = self.sequences.remove(&seq)
            && !ended.used.get()
        {
            self.given_back.insert(ended.request);
        }
    }

    fn len(&self, seq: SeqId) -> usize {
        self.sequences.get(&seq).map_or(0, |s| s.len)
    }

    fn prefill(&mut self, seq: SeqId, tokens: &[u32], rows: Rows) -> Result<Logits, ModelError> {
        let state = self.get(seq)?;
        self.check_room(state, tokens)?;
        let answer = self.answer(state.request);
        // By absolute position, so that the cost does not depend on how the prompt is cut.
        let blocks = (state.len + tokens.len()).div_ceil(PREFILL_BLOCK) - state.len.div_ceil(PREFILL_BLOCK);
        sleep(answer.prefill * blocks as u32);
        let count = match rows {
            Rows::None => 0,
            Rows::Last => 1,
            Rows::All => tokens.len(),
        };
        if count > 0 {
            state.used.set(true);
            answer.check(0)?;
            sleep(answer.delay);
        }
        let logits = self.logits(&vec![answer.token(0); count]);
        if let Some(state) = self.sequences.get_mut(&seq) {
            state.len += tokens.len();
        }
        Ok(logits)
    }

    fn decode(&mut self, batch: &[(SeqId, u32)]) -> Result<Logits, ModelError> {
        let mut chosen = Vec::with_capacity(batch.len());
        let mut delay = Duration::ZERO;
        for &(seq, token) in batch {
            let state = self.get(seq)?;
            self.check_room(state, &[token])?;
            let answer = self.answer(state.request);
            answer.check(state.fed + 1)?;
            chosen.push(answer.token(state.fed + 1));
            delay = delay.max(answer.delay);
        }
        sleep(delay);
        for (seq, _) in batch {
            if let Some(state) = self.sequences.get_mut(seq) {
                state.len += 1;
                state.fed += 1;
                state.used.set(true);
            }
        }
        Ok(self.logits(&chosen))
    }

    fn snapshot(&mut self, seq: SeqId) -> Result<Snapshot, ModelError> {
        Ok(Snapshot { len: self.get(seq)?.len, bytes: 1, shared: Vec::new(), state: Arc::new(()) })
    }

    fn restore(&mut self, snapshot: &Snapshot, room: usize) -> Result<SeqId, ModelError> {
        if snapshot.len > room {
            return Err(ModelError::OutOfRoom { asked: snapshot.len, room });
        }
        Ok(self.claim(snapshot.len, room))
    }

    fn scripted(&self, seq: SeqId) -> Option<u32> {
        let state = self.sequences.get(&seq)?;
        state.used.set(true);
        Some(self.answer(state.request).token(state.fed))
    }
}
