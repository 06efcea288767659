use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::models::bpe::BPE;
use tokenizers::{Model, NormalizerWrapper, PreTokenizerWrapper, Tokenizer as Bpe};

use crate::ChatError;

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

/// A checkpoint's byte-level BPE with its added tokens (`docs/model.md` §6). A clone is cheap.
///
/// The added tokens are kept out of the inner BPE, so that plain text can't encode to one; text that is trusted is split
/// at them here, longest match first.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
    /// Tokens made up by [`Tokenizer::with_pieces`]: ids from `inner.len` on.
    pieces: Arc<Vec<Vec<u8>>>,
}

struct Inner {
    bpe: Bpe,
    /// 1 + the highest id of the files.
    len: usize,
    /// The bytes of all tokens one after another; token `id` is `bytes[starts[id]..starts[id + 1]]`, empty if the id is
    /// not in use.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    added: HashMap<u32, Added>,
    added_ids: HashMap<String, u32>,
    /// Added tokens by their text, longest first.
    by_length: Vec<(String, u32)>,
    first_chars: Vec<char>,
    /// Base tokens in the order of their bytes; made when it is first needed.
    by_bytes: OnceLock<Vec<u32>>,
}

struct Added {
    special: bool,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("len", &self.len()).field("added", &self.inner.by_length).finish()
    }
}

impl Tokenizer {
    /// Reads the contents of `tokenizer.json` and, where there is one, `tokenizer_config.json`, whose
    /// `added_tokens_decoder` may hold added tokens that the first file lacks.
    ///
    /// # Errors
    /// [`ChatError::Tokenizer`] naming the file, when it doesn't parse, isn't byte-level BPE, asks for something that this
    /// model's tokenizer never does (stripping around added tokens), or gives one id two meanings.
    pub fn from_json(tokenizer_json: &[u8], tokenizer_config: Option<&[u8]>) -> Result<Self, ChatError> {
        let file: File = serde_json::from_slice(tokenizer_json).map_err(|e| error(TOKENIZER, e.to_string()))?;
        let added = added_tokens(&file.added_tokens, tokenizer_config)?;
        let mut bpe = Bpe::new(file.model);
        bpe.with_normalizer(file.normalizer).map_err(|e| error(TOKENIZER, e.to_string()))?;
        bpe.with_pre_tokenizer(file.pre_tokenizer);

        let mut table: Vec<Vec<u8>> = Vec::new();
        let mut insert = |id: u32, bytes: Vec<u8>| {
            // Far above any vocabulary, and low enough that a broken file can't ask for all memory.
            const HIGHEST: u32 = 1 << 22;
            if id > HIGHEST {
                return Err(error(TOKENIZER, format!("token id {id} is too high")));
            }
            let id = id as usize;
            if id >= table.len() {
                table.resize(id + 1, Vec::new());
            }
            if !std::mem::replace(&mut table[id], bytes).is_empty() {
                return Err(error(TOKENIZER, format!("id {id} is given to two tokens")));
            }
            Ok(())
        };
        let alphabet = byte_alphabet();
        for (token, id) in bpe.get_model().get_vocab() {
            // An added token may be listed in the vocabulary too; its text then is no byte-level spelling.
            if added.contains_key(&id) {
                continue;
            }
            let bytes: Option<Vec<u8>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
            let bytes = bytes.filter(|b| !b.is_empty()).ok_or_else(|| {
                error(TOKENIZER, format!("token {id} ({token:?}) is not written in the byte-level alphabet"))
            })?;
            insert(id, bytes)?;
        }
        let mut by_length = Vec::new();
        for (&id, (text, _)) in &added {
            insert(id, text.clone().into_bytes())?;
            by_length.push((text.clone(), id));
        }
        by_length.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then(a.0.cmp(&b.0)));
        let mut first_chars: Vec<char> = by_length.iter().filter_map(|(text, _)| text.chars().next()).collect();
        first_chars.sort_unstable();
        first_chars.dedup();

        let (mut bytes, mut starts) = (Vec::new(), vec![0]);
        for token in &table {
            bytes.extend_from_slice(token);
            starts.push(bytes.len() as u32);
        }

