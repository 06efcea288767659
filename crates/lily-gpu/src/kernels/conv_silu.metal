// The way from projections to the delta rule (docs/model.md §4.4): causal convolution over four tokens and SiLU on the q, k
// and v channels; q and k of each head to unit length, q scaled by 128^-0.5 as well; log decay g and write strength β.

#define Q_SCALE 0.08838834764831845f // 128^-0.5

// Row j of the four that token t sees, oldest first. u and past begin at the channels that are wanted; `past` is the oldest of
// the three rows before the first token.
inline float4 conv_tap(
    device const float* u, ulong row, uint stride, uint t, device const float* past, uint channels, uint j) {
  if (t + j < CONV_TAPS - 1) return *(device const float4*)(past + ulong(t + j) * channels);
  return *(device const float4*)(u + (row + j - (CONV_TAPS - 1)) * stride);
}

// Four channels: SiLU of their convolution, from the four rows. The weights begin at the first of the channels.
inline float4 convolved(thread const float4* taps, device const bfloat4* weights) {
  float4 c;
  for (uint i = 0; i < 4; i++) {
    const bfloat4 w = weights[i];
    float sum = 0.0f;
    for (uint j = 0; j < CONV_TAPS; j++) sum = fma(float(w[j]), taps[j][i], sum);
    c[i] = silu(sum);
  }
  return c;
}

// Of token t alone; `taps` becomes its rows.
inline float4 convolve4(
    device const float* u, ulong row, uint stride, uint t, device const float* past, uint channels,
    device const bfloat4* weights, thread float4* taps) {
  for (uint j = 0; j < CONV_TAPS; j++) taps[j] = conv_tap(u, row, stride, t, past, channels, j);
  return convolved(taps, weights);
}

// g of a value head, never positive.
inline float log_decay(float a, float a_log, float dt_bias) {
  const float rate = precise::exp(a_log);
  return -rate * softplus(a + dt_bias);
}

#define CONV_TOKENS 4u // of a simdgroup: a row is loaded for the first of them that sees it

// A simdgroup takes one head of CONV_TOKENS tokens, a lane 4 of its 128 channels. The last token's taps are the new state. The
// slot that is read and the one that is written differ: other tokens still read the first.
// Grid: (heads / simdgroups, tokens / CONV_TOKENS, sequences), threads: 32 × simdgroups.
kernel void conv_silu(
    device const float* u [[buffer(0)]],       // [sequences × tokens × stride]: q | k | v | …
    device float* state [[buffer(1)]],         // [slots × 3 × channels], oldest first
    device const uint* slots [[buffer(2)]],    // [sequences × 2]: past, next
    device const bfloat4* weights [[buffer(3)]], // [channels × 4]; tap 3 is the current token
    device const float* a_log [[buffer(4)]],   // [value heads]
    device const float* dt_bias [[buffer(5)]], // [value heads]
    device float* qkv [[buffer(6)]],           // [sequences × tokens × channels]
    device float* gates [[buffer(7)]],         // [sequences × tokens × 2 × value heads]: g, then β
    constant ConvArgs& args [[buffer(8)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint sgs [[simdgroups_per_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint heads = 2 * args.key_heads + args.value_heads;
  const uint channels = heads * LINEAR_HEAD;
  const uint head = at.x * sgs + sg;
  if (head >= heads) return; // the whole simdgroup
  const uint first = at.y * CONV_TOKENS;
  const ulong row0 = ulong(at.z) * args.tokens;
  const uint channel = head * LINEAR_HEAD + lane * 4;
  const ulong slot = ulong(CONV_TAPS - 1) * channels;
  device const float* past = state + slots[2 * at.z] * slot + channel;

  float4 taps[CONV_TAPS];
  for (uint j = 0; j + 1 < CONV_TAPS; j++)
    taps[j + 1] = conv_tap(u + channel, row0 + first, args.stride, first, past, channels, j);
  UNROLL
  for (uint i = 0; i < CONV_TOKENS; i++) {
    const uint t = first + i;
    if (t >= args.tokens) break; // the whole simdgroup
    const ulong row = row0 + t;
    for (uint j = 0; j + 1 < CONV_TAPS; j++) taps[j] = taps[j + 1];
    taps[CONV_TAPS - 1] = *(device const float4*)(u + channel + row * args.stride);
    float4 c = convolved(taps, weights + channel);
    if (t + 1 == args.tokens) {
      device float* next = state + slots[2 * at.z + 1] * slot + channel;
      for (uint j = 1; j < CONV_TAPS; j++) *(device float4*)(next + ulong(j - 1) * channels) = taps[j];
    }

    const float square = simd_sum(dot(c, c));
    if (head < 2 * args.key_heads) {
      c = c * ((head < args.key_heads ? Q_SCALE : 1.0f) / precise::sqrt(square + 1e-6f));
    } else if (lane == 0) {
      const uint h = head - 2 * args.key_heads;
      const ulong from = row * args.stride + args.gates + h;
      gates[row * 2 * args.value_heads + h] = log_decay(u[from], a_log[h], dt_bias[h]);
      gates[(row * 2 + 1) * args.value_heads + h] = sigmoid(u[from + args.value_heads]);
    }
    *(device float4*)(qkv + row * channels + channel) = c;
  }
}
