// The experts of a token (docs/model.md §4.6): the largest router logits, ties to the lower index, in descending order;
// their weights are the softmax over the chosen logits, which equals the renormalised softmax over all. F32 throughout.
#define ROUTE_LOGITS 8u // a lane's: at most 256 experts
#define ROUTE_CHOSEN 8u

// A simdgroup chooses for one token: lane n < chosen gets the n-th expert and its weight.
inline void route_token(
    device const float* logits, uint experts, uint chosen, uint lane, thread uint& expert, thread float& weight) {
  float mine[ROUTE_LOGITS];
  for (uint j = 0; j < ROUTE_LOGITS; j++) {
    const uint e = j * 32 + lane;
    mine[j] = e < experts ? logits[e] : -INFINITY;
  }
  float best = 0.0f;
  float total = 0.0f;
  expert = 0;
  weight = 0.0f;
  for (uint n = 0; n < chosen; n++) {
    float value = -INFINITY;
    uint index = 0xffffffffu;
    for (uint j = 0; j < ROUTE_LOGITS; j++)
      if (mine[j] > value) {
        value = mine[j];
        index = j * 32 + lane;
      }
    const float top = simd_max(value);
    const uint at = simd_min(value == top ? index : 0xffffffffu);
    for (uint j = 0; j < ROUTE_LOGITS; j++)
      if (j * 32 + lane == at) mine[j] = -INFINITY;
    best = n == 0 ? top : best;
    const float e = n == 0 ? 1.0f : precise::exp(top - best);
    total += e;
    if (lane == n) {
      // Logits without a largest value (NaN) must not name an expert that does not exist.
      expert = min(at, experts - 1);
      weight = e;
    }
  }
  weight /= total;
}

// A simdgroup takes a token. Grid: (tokens / simdgroups), threads: 32 × simdgroups.
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
  uint expert;
  float weight;
  route_token(logits + ulong(t) * args.stride, args.experts, args.chosen, lane, expert, weight);
  if (lane < args.chosen) {
    experts[ulong(t) * args.chosen + lane] = expert;
    weights[ulong(t) * args.chosen + lane] = weight;
  }
}
