//! The header of a safetensors file: 8 bytes of length, JSON, then the tensors' bytes without holes.
//!
//! Parsed here and not by the `safetensors` crate, because that one refuses a file as a whole: a shard that is cut
//! short must be named with the number of missing bytes and still be listed by `inspect`, duplicate names must be
//! seen, and every error has to name its tensor. What is needed of the format is one JSON object.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::CheckpointError;

/// The format's own limit on the JSON; nothing sensible comes near it (the full model's headers are under 250 KB).
const MAX_HEADER: u64 = 100_000_000;

/// Element types that occur in safetensors files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    Bf16,
    F32,
    U32,
    /// Known to the format, used by nothing that Lily reads.
    Other {
        name: &'static str,
        size: usize,
    },
}

impl Dtype {
    fn parse(name: &str) -> Option<Self> {
        const OTHERS: [(&str, usize); 13] = [
            ("BOOL", 1),
            ("U8", 1),
            ("I8", 1),
            ("F8_E4M3", 1),
            ("F8_E5M2", 1),
            ("F8_E8M0", 1),
            ("I16", 2),
            ("U16", 2),
            ("F16", 2),
            ("I32", 4),
            ("I64", 8),
            ("U64", 8),
            ("F64", 8),
        ];
        match name {
            "BF16" => Some(Dtype::Bf16),
            "F32" => Some(Dtype::F32),
            "U32" => Some(Dtype::U32),
            _ => OTHERS.iter().find(|(n, _)| *n == name).map(|&(name, size)| Dtype::Other { name, size }),
        }
    }

    pub fn size(self) -> usize {
        match self {
            Dtype::Bf16 => 2,
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::Other { size, .. } => size,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::Bf16 => "BF16",
            Dtype::F32 => "F32",
            Dtype::U32 => "U32",
            Dtype::Other { name, .. } => name,
        })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TensorInfo {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Bytes of the file, header included.
    pub range: Range<usize>,
}

#[derive(Debug)]
pub(crate) struct Header {
    /// In the order of their bytes.
    pub tensors: Vec<TensorInfo>,
    /// Length that the file must have.
    pub file_len: usize,
}

impl Header {
    /// Parse and check everything that does not depend on the file's length.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, CheckpointError> {
        let fail = |problem: String| CheckpointError::Header { file: file.into(), problem };
        let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
            return Err(fail(format!("{} bytes are too few for a safetensors file; download it again", bytes.len())));
        };
        let length = u64::from_le_bytes(*length);
        if length > MAX_HEADER {
            return Err(fail(format!(
                "its first 8 bytes ask for a header of {length} bytes (at most {MAX_HEADER} are sensible): this is not \
                 a safetensors file but perhaps a Git LFS pointer or a saved error page; download it again"
            )));
        }
        let length = length as usize;
        if length > rest.len() {
            return Err(CheckpointError::Truncated {
                file: file.into(),
                expected: 8 + length as u64,
                actual: bytes.len() as u64,
                missing: (length - rest.len()) as u64,
            });
        }
        let Entries(entries) = serde_json::from_slice(&rest[..length])
            .map_err(|e| CheckpointError::Json { file: format!("the header of {file}"), problem: e.to_string() })?;

        let data_start = 8 + length;
        let mut tensors = Vec::with_capacity(entries.len());
        for (name, entry) in entries {
            let bad = |problem: String| CheckpointError::Tensor { tensor: name.clone(), file: file.into(), problem };
            let dtype = Dtype::parse(&entry.dtype)
                .ok_or_else(|| bad(format!("has the data type `{}`, which safetensors does not know", entry.dtype)))?;
            let bytes = (entry.shape.iter())
                .try_fold(dtype.size(), |n, &d| n.checked_mul(d))
                .ok_or_else(|| bad(format!("has the impossible shape {:?}", entry.shape)))?;
            let [start, end] = entry.data_offsets;
            if end.checked_sub(start) != Some(bytes) {
                return Err(bad(format!(
                    "has {bytes} bytes by its type {dtype} and shape {:?}, but its data_offsets are {start}..{end}",
                    entry.shape
                )));
            }
            let end = end.checked_add(data_start).ok_or_else(|| bad(format!("ends at the impossible offset {end}")))?;
            tensors.push(TensorInfo { dtype, shape: entry.shape, range: data_start + start..end, name });
        }
        tensors.sort_by_key(|t| (t.range.start, t.range.end));
        let mut end = data_start;
        for (i, t) in tensors.iter().enumerate() {
            let problem = match t.range.start {
                start if start < end => format!("overlaps `{}`", tensors[i - 1].name),
                start if start > end => format!("leaves {} unused bytes before it", start - end),
                _ => {
                    end = t.range.end;
                    continue;
                }
            };
            return Err(CheckpointError::Tensor { tensor: t.name.clone(), file: file.into(), problem });
        }
        Ok(Self { tensors, file_len: end })
    }
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// The header's object as a list, so that a name that occurs twice is an error and not the last one's value.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                let mut seen = std::collections::HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if !seen.insert(name.clone()) {
                        return Err(serde::de::Error::custom(format!("tensor `{name}` is listed twice")));
                    }
                    entries.push((name, map.next_value()?));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(List)
    }
}
