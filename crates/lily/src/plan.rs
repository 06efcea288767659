//! The memory plan: what weights, sequences, kept states and values on the way take together, before anything of it is
//! taken (`docs/memory.md`). All of it is arithmetic on numbers that others have found.

use std::fmt;
use std::str::FromStr;

use lily_model::{Footprint, SequenceBytes};

/// The largest context that is taken without being asked for: a sequence of this length needs 0.7 GB on the 35B model.
const DEFAULT_CONTEXT: usize = 32_768;

/// The shortest context for which a GPU is worth its weights where nobody asked for that GPU.
const USEFUL_CONTEXT: usize = 4096;

/// States that are kept get at most this much where nobody said how much.
const DEFAULT_CACHE: u64 = 8 << 30;

/// What `--ctx` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Context {
    /// Nothing: what the model was made for, at most 32,768, and what fits.
    #[default]
    Default,
    /// The largest that fits.
    Auto,
    /// So many tokens.
    Tokens(usize),
}

impl FromStr for Context {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<usize>() {
            _ if text == "auto" => Ok(Self::Auto),
            Ok(tokens @ 2..) => Ok(Self::Tokens(tokens)),
            _ => Err("must be a number of tokens from 2 on, or auto".into()),
        }
    }
}

/// What is wanted, and on what.
pub struct Wish<'a> {
    /// Memory that the process holds already beside the device's; 0 where it is not the same memory.
    pub program: u64,
    /// What the model takes for contexts up to this length.
    pub footprint: &'a dyn Fn(usize) -> Footprint,
    /// Tokens that the model was made for.
    pub most: usize,
    /// Requests at once.
    pub parallel: usize,
    /// Tokens of a request.
    pub context: Context,
    /// Bytes for kept states, where somebody said.
    pub cache: Option<u64>,
    /// Bytes that all of it may take, mapped weights not counted. `None`: nobody knows.
    pub limit: Option<u64>,
}

/// What is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    program: u64,
    footprint: Footprint,
    limit: Option<u64>,
    parallel: usize,
    /// Tokens that prompt and answer may have together.
    pub context: usize,
    /// Bytes for kept states at most.
    pub cache: u64,
    /// Bytes for sequences and kept states together.
    pub memory: u64,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The model itself is too large.
    #[error(
        "the weights take {}, the values of a pass {} and a request of {tokens} tokens {}, together {}; {} are there for them",
        Size(*.weights), Size(*.scratch), Size(*.sequence), Size(.weights + .scratch + .sequence), Size(*.limit)
    )]
    Model {
        /// Bytes of weights, where they must be in memory.
        weights: u64,
        /// Bytes of scratch memory, and of the program.
        scratch: u64,
        /// Bytes of a short sequence.
        sequence: u64,
        /// Its tokens.
        tokens: usize,
        /// Bytes that are there.
        limit: u64,
    },
    /// The context is more than the model was made for.
    #[error("--ctx {0} is more than the {1} tokens that this model was made for")]
    Length(usize, usize),
    /// The context is too long for the memory.
    #[error(
        "--ctx {context} does not fit: one request may need {}, and {} of {} are left for requests; {largest} tokens fit \
         (--ctx auto takes as many as fit {parallel} at once)", Size(*.sequence), Size(*.left), Size(*.limit)
    )]
    Context {
        /// What was asked for.
        context: usize,
        /// Bytes of one sequence.
        sequence: u64,
        /// Bytes that are left for sequences.
        left: u64,
        /// Bytes that are there.
        limit: u64,
        /// Tokens of the longest context of one request.
        largest: usize,
        /// Requests at once.
        parallel: usize,
    },
    /// The kept states are too large.
    #[error(
        "--cache-bytes {cache} does not fit: {} are left beside a request of {context} tokens", Size(*.left)
    )]
    Cache {
        /// What was asked for.
        cache: u64,
        /// Bytes that are left for it.
        left: u64,
        /// Tokens of a request.
        context: usize,
    },
}

