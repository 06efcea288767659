// Copies inside device memory.
