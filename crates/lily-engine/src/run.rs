//! One request while the model works on it.

use std::time::Instant;

use lily_chat::{Ended, OutputMachine, Tokenizer};
use lily_model::{Model, SeqId, Snapshot};

use crate::prefix::{BLOCK, Hit, PrefixCache, cuts};
use crate::queue::{Fork, Job, Listener};
use crate::request::{EngineError, Event, FinishReason, Finished, Progress, Timings, Usage};
use crate::sampler::Sampler;
use crate::schedule::Need;

pub(crate) struct Run {
    pub(crate) job: Job,
    pub(crate) seq: SeqId,
    /// Prompt tokens that the model has read, or that a cached state had.
    read: usize,
    /// Prompt tokens that a cached state had.
    cached: usize,
    /// Lengths of the prompt at which the state is to be kept, ascending, and passes end.
    cuts: Vec<usize>,
    /// Whether prefill alone made the state, in passes cut at multiples of [`BLOCK`].
    exact: bool,
    /// Generated tokens that the model has read.
    fed: Vec<u32>,
    /// The token chosen last, not fed back yet.
    next: Option<u32>,
    generated: usize,
    /// Tokens to generate at most.
    limit: usize,
    sampler: Sampler,
    machine: OutputMachine,
    taken: Instant,
    /// Seconds that the prompt took, once it has been read.
    prefill: Option<f64>,
    started: Option<Instant>,
}

impl Run {
    /// Begin the sequence with room for the prompt and everything that may be generated, from the longest cached prefix or,
    /// for a further answer, from the end of the prompt.
    pub(crate) fn begin(
        job: Job,
        model: &mut dyn Model,
        tokenizer: &Tokenizer,
        context: usize,
        cache: Option<&mut PrefixCache>,
    ) -> Result<Self, EngineError> {
        let room_left = context - job.request.prompt.len();
        let limit = job.request.max_tokens.unwrap_or(room_left).min(room_left);
        let sampler = Sampler::new(job.request.sampling, tokenizer.len())
            .adjusted(job.request.adjust.clone(), &job.request.prompt);
        let machine = OutputMachine::new(tokenizer, job.request.output.clone());
        let prompt = &job.request.prompt;
        let cuts = if cache.is_some() { cuts(prompt.len(), &job.request.boundaries) } else { Vec::new() };
        let (taken, prefill) = job.fork.as_ref().map_or((Instant::now(), None), |f| (f.taken, Some(f.prefill)));
        // Last, so that nothing above can fail and leave a sequence behind.
        let room = prompt.len() + limit;
        let restored = match &job.fork {
            Some(fork) => Some((model.restore(&fork.snapshot, room)?, fork.cached, fork.exact)),
            None => cache.and_then(|cache| restart(cache, prompt, model)).and_then(|hit| {
                let restored = model.restore(&hit.snapshot, room);
                // A device that is full may still have room for an empty sequence.
                let restored =
                    restored.inspect_err(|error| tracing::warn!(%error, "a cached state could not be restored"));
                Some((restored.ok()?, hit.snapshot.len, hit.exact))
            }),
        };
        let (seq, cached, exact) = match restored {
            Some(restored) => restored,
            None => (model.begin(room)?, 0, true),
        };
        let read = if job.fork.is_some() { prompt.len() } else { cached };
        Ok(Self {
            // What the run goes on from is its own from here on.
            job: Job { fork: None, ..job },
            seq,
            read,
            cached,
            cuts,
            exact,
            fed: Vec::new(),
            next: None,
            generated: 0,
            limit,
            sampler,
            machine,
            taken,
            prefill,
            started: None,
        })
    }

