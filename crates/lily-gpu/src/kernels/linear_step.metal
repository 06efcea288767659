// One token of linear attention between its projections (docs/model.md §4.4), for each sequence of a batch: convolution, unit
// q and k, gates, delta rule and gated norm. A threadgroup takes one value head:
//
//   S ← exp(g) S;  d = β (v − S k);  S ← S + d kᵀ;  o = S q;  y = norm(o) ⊙ silu(z)
//
// The state lies as [value × key], transposed against the text, so that a simdgroup holds whole rows in registers: it is
// read once and written once, coalesced, and its loads are under way while the convolution runs. Value heads that share a
// key head all compute its q and k; the first of them writes their part of the convolution state.
// Grid: (value heads, batch), threads: 512.
#define STEP_ROWS 8u

[[max_total_threads_per_threadgroup(512)]] kernel void linear_step(
    device const float* u [[buffer(0)]],         // [batch × stride]: q | k | v | … z … a | b
    device float* conv [[buffer(1)]],            // [slots × 3 × channels], oldest first
    device float* state [[buffer(2)]],           // [slots × value heads × 128 × 128]
    device const uint* slots [[buffer(3)]],      // [batch × 2]: past, next
    device const bfloat4* weights [[buffer(4)]], // [channels × 4]; tap 3 is the current token
    device const float* a_log [[buffer(5)]],     // [value heads]
    device const float* dt_bias [[buffer(6)]],   // [value heads]
    device const float* norm [[buffer(7)]],      // [128]
    device float* y [[buffer(8)]],               // [batch × value heads × 128]
    constant LinearStepArgs& args [[buffer(9)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 parts[3 * 32]; // q, k and v of this head
  threadgroup float gates[2];       // decay exp(g), β
  threadgroup float o[LINEAR_HEAD];
  EARLY_BEGIN
  const uint head = at.x;
  const uint share = args.value_heads / args.key_heads;
  const uint key_dim = args.key_heads * LINEAR_HEAD;
  const uint channels = 2 * key_dim + args.value_heads * LINEAR_HEAD;
  const ulong past = slots[2 * at.y], next = slots[2 * at.y + 1];
  device const float* own = u + ulong(at.y) * args.stride;

  const uint row0 = sg * STEP_ROWS;
  const ulong place = (ulong(head) * LINEAR_HEAD + row0) * LINEAR_HEAD + lane * 4;
  const ulong slot = ulong(args.value_heads) * LINEAR_HEAD * LINEAR_HEAD;
  float4 s[STEP_ROWS];
  for (uint r = 0; r < STEP_ROWS; r++) s[r] = *(device float4*)(state + past * slot + place + r * LINEAR_HEAD);
  EARLY_END

  // Simdgroups 0 to 2 convolve; the fourth computes the gates and, at the end, the norm.
  const uint column = head * LINEAR_HEAD + lane * 4;
  float4 z = float4(0.0f), w = float4(0.0f);
  if (sg < 3) {
    const uint part = sg == 2 ? 2 * args.key_heads + head : sg * args.key_heads + head / share;
    const uint channel = part * LINEAR_HEAD + lane * 4;
    const ulong conv_slot = ulong(CONV_TAPS - 1) * channels;
    float4 taps[CONV_TAPS];
    float4 c = convolve4(own + channel, 0, args.stride, 0, conv + past * conv_slot + channel, channels, weights + channel, taps);
    if (sg == 2 || head % share == 0) {
      device float* to = conv + next * conv_slot + channel;
      for (uint j = 1; j < CONV_TAPS; j++) *(device float4*)(to + ulong(j - 1) * channels) = taps[j];
    }
    const float square = simd_sum(dot(c, c));
    if (sg < 2) c = c * ((sg == 0 ? Q_SCALE : 1.0f) / precise::sqrt(square + 1e-6f));
    parts[sg * 32 + lane] = c;
  } else if (sg == 3) {
    z = *(device const float4*)(own + args.z + column);
    w = *(device const float4*)(norm + lane * 4);
    if (lane == 0) {
      gates[0] = precise::exp(log_decay(own[args.gates + head], a_log[head], dt_bias[head]));
      gates[1] = sigmoid(own[args.gates + args.value_heads + head]);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const float4 q = parts[lane], k = parts[32 + lane];
  const float decay = gates[0], beta = gates[1];
  threadgroup const float* v = (threadgroup const float*)(parts + 64);
  float mine = 0.0f;
  for (uint r = 0; r < STEP_ROWS; r++) {
    s[r] = s[r] * decay;
    const float memory = simd_sum(dot(s[r], k));
    s[r] = s[r] + k * (beta * (v[row0 + r] - memory));
    *(device float4*)(state + next * slot + place + r * LINEAR_HEAD) = s[r];
    const float out = simd_sum(dot(s[r], q));
    mine = lane == r ? out : mine;
  }
  if (lane < STEP_ROWS) o[row0 + lane] = mine;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (sg == 3) {
    const float4 all = float4(o[lane * 4], o[lane * 4 + 1], o[lane * 4 + 2], o[lane * 4 + 3]);
    *(device float4*)(y + ulong(at.y) * args.value_heads * LINEAR_HEAD + column) = gated_norm4(all, z, w, args.eps);
  }
}