        let added_ids = by_length.iter().cloned().collect();
        let added = added.into_iter().map(|(id, (_, special))| (id, Added { special })).collect();
        let inner = Inner {
            bpe,
            len: table.len(),
            bytes,
            starts,
            added,
            added_ids,
            by_length,
            first_chars,
            by_bytes: OnceLock::new(),
        };
        let tokenizer = Self { inner: Arc::new(inner), pieces: Arc::default() };
        tokenizer.check_byte_level()?;
        Ok(tokenizer)
    }

    /// Every byte must have a token, and encoding must go through the byte-level alphabet, or text would be lost.
    fn check_byte_level(&self) -> Result<(), ChatError> {
        let mut single = [false; 256];
        for id in (0..self.inner.len as u32).filter(|&id| !self.is_added(id)) {
            if let Some(&[byte]) = self.token_bytes(id) {
                single[usize::from(byte)] = true;
            }
        }
        if let Some(byte) = single.iter().position(|known| !known) {
            return Err(error(TOKENIZER, format!("no token for the byte {byte:#04x}")));
        }
        let probe = " a\n\té日\u{1}😀";
        if self.decode(&self.encode_text(probe)) != probe {
            return Err(error(TOKENIZER, "encoding loses text: the pre-tokenizer is not byte-level".into()));
        }
        Ok(())
    }

    /// Number of ids: every token has an id below this, and logits from here on are padding that must not be sampled.
    pub fn len(&self) -> usize {
        self.inner.len + self.pieces.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Encodes plain text: whatever it looks like, no added token comes out.
    pub fn encode_text(&self, text: &str) -> Vec<u32> {
        if text.is_empty() {
            return Vec::new();
        }
        // Byte-level BPE has a token for every byte, so that only a broken regex could fail here, and that is compiled
        // when the file is read.
        let encoding = self.inner.bpe.encode_fast(text, false).expect("byte-level BPE encodes every text");
        encoding.get_ids().to_vec()
    }

    /// Encodes trusted text, in which added tokens are recognised, the longest first.
    pub fn encode_with_added(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.split_added(text, |segment| match segment {
            Ok((id, _)) => ids.push(id),
            Err(plain) => ids.extend(self.encode_text(plain)),
        });
        ids
    }

    /// Cuts text at added tokens: `Ok((id, its text))` for each of them, `Err(text)` for what lies between.
    pub(crate) fn split_added<'t>(&self, text: &'t str, mut visit: impl FnMut(Result<(u32, &'t str), &'t str>)) {
        let mut plain_from = 0;
        let mut at = 0;
        while let Some(found) = text[at..].find(self.inner.first_chars.as_slice()) {
            at += found;
            match self.inner.by_length.iter().find(|(token, _)| text[at..].starts_with(token.as_str())) {
                Some((token, id)) => {
                    if plain_from < at {
                        visit(Err(&text[plain_from..at]));
                    }
                    visit(Ok((*id, &text[at..at + token.len()])));
                    at += token.len();
                    plain_from = at;
                }
                None => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        if plain_from < text.len() {
            visit(Err(&text[plain_from..]));
        }
    }

    /// The exact bytes of a token (for an added token, its text), or none if the id is not in use.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        if id >= self.inner.len {
            return self.pieces.get(id - self.inner.len).map(Vec::as_slice);
        }
        let bytes = &self.inner.bytes[self.inner.starts[id] as usize..self.inner.starts[id + 1] as usize];
        (!bytes.is_empty()).then_some(bytes)
    }

    /// The bytes of all tokens, joined to text; invalid UTF-8 becomes U+FFFD, ids that are not in use nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().filter_map(|&id| self.token_bytes(id)).flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The id of an added token by its text, such as `<think>`.
    pub fn added_id(&self, text: &str) -> Option<u32> {
        self.inner.added_ids.get(text).copied()
    }

    /// Whether this is an added token marked `special`: one that never appears in text.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.added.get(&id).is_some_and(|a| a.special)
    }

    /// Whether this is an added token.
    pub fn is_added(&self, id: u32) -> bool {
        self.inner.added.contains_key(&id)
    }

    /// The characters that added tokens begin with.
    pub(crate) fn added_first_chars(&self) -> &[char] {
        &self.inner.first_chars
    }

    /// A tokenizer that also knows each of `pieces` as one token, and the ids of the pieces: the base token with exactly
    /// these bytes where there is one, else a new id from [`Tokenizer::len`] on. For models that follow a script.
    pub fn with_pieces(&self, pieces: &[Vec<u8>]) -> (Tokenizer, Vec<u32>) {
        let by_bytes = self.inner.by_bytes.get_or_init(|| {
            let base = (0..self.inner.len as u32).filter(|&id| !self.is_added(id) && self.token_bytes(id).is_some());
            let mut ids: Vec<u32> = base.collect();
            ids.sort_by_key(|&id| (self.token_bytes(id), id));
            ids
        });
        let mut all = self.pieces.as_ref().clone();
        let mut made: HashMap<Vec<u8>, usize> = all.iter().cloned().zip(0..).collect();
        let ids = pieces.iter().map(|piece| {
            let first = by_bytes.partition_point(|&id| self.token_bytes(id) < Some(piece));
            match by_bytes.get(first) {
                Some(&id) if self.token_bytes(id) == Some(piece) => id,
                _ => {
                    let number = *made.entry(piece.clone()).or_insert_with(|| {
                        all.push(piece.clone());
                        all.len() - 1
                    });
                    (self.inner.len + number) as u32
                }
            }
        });
        let ids = ids.collect();
        (Tokenizer { inner: self.inner.clone(), pieces: Arc::new(all) }, ids)
    }
}

