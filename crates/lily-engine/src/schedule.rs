//! Whose turn it is. The engine asks before every call of the model; this file is all that decides.

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

/// Alternates between prompts and answers when both wait, so that a long prompt slows the others but never stops them.
#[derive(Default)]
pub(crate) struct Schedule {
    prefilled_last: bool,
}

impl Schedule {
    /// `needs` is in order of arrival; `None` when nothing runs.
    pub(crate) fn next(&mut self, needs: &[Need]) -> Option<Turn> {
        let decode: Vec<usize> = (0..needs.len()).filter(|&i| needs[i] == Need::Decode).collect();
        let prefill = needs.iter().position(|&need| need == Need::Prefill);
        let turn = match prefill {
            Some(i) if decode.is_empty() || !self.prefilled_last => Turn::Prefill(i),
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

    #[test]
    fn one_request_goes_straight_through() {
        let mut s = Schedule::default();
        assert_eq!(s.next(&[]), None);
        assert_eq!(s.next(&[Prefill]), Some(Turn::Prefill(0)));
        assert_eq!(s.next(&[Prefill]), Some(Turn::Prefill(0)));
        assert_eq!(s.next(&[Decode]), Some(Turn::Decode(vec![0])));
        assert_eq!(s.next(&[Decode]), Some(Turn::Decode(vec![0])));
    }

    #[test]
    fn a_long_prompt_takes_turns_with_answers() {
        let mut s = Schedule::default();
        let needs = [Decode, Prefill, Prefill, Decode];
        assert_eq!(s.next(&needs), Some(Turn::Prefill(1)));
        assert_eq!(s.next(&needs), Some(Turn::Decode(vec![0, 3])));
        assert_eq!(s.next(&needs), Some(Turn::Prefill(1)));
    }
}
