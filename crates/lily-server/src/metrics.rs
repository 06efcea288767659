//! `GET /metrics`: counts and times in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use lily_engine::Usage;

use crate::app::App;

const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Seconds to the first token: from a short prompt on a GPU to a long one on a CPU.
const FIRST: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Seconds between pieces of an answer: from 1,000 to one a second.
const BETWEEN: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0];

/// What is counted from the start of the server on. Only numbers, and names of routes.
pub(crate) struct Metrics {
    /// By endpoint (the route, or `other`) and status.
    answered: Mutex<BTreeMap<(String, u16), u64>>,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    finished: AtomicU64,
    prefix_hits: AtomicU64,
    first: Histogram,
    between: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            answered: Mutex::default(),
            prompt_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            prefix_hits: AtomicU64::new(0),
            first: Histogram::new(FIRST),
            between: Histogram::new(BETWEEN),
        }
    }
}

impl Metrics {
    pub(crate) fn answered(&self, endpoint: String, status: u16) {
        *lock(&self.answered).entry((endpoint, status)).or_default() += 1;
    }

    /// The first output of a request came so long after it was queued.
    pub(crate) fn first(&self, after: Duration) {
        self.first.observe(after.as_secs_f64());
    }

    /// Output came so long after the output before it.
    pub(crate) fn between(&self, time: Duration) {
        self.between.observe(time.as_secs_f64());
    }

    /// All answers to a request are whole.
    pub(crate) fn finished(&self, usage: &Usage) {
        self.finished.fetch_add(1, Relaxed);
        self.prefix_hits.fetch_add(u64::from(usage.cached_tokens > 0), Relaxed);
        self.prompt_tokens.fetch_add(usage.prompt_tokens as u64, Relaxed);
        self.cached_tokens.fetch_add(usage.cached_tokens as u64, Relaxed);
        self.generated_tokens.fetch_add(usage.completion_tokens as u64, Relaxed);
    }
}

struct Histogram {
    bounds: &'static [f64],
    seen: Mutex<Seen>,
}

struct Seen {
    /// Of each bucket alone; the last has no bound.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, seen: Mutex::new(Seen { counts: vec![0; bounds.len() + 1], sum: 0.0 }) }
    }

    fn observe(&self, value: f64) {
        let mut seen = lock(&self.seen);
        seen.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        seen.sum += value;
    }
}

/// Counters are whole whenever the lock is free, so a poisoned lock is used on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        self.line(name, value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let seen = lock(&histogram.seen);
        let mut total = 0;
        for (bound, count) in histogram.bounds.iter().zip(&seen.counts) {
            total += count;
            self.line(&format!("{name}_bucket{{le=\"{bound}\"}}"), total);
        }
        total += seen.counts[histogram.bounds.len()];
        self.line(&format!("{name}_bucket{{le=\"+Inf\"}}"), total);
        self.line(&format!("{name}_sum"), seen.sum);
        self.line(&format!("{name}_count"), total);
    }
}

/// Resident memory of this process; `None` where the system does not say so in a file.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

fn page(app: &App) -> String {
    let metrics = &app.metrics;
    let mut page = Page(String::new());
    page.head("lily_build_info", "gauge", "The version of Lily; always 1.");
    page.line(concat!("lily_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1);
    let name = "lily_http_requests_total";
    page.head(name, "counter", "Requests by route and status; 499 where the client left first.");
    for ((endpoint, status), count) in lock(&metrics.answered).iter() {
        page.line(&format!("{name}{{endpoint=\"{endpoint}\",status=\"{status}\"}}"), count);
    }
    let load = app.engine.load();
    page.one("lily_requests_running", "gauge", "Requests that the model works on.", load.running);
    page.one("lily_requests_waiting", "gauge", "Requests that wait for a slot.", load.waiting);
    for (name, help, value) in [
        ("lily_requests_finished_total", "Requests whose answers are whole.", &metrics.finished),
        ("lily_prompt_tokens_total", "Prompt tokens of finished requests.", &metrics.prompt_tokens),
        ("lily_cached_tokens_total", "Prompt tokens that a cached prefix held.", &metrics.cached_tokens),
        ("lily_generated_tokens_total", "Generated tokens of finished requests.", &metrics.generated_tokens),
        ("lily_prefix_hits_total", "Finished requests that continued a cached prefix.", &metrics.prefix_hits),
    ] {
        page.one(name, "counter", help, value.load(Relaxed));
    }
    let cache = app.engine.cache();
    page.one("lily_prefix_cache_bytes", "gauge", "Bytes of the states that the prefix cache holds.", cache.bytes);
    page.one("lily_prefix_cache_states", "gauge", "States that the prefix cache holds.", cache.states);
    if let Some(bytes) = resident_bytes() {
        page.one("process_resident_memory_bytes", "gauge", "Resident memory of the process.", bytes);
    }
    let name = "lily_time_to_first_token_seconds";
    page.histogram(name, "From a request's place in the queue to its first output.", &metrics.first);
    let name = "lily_inter_token_latency_seconds";
    page.histogram(name, "Between two pieces of output of one answer.", &metrics.between);
    page.0
}

pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut response = page(&app).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(FORMAT));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_up() {
        let histogram = Histogram::new(&[0.1, 1.0]);
        [0.05, 0.1, 0.5, 7.0].into_iter().for_each(|value| histogram.observe(value));
        let mut page = Page(String::new());
        page.histogram("h", "x", &histogram);
        let lines: Vec<&str> = page.0.lines().skip(2).collect();
        let expected =
            ["h_bucket{le=\"0.1\"} 2", "h_bucket{le=\"1\"} 3", "h_bucket{le=\"+Inf\"} 4", "h_sum 7.65", "h_count 4"];
        assert_eq!(lines, expected);
    }
}
