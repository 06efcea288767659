//! The prefix cache on disk: restarts, damage, kills, limits, and others in the same directory.

mod damage;
mod warnings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::fake::{Op, state_in};
use super::*;
use crate::DiskOptions;
use crate::prefix::{Disk, PrefixCache};

const ROOMY: u64 = 1 << 40;

fn options(dir: &Path) -> DiskOptions {
    DiskOptions { dir: dir.into(), bytes: ROOMY, identity: "a model, a build".into() }
}

/// A cache over the fake model.
struct Setup {
    model: Fake,
    log: Log,
    cache: PrefixCache,
}

impl Setup {
    fn open(options: &DiskOptions, exact: bool) -> Self {
        let (model, log) = Fake::new();
        let mut cache = PrefixCache::new(PrefixOptions { bytes: 1 << 30, exact }).unwrap();
        cache.keep_on(Disk::open(options, &model));
        Self { model, log, cache }
    }

    fn keep(&mut self, tokens: &[u32], exact: bool) {
        if self.cache.wants(tokens, exact) {
            let snapshot = self.model.after(tokens);
            self.cache.insert(tokens, snapshot, exact);
        }
    }

    fn flush(&mut self) {
        self.cache.flush(&mut self.model);
    }

    /// Tokens that `prompt` need not read again. What the state holds is what those tokens make.
    fn hit(&mut self, prompt: &[u32]) -> usize {
        self.cache.recall(prompt, &mut self.model);
        let Some(hit) = self.cache.find(prompt) else { return 0 };
        let len = hit.snapshot.len;
        assert_eq!(state_in(&hit.snapshot), state_in(&self.model.after(&prompt[..len])), "a wrong state");
        len
    }
}

/// What only memory and only the disk can give: a cache that begins empty in the same directory.
fn restarted(setup: Setup, options: &DiskOptions) -> Setup {
    let exact = setup.cache.is_exact();
    drop(setup);
    Setup::open(options, exact)
}

fn talk(n: u32, len: usize) -> Vec<u32> {
    std::iter::once(Op::Plain as u32).chain((1..len as u32).map(|i| 300 + n * 1000 + i % 97)).collect()
}

/// Files below a directory with their lengths.
fn files(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.metadata().unwrap() {
            m if m.is_dir() => found.extend(files(&entry.path())),
            m => drop(found.insert(entry.path(), m.len())),
        }
    }
    found
}

fn with_extension(dir: &Path, extension: &str) -> Vec<PathBuf> {
    files(dir).into_keys().filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
}

/// Of all but the locks.
fn bytes(dir: &Path) -> u64 {
    files(dir).into_iter().filter(|(path, _)| !path.ends_with("lock")).map(|(_, bytes)| bytes).sum()
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

#[test]
fn a_state_comes_back_after_a_restart_at_every_border() {
    for len in [1, 63, 64, 65, 128, 200] {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path());
        let tokens = talk(len as u32, 400);
        let mut setup = Setup::open(&options, false);
        setup.keep(&tokens[..len], true);
        setup.flush();
        for prompt in [len - 1, len, len + 1, len + 2].into_iter().filter(|&p| p > 0) {
            setup = restarted(setup, &options);
            assert_eq!(setup.hit(&tokens[..prompt]), if prompt > len { len } else { 0 }, "{len} {prompt}");
        }
        let mut other = tokens.clone();
        other[len - 1] = 8000;
        assert_eq!(restarted(setup, &options).hit(&other), 0, "{len}: the last token differs");
    }
}

