//! Whose turn it is. The engine asks before every call of the model; this file is all that decides.

use lily_model::SeqId;

/// What one running request needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Prompt tokens are still to be read.
    Prefill,
    /// A token has been chosen and is to be fed back.
    Decode,
}

/// The next call of the model, by position in the list of running requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// One chunk of one prompt.
    Prefill(usize),
    /// One token for each of these.
    Decode(Vec<usize>),
}

/// Alternates between prompts and answers when both wait, and goes round the prompts chunk by chunk, so that a long prompt
/// slows the others but never stops them.
#[derive(Default)]
pub(crate) struct Schedule {
    prefilled_last: bool,
    /// Whose prompt was read last.
    reader: Option<SeqId>,
}

impl Schedule {
    /// `needs` is in order of arrival; `None` when nothing runs.
    pub(crate) fn next(&mut self, needs: &[(SeqId, Need)]) -> Option<Turn> {
        let decode: Vec<usize> = (0..needs.len()).filter(|&i| needs[i].1 == Need::Decode).collect();
        // The first prompt behind the one read last, else the first: ids ascend as requests begin.
        let prompts = || (0..needs.len()).filter(|&i| needs[i].1 == Need::Prefill);
        let prefill = prompts().find(|&i| Some(needs[i].0) > self.reader).or_else(|| prompts().next());
        let turn = match prefill {
            Some(i) if decode.is_empty() || !self.prefilled_last => {
                self.reader = Some(needs[i].0);
                Turn::Prefill(i)
            }
            _ if decode.is_empty() => return None,
            _ => Turn::Decode(decode),
        };
        self.prefilled_last = matches!(turn, Turn::Prefill(_));
        Some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::Need::{Decode, Prefill};
    use super::*;

    fn needs(needs: &[(u64, Need)]) -> Vec<(SeqId, Need)> {
        needs.iter().map(|&(id, need)| (SeqId(id), need)).collect()
    }

    #[test]
    fn one_request_goes_straight_through() {
        let mut s = Schedule::default();
        assert_eq!(s.next(&[]), None);
        for _ in 0..2 {
            assert_eq!(s.next(&needs(&[(4, Prefill)])), Some(Turn::Prefill(0)));
        }
        for _ in 0..2 {
            assert_eq!(s.next(&needs(&[(4, Decode)])), Some(Turn::Decode(vec![0])));
        }
    }

    #[test]
    fn a_long_prompt_takes_turns_with_answers() {
        let mut s = Schedule::default();
        let needs = needs(&[(0, Decode), (1, Prefill), (4, Decode)]);
        assert_eq!(s.next(&needs), Some(Turn::Prefill(1)));
        assert_eq!(s.next(&needs), Some(Turn::Decode(vec![0, 2])));
        assert_eq!(s.next(&needs), Some(Turn::Prefill(1)));
    }

    #[test]
    fn prompts_take_turns() {
        let mut s = Schedule::default();
        let turns = |s: &mut Schedule, list: &[(u64, Need)]| s.next(&needs(list));
        assert_eq!(turns(&mut s, &[(2, Prefill), (5, Prefill), (7, Prefill)]), Some(Turn::Prefill(0)));
        assert_eq!(turns(&mut s, &[(2, Prefill), (5, Prefill), (7, Prefill)]), Some(Turn::Prefill(1)));
        // The one read last has left; the turn passes on, and round.
        assert_eq!(turns(&mut s, &[(2, Prefill), (7, Prefill)]), Some(Turn::Prefill(1)));
        assert_eq!(turns(&mut s, &[(2, Prefill), (7, Prefill)]), Some(Turn::Prefill(0)));
        // Answers come between.
        assert_eq!(turns(&mut s, &[(2, Prefill), (7, Decode), (9, Prefill)]), Some(Turn::Decode(vec![1])));
        assert_eq!(turns(&mut s, &[(2, Prefill), (7, Decode), (9, Prefill)]), Some(Turn::Prefill(2)));
    }
}
