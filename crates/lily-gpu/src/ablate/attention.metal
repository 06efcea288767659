// Attention of decoded tokens without one of the ideas of attention_decode.metal, or with both, for `lily bench --ablate`.
// HEADS is 8 where a threadgroup takes all query heads of a kv head, or 1. `splits` is 0 where a threadgroup takes a fixed
// block of positions, else a sequence is cut into so many parts whatever its length. Otherwise the kernels are alike: loads of
// 16 bytes, four rows asked for before one is used, scores of up to 512 positions in threadgroup memory at a time.
#define ABLATE_BLOCK 512u
#define ABLATE_HEADS 8
#define ABLATE_LOWEST -3.0e38f

// Positions of a part of a sequence that has `length` of them (`span` in attention.rs): whole pages.
inline uint ablate_span(uint length, uint splits) {
  if (splits == 0) return length > 16384 ? 512 : 256;
  return ((length + splits - 1) / splits + KV_PAGE - 1) / KV_PAGE * KV_PAGE;
}

// Eight values from p on as they lie in memory, aligned to 16 bytes.
#define ABLATE_WORDS(KV) (sizeof(KV) / 2)
template <typename KV>
inline void ablate_load(device const KV* p, thread uint4* raw) {
  for (uint i = 0; i < ABLATE_WORDS(KV); i++) raw[i] = ((device const uint4*)p)[i];
}
template <typename KV>
inline void ablate_unpack(thread const uint4* raw, thread float* v);
template <>
inline void ablate_unpack<bfloat>(thread const uint4* raw, thread float* v) {
  for (int i = 0; i < 4; i++) {
    const uint u = raw[0][i];
    v[2 * i] = as_type<float>(u << 16);
    v[2 * i + 1] = as_type<float>(u & 0xffff0000u);
  }
}
template <>
inline void ablate_unpack<float>(thread const uint4* raw, thread float* v) {
  for (int i = 0; i < 8; i++) {
    const uint u = raw[i / 4][i % 4];
    v[i] = as_type<float>(u);
  }
}

// 2 N values a lane become N, summed with the lane at distance MASK: lanes with the bit take the upper half.
template <uint N, uint MASK>
inline void ablate_fold(thread float* v, uint lane) {
  const bool upper = (lane & MASK) != 0;
  for (uint i = 0; i < N; i++) {
    const float keep = upper ? v[i + N] : v[i];
    const float give = upper ? v[i] : v[i + N];
    v[i] = keep + simd_shuffle_xor(give, ushort(MASK));
  }
}

// Scores of rows first … first + count, count ≤ ABLATE_BLOCK, first a multiple of 64, at scores[row × HEADS + head].
template <typename KV, int HEADS>
inline void ablate_scores(
    device const float* q, device const KV* keys, device const uint* pages, ulong page_stride, uint heads, uint first,
    uint count, uint sg, uint lane, threadgroup float* scores) {
  float mine[HEADS * 8];
  for (uint h = 0; h < HEADS; h++) {
    for (uint i = 0; i < 8; i++) mine[h * 8 + i] = 0.0f;
    if (h < heads) load8(q + h * FULL_HEAD + lane * 8, mine + h * 8);
  }
  for (uint row = sg * 4; row < count; row += 32) {
    device const KV* from = keys + kv_place(pages, page_stride, first + row) + lane * 8;
    uint4 raw[4][ABLATE_WORDS(KV)];
    for (uint r = 0; r < 4; r++) {
      for (uint i = 0; i < ABLATE_WORDS(KV); i++) raw[r][i] = uint4(0u);
      if (row + r < count) ablate_load(from + r * FULL_HEAD, raw[r]);
    }
    constexpr uint AT_ONCE = HEADS == 1 ? 4 : 2; // rows
    for (uint r = 0; r < 4; r += AT_ONCE) {
      float sums[2 * ABLATE_HEADS];
      for (uint n = 0; n < AT_ONCE; n++) {
        float k[8];
        ablate_unpack<KV>(raw[r + n], k);
        for (uint h = 0; h < HEADS; h++) {
          float s = 0.0f;
          for (uint i = 0; i < 8; i++) s = fma(k[i], mine[h * 8 + i], s);
          sums[n * HEADS + h] = s;
        }
      }
      if (HEADS == 1) {
        ablate_fold<2, 16>(sums, lane);
        ablate_fold<1, 8>(sums, lane);
        float sum = sums[0];
        sum += simd_shuffle_xor(sum, ushort(4));
        sum += simd_shuffle_xor(sum, ushort(2));
        sum += simd_shuffle_xor(sum, ushort(1));
        if (lane % 8 == 0) scores[row + lane / 8] = sum;
      } else {
        ablate_fold<8, 16>(sums, lane);
        ablate_fold<4, 8>(sums, lane);
        ablate_fold<2, 4>(sums, lane);
        ablate_fold<1, 2>(sums, lane);
        const float sum = sums[0] + simd_shuffle_xor(sums[0], ushort(1));
        if (lane % 2 == 0) scores[(row + r) * HEADS + lane / 2] = sum;
      }
    }
  }
}

