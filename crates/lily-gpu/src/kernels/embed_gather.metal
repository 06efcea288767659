// out[t] = row tokens[t] of the 4-bit embedding. A lane expands 32 codes; two lanes share a group of 64, so that one
// loads its scale and the other its bias. Grid: (tokens), threads: a multiple of 32 that covers hidden / 32.
kernel void embed_gather(
    device const uint4* codes [[buffer(0)]],    // [vocab × hidden / 32]
    device const bfloat* scales [[buffer(1)]],  // [vocab × hidden / 64]
    device const bfloat* biases [[buffer(2)]],  // [vocab × hidden / 64]
    device const uint* tokens [[buffer(3)]],    // [T]
    device float* out [[buffer(4)]],            // [T × hidden]
    constant EmbedArgs& args [[buffer(5)]],
    uint t [[threadgroup_position_in_grid]],
    uint i [[thread_position_in_threadgroup]]) {
  const uint chunks = args.hidden / 32;
  const bool live = i < chunks;
  const ulong row = ulong(tokens[t]);
  const uint odd = i & 1;
  float mine = 0.0f;
  if (live) mine = float((odd ? biases : scales)[row * (chunks / 2) + i / 2]);
  const float other = simd_shuffle_xor(mine, 1);
  if (!live) return;
  const float scale = odd ? other : mine;
  const float bias = odd ? mine : other;
  const uint4 q = codes[row * chunks + i];
  device float4* to = (device float4*)(out + ulong(t) * args.hidden + i * 32);
  for (uint w = 0; w < 4; w++) {
    for (uint part = 0; part < 2; part++) {
      float4 v;
      for (uint j = 0; j < 4; j++) v[j] = scale * float((q[w] >> (16 * part + 4 * j)) & 15u) + bias;
      to[w * 2 + part] = v;
    }
  }
}
