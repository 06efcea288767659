//! Copies inside device memory.