impl Wish<'_> {
    /// Bytes that are there whatever the context.
    fn fixed(&self, footprint: &Footprint) -> u64 {
        self.program + footprint.scratch + if footprint.mapped { 0 } else { footprint.weights }
    }

    /// Whether `count` sequences of `context` tokens fit beside `cache` bytes.
    fn fits(&self, count: usize, context: usize, cache: u64) -> bool {
        let footprint = (self.footprint)(context);
        let sequences = footprint.sequence.of(context).saturating_mul(count as u64);
        let all = self.fixed(&footprint).saturating_add(sequences).saturating_add(cache);
        self.limit.is_none_or(|limit| all <= limit)
    }

    /// The longest context of which `count` sequences fit beside `cache` bytes: `most`, or a multiple of 64 below it; 0 where
    /// none fits.
    fn largest(&self, count: usize, cache: u64, most: usize) -> usize {
        if self.fits(count, most, cache) {
            return most;
        }
        let block = SequenceBytes::BLOCK;
        // `low` blocks fit, `high` do not: bytes grow with the context.
        let (mut low, mut high) = (0, most.div_ceil(block));
        while high - low > 1 {
            let middle = low.midpoint(high);
            match self.fits(count, middle * block, cache) {
                true => low = middle,
                false => high = middle,
            }
        }
        low * block
    }

    /// What is taken of it.
    ///
    /// # Errors
    /// Where it does not fit, with the numbers.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        let short = USEFUL_CONTEXT.min(self.most);
        let short = if let Context::Tokens(asked) = self.context { short.min(asked) } else { short };
        let footprint = (self.footprint)(short);
        if let Some(limit) = self.limit
            && !self.fits(1, short, 0)
        {
            let weights = if footprint.mapped { 0 } else { footprint.weights };
            let scratch = self.program + footprint.scratch;
            return Err(PlanError::Model {
                weights,
                scratch,
                sequence: footprint.sequence.of(short),
                tokens: short,
                limit,
            });
        }
        let spare = self.limit.map_or(4 * (2 << 30), |limit| limit.saturating_sub(self.fixed(&footprint)));
        let usual_cache = self.cache.unwrap_or((spare / 4).min(DEFAULT_CACHE));
        // All requests at once first, then one, which the others wait for; kept states give way before either.
        let longest = |most: usize| {
            let all = self.largest(self.parallel, usual_cache, most);
            if all >= short { all } else { self.largest(1, self.cache.unwrap_or(0), most).max(short) }
        };
        let context = match self.context {
            Context::Default => longest(self.most.min(DEFAULT_CONTEXT)),
            Context::Auto => longest(self.most),
            Context::Tokens(asked) if asked > self.most => return Err(PlanError::Length(asked, self.most)),
            Context::Tokens(asked) => asked,
        };
        self.with(context, usual_cache)
    }

    fn with(&self, context: usize, usual_cache: u64) -> Result<Plan, PlanError> {
        let footprint = (self.footprint)(context);
        let sequence = footprint.sequence.of(context);
        let left = self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.fixed(&footprint)));
        if context == 0 || sequence > left {
            let largest = self.largest(1, 0, self.most);
            let (limit, parallel) = (self.limit.unwrap_or(u64::MAX), self.parallel);
            return Err(PlanError::Context { context, sequence, left, limit, largest, parallel });
        }
        if let Some(cache) = self.cache
            && cache > left - sequence
        {
            return Err(PlanError::Cache { cache, left: left - sequence, context });
        }
        let sequences = sequence.saturating_mul(self.parallel as u64);
        let cache = match self.cache {
            Some(cache) => cache,
            None => usual_cache.min(left.saturating_sub(sequences)),
        };
        let memory = left.min(sequences.saturating_add(cache));
        let (program, limit, parallel) = (self.program, self.limit, self.parallel);
        Ok(Plan { program, footprint, limit, parallel, context, cache, memory })
    }
}

impl Plan {
    /// How many requests of the whole context fit at once, at least one.
    pub fn at_once(&self) -> usize {
        let each = self.footprint.sequence.of(self.context).max(1);
        usize::try_from(self.memory / each).unwrap_or(usize::MAX).clamp(1, self.parallel)
    }

    /// All bytes, mapped weights included.
    pub fn total(&self) -> u64 {
        self.program + self.footprint.weights + self.footprint.scratch + self.memory
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, footprint, limit, parallel, context, cache, memory } = self;
        let sequence = footprint.sequence.of(*context);
        let sequences = sequence.saturating_mul(*parallel as u64);
        let row = |f: &mut fmt::Formatter<'_>, name: &str, bytes: u64, note: &str| {
            writeln!(f, "  {name:<12} {:>9}{}{note}", Size(bytes).to_string(), if note.is_empty() { "" } else { "  " })
        };
        let mapped = if footprint.mapped { "mapped: the system may drop them and read them again" } else { "" };
        row(f, "weights", footprint.weights, mapped)?;
        let each = format!("{parallel} × {} for {context} tokens", Size(sequence));
        let note = match *memory >= sequences {
            true => each,
            false => format!("{each} would be {}: a request that does not fit waits", Size(sequences)),
        };
        row(f, "requests", sequences.min(*memory), &note)?;
        let kept = memory.saturating_sub(sequences);
        let note =
            if kept < *cache { format!("up to {} while requests leave it", Size(*cache)) } else { String::new() };
        row(f, "prefix cache", kept, &note)?;
        row(f, "scratch", footprint.scratch, "")?;
        if *program > 0 {
            row(f, "program", *program, "")?;
        }
        let note = match limit {
            Some(limit) if footprint.mapped => {
                let own = self.total() - footprint.weights;
                format!("{} without the weights, of {} that are free", Size(own), Size(*limit))
            }
            Some(limit) => format!("of {}", Size(*limit)),
            None => "how much is free is not known".into(),
        };
        row(f, "together", self.total(), &note)
    }
}

/// Bytes for people: three digits, powers of ten.
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            0..1_000_000 => return write!(f, "{} kB", self.0.div_ceil(1000)),
            1_000_000..1_000_000_000 => (self.0 as f64 / 1e6, "MB"),
            _ => (self.0 as f64 / 1e9, "GB"),
        };
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        write!(f, "{value:.digits$} {unit}")
    }
}

/// Whether the CPU takes over, over the memory map, because the model is too large for a GPU that nobody asked for.
pub fn falls_back(automatic: bool, gpu: bool, error: &PlanError) -> bool {
    automatic && gpu && matches!(error, PlanError::Model { .. })
}

/// What a Mac's owner can do where the GPU gets too little of the memory, of which there are `ram` bytes.
pub fn wired_limit_advice(error: &PlanError, ram: u64) -> Option<String> {
    /// What the system and other programs keep.
    const SYSTEM: u64 = 3 << 30;
    const MIB: u64 = 1 << 20;
    let PlanError::Model { weights, scratch, sequence, limit, .. } = error else { return None };
    let need = (weights + scratch + sequence).next_multiple_of(512 * MIB);
    let has = format!("macOS gives the GPU {} of this Mac's {}", Size(*limit), Size(ram));
    Some(match need + SYSTEM <= ram {
        true => format!("{has}; `sudo sysctl iogpu.wired_limit_mb={}` gives it more until the next start", need / MIB),
        false => format!("{has}, and setting iogpu.wired_limit_mb higher would leave too little for the system"),
    })
}

#[cfg(test)]
mod tests;
