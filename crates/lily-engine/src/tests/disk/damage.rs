//! Files whose bytes were changed: never a wrong state, and never in the way of a new one.

use super::warnings::Warnings;
use super::*;

const TALKS: u32 = 4;

/// Some conversations, each with states that share blocks.
fn fill(options: &DiskOptions) {
    let mut setup = Setup::open(options, false);
    for n in 0..TALKS {
        for len in [64, 150, 320 + n as usize] {
            setup.keep(&talk(n, len), len % 64 == 0);
            setup.flush();
        }
    }
}

fn change(dice: &mut Dice, bytes: &mut Vec<u8>) {
    let at = dice.below(bytes.len());
    match dice.below(5) {
        0 => bytes.truncate(at),
        1 => bytes.resize(bytes.len() + 1 + dice.below(100), 0),
        2 => {
            let end = (at + 1 + dice.below(64)).min(bytes.len());
            bytes[at..end].iter_mut().for_each(|b| *b ^= 0x55);
        }
        // A length or a count, half of the time: the head is where most can go wrong.
        3 => {
            let at = at % 200.min(bytes.len());
            bytes[at] = dice.below(256) as u8;
        }
        _ => bytes[at] ^= 1 << dice.below(8),
    }
}

#[test]
fn a_thousand_changed_files_give_no_wrong_state() {
    let (dir, warnings) = (tempfile::tempdir().unwrap(), Warnings::default());
    let options = options(dir.path());
    fill(&options);
    let whole: BTreeMap<PathBuf, Vec<u8>> =
        files(dir.path()).into_keys().map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect();
    let paths: Vec<&PathBuf> = whole.keys().filter(|path| !path.ends_with("lock")).collect();
    let (mut lost, mut hits) = (0_u64, 0);
    let damages = std::env::var("LILY_TEST_DAMAGES").map_or(1000, |n| n.parse().unwrap());
    for seed in 0..damages {
        let mut dice = Dice(seed);
        let path = paths[dice.below(paths.len())];
        let mut bytes = whole[path].clone();
        change(&mut dice, &mut bytes);
        let same = bytes == whole[path];
        std::fs::write(path, bytes).unwrap();

        let (found, told) = {
            let found = warnings.during(|| {
                let mut setup = Setup::open(&options, false);
                (0..TALKS).map(|n| setup.hit(&talk(n, 400))).collect::<Vec<_>>()
            });
            (found, warnings.take())
        };
        let best: Vec<usize> = (0..TALKS).map(|n| 320 + n as usize).collect();
        if found != best {
            lost += 1;
            assert!(!same && told.contains(path.file_name().unwrap().to_str().unwrap()), "{seed}: {told}");
        }
        hits += found.iter().filter(|&&len| len > 0).count();
        if seed % 40 == 0 {
            // All is written again, and found.
            fill(&options);
            let mut setup = Setup::open(&options, false);
            assert_eq!((0..TALKS).map(|n| setup.hit(&talk(n, 400))).collect::<Vec<_>>(), best, "{seed}");
        }
        for path in files(dir.path()).into_keys().filter(|path| !whole.contains_key(path)) {
            std::fs::remove_file(path).unwrap();
        }
        let now = files(dir.path());
        for (path, bytes) in &whole {
            let as_it_was = now.contains_key(path) && std::fs::read(path).unwrap() == *bytes;
            if !as_it_was {
                std::fs::write(path, bytes).unwrap();
            }
        }
    }
    println!("{lost} times a state was lost, {hits} times one was found");
    assert!(lost * 10 > damages && hits as u64 > 2 * damages);
}
