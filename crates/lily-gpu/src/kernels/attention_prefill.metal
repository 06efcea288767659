// Causal attention of a chunk of one sequence (docs/model.md §4.2): softmax kept up tile by tile, so that no score reaches
// memory. A threadgroup takes 8 rows of all query heads of one kv head, a simdgroup one of those heads: each tile of keys, and then
// of values, is staged once for all of them. Sums stay in registers: 8 rows × 256 dims a simdgroup.
//
// Key tiles begin at multiples of their length from position 0 on, and a tile that a row sees nothing of changes no bit of it: a
// row's bits do not depend on where its chunk begins or ends. Scores, softmax and sums are F32; weights are rounded to the
// element before they meet the values.
#define PREFILL_ROWS 8u
#define PREFILL_LOWEST -3.0e38f
#define PREFILL_UNROLL _Pragma("unroll")

// Where a lane's two elements of an 8×8 matrix stand: row, column of the first; the second is its neighbour. Devices differ, so
// a matrix of its own indices is asked. `masks`: lanes at these distances hold the same row.
struct PrefillLane {
  uint row;
  uint column;
  uint masks;
};
inline PrefillLane prefill_lane(threadgroup float* memory, uint tid, uint threads) {
  for (uint i = tid; i < 64; i += threads) memory[i] = float(i);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_matrix<float, 8, 8> m;
  simdgroup_load(m, memory, 8);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  PrefillLane at;
  const uint index = uint(m.thread_elements()[0]);
  at.row = index / 8;
  at.column = index % 8;
  at.masks = 0;
  for (uint mask = 1; mask < 32; mask *= 2)
    if (simd_shuffle_xor(at.row, ushort(mask)) == at.row) at.masks |= mask;
  return at;
}

// Positions of a tile, and the values from one to the next in threadgroup memory: 16 bytes more than a row, so that eight rows
// lie in different banks. Both elements take 16.5 KiB or less.
template <typename T> struct PrefillTile;
template <> struct PrefillTile<float> {
  enum { keys = 16, row = 260 };
};
template <> struct PrefillTile<bfloat> {
  enum { keys = 32, row = 264 };
};
#define PREFILL_STAGED 1056u // uint4

// Rows from `from` on to threadgroup memory; those behind the first `count` are zero.
template <typename T>
inline void prefill_stage(device const T* from, uint count, uint tid, uint threads, threadgroup T* tile) {
  const uint values = 16 / sizeof(T);
  const uint chunks = FULL_HEAD / values; // of a row
  for (uint c = tid; c < PrefillTile<T>::keys * chunks; c += threads) {
    const uint row = c / chunks;
    const uint at = c % chunks * values;
    uint4 v = uint4(0u);
    if (row < count) v = *(device const uint4*)(from + row * FULL_HEAD + at);
    *(threadgroup uint4*)(tile + row * PrefillTile<T>::row + at) = v;
  }
}

// The same from rows of 8 bits, as values rounded to the element.
template <typename T>
inline void prefill_stage(device const uchar* from, uint count, uint tid, uint threads, threadgroup T* tile) {
  const uint chunks = FULL_HEAD / 8; // of a row
  for (uint c = tid; c < PrefillTile<T>::keys * chunks; c += threads) {
    const uint row = c / chunks;
    const uint at = c % chunks * 8;
    uint4 raw[1];
    raw[0] = uint4(0u);
    if (row < count) kv_load8(from + row * KvRow<uchar>::length, at, raw);
    float v[8];
    kv_unpack8<uchar>(raw, v);
    threadgroup T* to = tile + row * PrefillTile<T>::row + at;
    for (uint i = 0; i < 8; i++) to[i] = T(v[i]);
  }
}

