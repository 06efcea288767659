// moe_map for NVIDIA GPUs: 32 simdgroups, rows of experts loaded eight at a time, and lanes with the same expert found by one
// instruction. Grid: (1), threads: 1024.
#define MANY_SIMDGROUPS 32u
#define MANY_EXPERTS 256u
#define MANY_AHEAD 8
#define MANY_NONE 0xffffffffu

// The sum of the values of all threads before this one; `whole`: one value a simdgroup. All threads take part.
inline uint many_before(uint value, threadgroup uint* whole, uint sg, uint lane) {
  uint sum = value;
  for (uint d = 1; d < 32; d *= 2) {
    const uint below = simd_shuffle_up(sum, ushort(d));
    if (lane >= d) sum += below;
  }
  if (lane == 31) whole[sg] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint before = sum - value;
  for (uint s = 0; s < sg; s++) before += whole[s];
  threadgroup_barrier(mem_flags::mem_threadgroup); // `whole` may be used again
  return before;
}

[[max_total_threads_per_threadgroup(1024)]] kernel void moe_map_mma(
    device const uint* experts [[buffer(0)]], // [rows]: row t · chosen + j is the j-th expert of token t
    device uint* order [[buffer(1)]],         // [rows]: rows, sorted by expert
    device uint* block_expert [[buffer(2)]],  // [blocks], MANY_NONE past the last block
    device uint* block_first [[buffer(3)]],   // [blocks]: places in `order`
    device uint* block_end [[buffer(4)]],     // [blocks]
    constant MapArgs& args [[buffer(5)]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  // By simdgroup and expert: first its rows, then the place of its next one.
  threadgroup atomic_uint places[MANY_SIMDGROUPS * MANY_EXPERTS];
  threadgroup uint first_row[MANY_EXPERTS + 1];
  threadgroup uint first_block[MANY_EXPERTS + 1];
  threadgroup uint whole[MANY_SIMDGROUPS];
  const uint run = (args.rows + 1023) / 1024 * 32;
  const uint end = min((sg + 1) * run, args.rows);
  threadgroup atomic_uint* mine = places + sg * MANY_EXPERTS;

  for (uint i = lane; i < MANY_EXPERTS; i += 32) atomic_store_explicit(&mine[i], 0u, memory_order_relaxed);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint from = sg * run; from < end; from += MANY_AHEAD * 32) {
    uint e[MANY_AHEAD];
    UNROLL for (int j = 0; j < MANY_AHEAD; j++) {
      const uint i = from + uint(j) * 32 + lane;
      e[j] = i < end ? experts[i] : MANY_NONE;
    }
    UNROLL for (int j = 0; j < MANY_AHEAD; j++)
      if (e[j] != MANY_NONE) atomic_fetch_add_explicit(&mine[e[j]], 1u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  uint count = 0;
  if (tid < MANY_EXPERTS)
    for (uint s = 0; s < MANY_SIMDGROUPS; s++)
      count += atomic_load_explicit(&places[s * MANY_EXPERTS + tid], memory_order_relaxed);
  const uint blocks = (count + args.block - 1) / args.block;
  const uint row = many_before(count, whole, sg, lane);
  const uint block = many_before(blocks, whole, sg, lane);
  if (tid < MANY_EXPERTS) {
    first_row[tid] = row;
    first_block[tid] = block;
    if (tid == MANY_EXPERTS - 1) {
      first_row[MANY_EXPERTS] = row + count;
      first_block[MANY_EXPERTS] = block + blocks;
    }
    uint place = row;
    for (uint s = 0; s < MANY_SIMDGROUPS; s++) {
      const uint of_one = atomic_load_explicit(&places[s * MANY_EXPERTS + tid], memory_order_relaxed);
      atomic_store_explicit(&places[s * MANY_EXPERTS + tid], place, memory_order_relaxed);
      place += of_one;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint i = tid; i < args.blocks; i += 1024) {
    uint expert = MANY_NONE, first = 0, last = 0;
    if (i < first_block[MANY_EXPERTS]) {
      // The last expert whose blocks begin at or before i; those without rows before it begin there too.
      uint low = 0, high = MANY_EXPERTS;
      while (high - low > 1) {
        const uint middle = (low + high) / 2;
        if (first_block[middle] <= i) low = middle;
        else high = middle;
      }
      expert = low;
      first = first_row[low] + (i - first_block[low]) * args.block;
      last = min(first + args.block, first_row[low + 1]);
    }
    block_expert[i] = expert;
    block_first[i] = first;
    block_end[i] = last;
  }

  // 32 rows at a time; rows of one expert among them take places in the order of lanes.
  for (uint from = sg * run; from < end; from += MANY_AHEAD * 32) {
    uint e[MANY_AHEAD];
    UNROLL for (int j = 0; j < MANY_AHEAD; j++) {
      const uint i = from + uint(j) * 32 + lane;
      e[j] = i < end ? experts[i] : MANY_NONE;
    }
    UNROLL for (int j = 0; j < MANY_AHEAD; j++) {
      const uint same = lily_same(e[j]), before = lily_ones(same & ((1u << lane) - 1u));
      uint place = 0;
      if (e[j] != MANY_NONE) place = atomic_load_explicit(&mine[e[j]], memory_order_relaxed);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      if (e[j] != MANY_NONE) {
        order[place + before] = from + uint(j) * 32 + lane;
        if (before == 0) atomic_store_explicit(&mine[e[j]], place + lily_ones(same), memory_order_relaxed);
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}
