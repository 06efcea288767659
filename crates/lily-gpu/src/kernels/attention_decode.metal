// Attention of decoded tokens: one query row a sequence (docs/model.md §4.2). The context is cut into spans whose length
// follows from the sequence's own position alone, so that a row's bits depend neither on its neighbours nor on the grid. A
// threadgroup takes one span of one kv head of one sequence and all its query heads: each key and value is loaded once.
// Scores of a whole span stay in threadgroup memory: three phases, and no phase's registers live in another.
//
// Scores: a simdgroup reads whole rows of keys, a lane 8 of the 256 dims for 8 query heads; 2 rows make 16 sums, which 16
// shuffles add up so that each pair of lanes ends with one of them. Softmax: simdgroup h takes head h. Values: a lane holds 8
// dims of 8 heads; 8 lanes read 64 dims of a row, so a simdgroup 4 rows, and the eight simdgroups share the span by dims (4
// ways) and rows (2 ways). Where a kv head has fewer than 8 query heads the rest are zero.
//
// With one span in the grid the result is written at once; else sums, largest score and total weight of each span go to
// `partials`, and attention_decode_merge adds them: with one span it gives the same bits.
#define DECODE_SPAN 512u // at most
#define DECODE_GROUP 8u  // query heads of a kv head, at most; simdgroups
#define DECODE_LOWEST -3.0e38f

inline void store8(device float* p, thread const float* v) {
  *(device float4*)p = float4(v[0], v[1], v[2], v[3]);
  *(device float4*)(p + 4) = float4(v[4], v[5], v[6], v[7]);
}

// 2 N values a lane become N, summed with the lane at distance MASK: lanes with the bit take the upper half.
template <uint N, uint MASK>
inline void fold(thread float* v, uint lane) {
  const bool upper = (lane & MASK) != 0;
  for (uint i = 0; i < N; i++) {
    const float keep = upper ? v[i + N] : v[i];
    const float give = upper ? v[i] : v[i + N];
    v[i] = keep + simd_shuffle_xor(give, ushort(MASK));
  }
}

// Positions of a span of a sequence that has `count` of them (`span` in attention_decode.rs).
inline uint decode_span(uint count) { return count > 16384 ? 512 : 256; }

template <typename KV>
inline void decode_scores(
    device const float* q, device const KV* keys, device const uint* pages, ulong page_stride, uint heads, uint first,
    uint count, uint sg, uint lane, threadgroup float* scores) {
  float mine[DECODE_GROUP][8];
  for (uint h = 0; h < DECODE_GROUP; h++) {
    for (uint i = 0; i < 8; i++) mine[h][i] = 0.0f;
    if (h < heads) load8(q + h * FULL_HEAD + lane * 8, mine[h]);
  }
  for (uint row = sg * 4; row < count; row += 4 * DECODE_GROUP) {
    // Four rows from a multiple of 4 on lie in one page. Those behind the end are zero; their scores are not used.
    device const KV* from = keys + kv_place(pages, page_stride, first + row, KvRow<KV>::length);
    uint4 raw[4][KvRow<KV>::words];
    for (uint r = 0; r < 4; r++) {
      for (uint i = 0; i < KvRow<KV>::words; i++) raw[r][i] = uint4(0u);
      if (row + r < count) kv_load8(from + r * KvRow<KV>::length, lane * 8, raw[r]);
    }
    for (uint r = 0; r < 4; r += 2) {
      float sums[2 * DECODE_GROUP];
      for (uint n = 0; n < 2; n++) {
        float k[8];
        kv_unpack8<KV>(raw[r + n], k);
        for (uint h = 0; h < DECODE_GROUP; h++) {
          float s = 0.0f;
          for (uint i = 0; i < 8; i++) s = fma(k[i], mine[h][i], s);
          sums[n * DECODE_GROUP + h] = s;
        }
      }
      // Lanes 2l and 2l + 1 end with the sum of index l.
      fold<8, 16>(sums, lane);
      fold<4, 8>(sums, lane);
      fold<2, 4>(sums, lane);
      fold<1, 2>(sums, lane);
      const float sum = sums[0] + simd_shuffle_xor(sums[0], ushort(1));
      if (lane % 2 == 0) scores[(row + r) * DECODE_GROUP + lane / 2] = sum;
    }
  }
}

