// The delta rule of prefill in 8 × 8 steps (gated_delta_layout.metal).
#define DELTA_STAGE_LD 36u // 32 of a row's 128 values and a pad that spreads the rows over the banks

typedef simdgroup_matrix<float, 8, 8> DeltaTile;

// Row and column of a lane's two elements of a tile, which differ from device to device: read off a tile that counts.
inline void delta_places(threadgroup float* numbers, uint tid, thread uint* row, thread uint* column) {
  if (tid < 64) numbers[tid] = float(tid);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  DeltaTile m;
  simdgroup_load(m, numbers, 8);
  for (uint e = 0; e < 2; e++) {
    const uint n = uint(m.thread_elements()[e]);
    row[e] = n / 8;
    column[e] = n % 8;
  }
}

// T of one value head from −A, and the inverses of I + A's diagonal tiles. Simdgroup s takes the columns of tiles s and 7 − s,
// as long together for each s: a column needs T of itself only, which stays in registers.
inline void delta_inverse(
    threadgroup const float* minus_a, threadgroup float* diagonal, device float* scratch, uint sg, uint lane) {
  if (lane < 16) {
    // Forward substitution, one column a lane.
    const uint d = lane < 8 ? sg : 7 - sg, column = lane % 8;
    threadgroup const float* a = minus_a + delta_tile(d, d);
    float x[8];
    UNROLL
    for (uint i = 0; i < 8; i++) {
      float sum = i == column ? 1.0f : 0.0f;
      UNROLL
      for (uint m = 0; m < i; m++) sum = fma(a[i * 8 + m], x[m], sum);
      x[i] = sum;
      diagonal[d * 64 + i * 8 + column] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint side = 0; side < 2; side++) {
    const uint j = side == 0 ? sg : 7 - sg;
    DeltaTile t[8];
    UNROLL
    for (uint i = 0; i < 8; i++) {
      if (i < j) continue;
      simdgroup_load(t[i], diagonal + i * 64, 8);
      if (i > j) {
        DeltaTile sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        UNROLL
        for (uint m = 0; m < i; m++) {
          if (m < j) continue;
          DeltaTile a;
          simdgroup_load(a, minus_a + delta_tile(i, m), 8);
          simdgroup_multiply_accumulate(sum, a, t[m], sum);
        }
        DeltaTile inverse = t[i];
        DeltaTile none = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        simdgroup_multiply_accumulate(t[i], inverse, sum, none);
      }
      simdgroup_store(t[i], scratch + delta_tile(i, j), 8);
    }
  }
}

// Simdgroup s takes the rows of tiles s and 7 − s of both triangles: 9 tiles each for every s. q kᵀ and k kᵀ are computed once
// for the value heads that share a key head. Grid: (blocks, key heads), threads: 128.
[[max_total_threads_per_threadgroup(128)]] kernel void gated_delta_chunk_prepare(
    device const float* qkv [[buffer(0)]],   // [tokens × (q | k | v)], q scaled
    device const float* gates [[buffer(1)]], // [tokens × 2 × value heads]: g, then β
    device float* scratch [[buffer(2)]],     // [blocks × value heads × DELTA_SCRATCH]
    constant DeltaChunkArgs& args [[buffer(3)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 stage[2 * DELTA_BLOCK * DELTA_STAGE_LD / 4]; // parts of k and q; then −A and diagonal inverses
  threadgroup float high[DELTA_BLOCK];
  threadgroup float low[DELTA_BLOCK];
  threadgroup float beta[DELTA_BLOCK];
  threadgroup float numbers[64];
  threadgroup float* k_stage = (threadgroup float*)stage;
  threadgroup float* q_stage = k_stage + DELTA_BLOCK * DELTA_STAGE_LD;
  uint row[2], column[2];
  delta_places(numbers, tid, row, column);

  const uint block = at.x, key_head = at.y;
  const uint begin = delta_begin(args, block), count = delta_count(args, block);
  const uint key_dim = args.key_heads * LINEAR_HEAD;
  const uint channels = 2 * key_dim + args.value_heads * LINEAR_HEAD;
  device const float* from = qkv + ulong(begin) * channels + key_head * LINEAR_HEAD;

  DeltaTile kk[9], qk[9];
  for (uint p = 0; p < 9; p++) kk[p] = qk[p] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint part = 0; part < LINEAR_HEAD / 32; part++) {
    for (uint i = tid; i < 2 * DELTA_BLOCK * 8; i += 128) {
      const uint q = i / (DELTA_BLOCK * 8), t = i / 8 % DELTA_BLOCK, c = i % 8;
      float4 v = float4(0.0f);
      if (t < count) v = *(device const float4*)(from + ulong(t) * channels + (q ? 0u : key_dim) + part * 32 + c * 4);
      stage[(q * DELTA_BLOCK + t) * (DELTA_STAGE_LD / 4) + c] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint d = 0; d < 32; d += 8) {
      DeltaTile k0, k1, q0, q1;
      simdgroup_load(k0, k_stage + sg * 8 * DELTA_STAGE_LD + d, DELTA_STAGE_LD);
      simdgroup_load(k1, k_stage + (7 - sg) * 8 * DELTA_STAGE_LD + d, DELTA_STAGE_LD);
      simdgroup_load(q0, q_stage + sg * 8 * DELTA_STAGE_LD + d, DELTA_STAGE_LD);
      simdgroup_load(q1, q_stage + (7 - sg) * 8 * DELTA_STAGE_LD + d, DELTA_STAGE_LD);
      UNROLL
      for (uint p = 0; p < 9; p++) {
        const uint j = p <= sg ? p : p - sg - 1;
        DeltaTile other;
        simdgroup_load(other, k_stage + j * 8 * DELTA_STAGE_LD + d, DELTA_STAGE_LD, ulong2(0, 0), true);
        if (p <= sg) {
          simdgroup_multiply_accumulate(kk[p], k0, other, kk[p]);
          simdgroup_multiply_accumulate(qk[p], q0, other, qk[p]);
        } else {
          simdgroup_multiply_accumulate(kk[p], k1, other, kk[p]);
          simdgroup_multiply_accumulate(qk[p], q1, other, qk[p]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  const uint share = args.value_heads / args.key_heads;
  threadgroup float* minus_a = k_stage;
  threadgroup float* diagonal = k_stage + DELTA_TILES * 64;
  for (uint h = 0; h < share; h++) {
    const uint head = key_head * share + h;
    device float* to = scratch + (ulong(block) * args.value_heads + head) * DELTA_SCRATCH;
    if (tid < DELTA_BLOCK) {
      const ulong gate = (ulong(begin) + tid) * 2 * args.value_heads + head;
      low[tid] = tid < count ? gates[gate] : 0.0f;
      beta[tid] = tid < count ? gates[gate + args.value_heads] : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    delta_sums(high, low, tid);
    if (tid < DELTA_BLOCK) {
      to[DELTA_BETA + tid] = beta[tid];
      to[DELTA_DECAY + tid] = precise::exp(high[tid] + low[tid]);
      to[DELTA_REST + tid] = delta_between(high, low, DELTA_BLOCK - 1, tid); // rows that are not there have g = 0
      if (tid == DELTA_BLOCK - 1) to[DELTA_WHOLE] = precise::exp(high[tid] + low[tid]);
    }
    UNROLL
    for (uint p = 0; p < 9; p++) {
      const uint i = p <= sg ? sg : 7 - sg, j = p <= sg ? p : p - sg - 1;
      DeltaTile a, b;
      for (uint e = 0; e < 2; e++) {
        const uint r = i * 8 + row[e], c = j * 8 + column[e];
        const float decay = c <= r ? delta_between(high, low, r, c) : 0.0f;
        a.thread_elements()[e] = c < r ? -beta[r] * kk[p].thread_elements()[e] * decay : 0.0f;
        b.thread_elements()[e] = qk[p].thread_elements()[e] * decay;
      }
      simdgroup_store(a, minus_a + delta_tile(i, j), 8);
      simdgroup_store(b, to + DELTA_P + delta_tile(i, j), 8);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    delta_inverse(minus_a, diagonal, to, sg, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup); // before the next head's values
  }
}

// Where the scan works: 32 of a head's 128 values, whose part of the state it keeps.
#define DELTA_VALUES 32u
#define DELTA_STATE_LD 132u // 128 keys and a pad
#define DELTA_MID_LD 36u    // 32 values and a pad

// Eight rows from `first` on, of which those up to `count` are there.
template <bool FULL>
inline void delta_load(
    thread DeltaTile& m, device const float* p, uint ld, uint first, uint count, thread const uint* row,
    thread const uint* column) {
  if (FULL) {
    simdgroup_load(m, p + ulong(first) * ld, ld);
  } else {
    for (uint e = 0; e < 2; e++) {
      const uint r = first + row[e];
      m.thread_elements()[e] = r < count ? p[ulong(r) * ld + column[e]] : 0.0f;
    }
  }
}

// One block. `own` begins at the block's first row; `s` [values × keys] is this threadgroup's part of the state, `mid`
// [tokens × values] holds R and then U. Simdgroup s takes the rows of tiles s and 7 − s, and of the state 32 keys.
template <bool FULL>
inline void delta_block(
    device const float* own, device const float* scratch, device float* out, threadgroup float* s,
    threadgroup float* mid, uint channels, uint q_at, uint k_at, uint v_at, uint out_ld, uint count, uint sg,
    thread const uint* row, thread const uint* column) {
  const uint tile[2] = {sg, 7 - sg};
  DeltaTile u[2][4], o[2][4];
  for (uint x = 0; x < 2; x++)
    for (uint n = 0; n < 4; n++) u[x][n] = o[x][n] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

  // S k and S q.
  for (uint d = 0; d < LINEAR_HEAD; d += 8) {
    DeltaTile k[2], q[2];
    for (uint x = 0; x < 2; x++) {
      delta_load<FULL>(k[x], own + k_at + d, channels, tile[x] * 8, count, row, column);
      delta_load<FULL>(q[x], own + q_at + d, channels, tile[x] * 8, count, row, column);
    }
    for (uint n = 0; n < 4; n++) {
      DeltaTile keys;
      simdgroup_load(keys, s + n * 8 * DELTA_STATE_LD + d, DELTA_STATE_LD, ulong2(0, 0), true);
      for (uint x = 0; x < 2; x++) {
        simdgroup_multiply_accumulate(u[x][n], k[x], keys, u[x][n]);
        simdgroup_multiply_accumulate(o[x][n], q[x], keys, o[x][n]);
      }
    }
  }
  // R = β (v − e^G S k).
  for (uint x = 0; x < 2; x++) {
    for (uint e = 0; e < 2; e++) {
      const uint r = tile[x] * 8 + row[e];
      const float beta = scratch[DELTA_BETA + r], decay = scratch[DELTA_DECAY + r];
      for (uint n = 0; n < 4; n++) {
        const float v = FULL || r < count ? own[ulong(r) * channels + v_at + n * 8 + column[e]] : 0.0f;
        u[x][n].thread_elements()[e] = beta * (v - decay * u[x][n].thread_elements()[e]);
        o[x][n].thread_elements()[e] = decay * o[x][n].thread_elements()[e];
      }
    }
    for (uint n = 0; n < 4; n++) simdgroup_store(u[x][n], mid + tile[x] * 8 * DELTA_MID_LD + n * 8, DELTA_MID_LD);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // U = T R.
  for (uint x = 0; x < 2; x++)
    for (uint n = 0; n < 4; n++) u[x][n] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint j = 0; j <= tile[1]; j++) {
    DeltaTile r[4], t0, t1;
    for (uint n = 0; n < 4; n++) simdgroup_load(r[n], mid + j * 8 * DELTA_MID_LD + n * 8, DELTA_MID_LD);
    simdgroup_load(t1, scratch + delta_tile(tile[1], j), 8);
    for (uint n = 0; n < 4; n++) simdgroup_multiply_accumulate(u[1][n], t1, r[n], u[1][n]);
    if (j <= tile[0]) {
      simdgroup_load(t0, scratch + delta_tile(tile[0], j), 8);
      for (uint n = 0; n < 4; n++) simdgroup_multiply_accumulate(u[0][n], t0, r[n], u[0][n]);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint x = 0; x < 2; x++)
    for (uint n = 0; n < 4; n++) simdgroup_store(u[x][n], mid + tile[x] * 8 * DELTA_MID_LD + n * 8, DELTA_MID_LD);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // o = e^G S q + P U.
  for (uint j = 0; j <= tile[1]; j++) {
    DeltaTile r[4], p0, p1;
    for (uint n = 0; n < 4; n++) simdgroup_load(r[n], mid + j * 8 * DELTA_MID_LD + n * 8, DELTA_MID_LD);
    simdgroup_load(p1, scratch + DELTA_P + delta_tile(tile[1], j), 8);
    for (uint n = 0; n < 4; n++) simdgroup_multiply_accumulate(o[1][n], p1, r[n], o[1][n]);
    if (j <= tile[0]) {
      simdgroup_load(p0, scratch + DELTA_P + delta_tile(tile[0], j), 8);
      for (uint n = 0; n < 4; n++) simdgroup_multiply_accumulate(o[0][n], p0, r[n], o[0][n]);
    }
  }
  for (uint x = 0; x < 2; x++) {
    for (uint n = 0; n < 4; n++) {
      if (FULL) {
        simdgroup_store(o[x][n], out + ulong(tile[x]) * 8 * out_ld + n * 8, out_ld);
      } else {
        for (uint e = 0; e < 2; e++) {
          const uint r = tile[x] * 8 + row[e];
          if (r < count) out[ulong(r) * out_ld + n * 8 + column[e]] = o[x][n].thread_elements()[e];
        }
      }
    }
  }

  // S ← e^{G_C} S + Uᵀ (e^{G_C − G} k).
  const float whole = scratch[DELTA_WHOLE];
  DeltaTile sum[4][4];
  for (uint n = 0; n < 4; n++) {
    for (uint y = 0; y < 4; y++) {
      simdgroup_load(sum[n][y], s + n * 8 * DELTA_STATE_LD + sg * 32 + y * 8, DELTA_STATE_LD);
      for (uint e = 0; e < 2; e++) sum[n][y].thread_elements()[e] = whole * sum[n][y].thread_elements()[e];
    }
  }
  for (uint t = 0; t * 8 < count; t++) {
    DeltaTile k[4];
    float rest[2];
    for (uint e = 0; e < 2; e++) rest[e] = scratch[DELTA_REST + t * 8 + row[e]];
    for (uint y = 0; y < 4; y++) {
      delta_load<FULL>(k[y], own + k_at + sg * 32 + y * 8, channels, t * 8, count, row, column);
      for (uint e = 0; e < 2; e++) k[y].thread_elements()[e] = rest[e] * k[y].thread_elements()[e];
    }
    for (uint n = 0; n < 4; n++) {
      DeltaTile turned;
      simdgroup_load(turned, mid + t * 8 * DELTA_MID_LD + n * 8, DELTA_MID_LD, ulong2(0, 0), true);
      for (uint y = 0; y < 4; y++) simdgroup_multiply_accumulate(sum[n][y], turned, k[y], sum[n][y]);
    }
  }
  for (uint n = 0; n < 4; n++)
    for (uint y = 0; y < 4; y++)
      simdgroup_store(sum[n][y], s + n * 8 * DELTA_STATE_LD + sg * 32 + y * 8, DELTA_STATE_LD);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// The state lies as [value × key], transposed against the text. Grid: (128 / DELTA_VALUES, value heads), threads: 128.
[[max_total_threads_per_threadgroup(128)]] kernel void gated_delta_chunk_scan(
    device const float* qkv [[buffer(0)]],     // [tokens × (q | k | v)], q scaled
    device const float* scratch [[buffer(1)]], // of gated_delta_chunk_prepare
    device float* state [[buffer(2)]],         // [slots × value heads × 128 × 128]
    device const uint* slots [[buffer(3)]],    // [2]: past, next
    device float* out [[buffer(4)]],           // [tokens × value heads × 128]
    constant DeltaChunkArgs& args [[buffer(5)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float4 held[DELTA_VALUES * DELTA_STATE_LD / 4];
  threadgroup float mid[DELTA_BLOCK * DELTA_MID_LD];
  threadgroup float numbers[64];
  uint row[2], column[2];
  delta_places(numbers, tid, row, column);

  const uint head = at.y, key_head = head / (args.value_heads / args.key_heads);
  const uint key_dim = args.key_heads * LINEAR_HEAD;
  const uint channels = 2 * key_dim + args.value_heads * LINEAR_HEAD;
  const uint q_at = key_head * LINEAR_HEAD, k_at = key_dim + q_at;
  const uint value = head * LINEAR_HEAD + at.x * DELTA_VALUES;
  const uint v_at = 2 * key_dim + value, out_ld = args.value_heads * LINEAR_HEAD;
  device const float* past = state + (ulong(slots[0]) * out_ld + value) * LINEAR_HEAD;
  device float* next = state + (ulong(slots[1]) * out_ld + value) * LINEAR_HEAD;

  for (uint i = tid; i < DELTA_VALUES * 32; i += 128)
    held[i / 32 * (DELTA_STATE_LD / 4) + i % 32] = *(device const float4*)(past + i * 4);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint blocks = (args.first + args.tokens + DELTA_BLOCK - 1) / DELTA_BLOCK;
  for (uint block = 0; block < blocks; block++) {
    const uint begin = delta_begin(args, block), count = delta_count(args, block);
    device const float* own = qkv + ulong(begin) * channels;
    device const float* prepared = scratch + (ulong(block) * args.value_heads + head) * DELTA_SCRATCH;
    device float* to = out + ulong(begin) * out_ld + value;
    threadgroup float* s = (threadgroup float*)held;
    if (count == DELTA_BLOCK)
      delta_block<true>(own, prepared, to, s, mid, channels, q_at, k_at, v_at, out_ld, count, sg, row, column);
    else
      delta_block<false>(own, prepared, to, s, mid, channels, q_at, k_at, v_at, out_ld, count, sg, row, column);
  }
  for (uint i = tid; i < DELTA_VALUES * 32; i += 128)
    *(device float4*)(next + i * 4) = held[i / 32 * (DELTA_STATE_LD / 4) + i % 32];
}
