// From the experts of every token to the order and the blocks of the grouped products, all in one threadgroup: count rows
// by expert, sum the counts up, scatter the rows, cut each expert's rows into blocks. Rows of an expert stay in the order
// of their tokens. Grid: (1), threads: MAP_THREADS.
#define MAP_THREADS 512u
#define MAP_SIMDGROUPS 16u // each takes a run of rows of its own
#define MAP_EXPERTS 256u
#define MAP_NONE 0xffffffffu

// The sum of the values of all threads before this one; `whole`: one value a simdgroup. All threads take part.
inline uint sum_before(uint value, threadgroup uint* whole, uint sg, uint lane) {
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

[[max_total_threads_per_threadgroup(512)]] kernel void moe_map(
    device const uint* experts [[buffer(0)]], // [rows]: row t · chosen + j is the j-th expert of token t
    device uint* order [[buffer(1)]],         // [rows]: rows, sorted by expert
    device uint* block_expert [[buffer(2)]],  // [blocks], MAP_NONE past the last block
    device uint* block_first [[buffer(3)]],   // [blocks]: places in `order`
    device uint* block_end [[buffer(4)]],     // [blocks]
    constant MapArgs& args [[buffer(5)]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  // By simdgroup and expert: first its rows, then the place of its next one.
  threadgroup atomic_uint places[MAP_SIMDGROUPS * MAP_EXPERTS];
  threadgroup uint first_row[MAP_EXPERTS + 1];
  threadgroup uint first_block[MAP_EXPERTS + 1];
  threadgroup uint whole[MAP_SIMDGROUPS];
  const uint run = ((args.rows + MAP_THREADS - 1) / MAP_THREADS) * 32;
  const uint end = min((sg + 1) * run, args.rows);

  for (uint i = tid; i < MAP_SIMDGROUPS * MAP_EXPERTS; i += MAP_THREADS)
    atomic_store_explicit(&places[i], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = sg * run + lane; i < end; i += 32)
    atomic_fetch_add_explicit(&places[sg * MAP_EXPERTS + experts[i]], 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  uint count = 0;
  if (tid < MAP_EXPERTS)
    for (uint s = 0; s < MAP_SIMDGROUPS; s++)
      count += atomic_load_explicit(&places[s * MAP_EXPERTS + tid], memory_order_relaxed);
  const uint blocks = (count + args.block - 1) / args.block;
  const uint row = sum_before(count, whole, sg, lane);
  const uint block = sum_before(blocks, whole, sg, lane);
  if (tid < MAP_EXPERTS) {
    first_row[tid] = row;
    first_block[tid] = block;
    if (tid == MAP_EXPERTS - 1) {
      first_row[MAP_EXPERTS] = row + count;
      first_block[MAP_EXPERTS] = block + blocks;
    }
    uint place = row;
    for (uint s = 0; s < MAP_SIMDGROUPS; s++) {
      const uint mine = atomic_load_explicit(&places[s * MAP_EXPERTS + tid], memory_order_relaxed);
      atomic_store_explicit(&places[s * MAP_EXPERTS + tid], place, memory_order_relaxed);
      place += mine;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint i = tid; i < args.blocks; i += MAP_THREADS) {
    uint expert = MAP_NONE, first = 0, last = 0;
    if (i < first_block[MAP_EXPERTS]) {
      // The last expert whose blocks begin at or before i; those without rows before it begin there too.
      uint low = 0, high = MAP_EXPERTS;
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
  for (uint from = sg * run; from < end; from += 32) {
    const uint i = from + lane;
    const uint expert = i < end ? experts[i] : MAP_NONE;
    uint before = 0, same = 0;
    for (uint l = 0; l < 32; l++) {
      const uint other = simd_shuffle(expert, ushort(l));
      if (other == expert) {
        same++;
        if (l < lane) before++;
      }
    }
    uint place = 0;
    if (i < end) place = atomic_load_explicit(&places[sg * MAP_EXPERTS + expert], memory_order_relaxed);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (i < end) {
      order[place + before] = i;
      if (before == 0) atomic_store_explicit(&places[sg * MAP_EXPERTS + expert], place + same, memory_order_relaxed);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
