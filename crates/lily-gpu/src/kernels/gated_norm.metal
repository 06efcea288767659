// y = o / sqrt(mean(o²) + eps) · weight · silu(z) for each value head (end of docs/model.md §4.4).

// Four values of a head, whose other values the other lanes of the simdgroup have.
inline float4 gated_norm4(float4 o, float4 z, float4 weight, float eps) {
  const float scale = 1.0f / precise::sqrt(simd_sum(dot(o, o)) / float(LINEAR_HEAD) + eps);
  float4 y;
  for (uint i = 0; i < 4; i++) y[i] = o[i] * scale * weight[i] * silu(z[i]);
  return y;
}

// A simdgroup takes one head of one row. Grid: (value heads / simdgroups, rows), threads: 32 × simdgroups.
#define GATED_NORM(NAME, Y)                                                                                    \
  kernel void NAME(                                                                                            \
      device const float* o [[buffer(0)]],      /* [T × value heads × 128] */                                  \
      device const float* z [[buffer(1)]],      /* [T × stride], the first value heads × 128 of each row */    \
      device const float* weight [[buffer(2)]], /* [128] */                                                    \
      device Y* y [[buffer(3)]],                /* [T × value heads × 128] */                                  \
      constant GatedNormArgs& args [[buffer(4)]], uint2 at [[threadgroup_position_in_grid]],                   \
      uint sgs [[simdgroups_per_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],                     \
      uint lane [[thread_index_in_simdgroup]]) {                                                               \
    const uint head = at.x * sgs + sg;                                                                         \
    if (head >= args.value_heads) return; /* the whole simdgroup */                                            \
    const uint column = head * LINEAR_HEAD + lane * 4;                                                         \
    const ulong place = ulong(at.y) * args.value_heads * LINEAR_HEAD + column;                                 \
    const float4 v = *(device const float4*)(o + place);                                                       \
    const float4 gate = *(device const float4*)(z + ulong(at.y) * args.stride + column);                       \
    const float4 w = *(device const float4*)(weight + lane * 4);                                               \
    store4(y + place, gated_norm4(v, gate, w, args.eps));                                                      \
  }
GATED_NORM(gated_norm_f32, float)
GATED_NORM(gated_norm_bf16, bfloat)
