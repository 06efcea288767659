// Matrix products of prefill.
