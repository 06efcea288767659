// The largest logit of each row among the ids that exist; ties to the lower id. Two dispatches: each block of a row finds
// its own, then one simdgroup a row compares the blocks.
#define ARGMAX_THREADS 256u
#define NO_INDEX 0xffffffffu

// The best of a simdgroup's candidates, in every lane.
inline void simd_argmax(thread float& value, thread uint& index) {
  const float top = simd_max(value);
  index = simd_min(value == top ? index : NO_INDEX);
  value = top;
}

// Grid: (blocks, rows), threads: ARGMAX_THREADS.
[[max_total_threads_per_threadgroup(256)]] kernel void argmax_blocks(
    device const float* logits [[buffer(0)]], // [rows × stride]
    device float* values [[buffer(1)]],       // [rows × blocks]
    device uint* indices [[buffer(2)]],       // [rows × blocks]
    constant ArgmaxArgs& args [[buffer(3)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float best[ARGMAX_THREADS / 32];
  threadgroup uint where[ARGMAX_THREADS / 32];
  const uint size = (args.vocab + args.blocks - 1) / args.blocks;
  const uint end = min((at.x + 1) * size, args.vocab);
  float value = -INFINITY;
  uint index = NO_INDEX;
  for (uint i = at.x * size + tid; i < end; i += ARGMAX_THREADS) {
    const float v = logits[ulong(at.y) * args.stride + i];
    if (v > value) {
      value = v;
      index = i;
    }
  }
  simd_argmax(value, index);
  if (lane == 0) {
    best[sg] = value;
    where[sg] = index;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid == 0) {
    for (uint i = 1; i < ARGMAX_THREADS / 32; i++)
      if (best[i] > value || (best[i] == value && where[i] < index)) {
        value = best[i];
        index = where[i];
      }
    values[at.y * args.blocks + at.x] = value;
    indices[at.y * args.blocks + at.x] = index;
  }
}

// Grid: (rows), threads: 32.
kernel void argmax_final(
    device const float* values [[buffer(0)]],  // [rows × blocks]
    device const uint* indices [[buffer(1)]],  // [rows × blocks]
    device uint* tokens [[buffer(2)]],         // [rows]
    constant ArgmaxArgs& args [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  float value = -INFINITY;
  uint index = NO_INDEX;
  for (uint i = lane; i < args.blocks; i += 32) {
    const float v = values[row * args.blocks + i];
    const uint at = indices[row * args.blocks + i];
    if (v > value || (v == value && at < index)) {
      value = v;
      index = at;
    }
  }
  simd_argmax(value, index);
  // Logits without a largest value (all NaN) must not send an id that does not exist into the next step.
  if (lane == 0) tokens[row] = index < args.vocab ? index : 0;
}