template <typename KV>
inline void decode_values(
    device const KV* values, device const uint* pages, ulong page_stride, uint first, uint count, uint sg, uint lane,
    threadgroup const float* weights, thread float* acc) {
  for (uint row = (sg / 4) * 4 + lane / 8; row < count; row += 32) {
    // Four rows at a time, eight apart, in one page.
    device const KV* from = values + kv_place(pages, page_stride, first + row, KvRow<KV>::length);
    uint4 raw[4][KvRow<KV>::words];
    for (uint r = 0; r < 4; r++) {
      for (uint i = 0; i < KvRow<KV>::words; i++) raw[r][i] = uint4(0u);
      if (row + r * 8 < count) kv_load8(from + r * 8 * KvRow<KV>::length, (sg % 4) * 64 + (lane % 8) * 8, raw[r]);
    }
    for (uint r = 0; r < 4; r++) {
      if (row + r * 8 < count) {
        float v[8];
        kv_unpack8<KV>(raw[r], v);
        for (uint h = 0; h < DECODE_GROUP; h++) {
          const float w = weights[(row + r * 8) * DECODE_GROUP + h];
          for (uint i = 0; i < 8; i++) acc[h * 8 + i] = fma(w, v[i], acc[h * 8 + i]);
        }
      }
    }
  }
}

