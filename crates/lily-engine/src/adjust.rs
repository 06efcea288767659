//! What changes the logits of a request before a token is chosen from them (`docs/model.md §7.5`).

use std::collections::{BTreeMap, BTreeSet};

/// Biases and penalties. The default changes nothing, and costs nothing: with any other the whole row of logits is looked
/// at, where a device could have chosen by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjust {
    /// Added to the logits of these tokens, before the penalties. Ids outside the vocabulary are ignored.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divides positive logits and multiplies the others of tokens that the prompt or the answer holds; 1 is neutral.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens that the answer holds.
    pub presence_penalty: f32,
    /// Subtracted for each time that the answer holds the token.
    pub frequency_penalty: f32,
}

impl Default for Adjust {
    fn default() -> Self {
        Self { logit_bias: Vec::new(), repetition_penalty: 1.0, presence_penalty: 0.0, frequency_penalty: 0.0 }
    }
}

/// [`Adjust`] with the tokens of one request.
pub(crate) struct Adjuster {
    adjust: Adjust,
    /// Empty where nothing asks for it.
    prompt: BTreeSet<u32>,
    /// How often each token was generated.
    generated: BTreeMap<u32, u32>,
}

impl Adjuster {
    /// `None` where nothing changes.
    pub(crate) fn new(adjust: Adjust, prompt: &[u32]) -> Option<Self> {
        if adjust == Adjust::default() {
            return None;
        }
        let repetition = adjust.repetition_penalty != 1.0;
        let prompt = if repetition { prompt.iter().copied().collect() } else { BTreeSet::new() };
        Some(Self { adjust, prompt, generated: BTreeMap::new() })
    }

    pub(crate) fn generated(&mut self, token: u32) {
        *self.generated.entry(token).or_default() += 1;
    }

    pub(crate) fn apply(&self, logits: &mut [f32]) {
        let Adjust { logit_bias, repetition_penalty, presence_penalty, frequency_penalty } = &self.adjust;
        for (id, bias) in logit_bias {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        if *repetition_penalty != 1.0 {
            for &id in self.prompt.iter().chain(self.generated.keys().filter(|id| !self.prompt.contains(id))) {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
                }
            }
        }
        for (&id, &count) in &self.generated {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= presence_penalty + frequency_penalty * count as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [2.0, -2.0, 1.0, 0.5];

    /// Logits after token 2 was generated twice and token 3 once, with a prompt of tokens 0, 1 and 3.
    fn after(adjust: Adjust) -> Vec<f32> {
        let mut adjuster = Adjuster::new(adjust, &[0, 1, 3, 0]).expect("something to change");
        for token in [2, 3, 2] {
            adjuster.generated(token);
        }
        let mut logits = LOGITS.to_vec();
        adjuster.apply(&mut logits);
        logits
    }

    #[test]
    fn penalties_see_the_answer_and_repetition_the_prompt_too() {
        assert_eq!(after(Adjust { presence_penalty: 1.5, ..Adjust::default() }), [2.0, -2.0, -0.5, -1.0]);
        assert_eq!(after(Adjust { frequency_penalty: 1.5, ..Adjust::default() }), [2.0, -2.0, -2.0, -1.0]);
        assert_eq!(after(Adjust { presence_penalty: -1.0, ..Adjust::default() }), [2.0, -2.0, 2.0, 1.5]);
        // Each token once, also where prompt and answer hold it.
        assert_eq!(after(Adjust { repetition_penalty: 2.0, ..Adjust::default() }), [1.0, -4.0, 0.5, 0.25]);
    }

    #[test]
    fn biases_come_first_and_unknown_ids_are_ignored() {
        let adjust = Adjust { logit_bias: vec![(1, 3.0), (0, -100.0), (9, 1.0)], ..Adjust::default() };
        assert_eq!(after(adjust.clone()), [-98.0, 1.0, 1.0, 0.5]);
        assert_eq!(after(Adjust { repetition_penalty: 2.0, ..adjust }), [-196.0, 0.5, 0.5, 0.25]);
    }

    #[test]
    fn what_changes_nothing_is_no_work() {
        assert!(Adjuster::new(Adjust::default(), &[1]).is_none());
        let zero = Adjust { presence_penalty: -0.0, frequency_penalty: 0.0, ..Adjust::default() };
        assert!(Adjuster::new(zero, &[1]).is_none());
    }
}
