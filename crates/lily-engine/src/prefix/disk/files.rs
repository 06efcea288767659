//! What the files hold. All numbers are little-endian.
//!
//! Both kinds begin alike: 8 bytes that name the kind, the key of model, build and format (32), the length of the body (8),
//! the body, and the SHA-256 of all that (32). What follows are parts, whose lengths and SHA-256 the body lists.
//!
//! - `NAME.state`: one snapshot. The body has its tokens and where its parts are; its own part follows.
//! - `NAME.kv`: parts that snapshots share. A snapshot names those that are there already, so that none is written twice.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use sha2::{Digest, Sha256};

/// A SHA-256.
pub(super) type Sum = [u8; 32];

const STATE: &[u8; 8] = b"LilySta1";
const PACK: &[u8; 8] = b"LilyKV_1";
/// Bytes before the body, and after it.
const BEFORE: u64 = 8 + 32 + 8;
const AFTER: u64 = 32;

pub(super) fn sum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Sum {
    let mut hash = Sha256::new();
    parts.into_iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// Of a file, without what stands after the dot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Name(pub(super) [u8; 16]);

impl Name {
    /// Snapshots of the same tokens have the same name, so that a better one takes the place of the other.
    pub(super) fn of_state(tokens: &[u32], exact: bool) -> Self {
        Self::of(&[words(tokens), vec![u8::from(exact)]].concat())
    }

    pub(super) fn of_pack(parts: &[PartInfo]) -> Self {
        Self::of(&parts.iter().flat_map(|part| part.sum).collect::<Vec<_>>())
    }

    fn of(bytes: &[u8]) -> Self {
        let mut name = [0; 16];
        name.copy_from_slice(&sum([bytes])[..16]);
        Self(name)
    }

    /// The name that a file's stem spells.
    pub(super) fn parse(stem: &str) -> Option<Self> {
        let name = (stem.len() == 32).then(|| u128::from_str_radix(stem, 16).ok())??;
        Some(Self(name.to_be_bytes())).filter(|name| name.to_string() == stem)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A part and what its bytes must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartInfo {
    pub(super) sum: Sum,
    pub(super) bytes: u64,
}

impl PartInfo {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { sum: sum([bytes]), bytes: bytes.len() as u64 }
    }
}

/// The body of a `.state` file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    pub(super) exact: bool,
    pub(super) tokens: Vec<u32>,
    pub(super) own: PartInfo,
    /// Each part that is shared, and the pack that has it, as a place in `packs`.
    pub(super) shared: Vec<(PartInfo, u32)>,
    pub(super) packs: Vec<Name>,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it does not begin as a file of this cache does")]
    Kind,
    #[error("it was made by another model, build or KV type")]
    Foreign,
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

const CUT: Problem = Problem::Damaged("it is too short");
const SUM: Problem = Problem::Damaged("its checksum is another");
const LENGTH: Problem = Problem::Damaged("its length is another");

impl State {
    /// The head of the file; the own part follows it.
    pub(super) fn head(&self, key: &Sum) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(u32::from(self.exact).to_le_bytes());
        for count in [self.tokens.len(), self.packs.len(), self.shared.len()] {
            body.extend((count as u64).to_le_bytes());
        }
        put_part(&mut body, &self.own);
        self.packs.iter().for_each(|pack| body.extend(pack.0));
        for (part, pack) in &self.shared {
            put_part(&mut body, part);
            body.extend(pack.to_le_bytes());
        }
        body.extend(words(&self.tokens));
        head(STATE, key, &body)
    }

    fn parse(body: &[u8]) -> Option<Self> {
        let mut from = Reader(body);
        let exact = match from.u32()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let (tokens, packs, shared) = (from.u64()?, from.u64()?, from.u64()?);
        let own = from.part()?;
        let packs = (0..packs).map(|_| Some(Name(from.array()?))).collect::<Option<Vec<_>>>()?;
        let shared = (0..shared)
            .map(|_| Some((from.part()?, from.u32()?)).filter(|(_, pack)| (*pack as usize) < packs.len()))
            .collect::<Option<Vec<_>>>()?;
        let tokens = (0..tokens).map(|_| from.u32()).collect::<Option<Vec<_>>>()?;
        from.0.is_empty().then_some(Self { exact, tokens, own, shared, packs })
    }

    /// Bytes of a snapshot in memory.
    pub(super) fn memory(&self) -> u64 {
        self.shared.iter().fold(self.own.bytes, |bytes, (part, _)| bytes.saturating_add(part.bytes))
    }
}

/// The head of a `.kv` file.
pub(super) fn pack_head(parts: &[PartInfo], key: &Sum) -> Vec<u8> {
    let mut body = Vec::new();
    parts.iter().for_each(|part| put_part(&mut body, part));
    head(PACK, key, &body)
}

fn parse_pack(body: &[u8]) -> Option<Vec<PartInfo>> {
    let mut from = Reader(body);
    let mut parts = Vec::new();
    while !from.0.is_empty() {
        parts.push(from.part()?);
    }
    Some(parts)
}

/// A file whose head was read and checked.
pub(super) struct Opened<T> {
    pub(super) file: File,
    pub(super) body: T,
    /// Where parts begin.
    parts_at: u64,
    /// Of the file.
    pub(super) bytes: u64,
}

pub(super) fn open_state(path: &Path, key: &Sum) -> Result<Opened<State>, Problem> {
    let opened = open(path, STATE, key, State::parse)?;
    opened.check_length([&opened.body.own])?;
    Ok(opened)
}

pub(super) fn open_pack(path: &Path, key: &Sum) -> Result<Opened<Vec<PartInfo>>, Problem> {
    let opened = open(path, PACK, key, parse_pack)?;
    opened.check_length(&opened.body)?;
    Ok(opened)
}

impl Opened<State> {
    pub(super) fn read_own(&mut self) -> Result<Vec<u8>, Problem> {
        let own = self.body.own;
        self.read(0, &own)
    }
}

impl Opened<Vec<PartInfo>> {
    pub(super) fn read_part(&mut self, sum: &Sum) -> Result<Vec<u8>, Problem> {
        let place = self.body.iter().position(|part| part.sum == *sum);
        let place = place.ok_or(Problem::Damaged("a part is not in it"))?;
        let (before, part) = (self.body[..place].iter().map(|p| p.bytes).sum(), self.body[place]);
        self.read(before, &part)
    }
}

impl<T> Opened<T> {
    fn check_length<'a>(&self, parts: impl IntoIterator<Item = &'a PartInfo>) -> Result<(), Problem> {
        let end = parts.into_iter().try_fold(self.parts_at, |end, part| end.checked_add(part.bytes));
        if end == Some(self.bytes) { Ok(()) } else { Err(LENGTH) }
    }

    /// A part at `offset`, once its checksum is right. [`Self::check_length`] has seen that it lies in the file.
    fn read(&mut self, offset: u64, part: &PartInfo) -> Result<Vec<u8>, Problem> {
        let mut bytes = vec![0; part.bytes as usize];
        self.file.seek(SeekFrom::Start(self.parts_at + offset))?;
        read_exact(&mut self.file, &mut bytes)?;
        if sum([bytes.as_slice()]) == part.sum { Ok(bytes) } else { Err(SUM) }
    }
}