#[test]
fn blocks_that_snapshots_share_are_copied_and_written_once() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let mut setup = Setup::open(&options, false);
    let tokens = talk(0, 64 * 40);
    for blocks in [10, 20, 30] {
        setup.keep(&tokens[..64 * blocks], true);
        setup.flush();
    }
    assert_eq!(setup.log.lock().blocks_saved, 30);
    // Not even after a restart.
    let mut setup = restarted(setup, &options);
    assert_eq!(setup.hit(&tokens), 64 * 30);
    setup.keep(&tokens[..64 * 40], true);
    setup.flush();
    assert_eq!(setup.log.lock().blocks_saved, 10);
    // Nor when the same comes from elsewhere: contents are compared.
    let mut setup = restarted(setup, &options);
    setup.keep(&tokens[..64 * 35], true);
    setup.flush();
    assert_eq!(setup.log.lock().blocks_saved, 35);
    assert_eq!((with_extension(dir.path(), "kv").len(), with_extension(dir.path(), "state").len()), (4, 5));
    let kept: u64 = with_extension(dir.path(), "kv").iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!(kept, 4 * (8 + 32 + 8 + 32) + 40 * (32 + 8 + 8 + 64));
}

#[test]
fn a_state_is_read_where_it_is_worth_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let mut setup = Setup::open(&options, false);
    let tokens = talk(0, 64 * 40);
    setup.keep(&tokens[..64 * 32], true);
    setup.flush();
    drop(setup);
    // 64 × 30 tokens are 1/16 less than 64 × 32; 64 × 31 are not.
    for (have, expected) in [(0, 32), (30, 32), (31, 31)] {
        let mut setup = Setup::open(&options, false);
        setup.cache.keep_on(None);
        if have > 0 {
            setup.keep(&tokens[..64 * have], true);
        }
        setup.cache.keep_on(Disk::open(&options, &setup.model));
        assert_eq!(setup.hit(&tokens), 64 * expected);
    }
}

#[test]
fn decoded_states_are_told_apart_and_give_way() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let tokens = talk(0, 400);
    let mut setup = Setup::open(&options, false);
    setup.keep(&tokens[..64], true);
    setup.keep(&tokens[..128], false);
    setup.flush();
    let mut exact = Setup::open(&options, true);
    assert_eq!(exact.hit(&tokens), 0, "the directory is in use");
    drop((exact, setup));
    assert_eq!(Setup::open(&options, true).hit(&tokens), 64);
    let mut setup = Setup::open(&options, false);
    assert_eq!(setup.hit(&tokens), 128);
    assert!(!setup.cache.find(&tokens).unwrap().exact);
    // The better one takes its place, and is not replaced by the other.
    setup.keep(&tokens[..128], true);
    setup.keep(&tokens[..128], false);
    setup.flush();
    assert_eq!(with_extension(dir.path(), "state").len(), 2);
    drop(setup);
    assert_eq!(Setup::open(&options, true).hit(&tokens), 128);
}

#[test]
fn what_memory_drops_is_found_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let mut setup = Setup::open(&options, false);
    let bytes = 2 * (fake::STATE_BYTES + 10 * fake::BLOCK_BYTES);
    setup.cache = PrefixCache::new(PrefixOptions { bytes, exact: false }).unwrap();
    setup.cache.keep_on(Disk::open(&options, &setup.model));
    for n in 0..6 {
        setup.keep(&talk(n, 640), true);
        setup.flush();
    }
    for n in 0..6 {
        assert_eq!(setup.hit(&talk(n, 700)), 640, "{n}");
        assert!(setup.cache.bytes() <= bytes);
    }
    // What memory has no room for at all is not read.
    setup.keep(&talk(9, 6400), true);
    setup.flush();
    assert_eq!(setup.hit(&talk(9, 6500)), 0);
}

