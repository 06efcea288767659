// The largest logit of each row among the ids that exist; ties to the lower id. Two dispatches: each block of a row finds
// its own, then one simdgroup a row compares the blocks. Both also look for the first logit that is NaN or +∞, by its bits:
// compilers may take floats to be finite.
#define ARGMAX_THREADS 256u
#define NO_INDEX 0xffffffffu

// The best of a simdgroup's candidates, in every lane.
inline void simd_argmax(thread float& value, thread uint& index) {
  const float top = simd_max(value);
  index = simd_min(value == top ? index : NO_INDEX);
  value = top;
}

inline bool is_broken(float v) {
  const uint u = as_type<uint>(v);
  return (u & 0x7fffffffu) > 0x7f800000u || u == 0x7f800000u;
}

// Grid: (blocks, rows), threads: ARGMAX_THREADS.
[[max_total_threads_per_threadgroup(256)]] kernel void argmax_blocks(
    device const float* logits [[buffer(0)]], // [rows × stride]
    device float* values [[buffer(1)]],       // [rows × blocks]
    device uint* indices [[buffer(2)]],       // [2 × rows × blocks]: of the largest, of the first that is broken
    constant ArgmaxArgs& args [[buffer(3)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float best[ARGMAX_THREADS / 32];
  threadgroup uint where[ARGMAX_THREADS / 32];
  threadgroup uint bad[ARGMAX_THREADS / 32];
  EARLY_BEGIN
  EARLY_END
  const uint size = (args.vocab + args.blocks - 1) / args.blocks;
  const uint end = min((at.x + 1) * size, args.vocab);
  float value = -INFINITY;
  uint index = NO_INDEX, broken = NO_INDEX;
  for (uint i = at.x * size + tid; i < end; i += ARGMAX_THREADS) {
    const float v = logits[ulong(at.y) * args.stride + i];
    if (is_broken(v)) broken = min(broken, i);
    if (v > value) {
      value = v;
      index = i;
    }
  }
  simd_argmax(value, index);
  broken = simd_min(broken);
  if (lane == 0) {
    best[sg] = value;
    where[sg] = index;
    bad[sg] = broken;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid == 0) {
    for (uint i = 1; i < ARGMAX_THREADS / 32; i++) {
      broken = min(broken, bad[i]);
      if (best[i] > value || (best[i] == value && where[i] < index)) {
        value = best[i];
        index = where[i];
      }
    }
    const uint block = at.y * args.blocks + at.x;
    values[block] = value;
    indices[block] = index;
    indices[groups.y * args.blocks + block] = broken;
  }
}

// Grid: (rows), threads: 32.
kernel void argmax_final(
    device const float* values [[buffer(0)]],  // [rows × blocks]
    device const uint* indices [[buffer(1)]],  // [2 × rows × blocks]
    device uint* tokens [[buffer(2)]],         // [2 × rows]: the tokens; the first broken logits, else NO_INDEX
    constant ArgmaxArgs& args [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint rows [[threadgroups_per_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  EARLY_BEGIN
  EARLY_END
  float value = -INFINITY;
  uint index = NO_INDEX, broken = NO_INDEX;
  for (uint i = lane; i < args.blocks; i += 32) {
    const float v = values[row * args.blocks + i];
    const uint at = indices[row * args.blocks + i];
    broken = min(broken, indices[(rows + row) * args.blocks + i]);
    if (v > value || (v == value && at < index)) {
      value = v;
      index = at;
    }
  }
  simd_argmax(value, index);
  broken = simd_min(broken);
  if (lane == 0) {
    // Logits without a largest value (all NaN) must not send an id that does not exist into the next step.
    tokens[row] = index < args.vocab ? index : 0;
    tokens[rows + row] = broken;
  }
}
