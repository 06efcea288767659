// For `lily bench --ablate`: a quantised matrix written out as BF16, and keys read in two ways.

// A thread makes 8 values: neighbours read neighbouring codes and write neighbouring 16 bytes. Grid: (⌈values / 2048⌉),
// threads: 256.
[[max_total_threads_per_threadgroup(256)]] kernel void ablate_expand(
    device const uint* codes [[buffer(0)]], device const bfloat* scales [[buffer(1)]],
    device const bfloat* biases [[buffer(2)]], device uint4* out [[buffer(3)]],
    constant AblateExpandArgs& args [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint at = group.x * 256 + tid; // counts eights
  if (ulong(at) * 8 >= args.values) return;
  const float scale = float(scales[at / 8]), bias = float(biases[at / 8]);
  float v[8];
  if (args.bits == 4) {
    const uint u = codes[at];
    for (uint i = 0; i < 8; i++) v[i] = fma(float((u >> (4 * i)) & 15u), scale, bias);
  } else {
    const uint2 q = ((device const uint2*)codes)[at];
    for (int i = 0; i < 8; i++) v[i] = fma(float((q[i / 4] >> (8 * (i % 4))) & 255u), scale, bias);
  }
  uint4 o;
  for (int i = 0; i < 4; i++)
    o[i] = uint(as_type<ushort>(bfloat(v[2 * i]))) | (uint(as_type<ushort>(bfloat(v[2 * i + 1]))) << 16);
  out[at] = o;
}

// q · k of one query row for each kv head over keys [kv heads × positions × 256]. Grid: (⌈positions / 256⌉, kv heads), threads:
// 256. Neighbouring lanes read neighbouring 16 bytes of a row, a simdgroup a whole row at once.
[[max_total_threads_per_threadgroup(256)]] kernel void ablate_keys_rows(
    device const float* q [[buffer(0)]],     // [kv heads × 256]
    device const bfloat* keys [[buffer(1)]], // [kv heads × positions × 256]
    device float* scores [[buffer(2)]],      // [kv heads × positions]
    constant AblateKeysArgs& args [[buffer(3)]], uint3 group [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  float mine[8];
  load8(q + group.y * FULL_HEAD + lane * 8, mine);
  const ulong plane = ulong(group.y) * args.positions;
  for (uint row = group.x * 256 + sg * 4; row < min((group.x + 1) * 256, args.positions); row += 32) {
    uint4 raw[4];
    for (uint r = 0; r < 4; r++) {
      raw[r] = uint4(0u);
      if (row + r < args.positions) ablate_load(keys + (plane + row + r) * FULL_HEAD + lane * 8, &raw[r]);
    }
    float sums[4];
    for (uint r = 0; r < 4; r++) {
      float k[8];
      ablate_unpack<bfloat>(&raw[r], k);
      sums[r] = 0.0f;
      for (uint i = 0; i < 8; i++) sums[r] = fma(k[i], mine[i], sums[r]);
    }
    ablate_fold<2, 16>(sums, lane);
    ablate_fold<1, 8>(sums, lane);
    float sum = sums[0];
    sum += simd_shuffle_xor(sum, ushort(4));
    sum += simd_shuffle_xor(sum, ushort(2));
    sum += simd_shuffle_xor(sum, ushort(1));
    if (lane % 8 == 0 && row + lane / 8 < args.positions) scores[plane + row + lane / 8] = sum;
  }
}

// The same with a position a lane: neighbouring lanes read 512 bytes apart, 16 bytes at a time.
[[max_total_threads_per_threadgroup(256)]] kernel void ablate_keys_lanes(
    device const float* q [[buffer(0)]], device const bfloat* keys [[buffer(1)]], device float* scores [[buffer(2)]],
    constant AblateKeysArgs& args [[buffer(3)]], uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint row = group.x * 256 + tid;
  if (row >= args.positions) return;
  const ulong plane = ulong(group.y) * args.positions;
  device const bfloat* from = keys + (plane + row) * FULL_HEAD;
  float sum = 0.0f;
  for (uint d = 0; d < FULL_HEAD; d += 8) {
    uint4 raw[1];
    float k[8], mine[8];
    ablate_load(from + d, raw);
    ablate_unpack<bfloat>(raw, k);
    load8(q + group.y * FULL_HEAD + d, mine);
    for (uint i = 0; i < 8; i++) sum = fma(k[i], mine[i], sum);
  }
  scores[plane + row] = sum;
}

// The same with a position a lane, value by value.
[[max_total_threads_per_threadgroup(256)]] kernel void ablate_keys_values(
    device const float* q [[buffer(0)]], device const bfloat* keys [[buffer(1)]], device float* scores [[buffer(2)]],
    constant AblateKeysArgs& args [[buffer(3)]], uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint row = group.x * 256 + tid;
  if (row >= args.positions) return;
  const ulong plane = ulong(group.y) * args.positions;
  device const bfloat* from = keys + (plane + row) * FULL_HEAD;
  float sum = 0.0f;
  for (uint d = 0; d < FULL_HEAD; d++) sum = fma(float(from[d]), q[group.y * FULL_HEAD + d], sum);
  scores[plane + row] = sum;
}
