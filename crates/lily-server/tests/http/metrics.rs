//! `/metrics`: it parses, and its counters move.

use std::collections::HashMap;

use lily_engine::PrefixOptions;
use serde_json::json;

use crate::server::{Server, ask};

/// Every sample by name and labels; panics where the text is not Prometheus' format.
pub async fn samples(server: &Server) -> HashMap<String, f64> {
    let reply = server.get("/metrics").await;
    assert_eq!(reply.status, 200);
    assert!(reply.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let (mut samples, mut kinds) = (HashMap::new(), HashMap::new());
    for line in reply.body.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
            let family = name.split('{').next().unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| family.strip_suffix(end));
            let kind = kinds.get(family).or_else(|| kinds.get(base?)).unwrap_or_else(|| panic!("{line:?} has no type"));
            assert!(["counter", "gauge", "histogram"].contains(&kind.as_str()));
            assert!(samples.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{name} twice");
        }
    }
    samples
}

#[tokio::test]
async fn counters_move() {
    let prefix = PrefixOptions { bytes: 1 << 30, ..PrefixOptions::default() };
    let server = Server::start_caching(r#"{"pieces": ["a", "b", "c"], "delay_ms": 5}"#, 2, prefix, |_| {}).await;
    let before = samples(&server).await;
    let zero = ["lily_requests_finished_total", "lily_prompt_tokens_total", "lily_time_to_first_token_seconds_count"];
    zero.iter().for_each(|name| assert_eq!(before[*name], 0.0, "{name}"));

    let long = "word ".repeat(200);
    let body = ask(json!({"messages": [{"role": "user", "content": long}]}));
    let first = server.post(&body).await.json();
    let second = server.post(&body).await.json();
    assert_eq!(server.post(&ask(json!({"n": 0}))).await.status, 400);
    assert_eq!(server.get("/nothing/here").await.status, 404);
    let after = samples(&server).await;

    let usage = |path: &str| first["usage"].pointer(path).unwrap().as_f64().unwrap();
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_f64().unwrap();
    assert!(cached > 0.0);
    let chat = "lily_http_requests_total{endpoint=\"/v1/chat/completions\"";
    for (name, value) in [
        (format!("{chat},status=\"200\"}}"), 2.0),
        (format!("{chat},status=\"400\"}}"), 1.0),
        ("lily_http_requests_total{endpoint=\"other\",status=\"404\"}".into(), 1.0),
        ("lily_http_requests_total{endpoint=\"/metrics\",status=\"200\"}".into(), 1.0),
        ("lily_requests_finished_total".into(), 2.0),
        ("lily_prompt_tokens_total".into(), 2.0 * usage("/prompt_tokens")),
        ("lily_generated_tokens_total".into(), 2.0 * usage("/completion_tokens")),
        ("lily_cached_tokens_total".into(), cached),
        ("lily_prefix_hits_total".into(), 1.0),
        ("lily_requests_running".into(), 0.0),
        ("lily_requests_waiting".into(), 0.0),
        ("lily_time_to_first_token_seconds_count".into(), 2.0),
        ("lily_time_to_first_token_seconds_bucket{le=\"+Inf\"}".into(), 2.0),
        ("lily_inter_token_latency_seconds_count".into(), 4.0),
    ] {
        assert_eq!(after.get(&name), Some(&value), "{name}: {after:?}");
    }
    assert!(after["lily_prefix_cache_states"] >= 1.0);
    assert!(after["lily_inter_token_latency_seconds_sum"] > 0.0);
    assert!(after.keys().any(|name| name.starts_with("lily_build_info{version=")));
}

#[tokio::test]
async fn a_client_that_leaves_is_counted_as_499() {
    let server = Server::start(r#"{"pieces": ["word "], "delay_ms": 10, "end": "length"}"#).await;
    let socket = server.open(&ask(json!({}))).await;
    server.until("a running request", |load| load.running == 1).await;
    drop(socket);
    server.until_idle().await;
    let name = "lily_http_requests_total{endpoint=\"/v1/chat/completions\",status=\"499\"}";
    assert_eq!(samples(&server).await.get(name), Some(&1.0));
}