#[test]
fn b111_vllm_mlx_365_others_are_neither_used_nor_harmed() {
    let (dir, warnings) = (tempfile::tempdir().unwrap(), warnings::Warnings::default());
    let ours = options(dir.path());
    let theirs = DiskOptions { identity: "a model, another build".into(), ..ours.clone() };
    let tokens = talk(0, 400);
    let mut setup = Setup::open(&theirs, false);
    setup.keep(&tokens[..320], true);
    setup.flush();
    let foreign = files(dir.path());
    let mut other = warnings.during(|| Setup::open(&ours, false));
    assert!(warnings.take().contains("are of another model, build or KV type"));
    assert_eq!(other.hit(&tokens), 0);
    other.keep(&tokens[..128], true);
    other.flush();
    // Files that came from there under the names of ours.
    let own = with_extension(dir.path(), "state").into_iter().find(|path| !foreign.contains_key(path)).unwrap();
    drop((setup, other));
    let (folder, moved) = (own.parent().unwrap(), foreign.keys().filter(|path| !path.ends_with("lock")));
    for path in moved {
        std::fs::copy(path, folder.join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(folder.join("notes.txt"), "mine").unwrap();
    let mut setup = warnings.during(|| Setup::open(&ours, false));
    let told = warnings.take();
    for path in foreign.keys().filter(|path| !path.ends_with("lock")) {
        let line = told.lines().find(|line| line.contains(path.file_name().unwrap().to_str().unwrap()));
        assert!(line.unwrap().ends_with("made by another model, build or KV type"), "{told}");
    }
    assert!(told.contains("notes.txt is not used: no such file belongs there"));
    assert_eq!(setup.hit(&tokens), 128);
    setup.keep(&tokens[..320], true);
    setup.flush();
    assert_eq!(restarted(setup, &ours).hit(&tokens), 320, "they block no writing");
    assert_eq!(Setup::open(&theirs, false).hit(&tokens), 320);
    assert!(folder.join("notes.txt").exists());
}

#[test]
fn another_kv_type_is_another_cache() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let mut setup = Setup::open(&options, false);
    setup.keep(&talk(0, 128), true);
    setup.flush();
    drop(setup);
    let with = |format| {
        let mut setup = Setup::open(&options, false);
        setup.cache.keep_on(None);
        setup.model.format = format;
        setup.cache.keep_on(Disk::open(&options, &setup.model));
        setup.hit(&talk(0, 200))
    };
    assert_eq!((with("fake, other KV type"), with("fake")), (0, 128));
}

#[test]
fn the_limit_holds_and_what_goes_first_is_of_others_then_old() {
    let dir = tempfile::tempdir().unwrap();
    let theirs = DiskOptions { identity: "old".into(), ..options(dir.path()) };
    let mut old = Setup::open(&theirs, false);
    old.keep(&talk(99, 640), true);
    old.flush();
    let foreign = bytes(dir.path());
    // Of the size that one conversation takes here.
    let limit = 4 * foreign;
    let ours = DiskOptions { bytes: limit, ..options(dir.path()) };
    let mut setup = Setup::open(&ours, false);
    for n in 0..6 {
        setup.keep(&talk(n, 640), true);
        setup.flush();
        assert!(bytes(dir.path()) <= limit);
    }
    // A process still holds the others: theirs are not touched.
    drop(old);
    let mut old = Setup::open(&theirs, false);
    assert_eq!(old.hit(&talk(99, 700)), 640);
    drop(old);
    setup = restarted(setup, &ours);
    let kept: Vec<u32> = (0..6).filter(|&n| setup.hit(&talk(n, 700)) > 0).collect();
    assert_eq!(kept, [3, 4, 5]);
    // The first of them is used, and is not the next to go although it was written first.
    assert_eq!(setup.hit(&talk(3, 700)), 640);
    setup.keep(&talk(6, 640), true);
    setup.keep(&talk(7, 640), true);
    setup.flush();
    assert!(bytes(dir.path()) <= limit);
    assert_eq!(Setup::open(&theirs, false).hit(&talk(99, 700)), 0, "others go before ours");
    setup = restarted(setup, &ours);
    let kept: Vec<u32> = (0..8).filter(|&n| setup.hit(&talk(n, 700)) > 0).collect();
    assert_eq!(kept, [3, 5, 6, 7]);
    // What is too large alone throws nothing away.
    setup.keep(&talk(8, 64 * 100), true);
    setup.flush();
    setup = restarted(setup, &ours);
    assert_eq!((0..9).filter(|&n| setup.hit(&talk(n, 64 * 110)) > 0).count(), 4);
}

#[test]
fn random_use_keeps_to_the_limit_and_to_the_truth() {
    for seed in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let mut dice = Dice(seed);
        let options = DiskOptions { bytes: if seed % 2 == 0 { 60_000 } else { ROOMY }, ..options(dir.path()) };
        let mut setup = Setup::open(&options, seed == 3);
        let mut hits = 0;
        for _ in 0..60 {
            let tokens = talk(dice.below(5) as u32, 1 + dice.below(1500));
            hits += usize::from(setup.hit(&tokens) > 0);
            setup.keep(&tokens, dice.below(3) > 0);
            if dice.below(4) == 0 {
                setup = restarted(setup, &options);
            } else if dice.below(2) == 0 {
                setup.flush();
                assert!(bytes(dir.path()) <= options.bytes);
            }
        }
        assert!(hits > 10, "{hits}");
    }
}

