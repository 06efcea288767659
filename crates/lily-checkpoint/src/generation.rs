//! generation_config.json, typed (`docs/model.md §6.3`).

use crate::keys::{Keys, object};
use crate::{CheckpointError, Config};

/// Sampling defaults and stop ids of a checkpoint (`docs/model.md §6.3`).
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationDefaults {
    /// Every id that ends an answer; never empty.
    pub eos: Vec<u32>,
    /// `false`: greedy unless the request says otherwise.
    pub do_sample: bool,
    /// Divides the logits; 0 means greedy.
    pub temperature: f32,
    /// Only the k largest logits are sampled from; 0 is off.
    pub top_k: usize,
    /// Only the smallest set of tokens with this probability is sampled from; 1 is off.
    pub top_p: f32,
    /// Tokens below this fraction of the best one's probability are dropped; 0 is off.
    pub min_p: f32,
    /// Factor on the logits of tokens already seen; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logits of tokens already generated; 0 is off.
    pub presence_penalty: f32,
}

impl GenerationDefaults {
    /// From generation_config.json, where there is one; the stop ids fall back to config.json's.
    ///
    /// Without the file the sampling values are the official ones. In a file, a key that is not there is off.
    pub fn from_json(bytes: Option<&[u8]>, config: &Config) -> Result<Self, CheckpointError> {
        let file = "generation_config.json";
        let official = Self {
            eos: config.eos.clone(),
            do_sample: true,
            temperature: 1.0,
            top_k: 20,
            top_p: 0.95,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
        };
        let Some(bytes) = bytes else { return official.checked(config, "config.json") };
        let map = object(file, bytes)?;
        let keys = Keys { file, prefix: "", map: &map };
        let eos = keys.ids("eos_token_id")?;
        let (eos, eos_file) = if eos.is_empty() { (config.eos.clone(), "config.json") } else { (eos, file) };
        let top_k = match keys.get("top_k") {
            None => 0,
            Some(v) => {
                let k = v.as_u64().filter(|&k| k <= 1 << 24);
                k.ok_or_else(|| keys.bad("top_k", format!("is {v} and should be a small integer")))? as usize
            }
        };
        let do_sample = match keys.get("do_sample") {
            None => true,
            Some(v) => v.as_bool().ok_or_else(|| keys.bad("do_sample", format!("is {v} and should be a boolean")))?,
        };
        let defaults = Self {
            eos,
            do_sample,
            temperature: keys.ranged("temperature", 0.0, 100.0, 1.0)?,
            top_k,
            top_p: keys.ranged("top_p", 0.0, 1.0, 1.0)?,
            min_p: keys.ranged("min_p", 0.0, 1.0, 0.0)?,
            repetition_penalty: keys.ranged("repetition_penalty", 1e-3, 1e3, 1.0)?,
            presence_penalty: keys.ranged("presence_penalty", -1e3, 1e3, 0.0)?,
        };
        defaults.checked(config, eos_file)
    }

    fn checked(self, config: &Config, file: &'static str) -> Result<Self, CheckpointError> {
        let bad = |problem: String| CheckpointError::Config { file, key: "eos_token_id".into(), problem };
        if self.eos.is_empty() {
            return Err(bad("is missing, and without it no answer would end".into()));
        }
        match self.eos.iter().find(|&&id| id as usize >= config.shape.vocab) {
            Some(id) => Err(bad(format!("holds {id}, but the vocabulary has {} ids", config.shape.vocab))),
            None => Ok(self),
        }
    }
}
