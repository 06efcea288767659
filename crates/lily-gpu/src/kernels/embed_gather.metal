// out[t] = row tokens[t] of the embedding, of 4, 8 or 16 bits. A lane expands 32 columns; two lanes share a group of 64, so
// that one loads its scale and the other its bias. With `sums` also the sum of squares of each row, for the norm that
// follows. Grid: (tokens), threads: a multiple of 32 that covers hidden / 32.
template <int BITS>
inline float embed_row(
    device const uint4* codes, device const bfloat* scales, device const bfloat* biases, ulong row, device float* out,
    uint chunks, uint i) {
  const bool live = i < chunks;
  const uint odd = i & 1;
  float mine = 0.0f;
  if (BITS != 16 && live) mine = float((odd ? biases : scales)[row * (chunks / 2) + i / 2]);
  const float other = simd_shuffle_xor(mine, 1);
  const float scale = BITS == 16 ? 1.0f : odd ? other : mine;
  const float bias = BITS == 16 ? 0.0f : odd ? mine : other;
  float sum = 0.0f;
  if (live) {
    uint4 q[BITS / 4];
    for (int h = 0; h < BITS / 4; h++) q[h] = codes[(row * chunks + i) * (BITS / 4) + uint(h)];
    device float4* to = (device float4*)(out + i * 32);
    for (int w = 0; w < 4; w++) {
      float k[8];
      unpack8<BITS>(q, w, k);
      for (int part = 0; part < 2; part++) {
        float4 v;
        for (int j = 0; j < 4; j++) v[j] = scale * k[part * 4 + j] + bias;
        to[w * 2 + part] = v;
        sum += dot(v, v);
      }
    }
  }
  return sum;
}

[[max_total_threads_per_threadgroup(1024)]] kernel void embed_gather(
    device const uint4* codes [[buffer(0)]],   // [vocab × hidden × bits / 128]
    device const bfloat* scales [[buffer(1)]], // [vocab × hidden / 64]
    device const bfloat* biases [[buffer(2)]], // [vocab × hidden / 64]
    device const uint* tokens [[buffer(3)]],   // [T]
    device float* out [[buffer(4)]],           // [T × hidden]
    device float* sums [[buffer(5)]],          // [T]
    constant EmbedArgs& args [[buffer(6)]],
    uint t [[threadgroup_position_in_grid]],
    uint sgs [[simdgroups_per_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float partial[32];
  EARLY_BEGIN
  EARLY_END
  const uint chunks = args.hidden / 32;
  const uint i = sg * 32 + lane;
  const ulong row = ulong(tokens[t]);
  device float* to = out + ulong(t) * args.hidden;
  float sum;
  if (args.bits == 4)
    sum = embed_row<4>(codes, scales, biases, row, to, chunks, i);
  else if (args.bits == 8)
    sum = embed_row<8>(codes, scales, biases, row, to, chunks, i);
  else
    sum = embed_row<16>(codes, scales, biases, row, to, chunks, i);
  if (args.sums == 0) return; // all threads
  sum = simd_sum(sum);
  if (lane == 0) partial[sg] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 0) {
    for (uint s = 1; s < sgs; s++) sum += partial[s];
    sums[t] = sum;
  }
}
