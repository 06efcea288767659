//! Warm equals cold, bit for bit, on the CPU with the demo checkpoint: eight conversations interleaved, with the cache and
//! without.

use std::sync::{Arc, Mutex};

use lily_chat::{OutputOptions, Tokenizer};
use lily_checkpoint::Checkpoint;
use lily_cpu::{Bf16, Fast, Local};
use lily_engine::{Engine, EngineOptions, Event, Finished, PrefixOptions, Request, SamplingParams};
use lily_model::{Logits, Model, ModelError, Rows, SeqId, Shape, Snapshot};

const CONTEXT: usize = 4096;

/// What went in and came out of the model.
#[derive(Default)]
struct Seen {
    /// The bits of every row of logits, in order.
    rows: Vec<Vec<u32>>,
    fed: Vec<u32>,
    read: usize,
}

/// A model that is watched.
struct Watched {
    model: Local<Fast<Bf16>>,
    seen: Arc<Mutex<Seen>>,
}

impl Watched {
    fn note(&self, logits: &Logits) {
        let mut seen = self.seen.lock().unwrap();
        seen.rows.extend((0..logits.rows()).map(|i| logits.row(i).iter().map(|v| v.to_bits()).collect()));
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
        128
    }
    fn begin(&mut self, room: usize) -> Result<SeqId, ModelError> {
        self.model.begin(room)
    }
    fn end(&mut self, seq: SeqId) {
        self.model.end(seq);
    }
    fn len(&self, seq: SeqId) -> usize {
        self.model.len(seq)
    }
    fn prefill(&mut self, seq: SeqId, tokens: &[u32], rows: Rows) -> Result<Logits, ModelError> {
        let logits = self.model.prefill(seq, tokens, rows)?;
        self.seen.lock().unwrap().read += tokens.len();
        self.note(&logits);
        Ok(logits)
    }
    fn decode(&mut self, batch: &[(SeqId, u32)]) -> Result<Logits, ModelError> {
        let logits = self.model.decode(batch)?;
        self.seen.lock().unwrap().fed.extend(batch.iter().map(|b| b.1));
        self.note(&logits);
        Ok(logits)
    }
    fn snapshot(&mut self, seq: SeqId) -> Result<Snapshot, ModelError> {
        self.model.snapshot(seq)
    }
    fn restore(&mut self, snapshot: &Snapshot, room: usize) -> Result<SeqId, ModelError> {
        self.model.restore(snapshot, room)
    }
}

fn demo() -> Checkpoint {
    Checkpoint::open(format!("{}/../../demo/4bit", env!("CARGO_MANIFEST_DIR")).as_ref()).unwrap()
}

fn bytes_of_a_snapshot() -> u64 {
    let checkpoint = demo();
    let mut model = Local::new(Fast::<Bf16>::new(checkpoint.shape(), checkpoint.weights(), 1));
    let seq = model.begin(64).unwrap();
    model.prefill(seq, &[300; 64], Rows::None).unwrap();
    model.snapshot(seq).unwrap().bytes
}

fn engine(prefix: PrefixOptions) -> (Engine, Arc<Mutex<Seen>>) {
    let demo = format!("{}/../../demo/4bit", env!("CARGO_MANIFEST_DIR"));
    let checkpoint = self::demo();
    let read = |name: &str| std::fs::read(format!("{demo}/{name}")).unwrap();
    let tokenizer = Tokenizer::from_json(&read("tokenizer.json"), Some(&read("tokenizer_config.json"))).unwrap();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let model = Local::new(Fast::<Bf16>::new(checkpoint.shape(), checkpoint.weights(), 1));
    let model = Box::new(Watched { model, seen: Arc::clone(&seen) });
    (
        Engine::start(
            model,
            EngineOptions { tokenizer, context: CONTEXT, max_queue: 1, prefix, parallel: 1, memory: None },
        )
        .unwrap(),
        seen,
    )
}

fn ask(engine: &Engine, prompt: &[u32], answer: usize) -> Finished {
    let request = Request {
        prompt: prompt.to_vec(),
        boundaries: vec![0, prompt.len() / 2, prompt.len().saturating_sub(20)],
        sampling: SamplingParams::GREEDY,
        max_tokens: Some(answer),
        // No end token: every answer has its length.
        output: OutputOptions::default(),
    };
    let mut answer = engine.submit(request).unwrap();
    loop {
        match answer.next_blocking().unwrap() {
            Event::Finished(finished) => return finished,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

#[test]
fn warm_equals_cold_in_every_bit() {
    // Room for all, and for a few: then states are dropped all the time.
    let few = 12 * bytes_of_a_snapshot();
    for (bytes, exact) in [(1 << 30, false), (1 << 30, true), (few, false)] {
        let (warm, warm_seen) = engine(PrefixOptions { bytes, exact });
        let (cold, cold_seen) = engine(PrefixOptions::default());
        let mut dice = 3_u64;
        let mut next = |n: usize| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) as usize % n
        };
        let mut talks: Vec<Vec<u32>> =
            (0..8_u32).map(|n| (0..62 + n).map(|i| 300 + i * 7 % 900 + n / 4).collect()).collect();
        let mut hits = 0;
        for step in 0..20 {
            let n = next(8);
            let (prompt, answer) = (talks[n].clone(), 1 + next(20));
            let before = (warm_seen.lock().unwrap().rows.len(), cold_seen.lock().unwrap().rows.len());
            let (got, expected) = (ask(&warm, &prompt, answer), ask(&cold, &prompt, answer));
            assert_eq!(got.usage.prompt_tokens, expected.usage.prompt_tokens);
            assert_eq!(got.usage.completion_tokens, expected.usage.completion_tokens);
            let (warm, cold) = (warm_seen.lock().unwrap(), cold_seen.lock().unwrap());
            assert!(warm.rows[before.0..] == cold.rows[before.1..], "step {step}, {bytes} bytes, exact: {exact}");
            hits += usize::from(got.usage.cached_tokens > 0);
            let said = &warm.fed[warm.fed.len() + 1 - got.usage.completion_tokens..];
            let more = (0..1 + next(70) as u32).map(|i| 400 + i);
            talks[n] = match next(6) {
                0 => prompt[..prompt.len() - next(prompt.len() / 2)].iter().copied().chain([77]).collect(),
                _ => prompt.iter().chain(said).copied().chain(more).collect(),
            };
        }
        assert!(hits > 3, "{hits} hits with {bytes} bytes, exact: {exact}");
        assert!(warm_seen.lock().unwrap().read < cold_seen.lock().unwrap().read);
    }
}
