// y = x / sqrt(mean(x²) + eps) · weight for each row (docs/model.md §4.1), as F32, as BF16 or as both: the router and the
// gates take the one, matrix products the other. With `add` the row is first x += delta, which is written back: the
// residual stream and the norm after it in one dispatch. Grid: (rows), threads: NORM_THREADS.
#define NORM_THREADS 256u
#define NORM_F32 1u  // bits of `outputs`
#define NORM_BF16 2u

// Writes the normalised row; `sum`: this thread's squares. The row was written by the same thread where it was written.
// `partial`: one value a simdgroup. All threads of the threadgroup take part.
inline void norm_write(
    device const float* x, float sum, device const float* weight, device float* exact, device bfloat* rounded, uint width,
    float eps, uint outputs, threadgroup float* partial, uint tid, uint lane, uint sg) {
  sum = simd_sum(sum);
  if (lane == 0) partial[sg] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (uint i = 0; i < NORM_THREADS / 32; i++) total += partial[i];
  const float scale = 1.0f / precise::sqrt(total / float(width) + eps);
  for (uint i = tid * 4; i < width; i += NORM_THREADS * 4) {
    const float4 v = *(device const float4*)(x + i) * scale * *(device const float4*)(weight + i);
    if (outputs & NORM_F32) store4(exact + i, v);
    if (outputs & NORM_BF16) store4(rounded + i, v);
  }
}

[[max_total_threads_per_threadgroup(256)]] kernel void rms_norm(
    device float* x [[buffer(0)]],            // [T × width], updated with `add`
    device const float* delta [[buffer(1)]],  // [T × width], read with `add`
    device const float* weight [[buffer(2)]], // [width]
    device float* exact [[buffer(3)]],        // [T × width]
    device bfloat* rounded [[buffer(4)]],     // [T × width]
    constant NormArgs& args [[buffer(5)]],
    uint t [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[NORM_THREADS / 32];
  const ulong row = ulong(t) * args.width;
  float sum = 0.0f;
  for (uint i = tid * 4; i < args.width; i += NORM_THREADS * 4) {
    float4 v = *(device float4*)(x + row + i);
    if (args.add) {
      v = v + *(device const float4*)(delta + row + i);
      *(device float4*)(x + row + i) = v;
    }
    sum += dot(v, v);
  }
  norm_write(x + row, sum, weight, exact + row, rounded + row, args.width, args.eps, args.outputs, partial, tid, lane, sg);
}
