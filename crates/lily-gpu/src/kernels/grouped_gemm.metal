// Matrix products of the experts in prefill.
