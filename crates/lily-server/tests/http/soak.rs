//! 64 clients at once, some of which leave at random. The seed is fixed; what differs between runs is the timing.
//! `LILY_SOAK_SECONDS=120 cargo test -p lily-server --test http soak -- --nocapture` goes on for two minutes and prints what
//! it saw.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::metrics::samples;
use crate::server::{CHAT, Server, ask, read_reply};

const CLIENTS: u64 = 64;
const ROUNDS: u64 = 3;

/// A step of splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn question(i: u64, stream: bool) -> Value {
    let text = format!("Question {i}. {}", "word ".repeat(i as usize % 30));
    ask(json!({"messages": [{"role": "user", "content": text}], "stream": stream, "temperature": 0, "max_tokens": 12}))
}

/// The text of an answer, streamed or not.
fn text(reply: &crate::server::Reply, stream: bool) -> String {
    if !stream {
        return reply.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
    }
    let chunks = reply.chunks();
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
}

/// The demo model's greedy answer to each of 8 questions, asked alone, is what everyone gets who stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_stay_get_their_serial_answer() {
    let server = Arc::new(Server::start_demo_with(100).await);
    let mut alone = Vec::new();
    for i in 0..8 {
        let reply = server.post(&question(i, false)).await;
        assert_eq!(reply.status, 200, "{CHAT}: {reply:?}");
        alone.push(text(&reply, false));
        assert!(!alone[i as usize].is_empty());
    }
    let alone = Arc::new(alone);
    let seconds = std::env::var("LILY_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let (began, mut stayed, mut round) = (Instant::now(), 0, 0);
    while round < ROUNDS || seconds.is_some_and(|seconds| began.elapsed() < Duration::from_secs(seconds)) {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (server, alone) = (Arc::clone(&server), Arc::clone(&alone));
                tokio::spawn(async move {
                    let mut seed = round << 32 | client;
                    let (i, stream) = (random(&mut seed) % 8, random(&mut seed).is_multiple_of(2));
                    let leaves = (random(&mut seed).is_multiple_of(2)).then(|| random(&mut seed) % 400);
                    let mut socket = server.open_closing(&question(i, stream)).await;
                    if let Some(after) = leaves {
                        let mut buffer = [0; 256];
                        let some = async { while socket.read(&mut buffer).await.is_ok_and(|n| n > 0) {} };
                        let _ = tokio::time::timeout(Duration::from_millis(after), some).await;
                        return 0;
                    }
                    let reply = read_reply(&mut socket).await;
                    assert_eq!(reply.status, 200, "{reply:?}");
                    assert_eq!(text(&reply, stream), alone[i as usize], "question {i}, stream {stream}");
                    1
                })
            })
            .collect();
        for client in clients {
            stayed += client.await.unwrap();
        }
        server.until_idle().await;
        round += 1;
        if seconds.is_some() {
            let now = samples(&server).await;
            let of = |name: &str| now.get(name).copied().unwrap_or(0.0);
            println!(
                "round {round}: {stayed} of {} stayed; resident {} cache {} in {}",
                round * CLIENTS,
                of("process_resident_memory_bytes"),
                of("lily_prefix_cache_bytes"),
                of("lily_prefix_cache_states"),
            );
        }
    }
    assert!(stayed > CLIENTS * round / 4, "{stayed} of {round} rounds");
    let after = samples(&server).await;
    assert_eq!((after["lily_requests_running"], after["lily_requests_waiting"]), (0.0, 0.0));
    assert!(after["lily_prefix_cache_bytes"] <= (1u64 << 30) as f64);
    // The same answers still.
    assert_eq!(text(&server.post(&question(3, true)).await, true), alone[3]);
}
