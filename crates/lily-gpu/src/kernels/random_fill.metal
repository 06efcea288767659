// Seeded weights, as lily_checkpoint::synthetic makes them: words of 8 bytes, each one an element of the stream, or four BF16 values.
// Grid: threadgroups of FILL_THREADS threads with FILL_WORDS words each.
#define FILL_THREADS 256u
#define FILL_WORDS 4u

// Element i of the stream (SplitMix64).
inline ulong random_element(ulong base, ulong i) {
  ulong z = base + (i + 1ul) * 0x9E3779B97F4A7C15ul;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ul;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBul;
  return z ^ (z >> 31);
}

// The nearest BF16, ties to even. The value is finite.
inline uint random_bf16(float x) {
  const uint bits = as_type<uint>(x);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

// Value i: no product is added to but an exact one, so that a fused multiply-add changes nothing.
inline uint random_scale(constant RandomFillArgs& args, ulong i) {
  const float u = float(uint(random_element(args.base, i) >> 40)) * 5.9604644775390625e-8f; // 2^-24
  const float scale = as_type<float>(random_bf16(args.step * (0.75f + 0.5f * u)) << 16);
  return random_bf16(args.factor * scale);
}

[[max_total_threads_per_threadgroup(256)]] kernel void random_fill(
    device ulong* out [[buffer(0)]],
    constant RandomFillArgs& args [[buffer(1)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const ulong begin = ulong(group) * (FILL_THREADS * FILL_WORDS) + tid;
  for (uint w = 0; w < FILL_WORDS; w++) {
    const ulong i = begin + w * FILL_THREADS;
    if (i >= args.words) continue;
    const ulong word = args.first + i;
    if (args.step == 0.0f) {
      out[i] = random_element(args.base, word);
    } else {
      ulong four = 0;
      for (uint v = 0; v < 4; v++) four |= ulong(random_scale(args, 4 * word + v)) << (16 * v);
      out[i] = four;
    }
  }
}