fn open<T>(path: &Path, kind: &[u8; 8], key: &Sum, parse: impl Fn(&[u8]) -> Option<T>) -> Result<Opened<T>, Problem> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    if bytes < BEFORE + AFTER {
        return Err(CUT);
    }
    let mut before = [0; BEFORE as usize];
    read_exact(&mut file, &mut before)?;
    let mut from = Reader(&before);
    if from.array().as_ref() != Some(kind) {
        return Err(Problem::Kind);
    }
    if from.array().as_ref() != Some(key) {
        return Err(Problem::Foreign);
    }
    // Nothing is believed yet: no more is read than the file has.
    let length = from.u64().filter(|&length| length <= bytes - BEFORE - AFTER).ok_or(CUT)?;
    let mut body = vec![0; length as usize];
    let mut told = Sum::default();
    read_exact(&mut file, &mut body)?;
    read_exact(&mut file, &mut told)?;
    if sum([&before[..], &body]) != told {
        return Err(SUM);
    }
    let body = parse(&body).ok_or(Problem::Damaged("its head cannot be read"))?;
    Ok(Opened { file, body, parts_at: BEFORE + length + AFTER, bytes })
}

/// A file that ends early is damaged, not a failure of the disk.
fn read_exact(file: &mut File, bytes: &mut [u8]) -> Result<(), Problem> {
    file.read_exact(bytes).map_err(|e| if e.kind() == io::ErrorKind::UnexpectedEof { CUT } else { e.into() })
}

fn head(kind: &[u8; 8], key: &Sum, body: &[u8]) -> Vec<u8> {
    let mut head = [&kind[..], key, &(body.len() as u64).to_le_bytes(), body].concat();
    head.extend(sum([head.as_slice()]));
    head
}

fn put_part(to: &mut Vec<u8>, part: &PartInfo) {
    to.extend(part.sum);
    to.extend(part.bytes.to_le_bytes());
}

fn words(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn part(&mut self) -> Option<PartInfo> {
        Some(PartInfo { sum: self.array()?, bytes: self.u64()? })
    }
}
