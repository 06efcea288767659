/// Joins bytes that arrive in any pieces to text, never handing out half a character.
///
/// Invalid sequences become U+FFFD exactly as in [`String::from_utf8_lossy`] of all the bytes together
/// (`docs/model.md` §6.1).
#[derive(Debug, Default, Clone)]
pub struct Utf8Stream {
    /// The start of a character that may still become whole: at most three bytes.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// A stream that holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `out` the text that `bytes` completes; an unfinished last character is held back.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.held.extend_from_slice(bytes);
        let mut rest = self.held.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    out.push_str(std::str::from_utf8(valid).expect("checked up to here"));
                    rest = after;
                    match error.error_len() {
                        Some(bad) => {
                            out.push(char::REPLACEMENT_CHARACTER);
                            rest = &rest[bad..];
                        }
                        None => break,
                    }
                }
            }
        }
        let done = self.held.len() - rest.len();
        self.held.drain(..done);
    }

    /// Ends the stream: a held start of a character becomes one U+FFFD. The stream can be used again afterwards.
    pub fn finish(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            self.held.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}
