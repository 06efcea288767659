// x[t] += Σ_j y[t, j] + sigmoid(shared gate's logit) · shared[t], then the norm of the next layer, as rms_norm writes it
// (docs/model.md §4.6). y holds the experts' outputs, already weighted. Grid: (tokens), threads: NORM_THREADS.
[[max_total_threads_per_threadgroup(256)]] kernel void moe_combine(
    device float* x [[buffer(0)]],            // [T × width], updated
    device const float* y [[buffer(1)]],      // [T × chosen × width]
    device const float* shared [[buffer(2)]], // [T × width]
    device const float* gate [[buffer(3)]],   // [T], `stride` apart
    device const float* weight [[buffer(4)]], // [width]
    device float* exact [[buffer(5)]],        // [T × width]
    device bfloat* rounded [[buffer(6)]],     // [T × width]
    constant CombineArgs& args [[buffer(7)]],
    uint t [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[NORM_THREADS / 32];
  const ulong row = ulong(t) * args.width;
  const float open = sigmoid(gate[ulong(t) * args.stride]);
  float sum = 0.0f;
  for (uint i = tid * 4; i < args.width; i += NORM_THREADS * 4) {
    float4 v = float4(0.0f);
    for (uint j = 0; j < args.chosen; j++)
      v = v + *(device const float4*)(y + (ulong(t) * args.chosen + j) * args.width + i);
    v = v + *(device const float4*)(shared + row + i) * open;
    const float4 before = *(device float4*)(x + row + i);
    v = before + v;
    *(device float4*)(x + row + i) = v;
    sum += dot(v, v);
  }
  if (args.outputs == 0) return; // all threads
  norm_write(x + row, sum, weight, exact + row, rounded + row, args.width, args.eps, args.outputs, partial, tid, lane, sg);
}