// s = q · kᵀ for 8 rows and a tile of keys; `q`: this lane's first element.
template <typename T>
inline void prefill_scores(device const T* q, threadgroup const T* tile, thread simdgroup_matrix<float, 8, 8>* s) {
  for (uint j = 0; j < PrefillTile<T>::keys / 8; j++) s[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint d = 0; d < FULL_HEAD; d += 8) {
    const vec<T, 2> pair = *(device const vec<T, 2>*)(q + d);
    simdgroup_matrix<T, 8, 8> a;
    a.thread_elements()[0] = pair.x;
    a.thread_elements()[1] = pair.y;
    PREFILL_UNROLL
    for (uint j = 0; j < PrefillTile<T>::keys / 8; j++) {
      simdgroup_matrix<T, 8, 8> b;
      simdgroup_load(b, tile + j * 8 * PrefillTile<T>::row + d, PrefillTile<T>::row, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(s[j], a, b, s[j]);
    }
  }
}

// o += p · v for 8 rows and a tile of values.
template <typename T>
inline void prefill_values(
    thread simdgroup_matrix<T, 8, 8>* p, threadgroup const T* tile, thread simdgroup_matrix<float, 8, 8>* o) {
  PREFILL_UNROLL
  for (uint j = 0; j < PrefillTile<T>::keys / 8; j++) {
    PREFILL_UNROLL
    for (uint d = 0; d < FULL_HEAD / 8; d++) {
      simdgroup_matrix<T, 8, 8> b;
      simdgroup_load(b, tile + j * 8 * PrefillTile<T>::row + d * 8, PrefillTile<T>::row);
      simdgroup_multiply_accumulate(o[d], p[j], b, o[d]);
    }
  }
}

template <typename T, typename KV>
inline void attention_prefill(
    device const T* q, device const KV* pool, device const uint* pages, device const float* projections, device T* out,
    constant PrefillArgs& args, uint2 group, uint2 groups, uint tid, uint sg, threadgroup uint4* staged) {
  const uint keys = PrefillTile<T>::keys;
  const uint heads = args.query_heads / args.kv_heads; // and simdgroups
  const uint head = group.y * heads + sg;
  const uint t0 = (groups.x - 1 - group.x) * PREFILL_ROWS; // the longest rows first
  const PrefillLane lane = prefill_lane((threadgroup float*)staged, tid, heads * 32);
  threadgroup T* tile = (threadgroup T*)staged;
  const uint mine = t0 + lane.row;
  const uint column = lane.column;
  const uint t = min(mine, args.rows - 1); // rows behind the last repeat it and are not stored
  const uint position = args.start + t;
  const uint end = args.start + min(t0 + PREFILL_ROWS, args.rows); // of what any row here sees
  device const KV* key_rows = pool + kv_plane(args.kv_heads, KV_KEYS, group.y, KvRow<KV>::length);
  device const KV* value_rows = pool + kv_plane(args.kv_heads, KV_VALUES, group.y, KvRow<KV>::length);
  device const T* own = q + (ulong(t) * args.query_heads + head) * FULL_HEAD + column;

  simdgroup_matrix<float, 8, 8> o[FULL_HEAD / 8];
  PREFILL_UNROLL
  for (uint d = 0; d < FULL_HEAD / 8; d++) o[d] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  float largest = PREFILL_LOWEST; // of this lane's row
  float total = 0.0f;             // this lane's share
  for (uint k0 = 0; k0 < end; k0 += keys) {
    const ulong place = kv_place(pages, args.page_stride, k0, KvRow<KV>::length); // a tile lies in one page
    prefill_stage(key_rows + place, end - k0, tid, heads * 32, tile);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_matrix<float, 8, 8> s[PrefillTile<T>::keys / 8];
    prefill_scores(own, tile, s);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    prefill_stage(value_rows + place, end - k0, tid, heads * 32, tile);

    float top = largest;
    PREFILL_UNROLL
    for (uint j = 0; j < keys / 8; j++)
      for (uint i = 0; i < 2; i++)
        if (k0 + j * 8 + column + i <= position) top = max(top, s[j].thread_elements()[i]);
    for (uint mask = 1; mask < 32; mask *= 2) {
      const float other = simd_shuffle_xor(top, ushort(mask));
      if ((lane.masks & mask) != 0) top = max(top, other);
    }
    const float factor = precise::exp(largest - top);
    largest = top;
    simdgroup_matrix<T, 8, 8> p[PrefillTile<T>::keys / 8];
    float sum = 0.0f;
    PREFILL_UNROLL
    for (uint j = 0; j < keys / 8; j++)
      for (uint i = 0; i < 2; i++) {
        const bool seen = k0 + j * 8 + column + i <= position;
        const float w = seen ? precise::exp(s[j].thread_elements()[i] - top) : 0.0f;
        sum += w;
        p[j].thread_elements()[i] = T(w);
      }
    total = total * factor + sum;
    PREFILL_UNROLL
    for (uint d = 0; d < FULL_HEAD / 8; d++) {
      o[d].thread_elements()[0] *= factor;
      o[d].thread_elements()[1] *= factor;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    prefill_values(p, tile, o);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint mask = 1; mask < 32; mask *= 2) {
    const float other = simd_shuffle_xor(total, ushort(mask));
    if ((lane.masks & mask) != 0) total += other;
  }
  if (mine >= args.rows) return;
  device const float* gate = projections + ulong(t) * args.stride + (2 * head + 1) * FULL_HEAD + column;
  device T* to = out + (ulong(t) * args.query_heads + head) * FULL_HEAD + column;
  PREFILL_UNROLL
  for (uint d = 0; d < FULL_HEAD / 8; d++)
    for (uint i = 0; i < 2; i++)
      to[d * 8 + i] = T(o[d].thread_elements()[i] / total * sigmoid(gate[d * 8 + i]));
}

// Grid: (rows / 8, kv heads), threads: 32 × query heads of a kv head.
#define ATTENTION_PREFILL(NAME, T, KV)                                                                         \
  [[max_total_threads_per_threadgroup(256)]] kernel void NAME(                                                 \
      device const T* q [[buffer(0)]],               /* [rows × query heads × 256], scaled */                  \
      device const KV* pool [[buffer(1)]],           /* keys and values */                                     \
      device const uint* table [[buffer(2)]],        /* pages of the sequence */                               \
      device const float* projections [[buffer(3)]], /* [rows × stride]: a head's gate behind its query */     \
      device T* out [[buffer(4)]],                   /* [rows × query heads × 256] */                          \
      constant PrefillArgs& args [[buffer(5)]], uint2 group [[threadgroup_position_in_grid]],                  \
      uint2 groups [[threadgroups_per_grid]], uint tid [[thread_index_in_threadgroup]],                        \
      uint sg [[simdgroup_index_in_threadgroup]]) {                   \
    threadgroup uint4 staged[PREFILL_STAGED];                                                                  \
    attention_prefill(q, pool, table, projections, out, args, group, groups, tid, sg, staged); \
  }
ATTENTION_PREFILL(attention_prefill_f32, float, float)
ATTENTION_PREFILL(attention_prefill_bf16, bfloat, bfloat)
ATTENTION_PREFILL(attention_prefill_f32_q8, float, uchar)
ATTENTION_PREFILL(attention_prefill_bf16_q8, bfloat, uchar)
