// The way from projections to the delta rule (docs/model.md §4.4): causal convolution over four tokens and SiLU on the q, k
// and v channels; q and k of each head to unit length, q scaled by 128^-0.5 as well; log decay g and write strength β.
//
// A simdgroup takes one head of one token, a lane 4 of its 128 channels. The last token's taps are the new state: with
// one token a lane reads its old state before it writes, so that `past` and `next` may be the same buffer. With more
// they must differ. Grid: (heads / simdgroups, tokens, sequences), threads: 32 × simdgroups.
kernel void conv_silu(
    device const float* u [[buffer(0)]],       // [sequences × tokens × stride]: q | k | v | …
    device const float* past [[buffer(1)]],    // [slots × 3 × channels], oldest first
    device float* next [[buffer(2)]],          // the same after the last token
    device const uint* slots [[buffer(3)]],    // [sequences]
    device const bfloat4* weights [[buffer(4)]], // [channels × 4]; tap 3 is the current token
    device const float* a_log [[buffer(5)]],   // [value heads]
    device const float* dt_bias [[buffer(6)]], // [value heads]
    device float* qkv [[buffer(7)]],           // [sequences × tokens × channels]
    device float* gates [[buffer(8)]],         // [sequences × tokens × 2 × value heads]: g, then β
    constant ConvArgs& args [[buffer(9)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint sgs [[simdgroups_per_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint heads = 2 * args.key_heads + args.value_heads;
  const uint channels = heads * LINEAR_HEAD;
  const uint head = at.x * sgs + sg;
  if (head >= heads) return; // the whole simdgroup
  const uint t = at.y;
  const ulong row = ulong(at.z) * args.tokens + t;
  const uint channel = head * LINEAR_HEAD + lane * 4;
  const ulong state = ulong(slots[at.z]) * (CONV_TAPS - 1) * channels + channel;

  float4 taps[CONV_TAPS];
  for (uint j = 0; j < CONV_TAPS; j++) {
    if (t + j < CONV_TAPS - 1)
      taps[j] = *(device const float4*)(past + state + (t + j) * channels);
    else
      taps[j] = *(device const float4*)(u + (row + j - (CONV_TAPS - 1)) * args.stride + channel);
  }
  float4 c;
  for (uint i = 0; i < 4; i++) {
    const bfloat4 w = weights[channel + i];
    float sum = 0.0f;
    for (uint j = 0; j < CONV_TAPS; j++) sum = fma(float(w[j]), taps[j][i], sum);
    c[i] = silu(sum);
  }
  if (t + 1 == args.tokens)
    for (uint j = 1; j < CONV_TAPS; j++) *(device float4*)(next + state + (j - 1) * channels) = taps[j];

  const float square = simd_sum(dot(c, c));
  if (head < 2 * args.key_heads) {
    const float scale = head < args.key_heads ? 0.08838834764831845f : 1.0f; // 128^-0.5
    c = c * (scale / precise::sqrt(square + 1e-6f));
  } else if (lane == 0) {
    const uint h = head - 2 * args.key_heads;
    const ulong from = row * args.stride + args.gates + h;
    const float a = u[from];
    const float b = u[from + args.value_heads];
    const float rate = precise::exp(a_log[h]);
    gates[row * 2 * args.value_heads + h] = -rate * softplus(a + dt_bias[h]);
    gates[(row * 2 + 1) * args.value_heads + h] = sigmoid(b);
  }
  *(device float4*)(qkv + row * channels + channel) = c;
}