// Adds the rows of values times their weights: a lane holds 8 dims, 8 lanes read 64 dims of a row, and the eight simdgroups
// share the rows by dims (4 ways) and rows (2 ways).
template <typename KV, int HEADS>
inline void ablate_values(
    device const KV* values, device const uint* pages, ulong page_stride, uint first, uint count, uint sg, uint lane,
    threadgroup const float* weights, thread float* acc) {
  for (uint row = (sg / 4) * 4 + lane / 8; row < count; row += 32) {
    // Four rows at a time, eight apart, in one page.
    device const KV* from = values + kv_place(pages, page_stride, first + row) + (sg % 4) * 64 + (lane % 8) * 8;
    uint4 raw[4][ABLATE_WORDS(KV)];
    for (uint r = 0; r < 4; r++) {
      for (uint i = 0; i < ABLATE_WORDS(KV); i++) raw[r][i] = uint4(0u);
      if (row + r * 8 < count) ablate_load(from + r * 8 * FULL_HEAD, raw[r]);
    }
    for (uint r = 0; r < 4; r++) {
      if (row + r * 8 < count) {
        float v[8];
        ablate_unpack<KV>(raw[r], v);
        for (uint h = 0; h < HEADS; h++) {
          const float w = weights[(row + r * 8) * HEADS + h];
          for (uint i = 0; i < 8; i++) acc[h * 8 + i] = fma(w, v[i], acc[h * 8 + i]);
        }
      }
    }
  }
}

