// y = x / sqrt(mean(x²) + eps) · weight for each row (docs/model.md §4.1). With ADD the row is first x += delta, which is
// written back: the residual stream and the norm after it in one dispatch. Grid: (rows), threads: NORM_THREADS.
#define NORM_THREADS 256u

template <typename Y>
inline void store4(device Y* y, float4 v) {
  for (int i = 0; i < 4; i++) y[i] = Y(v[i]);
}
inline void store4(device float* y, float4 v) { *(device float4*)y = v; }

// x is re-read in the second pass by the thread that wrote it. `partial`: one value a simdgroup.
template <bool ADD, typename Y>
inline void norm_row(
    device float* x, device const float* delta, device const float* weight, device Y* y, constant NormArgs& args,
    threadgroup float* partial, uint tid, uint lane, uint sg) {
  float sum = 0.0f;
  for (uint i = tid * 4; i < args.width; i += NORM_THREADS * 4) {
    float4 v = *(device float4*)(x + i);
    if (ADD) {
      const float4 d = *(device const float4*)(delta + i);
      v = v + d;
      *(device float4*)(x + i) = v;
    }
    sum += dot(v, v);
  }
  sum = simd_sum(sum);
  if (lane == 0) partial[sg] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (uint i = 0; i < NORM_THREADS / 32; i++) total += partial[i];
  const float scale = 1.0f / precise::sqrt(total / float(args.width) + args.eps);
  for (uint i = tid * 4; i < args.width; i += NORM_THREADS * 4) {
    const float4 v = *(device float4*)(x + i);
    const float4 w = *(device const float4*)(weight + i);
    store4(y + i, v * scale * w);
  }
}

#define ADD_RMS_NORM(NAME, Y)                                                                                  \
  [[max_total_threads_per_threadgroup(256)]] kernel void NAME(                                                 \
      device float* x [[buffer(0)]],            /* [T × width], updated */                                     \
      device const float* delta [[buffer(1)]],  /* [T × width] */                                              \
      device const float* weight [[buffer(2)]], /* [width] */                                                  \
      device Y* y [[buffer(3)]],                /* [T × width] */                                              \
      constant NormArgs& args [[buffer(4)]], uint t [[threadgroup_position_in_grid]],                          \
      uint tid [[thread_position_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],                    \
      uint sg [[simdgroup_index_in_threadgroup]]) {                                                            \
    threadgroup float partial[NORM_THREADS / 32];                                                              \
    const ulong row = ulong(t) * args.width;                                                                   \
    norm_row<true>(x + row, delta + row, weight, y + row, args, partial, tid, lane, sg);                       \
  }
ADD_RMS_NORM(add_rms_norm_f32, float)
ADD_RMS_NORM(add_rms_norm_bf16, bfloat)

#define RMS_NORM(NAME, Y)                                                                                      \
  [[max_total_threads_per_threadgroup(256)]] kernel void NAME(                                                 \
      device float* x [[buffer(0)]],            /* [T × width] */                                              \
      device const float* weight [[buffer(1)]], /* [width] */                                                  \
      device Y* y [[buffer(2)]],                /* [T × width] */                                              \
      constant NormArgs& args [[buffer(3)]], uint t [[threadgroup_position_in_grid]],                          \
      uint tid [[thread_position_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],                    \
      uint sg [[simdgroup_index_in_threadgroup]]) {                                                            \
    threadgroup float partial[NORM_THREADS / 32];                                                              \
    const ulong row = ulong(t) * args.width;                                                                   \
    norm_row<false>(x + row, weight, weight, y + row, args, partial, tid, lane, sg);                           \
  }
RMS_NORM(rms_norm_f32, float)
RMS_NORM(rms_norm_bf16, bfloat)