#[test]
fn one_process_holds_the_directory() {
    let (dir, warnings) = (tempfile::tempdir().unwrap(), warnings::Warnings::default());
    let options = options(dir.path());
    let tokens = talk(0, 200);
    let mut first = Setup::open(&options, false);
    first.keep(&tokens[..128], true);
    let mut second = warnings.during(|| Setup::open(&options, false));
    assert!(warnings.take().contains("is in use by another process"));
    second.keep(&tokens[..64], true);
    assert_eq!(second.hit(&tokens), 64, "it works in memory");
    second.flush();
    first.flush();
    drop((first, second));
    assert_eq!(Setup::open(&options, false).hit(&tokens), 128);
    assert_eq!(with_extension(dir.path(), "state").len(), 1);
}

#[test]
fn a_directory_that_cannot_be_used_costs_no_answer() {
    let (dir, warnings) = (tempfile::tempdir().unwrap(), warnings::Warnings::default());
    let tokens = talk(0, 200);
    // As a directory that may not be written, and independent of who runs the test.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut setup = warnings.during(|| Setup::open(&options(&file.join("cache")), false));
    assert!(warnings.take().contains("nothing is kept on disk"));
    setup.keep(&tokens[..128], true);
    setup.flush();
    assert_eq!(setup.hit(&tokens), 128);

    // As a disk that fails while it is used.
    let options = options(&dir.path().join("cache"));
    let mut setup = Setup::open(&options, false);
    std::fs::remove_dir_all(&options.dir).unwrap();
    for n in 0..3 {
        setup.keep(&talk(n, 128), true);
        setup.flush();
        assert_eq!(setup.hit(&talk(n, 200)), 128);
    }
    // And comes back.
    drop(setup);
    let mut setup = Setup::open(&options, false);
    setup.keep(&tokens[..128], true);
    setup.flush();
    assert_eq!(restarted(setup, &options).hit(&tokens), 128);
}

#[cfg(unix)]
#[test]
fn what_is_written_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir.path().join("made/here"));
    let mut setup = Setup::open(&options, false);
    setup.keep(&talk(0, 200), true);
    setup.flush();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let files = files(&options.dir);
    assert_eq!(files.len(), 3);
    for path in files.keys() {
        assert_eq!((mode(path), mode(path.parent().unwrap())), (0o600, 0o700));
    }
    assert_eq!(mode(&options.dir), 0o700);
}

