// The experts of a token (docs/model.md §4.6): the largest router logits, ties to the lower index, in descending order;
// their weights are the softmax over the chosen logits, which equals the renormalised softmax over all. F32 throughout.
// A simdgroup takes a token. Grid: (tokens / simdgroups), threads: 32 × simdgroups.
#define ROUTE_LOGITS 8u // a lane's: at most 256 experts
#define ROUTE_CHOSEN 8u

kernel void moe_route(
    device const float* logits [[buffer(0)]], // [T × stride]
    device uint* experts [[buffer(1)]],       // [T × chosen]
    device float* weights [[buffer(2)]],      // [T × chosen]
    constant RouteArgs& args [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint sgs [[simdgroups_per_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint t = group * sgs + sg;
  if (t >= args.tokens) return; // the whole simdgroup
  float mine[ROUTE_LOGITS];
  for (uint j = 0; j < ROUTE_LOGITS; j++) {
    const uint e = j * 32 + lane;
    mine[j] = e < args.experts ? logits[ulong(t) * args.stride + e] : -INFINITY;
  }
  float best[ROUTE_CHOSEN];
  float total = 0.0f;
  for (uint n = 0; n < args.chosen; n++) {
    float value = -INFINITY;
    uint index = 0xffffffffu;
    for (uint j = 0; j < ROUTE_LOGITS; j++)
      if (mine[j] > value) {
        value = mine[j];
        index = j * 32 + lane;
      }
    const float top = simd_max(value);
    const uint chosen = simd_min(value == top ? index : 0xffffffffu);
    for (uint j = 0; j < ROUTE_LOGITS; j++)
      if (j * 32 + lane == chosen) mine[j] = -INFINITY;
    best[n] = n == 0 ? top : precise::exp(top - best[0]);
    total += n == 0 ? 1.0f : best[n];
    if (lane == 0) experts[ulong(t) * args.chosen + n] = chosen;
  }
  best[0] = 1.0f;
  for (uint n = 0; n < args.chosen; n++)
    if (lane == n) weights[ulong(t) * args.chosen + n] = best[n] / total;
}