// `scores`: ABLATE_BLOCK × HEADS, between blocks HEADS × 256 sums. `sums`: HEADS × 256. `stats`: 8 each of what sums so far are
// scaled by, largest scores, total weights. Between blocks sums stand in threadgroup memory, so that the registers of scores
// and of values need not live at once.
template <typename KV, int HEADS>
inline void ablate_attention(
    device const float* q, device const KV* pool, device const uint* positions, device const uint* table,
    device float* partials, constant AblateAttentionArgs& args, uint3 group, uint3 groups, uint sg, uint lane,
    threadgroup float* scores, threadgroup float* sums, threadgroup float* stats) {
  const uint sequence = group.z;
  const uint length = positions[sequence] + 1;
  const uint span = ablate_span(length, args.splits);
  if (ulong(group.y) * span >= length) return; // the whole threadgroup
  const uint begin = group.y * span;
  const uint end = min(begin + span, length);
  const uint shared = args.query_heads / args.kv_heads;
  const uint heads = HEADS == 1 ? 1 : shared;
  const uint kv_head = HEADS == 1 ? group.x / shared : group.x;
  const ulong row0 = ulong(sequence) * args.query_heads + group.x * heads;
  device const uint* pages = table + ulong(sequence) * args.table_stride;
  device const KV* keys = pool + kv_plane(args.kv_heads, KV_KEYS, kv_head);
  device const KV* values = pool + kv_plane(args.kv_heads, KV_VALUES, kv_head);

  // Of eight heads simdgroup h keeps head h's stats; of one head each simdgroup weighs a share of the rows.
  const uint head = HEADS == 1 ? 0 : sg;
  const uint row_first = HEADS == 1 ? sg * 32 + lane : lane;
  const uint row_step = HEADS == 1 ? 256 : 32;
  float largest = ABLATE_LOWEST;
  float total = 0.0f; // of this lane's rows
  // Heads and dims whose sums this lane has after folding.
  const uint held = HEADS == 1 ? (lane < 8 ? 1 : 0) : 2;
  const uint h0 = HEADS == 1 ? 0 : (lane / 16) * 4 + (lane / 8 % 2) * 2;
  const uint dim = (sg % 4) * 64 + (lane % 8) * 8;

  for (uint first = begin; first < end; first += ABLATE_BLOCK) {
    const uint count = min(ABLATE_BLOCK, end - first);
    ablate_scores<KV, HEADS>(
        q + row0 * FULL_HEAD, keys, pages, args.page_stride, heads, first, count, sg, lane, scores);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float most = largest;
    for (uint row = lane; row < count; row += 32) most = max(most, scores[row * HEADS + head]);
    most = simd_max(most);
    if (HEADS == 1) threadgroup_barrier(mem_flags::mem_threadgroup); // all have read what is overwritten now
    const float scale = precise::exp(largest - most);
    largest = most;
    total *= scale;
    for (uint row = row_first; row < count; row += row_step) {
      const float w = precise::exp(scores[row * HEADS + head] - most);
      scores[row * HEADS + head] = w;
      total += w;
    }
    if (lane == 0 && (HEADS > 1 || sg == 0)) stats[head] = scale;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float acc[HEADS * 8];
    for (uint i = 0; i < HEADS * 8; i++) acc[i] = 0.0f;
    ablate_values<KV, HEADS>(values, pages, args.page_stride, first, count, sg, lane, scores, acc);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // The four lanes that hold the same dims; then the two halves of the simdgroups.
    if (HEADS == 1) {
      for (uint i = 0; i < 8; i++) acc[i] += simd_shuffle_xor(acc[i], ushort(8));
      for (uint i = 0; i < 8; i++) acc[i] += simd_shuffle_xor(acc[i], ushort(16));
    } else {
      ablate_fold<32, 16>(acc, lane);
      ablate_fold<16, 8>(acc, lane);
    }
    if (sg >= 4)
      for (uint n = 0; n < held; n++)
        for (uint i = 0; i < 8; i++) scores[(h0 + n) * FULL_HEAD + dim + i] = acc[n * 8 + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg < 4)
      for (uint n = 0; n < held; n++)
        for (uint i = 0; i < 8; i++) {
          const uint at = (h0 + n) * FULL_HEAD + dim + i;
          const float before = first == begin ? 0.0f : sums[at] * stats[h0 + n];
          sums[at] = before + (acc[n * 8 + i] + scores[at]);
        }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  total = simd_sum(total);
  if (lane == 0) {
    if (HEADS > 1 || sg == 0) stats[8 + head] = largest;
    stats[16 + sg] = total;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (sg >= 4) return;
  const ulong behind = ulong(groups.z) * args.query_heads * groups.y * FULL_HEAD;
  for (uint n = 0; n < held; n++) {
    const uint h = h0 + n;
    if (h < heads) {
      const ulong part = (row0 + h) * groups.y + group.y;
      for (uint i = 0; i < 8; i++) partials[part * FULL_HEAD + dim + i] = sums[h * FULL_HEAD + dim + i];
      if (dim == 0) {
        float whole = stats[16 + h];
        if (HEADS == 1)
          for (uint s = 1; s < 8; s++) whole += stats[16 + s];
        partials[behind + part * 2] = stats[8 + h];
        partials[behind + part * 2 + 1] = whole;
      }
    }
  }
}

// Grid: (kv heads, or query heads where HEADS is 1; parts of the longest sequence; sequences), threads: 256. Neighbours in the
// grid read the same keys and values, so that a cache between may serve them.
#define ABLATE_ATTENTION(NAME, KV, HEADS)                                                                      \
  [[max_total_threads_per_threadgroup(256)]] kernel void NAME(                                                 \
      device const float* q [[buffer(0)]],        /* [sequences × query heads × 256], scaled */                \
      device const KV* pool [[buffer(1)]],        /* keys and values */                                        \
      device const uint* positions [[buffer(2)]], /* [sequences] */                                            \
      device const uint* table [[buffer(3)]],     /* [sequences × table_stride] */                             \
      device float* partials [[buffer(4)]],       /* of each query head's parts: 256 sums; then 2 stats */     \
      constant AblateAttentionArgs& args [[buffer(5)]], uint3 group [[threadgroup_position_in_grid]],          \
      uint3 groups [[threadgroups_per_grid]], uint sg [[simdgroup_index_in_threadgroup]],                      \
      uint lane [[thread_index_in_simdgroup]]) {                                                               \
    threadgroup float scores[ABLATE_BLOCK * HEADS];                                                            \
    threadgroup float sums[HEADS * FULL_HEAD];                                                                 \
    threadgroup float stats[24];                                                                               \
    ablate_attention<KV, HEADS>(q, pool, positions, table, partials, args, group, groups, sg, lane, scores,    \
                                sums, stats);                                                                  \
  }
ABLATE_ATTENTION(ablate_attention_one_f32, float, 1)
ABLATE_ATTENTION(ablate_attention_one_bf16, bfloat, 1)
ABLATE_ATTENTION(ablate_attention_packed_f32, float, ABLATE_HEADS)
ABLATE_ATTENTION(ablate_attention_packed_bf16, bfloat, ABLATE_HEADS)

// Adds the parts of a query head: a threadgroup takes 64 of its dims, four threads a dim share the parts. Grid: (4 × query
// heads, sequences), threads: 256.
#define ABLATE_DIMS 64u
[[max_total_threads_per_threadgroup(256)]] kernel void ablate_attention_merge(
    device const float* partials [[buffer(0)]], device const uint* positions [[buffer(1)]],
    device const float* projections [[buffer(2)]], // [sequences × stride]: a head's gate behind its query
    device float* out [[buffer(3)]],               // [sequences × query heads × 256]
    constant AblateAttentionArgs& args [[buffer(4)]], uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float shares[8 * ABLATE_DIMS];
  const uint head = group.x / (FULL_HEAD / ABLATE_DIMS);
  const uint dim = group.x % (FULL_HEAD / ABLATE_DIMS) * ABLATE_DIMS + tid % ABLATE_DIMS;
  const uint quarter = tid / ABLATE_DIMS;
  const uint length = positions[group.y] + 1;
  const uint parts = (length - 1) / ablate_span(length, args.splits) + 1;
  const ulong row = ulong(group.y) * args.query_heads + head;
  device const float* sums = partials + row * args.parts * FULL_HEAD + dim;
  device const float* stats =
      partials + ulong(groups.y) * args.query_heads * args.parts * FULL_HEAD + row * args.parts * 2;
  float largest = ABLATE_LOWEST;
  for (uint s = lane; s < parts; s += 32) largest = max(largest, stats[s * 2]);
  largest = simd_max(largest);
  float total = 0.0f;
  float o = 0.0f;
  for (uint s = quarter; s < parts; s += 4) {
    const float w = precise::exp(stats[s * 2] - largest);
    total = fma(w, stats[s * 2 + 1], total);
    o = fma(w, sums[ulong(s) * FULL_HEAD], o);
  }
  shares[tid] = o;
  shares[4 * ABLATE_DIMS + tid] = total;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (quarter == 0) {
    for (uint p = 1; p < 4; p++) {
      o += shares[p * ABLATE_DIMS + tid];
      total += shares[(4 + p) * ABLATE_DIMS + tid];
    }
    const float gate = projections[ulong(group.y) * args.stride + (2 * head + 1) * FULL_HEAD + dim];
    out[row * FULL_HEAD + dim] = o / total * sigmoid(gate);
  }
}