#[test]
fn conversations_over_restarts_read_and_say_what_they_would_alone() {
    let (cold, cold_log) = engine(10, 1);
    for (bytes, exact, slots) in [(1 << 30, false, 1), (9000, false, 2), (9000, true, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let start = || {
            let (model, log) = Fake::new();
            let (prefix, disk) = (PrefixOptions { bytes, exact }, Some(options(dir.path())));
            let options = EngineOptions {
                tokenizer: tokenizer(),
                context: CONTEXT,
                max_queue: 10,
                prefix,
                parallel: slots,
                memory: None,
                disk,
            };
            (Engine::start(Box::new(model), options).unwrap(), log)
        };
        let mut warm = start();
        let mut dice = Dice(bytes + slots as u64);
        let mut talks: Vec<Vec<u32>> = (0..8).map(|i| talk(i, 60 + i as usize)).collect();
        let (mut hits, mut first) = (0, 0);
        for step in 0..40 {
            if step % 8 == 7 {
                drop(warm);
                warm = start();
            }
            let n = dice.below(8);
            let prompt = talks[n].clone();
            let answer = 1 + dice.below(70);
            let answer = answer + usize::from(prompt.len() + answer == fake::NO_ROOM);
            let boundaries = vec![0, prompt.len() / 2, prompt.len().saturating_sub(20)];
            let asked =
                || Request { prompt: prompt.clone(), boundaries: boundaries.clone(), ..request(Op::Plain, 1, answer) };
            let before = (warm.1.lock().rows.len(), cold_log.lock().rows.len());
            let (got, expected) = (run(&warm.0, asked()), run(&cold, asked()));
            assert_eq!(got.text, expected.text);
            assert_eq!(warm.1.lock().rows[before.0..], cold_log.lock().rows[before.1..]);
            let cached = got.end.unwrap().usage.cached_tokens;
            hits += usize::from(cached > 0);
            first += usize::from(cached > 0 && step % 8 == 7);
            let fed = warm.1.lock().fed.clone();
            let said = &fed[fed.len() + 1 - answer..];
            let more = (0..1 + dice.below(90) as u32).map(|i| 600 + i % 7);
            talks[n] = prompt.iter().chain(said).copied().chain(more).collect();
        }
        assert!(hits > 15 && first > 1, "{hits} hits, {first} after a restart, with {bytes} bytes");
    }
}

/// What a killed process wrote, run by the test below.
#[test]
#[ignore = "the child of a_process_killed_while_it_writes_leaves_only_what_is_true"]
fn write_until_killed() {
    let Some(dir) = std::env::var_os("LILY_TEST_KILL_DIR") else { return };
    // At an end that nobody waits for, so that a parent that fails leaves no process behind.
    let began = Instant::now();
    let seed = std::env::var("LILY_TEST_KILL_SEED").unwrap().parse().unwrap();
    let mut dice = Dice(seed);
    let options = DiskOptions { bytes: 20 << 20, ..options(Path::new(&dir)) };
    let mut setup = Setup::open(&options, false);
    setup.model.padding = 300_000;
    while began.elapsed() < Duration::from_secs(20) {
        let n = dice.below(8) as u32;
        setup.keep(&talk(n, 64 * (1 + dice.below(6)) + dice.below(3)), true);
        setup.flush();
    }
}

#[test]
fn a_process_killed_while_it_writes_leaves_only_what_is_true() {
    let warnings = warnings::Warnings::default();
    let (mut hits, mut halves) = (0, 0);
    for seed in 0..std::env::var("LILY_TEST_KILLS").map_or(8, |n| n.parse().unwrap()) {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "tests::disk::write_until_killed", "--ignored"]);
        child.env("LILY_TEST_KILL_DIR", dir.path()).env("LILY_TEST_KILL_SEED", seed.to_string());
        let mut child = child.stdout(Stdio::null()).spawn().unwrap();
        wait("a file", || !with_extension(dir.path(), "state").is_empty());
        let mut dice = Dice(seed + 100);
        std::thread::sleep(Duration::from_micros(dice.below(60_000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        halves += with_extension(dir.path(), "tmp").len();
        let options = DiskOptions { bytes: 20 << 20, ..options(dir.path()) };
        let mut setup = warnings.during(|| Setup::open(&options, false));
        let found = (0..8).filter(|&n| warnings.during(|| setup.hit(&talk(n, 600))) > 0).count();
        assert!(found > 0, "a file was there before the process was killed");
        hits += found;
        assert_eq!(warnings.take(), "");
        // The half file is gone, and nothing is left that no state needs.
        assert!(with_extension(dir.path(), "tmp").is_empty());
        setup.keep(&talk(50, 600), true);
        setup.flush();
        assert_eq!(restarted(setup, &options).hit(&talk(50, 700)), 600);
    }
    println!("{hits} states found, {halves} files were half written");
}
