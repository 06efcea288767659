// The experts of decoded tokens (docs/model.md §4.6) in two dispatches: each token's chosen experts and the shared one,
// nothing sorted. A matrix's bytes are loaded once for each token that chose its expert.
#define STEP_SIMDGROUPS 4u
#define STEP_SLOTS 9u // at most eight chosen experts and the shared one
#define STEP_ROWS 64u // rows of a threadgroup of moe_down_step, at most

// act = w · silu(gate · n) ⊙ (up · n) with n = norm(x), for each chosen expert and for the shared one, whose w is the
// sigmoid of its gate's logit. Every threadgroup chooses the experts anew, which is cheaper than a dispatch for it.
// Grid: (rows, slots, batch), threads: 32 × STEP_SIMDGROUPS.
[[max_total_threads_per_threadgroup(128)]] kernel void moe_gate_up_step(
    device const uint4* gate_codes [[buffer(0)]], device const bfloat* gate_scales [[buffer(1)]],
    device const bfloat* gate_biases [[buffer(2)]], device const uint4* up_codes [[buffer(3)]],
    device const bfloat* up_scales [[buffer(4)]], device const bfloat* up_biases [[buffer(5)]],
    device const uint4* shared_gate_codes [[buffer(6)]], device const bfloat* shared_gate_scales [[buffer(7)]],
    device const bfloat* shared_gate_biases [[buffer(8)]], device const uint4* shared_up_codes [[buffer(9)]],
    device const bfloat* shared_up_scales [[buffer(10)]], device const bfloat* shared_up_biases [[buffer(11)]],
    device const float* x [[buffer(12)]],        // [batch × hidden]
    device const float* weight [[buffer(13)]],   // [hidden]
    device const float* partials [[buffer(14)]], // [batch × partials]
    device const float* logits [[buffer(15)]],   // [batch × stride]: experts, then the shared expert's gate
    device uint* experts [[buffer(16)]],         // [batch × chosen]
    device float* act [[buffer(17)]],            // [batch × (chosen × width + shared_width)]
    constant GateUpStepArgs& args [[buffer(18)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 tile[GEMV_TILE(1)];
  threadgroup uint expert_of_slot[1];
  threadgroup float weight_of_slot[1];
  const uint slot = at.y;
  const ulong b = at.z;
  device const float* of_token = logits + b * args.stride;
  if (sg == 0) {
    if (slot < args.chosen) {
      uint expert;
      float share;
      route_token(of_token, args.experts, args.chosen, lane, expert, share);
      if (lane == slot) {
        expert_of_slot[0] = expert;
        weight_of_slot[0] = share;
      }
      if (at.x == 0 && slot == 0 && lane < args.chosen) experts[b * args.chosen + lane] = expert;
    } else if (lane == 0) {
      expert_of_slot[0] = 0;
      weight_of_slot[0] = sigmoid(of_token[args.experts]);
    }
  }
  const float scale = norm_scale(partials + b * args.partials, args.partials, args.hidden, args.eps, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const bool routed = slot < args.chosen;
  const uint packs = 32 / args.lanes;
  const uint row0 = (at.x * STEP_SIMDGROUPS + sg) * GEMV_ROWS * packs;
  GemvMatrix m;
  m.bits = routed ? args.bits : args.shared_bits;
  m.rows = routed ? args.width : args.shared_width;
  m.columns = args.hidden, m.lanes = args.lanes;
  GemvInput in;
  in.x = x + b * args.hidden, in.weight = weight, in.stride = args.hidden, in.batch = 1, in.norm = true;
  // Chunks of 32 columns before the expert's first row.
  const ulong chunks = routed ? ulong(expert_of_slot[0]) * args.width * (args.hidden / 32) : 0;
  float gate[GEMV_ROWS], up[GEMV_ROWS];
  m.codes = (routed ? gate_codes : shared_gate_codes) + chunks * (m.bits / 4);
  m.scales = (routed ? gate_scales : shared_gate_scales) + chunks / 2;
  m.biases = (routed ? gate_biases : shared_gate_biases) + chunks / 2;
  gemv_matrix<1, true>(m, in, row0, tile, sg * 32 + lane, STEP_SIMDGROUPS * 32, lane, gate);
  m.codes = (routed ? up_codes : shared_up_codes) + chunks * (m.bits / 4);
  m.scales = (routed ? up_scales : shared_up_scales) + chunks / 2;
  m.biases = (routed ? up_biases : shared_up_biases) + chunks / 2;
  gemv_matrix<1, true>(m, in, row0, tile, sg * 32 + lane, STEP_SIMDGROUPS * 32, lane, up);
  device float* out = act + b * (args.chosen * args.width + args.shared_width) + slot * args.width;
  for (int r = 0; r < GEMV_ROWS; r++) {
    const uint row = row0 + uint(r) * packs + lane / args.lanes;
    const float g = row_sum(gate[r], args.lanes) * scale;
    const float u = row_sum(up[r], args.lanes) * scale;
    if (lane % args.lanes == 0 && row < m.rows) out[row] = weight_of_slot[0] * silu(g) * u;
  }
}

// x += Σ down · act over the chosen experts, in their order, and the shared one; sums of squares of the new x. A simdgroup
// takes an expert. Grid: (rows, batch), threads: 32 × (chosen + 1).
[[max_total_threads_per_threadgroup(288)]] kernel void moe_down_step(
    device const uint4* codes [[buffer(0)]], device const bfloat* scales [[buffer(1)]],
    device const bfloat* biases [[buffer(2)]], device const uint4* shared_codes [[buffer(3)]],
    device const bfloat* shared_scales [[buffer(4)]], device const bfloat* shared_biases [[buffer(5)]],
    device const uint* experts [[buffer(6)]], // [batch × chosen]
    device const float* act [[buffer(7)]],    // [batch × (chosen × width + shared_width)]
    device float* x [[buffer(8)]],            // [batch × hidden], updated
    device float* sums [[buffer(9)]],         // [batch × threadgroups in x]
    constant DownStepArgs& args [[buffer(10)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[STEP_SLOTS * STEP_ROWS];
  threadgroup float4 unused[1]; // each simdgroup has an input of its own, and reads it directly
  const ulong b = at.y;
  const uint packs = 32 / args.lanes;
  const uint block = GEMV_ROWS * packs;
  const uint row0 = at.x * block;
  const bool routed = sg < args.chosen;
  GemvMatrix m;
  m.bits = routed ? args.bits : args.shared_bits;
  m.rows = args.hidden, m.lanes = args.lanes;
  m.columns = routed ? args.width : args.shared_width;
  const ulong chunks = routed ? ulong(experts[b * args.chosen + sg]) * args.hidden * (args.width / 32) : 0;
  m.codes = (routed ? codes : shared_codes) + chunks * (m.bits / 4);
  m.scales = (routed ? scales : shared_scales) + chunks / 2;
  m.biases = (routed ? biases : shared_biases) + chunks / 2;
  GemvInput in;
  in.x = act + b * (args.chosen * args.width + args.shared_width) + sg * args.width;
  in.weight = in.x, in.stride = 0, in.batch = 1, in.norm = false;
  float acc[GEMV_ROWS];
  gemv_matrix<1, false>(m, in, row0, unused, 0, 0, lane, acc);
  for (int r = 0; r < GEMV_ROWS; r++) {
    const float t = row_sum(acc[r], args.lanes);
    if (lane % args.lanes == 0) parts[sg * block + uint(r) * packs + lane / args.lanes] = t;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (sg > 0) return; // no barrier follows
  float square = 0.0f;
  for (uint i = lane; i < block; i += 32) {
    if (row0 + i < args.hidden) {
      float t = 0.0f;
      for (uint s = 0; s <= args.chosen; s++) t += parts[s * block + i];
      const ulong place = b * args.hidden + row0 + i;
      t += x[place];
      x[place] = t;
      square += t * t;
    }
  }
  square = simd_sum(square);
  if (lane == 0) sums[b * groups.x + at.x] = square;
}