    /// Jobs for the further answers to this prompt, which has been read: `snapshot` and `logits` [vocab] are those after it.
    pub(crate) fn forks(&self, others: &[Listener], snapshot: Snapshot, logits: &[f32]) -> Vec<Job> {
        let prefill = self.taken.elapsed().as_secs_f64();
        let (cached, exact, taken) = (self.cached, self.exact, self.taken);
        let fork = Fork { snapshot, logits: logits.into(), cached, exact, taken, prefill };
        let job = |(listener, i): (&Listener, u64)| {
            let mut request = self.job.request.clone();
            request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(i));
            let (listener, fork) = (listener.clone(), Some(fork.clone()));
            Job { request, bytes: self.job.bytes, listener, others: Vec::new(), fork, submitted: self.job.submitted }
        };
        others.iter().zip(1..).map(job).collect()
    }

    pub(crate) fn need(&self) -> Need {
        if self.next.is_some() { Need::Decode } else { Need::Prefill }
    }

    /// The next chunk of the prompt, and whether it is the last. Up to the next cut, and else to a multiple of [`BLOCK`]
    /// wherever the sequence began, so that the state after it may be kept.
    pub(crate) fn chunk(&self, size: usize) -> (&[u32], bool) {
        let prompt = &self.job.request.prompt;
        let mut end = (self.read + size).min(prompt.len());
        if end < prompt.len() && end / BLOCK * BLOCK > self.read {
            end = end / BLOCK * BLOCK;
        }
        let cut = self.cuts.iter().copied().find(|&cut| cut > self.read);
        let end = cut.map_or(end, |cut| cut.min(end));
        (&prompt[self.read..end], end == prompt.len())
    }

    /// `tokens` of the prompt have been read.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.exact &= self.read.is_multiple_of(BLOCK);
        self.read += tokens;
        if self.job.request.progress {
            let (total, cached, processed) = (self.job.request.prompt.len(), self.cached, self.read);
            let seconds = self.taken.elapsed().as_secs_f64();
            self.job.listener.send(Event::Progress(Progress { total, cached, processed, seconds }));
        }
    }

    /// The token that [`Self::token`] gave has been read.
    pub(crate) fn was_fed(&mut self) {
        self.exact = false;
        self.fed.extend(self.next.take());
    }

    /// Whether the state is at a place to keep it.
    pub(crate) fn at_cut(&self) -> bool {
        self.cuts.contains(&self.read)
    }

    /// All tokens that the model has read, and whether the state after them has the bits of a cold run on every device.
    pub(crate) fn seen(&self) -> (Vec<u32>, bool) {
        let seen = [&self.job.request.prompt[..self.read], &self.fed].concat();
        let exact = self.exact && seen.len().is_multiple_of(BLOCK);
        (seen, exact)
    }

    /// The token to feed back.
    pub(crate) fn token(&self) -> Option<u32> {
        self.next
    }

    /// How many of the largest logits the next choice looks at; `None` where it needs the whole row.
    pub(crate) fn candidates(&self, model: &dyn Model) -> Option<usize> {
        if model.scripted(self.seq).is_some() { None } else { self.sampler.candidates() }
    }

    /// Whether the device may choose: the largest logit is wanted.
    pub(crate) fn is_greedy(&self) -> bool {
        self.sampler.is_greedy()
    }

    /// [`Self::choose`] from the largest logits.
    pub(crate) fn choose_top(&mut self, top: &[(u32, f32)]) -> Result<Option<Finished>, EngineError> {
        let token = self.sampler.sample_top(top)?;
        Ok(self.accept(token))
    }

    /// Choose the next token from `logits` [vocab] and turn it into events. Returns how the answer ended, if it did.
    pub(crate) fn choose(&mut self, logits: &[f32], model: &dyn Model) -> Result<Option<Finished>, EngineError> {
        let token = match model.scripted(self.seq) {
            Some(id) if self.sampler.allows(id) => id,
            Some(id) => {
                let chosen = self.sampler.sample(logits)?;
                tracing::info!(scripted = id, chosen, "the scripted token is masked");
                chosen
            }
            None => self.sampler.sample(logits)?,
        };
        Ok(self.accept(token))
    }

    /// The next token is `token`. Returns how the answer ended, if it did.
    pub(crate) fn accept(&mut self, token: u32) -> Option<Finished> {
        if self.started.is_none() {
            self.started = Some(Instant::now());
            self.prefill.get_or_insert_with(|| self.taken.elapsed().as_secs_f64());
            let prompt_tokens = self.job.request.prompt.len();
            self.job.listener.send(Event::Started { prompt_tokens, cached_tokens: self.cached });
        }
        self.generated += 1;
        self.sampler.generated(token);
        self.next = Some(token);
        for event in self.machine.push(token) {
            self.job.listener.send(Event::Output(event));
        }
        let ended = self.machine.ended();
        if ended.is_none() && self.generated < self.limit {
            return None;
        }
        for event in self.machine.finish() {
            self.job.listener.send(Event::Output(event));
        }
        let reason = match ended.is_some() {
            false => FinishReason::Length,
            // A call that the answer's end cut off cannot be run by anyone.
            true if self.machine.tool_calls() > 0 && self.machine.unfinished_call().is_none() => {
                FinishReason::ToolCalls
            }
            true => FinishReason::Stop,
        };
        let stop_string = ended.and_then(|ended| match ended {
            Ended::StopString(string) => Some(string),
            Ended::Eos => None,
        });
        Some(Finished { reason, stop_string, usage: self.usage(), timings: self.timings() })
    }

    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.job.request.prompt.len(),
            completion_tokens: self.generated,
            reasoning_tokens: self.machine.reasoning_tokens(),
            cached_tokens: self.cached,
        }
    }

    fn timings(&self) -> Timings {
        let started = self.started.unwrap_or_else(Instant::now);
        Timings {
            queue: self.taken.duration_since(self.job.submitted).as_secs_f64(),
            prefill: self.prefill.unwrap_or(0.0),
            decode: started.elapsed().as_secs_f64(),
        }
    }
}

/// Where a prompt begins: the longest state in memory or on disk.
fn restart(cache: &mut PrefixCache, prompt: &[u32], model: &mut dyn Model) -> Option<Hit> {
    cache.recall(prompt, model);
    cache.find(prompt)
}
