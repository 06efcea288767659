//! What tells one checkpoint from another, for states that outlive the process.

use std::path::Path;
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use crate::Bytes;

/// Up to so many bytes of tensors, all are hashed.
const WHOLE: u64 = 64 << 20;
/// Of more, so many pieces of each tensor, evenly spaced, the first and the last bytes among them.
const PIECES: usize = 16;
const PIECE: usize = 4096;

/// SHA-256 over `config`, and over each tensor's description and bytes: all bytes of a small checkpoint, samples of every
/// tensor of a large one, because 20 GB would take longer to hash than a long conversation to read again. Training or
/// quantising anew changes every tensor, and samples show it. What changes a few bytes in place changes the time of the
/// file, which is hashed too: so a copy with other times counts as another checkpoint, which costs a cold start and no more.
pub(crate) fn fingerprint(
    config: &str,
    tensors: &[(String, Bytes)],
    folder: Option<&Path>,
    files: &[String],
) -> String {
    let whole = tensors.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>() <= WHOLE;
    hash(whole, config, tensors, folder, files)
}

fn hash(whole: bool, config: &str, tensors: &[(String, Bytes)], folder: Option<&Path>, files: &[String]) -> String {
    let mut hash = Sha256::new();
    let mut put = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    put(config.as_bytes());
    for (about, bytes) in tensors {
        put(about.as_bytes());
        put(&(bytes.len() as u64).to_le_bytes());
        if whole || bytes.len() <= PIECES * PIECE {
            put(bytes);
        } else {
            let last = bytes.len() - PIECE;
            (0..PIECES).map(|i| last / (PIECES - 1) * i).chain([last]).for_each(|at| put(&bytes[at..at + PIECE]));
        }
    }
    for (folder, file) in folder.iter().flat_map(|folder| files.iter().map(move |file| (folder, file))) {
        let times = std::fs::metadata(folder.join(file)).ok().and_then(|m| Some((m.len(), m.modified().ok()?)));
        let (bytes, modified) = times.unwrap_or((0, UNIX_EPOCH));
        let nanoseconds = modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        put(format!("{file} {bytes} {nanoseconds}").as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_that_is_looked_at_shows() {
        let tensor = |name: &str, len: usize, changed: Option<usize>| {
            let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            if let Some(at) = changed {
                bytes[at] ^= 1;
            }
            vec![(name.to_owned(), Bytes::new(bytes))]
        };
        let len = 3 * PIECES * PIECE + 5;
        for whole in [true, false] {
            let of = |tensors: &[(String, Bytes)]| hash(whole, "config", tensors, None, &[]);
            let base = of(&tensor("a", len, None));
            assert_eq!(base.len(), 64);
            assert_eq!(base, of(&tensor("a", len, None)));
            assert_ne!(base, hash(whole, "another", &tensor("a", len, None), None, &[]));
            assert_ne!(base, of(&tensor("b", len, None)));
            assert_ne!(base, of(&tensor("a", len + 1, None)));
            assert_ne!(base, of(&tensor("a", len, Some(0))));
            assert_ne!(base, of(&tensor("a", len, Some(len - 1))));
            // Between two pieces.
            assert_eq!(base == of(&tensor("a", len, Some(PIECE + 10))), !whole);
        }
        let (dir, tensors) = (tempfile::tempdir().unwrap(), tensor("a", 10, None));
        let of = || fingerprint("config", &tensors, Some(dir.path()), &["x".into()]);
        std::fs::write(dir.path().join("x"), "1").unwrap();
        let base = of();
        assert_eq!(base, of());
        let file = std::fs::File::options().append(true).open(dir.path().join("x")).unwrap();
        file.set_modified(UNIX_EPOCH + std::time::Duration::from_secs(1)).unwrap();
        assert_ne!(base, of());
    }
}
