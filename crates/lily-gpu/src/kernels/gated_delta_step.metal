// The gated delta rule, token after token (docs/model.md §4.4). The state lies as [value × key], transposed against the
// text, so that a simdgroup holds whole rows in registers: it is read once and written once a dispatch, coalesced.
//
//   S ← exp(g) S;  d = β (v − S k);  S ← S + d kᵀ;  o = S q
//
// A simdgroup takes DELTA_ROWS values of one value head. Grid: (128 / (rows × simdgroups), value heads, sequences),
// threads: 32 × simdgroups.
#define DELTA_ROWS 4u

kernel void gated_delta_step(
    device const float* qkv [[buffer(0)]],   // [sequences × tokens × (q | k | v)], q scaled
    device const float* gates [[buffer(1)]], // [sequences × tokens × 2 × value heads]: g, then β
    device float* state [[buffer(2)]],       // [slots × value heads × 128 × 128]
    device const uint* slots [[buffer(3)]],  // [sequences]
    device float* out [[buffer(4)]],         // [sequences × tokens × value heads × 128]
    constant DeltaArgs& args [[buffer(5)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint sgs [[simdgroups_per_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint head = at.y;
  const uint key_head = head / (args.value_heads / args.key_heads);
  const uint row0 = (at.x * sgs + sg) * DELTA_ROWS;
  const uint key_dim = args.key_heads * LINEAR_HEAD;
  const uint channels = 2 * key_dim + args.value_heads * LINEAR_HEAD;
  device float* from =
      state + ((ulong(slots[at.z]) * args.value_heads + head) * LINEAR_HEAD + row0) * LINEAR_HEAD + lane * 4;
  float4 s[DELTA_ROWS];
  for (uint r = 0; r < DELTA_ROWS; r++) s[r] = *(device float4*)(from + r * LINEAR_HEAD);

  for (uint t = 0; t < args.tokens; t++) {
    const ulong row = ulong(at.z) * args.tokens + t;
    device const float* c = qkv + row * channels;
    const float4 q = *(device const float4*)(c + key_head * LINEAR_HEAD + lane * 4);
    const float4 k = *(device const float4*)(c + key_dim + key_head * LINEAR_HEAD + lane * 4);
    const float decay = precise::exp(gates[row * 2 * args.value_heads + head]);
    const float beta = gates[(row * 2 + 1) * args.value_heads + head];
    for (uint r = 0; r < DELTA_ROWS; r++) {
      s[r] = s[r] * decay;
      const float memory = simd_sum(dot(s[r], k));
      const float v = c[2 * key_dim + head * LINEAR_HEAD + row0 + r];
      s[r] = s[r] + k * (beta * (v - memory));
      const float o = simd_sum(dot(s[r], q));
      if (lane == r) out[(row * args.value_heads + head) * LINEAR_HEAD + row0 + r] = o;
    }
  }
  for (uint r = 0; r < DELTA_ROWS; r++) *(device float4*)(from + r * LINEAR_HEAD) = s[r];
}
