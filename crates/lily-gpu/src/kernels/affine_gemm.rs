//! Matrix products of prefill.
