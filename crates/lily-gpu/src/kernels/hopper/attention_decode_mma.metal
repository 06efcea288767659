// Attention of decoded tokens on the matrix units of NVIDIA GPUs: the twin of attention_decode for BF16 caches. Spans are shorter,
// so that a short context has more threadgroups; a span's length still follows from the sequence's own position alone.
//
// A threadgroup takes a span of one kv head and all its query heads, 32 positions at a time. Scores: mma of 16 positions by 16
// dims by 8 query heads, where a query is three BF16 parts, which is exact; a simdgroup takes 16 positions and 64 dims, its
// keys straight from memory. Softmax: simdgroup h takes head h, with a running maximum. Values: mma of weights, heads in two
// BF16 parts each, by 16 positions by 8 dims; a simdgroup takes 32 dims. Values pass through threadgroup memory, two stages
// ahead; keys are loaded one stage ahead.
#define SPAN_STAGE 32u
#define SPAN_BUFFERS 3u
#define SPAN_GROUP 8u    // query heads of a kv head, at most; simdgroups
#define SPAN_SCORES 36u  // floats from one head's scores to the next, against bank conflicts
#define SPAN_WEIGHTS 20u // words from one head's weights to the next, likewise
#define SPAN_LOWEST -3.0e38f
#define SPAN_MOST 512u // spans of a sequence

// Positions of a span of a sequence that has `count` of them (`step_span` in attention_decode.rs).
inline uint step_span(uint count) {
  return count <= 1024 ? 32 : count <= 4096 ? 64 : count <= 8192 ? 128 : count <= 32768 ? 256 : count <= 131072 ? 512 : 1024;
}

// Of eight values the three BF16 parts, in pairs.
inline void span_parts(device const float* p, bool there, thread uint4 (&parts)[3]) {
  float v[8];
  UNROLL for (int i = 0; i < 8; i++) v[i] = 0.0f;
  if (there) load8(p, v);
  UNROLL for (int part = 0; part < 3; part++)
    UNROLL for (int j = 0; j < 4; j++) {
      const uint u = lily_pack2(v[2 * j], v[2 * j + 1]);
      parts[part][j] = u;
      v[2 * j] -= as_type<float>(u << 16);
      v[2 * j + 1] -= as_type<float>(u & 0xffff0000u);
    }
}

struct SpanKeys {
  uint4 k[2][2]; // rows lane / 4 and + 8; 32 dims each
};

// `from`: the stage's first position at this lane's dims. Rows from `count` on are zero.
inline void span_keys(thread SpanKeys& s, device const bfloat* from, uint row, uint count) {
  UNROLL for (int h = 0; h < 2; h++)
    UNROLL for (int c = 0; c < 2; c++) {
      s.k[h][c] = uint4(0u);
      if (row + uint(h) * 8 < count) s.k[h][c] = *(device const uint4*)(from + (row + uint(h) * 8) * FULL_HEAD + uint(c) * 32);
    }
}

// 32 rows of values; their pieces of 16 bytes are exchanged by row, so that eight rows' lie in different banks.
inline void span_values(threadgroup uint4* to, device const bfloat* from, uint count, uint tid) {
  UNROLL for (int i = 0; i < 4; i++) {
    const uint row = tid / 32 + uint(i) * 8, piece = tid % 32;
    lily_copy16_if(&to[row * 32 + (piece ^ (row & 7u))], from + row * FULL_HEAD + piece * 8, row < count);
  }
}