// `scores`: DECODE_SPAN × DECODE_GROUP, at the end 8 heads × 256 sums; `stats`: 2 × DECODE_GROUP.
template <typename KV>
inline void attention_decode(
    device const float* q, device const KV* pool, device const uint* positions, device const uint* table,
    device const float* projections, device float* out, device float* partials, constant DecodeArgs& args, uint3 group,
    uint3 groups, uint sg, uint lane, threadgroup float* scores, threadgroup float* stats) {
  const uint sequence = group.z;
  const uint length = positions[sequence] + 1;
  const uint span = decode_span(length);
  if (ulong(group.x) * span >= length) return; // the whole threadgroup
  const uint first = group.x * span;
  const uint count = min(span, length - first);
  const uint heads = args.query_heads / args.kv_heads;
  const uint head0 = group.y * heads;
  const ulong row0 = ulong(sequence) * args.query_heads + head0;
  device const uint* pages = table + ulong(sequence) * args.table_stride;
  device const KV* keys = pool + kv_plane(args.kv_heads, KV_KEYS, group.y, KvRow<KV>::length);
  device const KV* values = pool + kv_plane(args.kv_heads, KV_VALUES, group.y, KvRow<KV>::length);

  decode_scores(q + row0 * FULL_HEAD, keys, pages, args.page_stride, heads, first, count, sg, lane, scores);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // Head sg: weights in place of scores.
  threadgroup float* own = scores + sg;
  float largest = DECODE_LOWEST;
  for (uint row = lane; row < count; row += 32) largest = max(largest, own[row * DECODE_GROUP]);
  largest = simd_max(largest);
  float total = 0.0f;
  for (uint row = lane; row < count; row += 32) {
    const float w = precise::exp(own[row * DECODE_GROUP] - largest);
    own[row * DECODE_GROUP] = w;
    total += w;
  }
  total = simd_sum(total);
  if (lane == 0) {
    stats[sg] = total;
    stats[DECODE_GROUP + sg] = largest;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float acc[DECODE_GROUP * 8];
  for (uint i = 0; i < DECODE_GROUP * 8; i++) acc[i] = 0.0f;
  decode_values(values, pages, args.page_stride, first, count, sg, lane, scores, acc);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // The four lanes that hold the same dims; then the two simdgroups.
  fold<32, 16>(acc, lane);
  fold<16, 8>(acc, lane);
  const uint h0 = (lane / 16) * 4 + (lane / 8 % 2) * 2; // of this lane's 2 × 8 values
  const uint dim = (sg % 4) * 64 + (lane % 8) * 8;
  if (sg >= 4)
    for (uint i = 0; i < 16; i++) scores[(h0 + i / 8) * FULL_HEAD + dim + i % 8] = acc[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (sg >= 4) return;
  for (uint n = 0; n < 2; n++) {
    const uint h = h0 + n;
    if (h < heads) {
      float o[8];
      for (uint i = 0; i < 8; i++) o[i] = acc[n * 8 + i] + scores[h * FULL_HEAD + dim + i];
      if (groups.x == 1) {
        float g[8];
        load8(projections + ulong(sequence) * args.stride + (2 * (head0 + h) + 1) * FULL_HEAD + dim, g);
        for (uint i = 0; i < 8; i++) o[i] = o[i] / stats[h] * sigmoid(g[i]);
        store8(out + (row0 + h) * FULL_HEAD + dim, o);
      } else {
        const ulong part = (row0 + h) * groups.x + group.x;
        const ulong sums = ulong(groups.z) * args.query_heads * groups.x * FULL_HEAD;
        store8(partials + part * FULL_HEAD + dim, o);
        if (dim == 0) {
          partials[sums + part * 2] = stats[DECODE_GROUP + h];
          partials[sums + part * 2 + 1] = stats[h];
        }
      }
    }
  }
}

// Grid: (spans of the longest sequence, kv heads, sequences), threads: 256.
#define ATTENTION_DECODE(NAME, KV)                                                                             \
  [[max_total_threads_per_threadgroup(256)]] kernel void NAME(                                                 \
      device const float* q [[buffer(0)]],           /* [sequences × query heads × 256], scaled */             \
      device const KV* pool [[buffer(1)]],           /* keys and values */                                     \
      device const uint* positions [[buffer(2)]],    /* [sequences] */                                         \
      device const uint* table [[buffer(3)]],        /* [sequences × table_stride] */                          \
      device const float* projections [[buffer(4)]], /* [sequences × stride]: a head's gate behind its query */ \
      device float* out [[buffer(5)]],               /* [sequences × query heads × 256] */                     \
      device float* partials [[buffer(6)]],          /* of each query head's spans: 256 sums; then 2 stats */  \
      constant DecodeArgs& args [[buffer(7)]],                                                                 \
      uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],                    \
      uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {                   \
    threadgroup float scores[DECODE_SPAN * DECODE_GROUP];                                                      \
    threadgroup float stats[2 * DECODE_GROUP];                                                                 \
    attention_decode(q, pool, positions, table, projections, out, partials, args, group, groups, sg, lane, scores, \
                     stats);                                                                                   \
  }
ATTENTION_DECODE(attention_decode_f32, float)
ATTENTION_DECODE(attention_decode_bf16, bfloat)
ATTENTION_DECODE(attention_decode_q8, uchar)

// Adds the spans of a query head: a threadgroup takes 64 of its dims, four threads a dim share the spans. Grid: (4 × query
// heads, sequences), threads: 256.
#define MERGE_DIMS 64u
[[max_total_threads_per_threadgroup(256)]] kernel void attention_decode_merge(
    device const float* partials [[buffer(0)]], device const uint* positions [[buffer(1)]],
    device const float* projections [[buffer(2)]], device float* out [[buffer(3)]],
    constant DecodeArgs& args [[buffer(4)]], uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float shares[8 * MERGE_DIMS]; // of each part: sums, total weights
  const uint head = group.x / (FULL_HEAD / MERGE_DIMS);
  const uint dim = group.x % (FULL_HEAD / MERGE_DIMS) * MERGE_DIMS + tid % MERGE_DIMS;
  const uint part = tid / MERGE_DIMS;
  const uint length = positions[group.y] + 1;
  const uint spans = (length - 1) / decode_span(length) + 1;
  const ulong row = ulong(group.y) * args.query_heads + head;
  device const float* sums = partials + row * args.spans * FULL_HEAD + dim;
  device const float* stats =
      partials + ulong(groups.y) * args.query_heads * args.spans * FULL_HEAD + row * args.spans * 2;
  float largest = DECODE_LOWEST;
  for (uint s = lane; s < spans; s += 32) largest = max(largest, stats[s * 2]);
  largest = simd_max(largest);
  float total = 0.0f;
  float o = 0.0f;
  for (uint s = part; s < spans; s += 4) {
    const float w = precise::exp(stats[s * 2] - largest);
    total = fma(w, stats[s * 2 + 1], total);
    o = fma(w, sums[ulong(s) * FULL_HEAD], o);
  }
  shares[tid] = o;
  shares[4 * MERGE_DIMS + tid] = total;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (part == 0) {
    for (uint p = 1; p < 4; p++) {
      o += shares[p * MERGE_DIMS + tid];
      total += shares[(4 + p) * MERGE_DIMS + tid];
    }
    const float gate = projections[ulong(group.y) * args.stride + (2 * head + 1) * FULL_HEAD + dim];
    out[row * FULL_HEAD + dim] = o / total * sigmoid(gate);
  }
}
