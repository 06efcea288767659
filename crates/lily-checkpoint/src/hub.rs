//! Finds a repository in the Hugging Face cache of this machine. Nothing here touches the network.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Why a model's name leads to no folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Neither a folder nor `owner/name`.
    #[error(
        "`{name}` is neither a folder nor the name of a repository (owner/name); give a folder with config.json and \
         model*.safetensors"
    )]
    NotAName {
        /// As given.
        name: String,
    },
    /// A repository that was never downloaded.
    #[error(
        "`{name}` is not a folder, and the repository is not in the Hugging Face cache ({cache}); fetch it with: hf \
         download {name}"
    )]
    NotCached {
        /// Repository.
        name: String,
        /// The cache folder that was looked at.
        cache: String,
    },
    /// A repository whose download never got anywhere.
    #[error("the Hugging Face cache holds {folder}, but no snapshot in it; fetch it again with: hf download {name}")]
    NoSnapshot {
        /// Repository.
        name: String,
        /// The repository's folder in the cache.
        folder: String,
    },
    /// The environment names no cache and there is no home directory.
    #[error("no Hugging Face cache to look for `{name}` in: set HF_HUB_CACHE or HOME, or give a folder")]
    NoCache {
        /// Repository.
        name: String,
    },
}

/// The folder that `model` means: an existing folder, or a repository (`owner/name`) in the Hugging Face cache.
pub fn resolve_model(model: &str) -> Result<PathBuf, HubError> {
    resolve_in(model, cache_dir(|key| std::env::var_os(key).map(PathBuf::from)))
}

/// [`resolve_model`] with the cache given.
pub fn resolve_in(model: &str, cache: Option<PathBuf>) -> Result<PathBuf, HubError> {
    let path = Path::new(model);
    if path.is_dir() {
        return Ok(path.to_path_buf());
    }
    if !is_repository(model) {
        return Err(HubError::NotAName { name: model.into() });
    }
    let cache = cache.ok_or_else(|| HubError::NoCache { name: model.into() })?;
    let folder = cache.join(format!("models--{}", model.replace('/', "--")));
    if !folder.is_dir() {
        return Err(HubError::NotCached { name: model.into(), cache: cache.display().to_string() });
    }
    snapshot(&folder).ok_or_else(|| HubError::NoSnapshot { name: model.into(), folder: folder.display().to_string() })
}

/// Where the cache is, by the same rules as the official tools: `HF_HUB_CACHE`, `HF_HOME/hub`,
/// `XDG_CACHE_HOME/huggingface/hub`, `~/.cache/huggingface/hub`. Empty variables count as unset.
pub fn cache_dir(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let set = |key| variable(key).filter(|p| !p.as_os_str().is_empty());
    let home = set("HOME");
    let expand = |path: PathBuf| match (path.strip_prefix("~"), &home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    };
    if let Some(cache) = set("HF_HUB_CACHE") {
        return Some(expand(cache));
    }
    if let Some(hf) = set("HF_HOME") {
        return Some(expand(hf).join("hub"));
    }
    let cache = set("XDG_CACHE_HOME").map(expand).or_else(|| home.as_ref().map(|home| home.join(".cache")))?;
    Some(cache.join("huggingface/hub"))
}

/// `owner/name` of the characters that the hub allows; this also keeps a name from leading out of the cache.
fn is_repository(name: &str) -> bool {
    let part = |p: &str| {
        !p.is_empty()
            && !p.starts_with('.')
            && p.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    name.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name))
}

/// The snapshot of refs/main, or else the newest one.
fn snapshot(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.join("snapshots");
    if let Ok(revision) = std::fs::read_to_string(folder.join("refs/main")) {
        let revision = revision.trim();
        let dir = snapshots.join(revision);
        if crate::source::is_plain_name(revision) && dir.is_dir() {
            return Some(dir);
        }
    }
    let age = |dir: &PathBuf| std::fs::metadata(dir).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let entries = std::fs::read_dir(snapshots).ok()?;
    entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir()).max_by_key(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_of(variables: &[(&str, &str)]) -> Option<PathBuf> {
        cache_dir(|key| variables.iter().find(|(k, _)| *k == key).map(|(_, v)| v.into()))
    }

    #[test]
    fn the_cache_is_where_the_official_tools_keep_it() {
        let all = [("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/d")];
        let expected = ["/a", "/b/hub", "/c/huggingface/hub", "/d/.cache/huggingface/hub"];
        for (i, expected) in expected.iter().enumerate() {
            assert_eq!(cache_of(&all[i..]), Some(expected.into()));
        }
        assert_eq!(cache_of(&[]), None);
        assert_eq!(cache_of(&[("HF_HOME", ""), ("HOME", "/d")]), Some("/d/.cache/huggingface/hub".into()));
        assert_eq!(cache_of(&[("HF_HOME", "~/hf"), ("HOME", "/d")]), Some("/d/hf/hub".into()));
    }

    #[test]
    fn refs_main_wins_over_newer_snapshots() {
        let cache = tempfile::tempdir().unwrap();
        let repo = cache.path().join("models--mlx-community--Qwen3.6-35B-A3B-4bit");
        let find = || resolve_in("mlx-community/Qwen3.6-35B-A3B-4bit", Some(cache.path().into()));

        let message = find().unwrap_err().to_string();
        let (folder, command) = (cache.path().display().to_string(), "hf download mlx-community/Qwen3.6-35B-A3B-4bit");
        assert!(message.contains(&folder) && message.ends_with(command), "{message}");

        std::fs::create_dir_all(repo.join("snapshots")).unwrap();
        assert!(matches!(find(), Err(HubError::NoSnapshot { .. })));

        let (old, new) = (repo.join("snapshots/aaa"), repo.join("snapshots/bbb"));
        for (dir, age) in [(&old, 100), (&new, 10)] {
            std::fs::create_dir(dir).unwrap();
            let time = SystemTime::now() - std::time::Duration::from_secs(age);
            std::fs::File::open(dir).unwrap().set_modified(time).unwrap();
        }
        assert_eq!(find().unwrap(), new);

        std::fs::create_dir(repo.join("refs")).unwrap();
        std::fs::write(repo.join("refs/main"), "aaa\n").unwrap();
        assert_eq!(find().unwrap(), old);
        std::fs::write(repo.join("refs/main"), "../../..").unwrap();
        assert_eq!(find().unwrap(), new);
    }

    #[test]
    fn folders_and_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        assert_eq!(resolve_in(path, None).unwrap(), dir.path());
        for name in ["", "qwen", "a/b/c", "../x", "/no/such/folder", "a/..", "a b/c"] {
            assert!(matches!(resolve_in(name, Some("/nowhere".into())), Err(HubError::NotAName { .. })), "{name:?}");
        }
        assert!(matches!(resolve_in("owner/name", None), Err(HubError::NoCache { .. })));
    }
}
