// The k largest logits of each row among the ids that exist, in descending order; ties to the lower id. Two dispatches:
// blocks of TOP_BLOCK logits give a sorted list each, then a simdgroup a row merges the lists. Choosing one value after
// another inside a simdgroup needs no barriers, and k is small.
#define TOP_K 64u // the largest k
#define TOP_THREADS 256u
#define TOP_LOGITS 16u // a thread's
#define TOP_BLOCK 4096u
#define TOP_LISTS 2u // a lane's in top_k_final: at most 64 blocks

// Grid: (blocks, rows), threads: TOP_THREADS.
[[max_total_threads_per_threadgroup(256)]] kernel void top_k_blocks(
    device const float* logits [[buffer(0)]], // [rows × stride]
    device float* values [[buffer(1)]],       // [rows × blocks × k]
    device uint* ids [[buffer(2)]],           // [rows × blocks × k]
    constant TopKArgs& args [[buffer(3)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float best[TOP_THREADS / 32 * TOP_K];
  threadgroup uint where[TOP_THREADS / 32 * TOP_K];
  device const float* row = logits + ulong(at.y) * args.stride;
  const uint first = at.x * TOP_BLOCK + tid;
  float mine[TOP_LOGITS];
  for (uint j = 0; j < TOP_LOGITS; j++) {
    const uint i = first + j * TOP_THREADS;
    mine[j] = i < args.vocab ? row[i] : -INFINITY;
  }

  // Each simdgroup's own list.
  uint chosen = NO_INDEX;
  float value = -INFINITY;
  uint index = NO_INDEX;
  for (uint n = 0; n < args.k; n++) {
    if (n == 0 || index == chosen) {
      value = -INFINITY;
      index = NO_INDEX;
      for (uint j = 0; j < TOP_LOGITS; j++) {
        const uint i = first + j * TOP_THREADS;
        if (n > 0 && i == chosen) mine[j] = -INFINITY;
        if (mine[j] > value) {
          value = mine[j];
          index = i;
        }
      }
    }
    float top = value;
    chosen = index;
    simd_argmax(top, chosen);
    if (lane == 0) {
      best[sg * args.k + n] = top;
      where[sg * args.k + n] = chosen;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (sg > 0) return; // no barrier follows

  // The block's list: lane s looks at the head of simdgroup s's.
  const ulong out = (ulong(at.y) * args.blocks + at.x) * args.k;
  uint head = lane < TOP_THREADS / 32 ? 0 : args.k;
  for (uint n = 0; n < args.k; n++) {
    const bool live = head < args.k;
    float top = live ? best[lane * args.k + head] : -INFINITY;
    const uint id = live ? where[lane * args.k + head] : NO_INDEX;
    uint next = id;
    simd_argmax(top, next);
    if (live && id == next) head++;
    if (lane == 0) {
      values[out + n] = top;
      ids[out + n] = next;
    }
  }
}

// Grid: (rows), threads: 32.
kernel void top_k_final(
    device const float* block_values [[buffer(0)]], // [rows × blocks × k]
    device const uint* block_ids [[buffer(1)]],     // [rows × blocks × k]
    device float* values [[buffer(2)]],             // [rows × k]
    device uint* ids [[buffer(3)]],                 // [rows × k]
    constant TopKArgs& args [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const ulong lists = ulong(row) * args.blocks * args.k;
  uint head[TOP_LISTS], id[TOP_LISTS];
  float value[TOP_LISTS];
  for (uint j = 0; j < TOP_LISTS; j++) {
    const uint list = j * 32 + lane;
    const bool live = list < args.blocks;
    head[j] = 0;
    value[j] = live ? block_values[lists + list * args.k] : -INFINITY;
    id[j] = live ? block_ids[lists + list * args.k] : NO_INDEX;
  }
  for (uint n = 0; n < args.k; n++) {
    float top = value[0];
    uint next = id[0];
    // Lists of higher blocks hold higher ids.
    for (uint j = 1; j < TOP_LISTS; j++)
      if (value[j] > top) {
        top = value[j];
        next = id[j];
      }
    simd_argmax(top, next);
    for (uint j = 0; j < TOP_LISTS; j++)
      if (id[j] == next && next != NO_INDEX) {
        const ulong list = lists + (j * 32 + lane) * args.k;
        head[j]++;
        value[j] = head[j] < args.k ? block_values[list + head[j]] : -INFINITY;
        id[j] = head[j] < args.k ? block_ids[list + head[j]] : NO_INDEX;
      }
    if (lane == 0) {
      values[ulong(row) * args.k + n] = top;
      // Fewer than k logits with an order (NaN) must not name an id that does not exist.
      ids[ulong(row) * args.k + n] = next < args.vocab ? next : 0;
    }
  }
}
