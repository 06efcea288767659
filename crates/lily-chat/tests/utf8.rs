//! Bytes in any pieces give the text of all the bytes together.

mod common;

use common::Random;
use lily_chat::Utf8Stream;

#[test]
fn any_cut_gives_what_the_whole_gives() {
    let pieces: [&[u8]; 14] = [
        b"a",
        b"\n",
        "é".as_bytes(),
        "日".as_bytes(),
        "👩‍👩‍👧".as_bytes(),
        "𠮷".as_bytes(),
        b"\xff",
        b"\x80",
        b"\xc3",
        b"\xe6\x97",
        b"\xf0\x9f\x91",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\xf4\x90\x80\x80",
    ];
    for seed in 0..3000 {
        let mut random = Random(seed);
        let bytes: Vec<u8> = (0..random.below(10)).flat_map(|_| random.pick(&pieces).to_vec()).collect();
        let (mut stream, mut text, mut rest) = (Utf8Stream::new(), String::new(), bytes.as_slice());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(1 + random.below(rest.len().min(4)));
            stream.push(now, &mut text);
            rest = later;
        }
        stream.finish(&mut text);
        assert_eq!(text, String::from_utf8_lossy(&bytes), "seed {seed}: {bytes:x?}");
    }
}

#[test]
fn half_a_character_waits() {
    let (mut stream, mut text) = (Utf8Stream::new(), String::new());
    for (byte, want) in "a👩!".bytes().zip(["a", "a", "a", "a", "a👩", "a👩!"]) {
        stream.push(&[byte], &mut text);
        assert_eq!(text, want);
    }
    stream.push(b"\xf0\x9f", &mut text);
    assert_eq!(text, "a👩!");
    stream.finish(&mut text);
    assert_eq!(text, "a👩!\u{fffd}");
    stream.finish(&mut text);
    assert_eq!(text, "a👩!\u{fffd}");
}