fn error(file: &'static str, reason: String) -> ChatError {
    ChatError::Tokenizer { file, reason }
}

/// What is read of `tokenizer.json`. Its post-processor only moves offsets, and its decoder is [`Tokenizer::decode`].
#[derive(Deserialize)]
struct File {
    model: BPE,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    #[serde(default)]
    added_tokens: Vec<Value>,
}

/// What is read of `tokenizer_config.json`.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    added_tokens_decoder: Map<String, Value>,
}

/// Added tokens of both files: id → (text, special).
fn added_tokens(listed: &[Value], config: Option<&[u8]>) -> Result<BTreeMap<u32, (String, bool)>, ChatError> {
    let mut added = BTreeMap::new();
    for entry in listed {
        let id = entry["id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| error(TOKENIZER, format!("added token without an id: {entry}")))?;
        insert_added(&mut added, TOKENIZER, id, entry)?;
    }
    if let Some(config) = config {
        let file: Config = serde_json::from_slice(config).map_err(|e| error(CONFIG, e.to_string()))?;
        for (id, entry) in &file.added_tokens_decoder {
            let id = id.parse().map_err(|_| error(CONFIG, format!("added_tokens_decoder: {id:?} is no token id")))?;
            insert_added(&mut added, CONFIG, id, entry)?;
        }
    }
    Ok(added)
}

fn insert_added(
    added: &mut BTreeMap<u32, (String, bool)>,
    file: &'static str,
    id: u32,
    entry: &Value,
) -> Result<(), ChatError> {
    let text = entry["content"].as_str().filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| error(file, format!("added token {id} has no content")))?;
    for key in ["lstrip", "rstrip", "single_word"] {
        if entry[key] == Value::Bool(true) {
            return Err(error(file, format!("added token {id} ({text}) sets {key}, which is not supported")));
        }
    }
    let new = (text.to_owned(), entry["special"] == Value::Bool(true));
    match added.insert(id, new) {
        Some((old, _)) if old != text => Err(error(file, format!("id {id} is both {old} and {text}"))),
        _ => Ok(()),
    }
}

/// The characters that byte-level BPE writes bytes with: printable Latin-1 stands for itself, every other byte for the
/// next free character from U+0100 on.
fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let moved = (0..=255u8).filter(|b| !printable(b)).zip('\u{100}'..);
    let moved = moved.map(|(byte, c)| (c, byte));
    (0..=255u8).filter(printable).map(|byte| (char::from(byte), byte)).chain(moved).collect()
}
