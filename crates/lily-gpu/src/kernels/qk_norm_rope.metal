// From the projections of full attention to queries and to the cache (docs/model.md §4.2, §4.3): RMS norm of each query and
// key head, rotation of the first 64 of its 256 dims, queries scaled by 1/16; keys and values go to their pages.
//
// A simdgroup takes one head of one row; a lane holds the dims lane, lane + 32, … so that the two halves of a rotated pair
// lie in one lane. Angles reach 262,143 rad: precise::sin and precise::cos are good to 4 ulp at any size (their fast forms
// are not), on the emulator and in CUDA likewise. Grid: (heads / simdgroups, rows), threads: 32 × simdgroups.
template <typename Q, typename KV>
inline void qk_norm_rope(
    device const float* x, device const float* q_norm, device const float* k_norm, device const float* inv_freq,
    device const uint* positions, device const uint* table, device Q* q, device KV* pool, constant QkArgs& args, uint head,
    uint row, uint lane) {
  const uint kv_heads = args.kv_heads;
  const bool is_query = head < args.query_heads;
  const uint kv = is_query ? 0u : head - args.query_heads; // keys, then values
  const uint position = args.decode != 0 ? positions[row] : args.start + row;
  // A query head's 256 values are followed by its gate's.
  const uint at = is_query ? head * 2 * FULL_HEAD : (2 * args.query_heads + kv) * FULL_HEAD;
  device const float* from = x + ulong(row) * args.stride + at + lane;
  float v[8];
  for (uint i = 0; i < 8; i++) v[i] = from[i * 32];

  float square = 0.0f;
  for (uint i = 0; i < 8; i++) square = fma(v[i], v[i], square);
  square = simd_sum(square);
  if (kv < kv_heads) { // not a value head
    const float scale = 1.0f / precise::sqrt(square / float(FULL_HEAD) + args.eps);
    device const float* weight = (is_query ? q_norm : k_norm) + lane;
    for (uint i = 0; i < 8; i++) v[i] = v[i] * scale * weight[i * 32];
    const float angle = float(position) * inv_freq[lane];
    const float s = precise::sin(angle);
    const float c = precise::cos(angle);
    const float a = v[0];
    const float b = v[1];
    v[0] = a * c - b * s;
    v[1] = b * c + a * s;
  }
  if (is_query) {
    device Q* to = q + (ulong(row) * args.query_heads + head) * FULL_HEAD + lane;
    for (uint i = 0; i < 8; i++) to[i * 32] = Q(v[i] * 0.0625f); // 256^-0.5
  } else {
    device const uint* pages = table + (args.decode != 0 ? ulong(row) * args.table_stride : ulong(0));
    const uint part = kv < kv_heads ? KV_KEYS : KV_VALUES;
    const ulong plane = kv_plane(kv_heads, part, kv % kv_heads, KvRow<KV>::length);
    kv_store(pool + plane + kv_place(pages, args.page_stride, position, KvRow<KV>::length), v, lane);
  }
}

#define QK_NORM_ROPE(NAME, Q, KV)                                                                              \
  kernel void NAME(                                                                                            \
      device const float* x [[buffer(0)]],        /* [rows × stride]: query and gate a head, keys, values */   \
      device const float* q_norm [[buffer(1)]],   /* [256] */                                                  \
      device const float* k_norm [[buffer(2)]],   /* [256] */                                                  \
      device const float* inv_freq [[buffer(3)]], /* [32] */                                                   \
      device const uint* positions [[buffer(4)]], /* [rows], decode */                                         \
      device const uint* table [[buffer(5)]],     /* pages of each sequence */                                 \
      device Q* q [[buffer(6)]],                  /* [rows × query heads × 256] */                             \
      device KV* pool [[buffer(7)]], constant QkArgs& args [[buffer(8)]],                                      \
      uint2 group [[threadgroup_position_in_grid]], uint sgs [[simdgroups_per_threadgroup]],                   \
      uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {                   \
    EARLY_BEGIN                                                                                                \
    EARLY_END                                                                                                  \
    const uint head = group.x * sgs + sg;                                                                      \
    if (head >= args.query_heads + 2 * args.kv_heads) return; /* the whole simdgroup */                        \
    qk_norm_rope(x, q_norm, k_norm, inv_freq, positions, table, q, pool, args, head, group.y, lane);           \
  }
QK_NORM_ROPE(qk_norm_rope_f32_f32, float, float)
QK_NORM_ROPE(qk_norm_rope_f32_bf16, float, bfloat)
QK_NORM_ROPE(qk_norm_rope_bf16_bf16, bfloat, bfloat)
QK_NORM_ROPE(qk_norm_rope_f32_q8, float, uchar)
QK_NORM_ROPE(qk_norm_rope_bf16_q8, bfloat, uchar)