// Grid: (spans of the longest sequence, kv heads, sequences), threads: 256.
[[max_total_threads_per_threadgroup(256)]] kernel void attention_decode_mma(
    device const float* q [[buffer(0)]],           // [sequences × query heads × 256], scaled
    device const bfloat* pool [[buffer(1)]],       // keys and values
    device const uint* positions [[buffer(2)]],    // [sequences]
    device const uint* table [[buffer(3)]],        // [sequences × table_stride]
    device const float* projections [[buffer(4)]], // [sequences × stride]: a head's gate behind its query
    device float* out [[buffer(5)]],               // [sequences × query heads × 256]
    device float* partials [[buffer(6)]],          // of each query head's spans: 256 sums; then 2 stats
    constant DecodeArgs& args [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  LILY_DYNAMIC(uint4, values, 49152);
  threadgroup float scores[4 * SPAN_GROUP * SPAN_SCORES];
  threadgroup uint weights[2 * SPAN_GROUP * SPAN_WEIGHTS];
  threadgroup float fades[SPAN_GROUP];
  threadgroup float totals[SPAN_GROUP];
  LILY_RESIDENT(2)
  EARLY_BEGIN
  const uint sequence = group.z;
  const uint length = positions[sequence] + 1;
  const uint span = step_span(length);
  if (ulong(group.x) * span >= length) { // the whole threadgroup
    EARLY_END
    return;
  }
  const uint first = group.x * span;
  const uint count = min(span, length - first);
  const uint stages = (count + SPAN_STAGE - 1) / SPAN_STAGE;
  const uint heads = args.query_heads / args.kv_heads;
  const uint head0 = group.y * heads;
  const ulong row0 = ulong(sequence) * args.query_heads + head0;
  device const uint* pages = table + ulong(sequence) * args.table_stride;
  device const bfloat* all_keys = pool + kv_plane(args.kv_heads, KV_KEYS, group.y) + sg / 2 * 64 + lane % 4 * 8;
  device const bfloat* all_values = pool + kv_plane(args.kv_heads, KV_VALUES, group.y);
  const uint row = sg % 2 * 16 + lane / 4;

  // This token's key and value, the last ones, are written by the kernel before; all others are there.
  const bool early = group.x * span + min(span, 2 * SPAN_STAGE) < length;
  if (!early) {
    EARLY_END
  }
  SpanKeys keys;
  span_keys(keys, all_keys + kv_place(pages, args.page_stride, first), row, count);
  UNROLL for (uint s = 0; s < 2; s++) {
    if (s < stages)
      span_values(
          values + s * (SPAN_STAGE * 32), all_values + kv_place(pages, args.page_stride, first + s * SPAN_STAGE),
          count - s * SPAN_STAGE, tid);
    lily_copy_commit();
  }
  if (early) {
    EARLY_END
  }

  // This lane's part of the queries: head lane / 4, 2 × 8 dims.
  uint4 queries[2][3];
  UNROLL for (int c = 0; c < 2; c++)
    span_parts(
        q + (row0 + lane / 4) * FULL_HEAD + sg / 2 * 64 + uint(c) * 32 + lane % 4 * 8, lane / 4 < heads, queries[c]);

  float largest = SPAN_LOWEST, total = 0.0f; // of head sg
  float acc[4][4];
  UNROLL for (int n = 0; n < 4; n++)
    UNROLL for (int e = 0; e < 4; e++) acc[n][e] = 0.0f;
  for (uint s = 0; s < stages; s++) {
    float c[4];
    UNROLL for (int e = 0; e < 4; e++) c[e] = 0.0f;
    UNROLL for (int part = 2; part >= 0; part--) // small ones first
      UNROLL for (int i = 0; i < 2; i++)
        UNROLL for (int m = 0; m < 2; m++) {
          uint4 a;
          a[0] = keys.k[0][i][2 * m];
          a[1] = keys.k[1][i][2 * m];
          a[2] = keys.k[0][i][2 * m + 1];
          a[3] = keys.k[1][i][2 * m + 1];
          lily_mma(c, a, queries[i][part][2 * m], queries[i][part][2 * m + 1]);
        }
    if (s + 1 < stages)
      span_keys(
          keys, all_keys + kv_place(pages, args.page_stride, first + (s + 1) * SPAN_STAGE), row,
          count - (s + 1) * SPAN_STAGE);
    UNROLL for (int e = 0; e < 4; e++)
      scores[(sg / 2 * SPAN_GROUP + lane % 4 * 2 + uint(e) % 2) * SPAN_SCORES + row + uint(e) / 2 * 8] = c[e];
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Head sg, position lane.
    threadgroup const float* own = scores + sg * SPAN_SCORES + lane;
    const uint quarter = SPAN_GROUP * SPAN_SCORES;
    float score = (own[0] + own[quarter]) + (own[2 * quarter] + own[3 * quarter]);
    if (s * SPAN_STAGE + lane >= count) score = SPAN_LOWEST;
    const float now = max(largest, simd_max(score));
    const float fade = precise::exp(largest - now);
    float w = precise::exp(score - now);
    if (s * SPAN_STAGE + lane >= count) w = 0.0f;
    largest = now;
    total = fma(total, fade, simd_sum(w));
    threadgroup ushort* to = (threadgroup ushort*)(weights + sg * SPAN_WEIGHTS) + lane;
    const uint high = lily_pack2(w, 0.0f);
    to[0] = ushort(high);
    to[2 * SPAN_GROUP * SPAN_WEIGHTS] = ushort(lily_pack2(w - as_type<float>(high << 16), 0.0f));
    if (lane == 0) fades[sg] = fade;
    lily_copy_wait1();
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (s + 2 < stages)
      span_values(
          values + (s + 2) % SPAN_BUFFERS * (SPAN_STAGE * 32),
          all_values + kv_place(pages, args.page_stride, first + (s + 2) * SPAN_STAGE), count - (s + 2) * SPAN_STAGE, tid);
    lily_copy_commit(); // an empty one counts too
    const float f = fades[lane / 4];
    UNROLL for (int n = 0; n < 4; n++)
      UNROLL for (int e = 0; e < 4; e++) acc[n][e] *= f;
    threadgroup const uint4* stage = values + s % SPAN_BUFFERS * (SPAN_STAGE * 32);
    UNROLL for (int k = 0; k < 2; k++) {
      threadgroup const uint* from = weights + lane / 4 * SPAN_WEIGHTS + uint(k) * 8 + lane % 4;
      uint4 a;
      a[0] = from[0];
      a[1] = from[SPAN_GROUP * SPAN_WEIGHTS];
      a[2] = from[4];
      a[3] = from[SPAN_GROUP * SPAN_WEIGHTS + 4];
      UNROLL for (int n = 0; n < 4; n += 2) {
        const uint r = uint(k) * 16 + lane % 16, piece = sg * 4 + uint(n) + lane / 16;
        const uint4 b = lily_matrices_across(&stage[r * 32 + (piece ^ (r & 7u))]);
        lily_mma(acc[n], a, b[0], b[1]);
        lily_mma(acc[n + 1], a, b[2], b[3]);
      }
    }
  }

  // The two parts of a head's weights.
  const uint h = lane / 4;
  const bool alone = groups.x == 1;
  if (alone) {
    if (lane == 0) totals[sg] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  const ulong part = (row0 + h) * groups.x + group.x;
  UNROLL for (int n = 0; n < 4; n++) {
    const uint dim = sg * 32 + uint(n) * 8 + lane % 4 * 2;
    float2 o = float2(acc[n][0] + acc[n][2], acc[n][1] + acc[n][3]);
    if (h < heads) {
      if (alone) {
        device const float* gate = projections + ulong(sequence) * args.stride + (2 * (head0 + h) + 1) * FULL_HEAD + dim;
        o = float2(o[0] / totals[h] * sigmoid(gate[0]), o[1] / totals[h] * sigmoid(gate[1]));
        *(device float2*)(out + (row0 + h) * FULL_HEAD + dim) = o;
      } else {
        *(device float2*)(partials + part * FULL_HEAD + dim) = o;
      }
    }
  }
  if (!alone && lane == 0 && sg < heads) {
    const ulong sums = ulong(groups.z) * args.query_heads * groups.x * FULL_HEAD;
    const ulong own = (row0 + sg) * groups.x + group.x;
    partials[sums + own * 2] = largest;
    partials[sums + own * 2 + 1] = total;
  }
}

// Adds the spans of a query head: a threadgroup takes 32 of its dims, a simdgroup every eighth span. Grid: (8 × query heads,
// sequences), threads: 256.
[[max_total_threads_per_threadgroup(256)]] kernel void attention_merge_mma(
    device const float* partials [[buffer(0)]], device const uint* positions [[buffer(1)]],
    device const float* projections [[buffer(2)]], device float* out [[buffer(3)]],
    constant DecodeArgs& args [[buffer(4)]], uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float weights[SPAN_MOST];
  threadgroup float shares[SPAN_GROUP * 32];
  threadgroup float totals[SPAN_GROUP];
  EARLY_BEGIN
  const uint head = group.x / 8, dim = group.x % 8 * 32 + lane;
  const uint length = positions[group.y] + 1;
  const uint spans = (length - 1) / step_span(length) + 1;
  const ulong row = ulong(group.y) * args.query_heads + head;
  device const float* sums = partials + row * args.spans * FULL_HEAD + dim;
  device const float* stats =
      partials + ulong(groups.y) * args.query_heads * args.spans * FULL_HEAD + row * args.spans * 2;
  EARLY_END
  float largest = SPAN_LOWEST;
  for (uint s = lane; s < spans; s += 32) largest = max(largest, stats[s * 2]);
  largest = simd_max(largest);
  float total = 0.0f;
  for (uint s = sg * 32 + lane; s < spans; s += 256) {
    const float w = precise::exp(stats[s * 2] - largest);
    weights[s] = w;
    total = fma(w, stats[s * 2 + 1], total);
  }
  total = simd_sum(total);
  if (lane == 0) totals[sg] = total;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float o = 0.0f;
  _Pragma("unroll 4") for (uint s = sg; s < spans; s += 8) o = fma(weights[s], sums[ulong(s) * FULL_HEAD], o);
  shares[sg * 32 + lane] = o;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (sg > 0) return; // no barrier follows
  total = totals[0];
  for (uint p = 1; p < 8; p++) {
    o += shares[p * 32 + lane];
    total += totals[p];
  }
  const float gate = projections[ulong(group.y) * args.stride + (2 * head + 1) * FULL_HEAD + dim];
  out[row * FULL_HEAD + dim] = o / total * sigmoid(gate);
}
