// The kernels of gated_delta_layout.metal on the matrix units of NVIDIA GPUs (f32_mma.metal). In the scan a threadgroup keeps the
// states of 32 values of a head in registers, transposed: 16 values × 32 keys a warp. Everything is transposed, values are rows
// and tokens columns, so that the sums of one product are an operand of the next. Four warps share 16 values: each multiplies by
// its quarter of the keys, finishes two of the eight tiles of tokens, and shows them to the others.
#define SCAN_VALUES 32u
#define SCAN_THREADS 256u
#define SCAN_LD 132u // a row of k or q: 128 keys and a pad, for the eight columns of every other row that a warp loads at once
// Threadgroup memory in floats: k and q of two blocks; of the block at hand T to e^{G_C} and v; tiles of sums.
#define SCAN_KQ (2u * DELTA_BLOCK * SCAN_LD)
#define SCAN_PREPARED (2u * SCAN_KQ)
#define SCAN_V (SCAN_PREPARED + DELTA_SCRATCH)
#define SCAN_INBOX (SCAN_V + DELTA_BLOCK * SCAN_VALUES) // of each warp: three others' sums of its four tiles
#define SCAN_R (SCAN_INBOX + 8u * 12u * 128u)
#define SCAN_U (SCAN_R + 2u * 8u * 128u)

inline uint scan_key(uint row, uint column) { return row * SCAN_LD + column; }
// v is turned, so that two rows out of four do not meet in a bank.
inline uint scan_value(uint row, uint column) { return row * SCAN_VALUES + (column ^ ((row / 2 & 3u) * 8)); }

// k and q of a block, copied ahead. Rows that are not there become zero.
inline void scan_fetch(
    threadgroup float* to, device const float* own, uint channels, uint q_at, uint k_at, uint count, uint tid,
    uint threads) {
  for (uint i = 0; i < DELTA_BLOCK * LINEAR_HEAD / 4; i += threads) {
    const uint row = (i + tid) / (LINEAR_HEAD / 4), column = (i + tid) % (LINEAR_HEAD / 4) * 4;
    device const float* from = own + ulong(row < count ? row : 0u) * channels + column;
    lily_copy16_if(to + scan_key(row, column), from + k_at, row < count);
    lily_copy16_if(to + DELTA_BLOCK * SCAN_LD + scan_key(row, column), from + q_at, row < count);
  }
}

// The lower tile (i, j) of T or P as B: rows are its columns, 8 · j on.
inline F32Columns scan_tile(threadgroup const float* tiles, uint i, uint j, uint lane) {
  threadgroup const float* p = tiles + delta_tile(i, j) + lane / 4 * 8 + lane % 4 * 2;
  return f32_columns(p[0], p[1]);
}

// What gated_delta_chunk_prepare computes. Warp w of four takes rows 16 · w on of k kᵀ and 16 · (3 − w) on of q kᵀ, ten tiles of
// their lower triangles; then two value heads at a time, of whose T it takes columns 16 · w on of the first and 16 · (3 − w) on of the
// second, transposed. Grid: (blocks, key heads), threads: 128.
#define PREPARE_A (DELTA_TILES * 64u)
#define PREPARE_DIAGONAL (2u * PREPARE_A)
#define PREPARE_HIGH (PREPARE_DIAGONAL + 2u * 8u * 64u)
#define PREPARE_LOW (PREPARE_HIGH + 2u * DELTA_BLOCK)
#define PREPARE_BETA (PREPARE_LOW + 2u * DELTA_BLOCK)

// 16 columns of T = (I + A)⁻¹, from −A and the inverses of I + A's diagonal tiles: row after row of tiles,
// T_i = D_i (E_i − Σ A_im T_m), all of it transposed.
inline void prepare_inverse(
    threadgroup const float* minus_a, threadgroup const float* diagonal, device float* to, uint pair, uint lane) {
  const uint row = lane / 4, turn = lane % 4;
  F32Rows t[8];
  UNROLL for (uint i = 0; i < 8; i++) {
    if (i < 2 * pair) continue; // the whole warp
    float sum[1][4], value[1][4];
    UNROLL for (uint e = 0; e < 4; e++) {
      sum[0][e] = pair * 16 + row + e / 2 * 8 == i * 8 + turn * 2 + e % 2 ? 1.0f : 0.0f;
      value[0][e] = 0.0f;
    }
    UNROLL for (uint m = 0; m < i; m++) {
      if (m < 2 * pair) continue;
      const F32Columns b[1] = {scan_tile(minus_a, i, m, lane)};
      f32_multiply<1>(sum, t[m], b);
    }
    threadgroup const float* d = diagonal + i * 64 + row * 8 + turn * 2;
    const F32Columns b[1] = {f32_columns(d[0], d[1])};
    f32_multiply<1>(value, f32_rows(sum[0][0], sum[0][1], sum[0][2], sum[0][3]), b);
    t[i] = f32_rows(value[0][0], value[0][1], value[0][2], value[0][3]);
    UNROLL for (uint e = 0; e < 4; e++) {
      const uint j = pair * 2 + e / 2;
      if (j <= i) to[delta_tile(i, j) + (turn * 2 + e % 2) * 8 + row] = value[0][e];
    }
  }
}

// Warp W's ten tiles; the others are left as they are.
template <int W>
inline void prepare_products(
    thread float (&kk)[8][4], thread float (&qk)[8][4], threadgroup const float* ks, uint row, uint turn) {
  constexpr int K_TILES = 2 * W + 2, Q_TILES = 8 - 2 * W, TILES = K_TILES > Q_TILES ? K_TILES : Q_TILES;
  threadgroup const float* qs = ks + DELTA_BLOCK * SCAN_LD;
  UNROLL for (int j = 0; j < 8; j++)
    UNROLL for (int e = 0; e < 4; e++) kk[j][e] = qk[j][e] = 0.0f;
  for (uint d = turn * 2; d < LINEAR_HEAD; d += 8) {
    float2 low = *(threadgroup const float2*)(ks + scan_key(W * 16 + row, d));
    float2 high = *(threadgroup const float2*)(ks + scan_key(W * 16 + 8 + row, d));
    const F32Rows k = f32_rows(low[0], low[1], high[0], high[1]);
    low = *(threadgroup const float2*)(qs + scan_key((3 - W) * 16 + row, d));
    high = *(threadgroup const float2*)(qs + scan_key((3 - W) * 16 + 8 + row, d));
    const F32Rows q = f32_rows(low[0], low[1], high[0], high[1]);
    F32Columns b[TILES];
    UNROLL for (int j = 0; j < TILES; j++) {
      const float2 two = *(threadgroup const float2*)(ks + scan_key(uint(j) * 8 + row, d));
      b[j] = f32_columns(two[0], two[1]);
    }
    UNROLL for (int j = 0; j < K_TILES; j++) lily_mma_tf32(kk[j], k.low, b[j].high);
    UNROLL for (int j = 0; j < Q_TILES; j++) lily_mma_tf32(qk[j], q.low, b[j].high);
    UNROLL for (int j = 0; j < K_TILES; j++) lily_mma_tf32(kk[j], k.high, b[j].low);
    UNROLL for (int j = 0; j < Q_TILES; j++) lily_mma_tf32(qk[j], q.high, b[j].low);
    UNROLL for (int j = 0; j < K_TILES; j++) lily_mma_tf32(kk[j], k.high, b[j].high);
    UNROLL for (int j = 0; j < Q_TILES; j++) lily_mma_tf32(qk[j], q.high, b[j].high);
  }
}

[[max_total_threads_per_threadgroup(128)]] kernel void gated_delta_chunk_prepare_mma(
    device const float* qkv [[buffer(0)]],   // [tokens × (q | k | v)], q scaled
    device const float* gates [[buffer(1)]], // [tokens × 2 × value heads]: g, then β
    device float* scratch [[buffer(2)]],     // [blocks × value heads × DELTA_SCRATCH]
    constant DeltaChunkArgs& args [[buffer(3)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  LILY_DYNAMIC(float, memory, 67584); // 4 · SCAN_KQ; then what the PREPARE_ places name
  const uint block = at.x, key_head = at.y;
  const uint begin = delta_begin(args, block), count = delta_count(args, block);
  const uint key_dim = args.key_heads * LINEAR_HEAD;
  const uint channels = 2 * key_dim + args.value_heads * LINEAR_HEAD;
  const uint row = lane / 4, turn = lane % 4;
  scan_fetch(
      memory, qkv + ulong(begin) * channels, channels, key_head * LINEAR_HEAD, key_dim + key_head * LINEAR_HEAD, count, tid,
      128);
  lily_copy_commit();
  lily_copy_wait0();
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const uint k_row = sg * 16 + row, q_row = (3 - sg) * 16 + row;
  float kk[8][4], qk[8][4];
  if (sg == 0)
    prepare_products<0>(kk, qk, memory, row, turn);
  else if (sg == 1)
    prepare_products<1>(kk, qk, memory, row, turn);
  else if (sg == 2)
    prepare_products<2>(kk, qk, memory, row, turn);
  else
    prepare_products<3>(kk, qk, memory, row, turn);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const uint share = args.value_heads / args.key_heads;
  const uint half_ = tid / DELTA_BLOCK, token = tid % DELTA_BLOCK;
  for (uint h = 0; h < share; h += 2) {
    const uint head = key_head * share + h;
    device float* to = scratch + (ulong(block) * args.value_heads + head) * DELTA_SCRATCH;
    threadgroup float* high = memory + PREPARE_HIGH + half_ * DELTA_BLOCK;
    threadgroup float* low = memory + PREPARE_LOW + half_ * DELTA_BLOCK;
    const bool there = h + half_ < share;
    float beta = 0.0f;
    low[token] = 0.0f;
    if (there && token < count) {
      const ulong gate = (ulong(begin) + token) * 2 * args.value_heads + head + half_;
      low[token] = gates[gate];
      beta = gates[gate + args.value_heads];
    }
    memory[PREPARE_BETA + tid] = beta;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    delta_sums(high, low, token);
    if (there) {
      device float* own = to + half_ * DELTA_SCRATCH;
      own[DELTA_BETA + token] = beta;
      own[DELTA_DECAY + token] = precise::exp(high[token] + low[token]);
      own[DELTA_REST + token] = delta_between(high, low, DELTA_BLOCK - 1, token); // rows that are not there have g = 0
      if (token == DELTA_BLOCK - 1) own[DELTA_WHOLE] = precise::exp(high[token] + low[token]);
    }
    for (uint x = 0; x < 2 && h + x < share; x++) {
      threadgroup const float* big = memory + PREPARE_HIGH + x * DELTA_BLOCK;
      threadgroup const float* rest = memory + PREPARE_LOW + x * DELTA_BLOCK;
      UNROLL for (uint j = 0; j < 8; j++)
        UNROLL for (uint e = 0; e < 4; e++) {
          const uint c = j * 8 + turn * 2 + e % 2;
          uint r = k_row + e / 2 * 8;
          if (j <= r / 8) {
            const float a = c < r ? -memory[PREPARE_BETA + x * DELTA_BLOCK + r] * kk[j][e] * delta_between(big, rest, r, c) : 0.0f;
            memory[x * PREPARE_A + delta_tile(r / 8, j) + r % 8 * 8 + c % 8] = a;
          }
          r = q_row + e / 2 * 8;
          if (j <= r / 8)
            to[x * DELTA_SCRATCH + DELTA_P + delta_tile(r / 8, j) + r % 8 * 8 + c % 8] =
                c <= r ? qk[j][e] * delta_between(big, rest, r, c) : 0.0f;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (there) {
      // Forward substitution in a diagonal tile, one column a thread.
      const uint d = token / 8, column = token % 8;
      threadgroup const float* a = memory + half_ * PREPARE_A + delta_tile(d, d);
      float x[8];
      UNROLL for (uint i = 0; i < 8; i++) {
        float sum = i == column ? 1.0f : 0.0f;
        UNROLL for (uint m = 0; m < i; m++) sum = fma(a[i * 8 + m], x[m], sum);
        x[i] = sum;
        memory[PREPARE_DIAGONAL + (half_ * 8 + d) * 64 + i * 8 + column] = sum;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint x = 0; x < 2 && h + x < share; x++)
      prepare_inverse(
          memory + x * PREPARE_A, memory + PREPARE_DIAGONAL + x * 8 * 64, to + x * DELTA_SCRATCH, x == 0 ? sg : 3 - sg, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup); // before the next heads' values
  }
}

inline float4 scan_sums(thread const float (&s)[4]) { return float4(s[0], s[1], s[2], s[3]); }

// Adds to sums, of tiles `part` and 7 − `part`, those of tiles[j] times the transposed row of lower tiles: nine steps for each
// warp. The three parts of a product have sums of their own, so that a step waits for no other.
inline void scan_tiles(
    thread float (&sums)[2][4], threadgroup const float* lower, threadgroup const float4* tiles, uint part, uint lane) {
  float parts[3][4];
  UNROLL for (uint e = 0; e < 4; e++) {
    parts[0][e] = sums[0][e];
    parts[1][e] = parts[2][e] = 0.0f;
  }
  UNROLL for (uint i = 0; i < 9; i++) {
    const bool first = i <= part; // the whole warp
    const uint j = first ? i : i - part - 1;
    const float4 of_tile = tiles[j * 32];
    const F32Rows a = f32_rows(of_tile[0], of_tile[1], of_tile[2], of_tile[3]);
    const F32Columns b = scan_tile(lower, first ? part : 7 - part, j, lane);
    lily_mma_tf32(parts[1], a.low, b.high);
    lily_mma_tf32(parts[2], a.high, b.low);
    lily_mma_tf32(parts[0], a.high, b.high);
    if (i > 3) continue; // past the first tile
    UNROLL for (uint e = 0; e < 4; e++) {
      const float all = parts[0][e] + (parts[1][e] + parts[2][e]);
      sums[0][e] = i == part ? all : sums[0][e];
      parts[0][e] = i == part ? sums[1][e] : parts[0][e];
      parts[1][e] = i == part ? 0.0f : parts[1][e];
      parts[2][e] = i == part ? 0.0f : parts[2][e];
    }
  }
  UNROLL for (uint e = 0; e < 4; e++) sums[1][e] = parts[0][e] + (parts[1][e] + parts[2][e]);
}

// Grid: (128 / SCAN_VALUES, value heads), threads: SCAN_THREADS.
[[max_total_threads_per_threadgroup(256)]] kernel void gated_delta_chunk_scan_mma(
    device const float* qkv [[buffer(0)]],     // [tokens × (q | k | v)], q scaled
    device const float* scratch [[buffer(1)]], // of gated_delta_chunk_prepare
    device float* state [[buffer(2)]],         // [slots × value heads × 128 × 128]
    device const uint* slots [[buffer(3)]],    // [2]: past, next
    device float* out [[buffer(4)]],           // [tokens × value heads × 128]
    constant DeltaChunkArgs& args [[buffer(5)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  LILY_DYNAMIC(float, memory, 228352); // 4 · (SCAN_U + 2 · 8 · 128)
  const uint side = sg / 4, part = sg % 4; // which 16 values, and which quarter of the keys
  threadgroup float* prepared = memory + SCAN_PREPARED;
  threadgroup float* vs = memory + SCAN_V;
  threadgroup float4* inbox = (threadgroup float4*)(memory + SCAN_INBOX) + side * (4 * 12 * 32) + lane;
  threadgroup float4* rs = (threadgroup float4*)(memory + SCAN_R) + side * (8 * 32) + lane;
  threadgroup float4* us = (threadgroup float4*)(memory + SCAN_U) + side * (8 * 32) + lane;
  const uint head = at.y, key_head = head / (args.value_heads / args.key_heads);
  const uint key_dim = args.key_heads * LINEAR_HEAD;
  const uint channels = 2 * key_dim + args.value_heads * LINEAR_HEAD;
  const uint q_at = key_head * LINEAR_HEAD, k_at = key_dim + q_at;
  const uint value = head * LINEAR_HEAD + at.x * SCAN_VALUES;
  const uint v_at = 2 * key_dim + value, out_ld = args.value_heads * LINEAR_HEAD;
  const uint row = lane / 4, turn = lane % 4;
  device const float* past = state + (ulong(slots[0]) * out_ld + value) * LINEAR_HEAD;
  device float* next = state + (ulong(slots[1]) * out_ld + value) * LINEAR_HEAD;

  float s[4][4];
  UNROLL for (uint j = 0; j < 4; j++)
    UNROLL for (uint h = 0; h < 2; h++) {
      const float2 two =
          *(device const float2*)(past + (side * 16 + row + h * 8) * LINEAR_HEAD + part * 32 + j * 8 + turn * 2);
      s[j][2 * h] = two[0];
      s[j][2 * h + 1] = two[1];
    }
  const uint blocks = (args.first + args.tokens + DELTA_BLOCK - 1) / DELTA_BLOCK;
  scan_fetch(memory, qkv, channels, q_at, k_at, delta_count(args, 0), tid, SCAN_THREADS);
  lily_copy_commit();
  lily_copy_wait0();
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint block = 0; block < blocks; block++) {
    const uint begin = delta_begin(args, block), count = delta_count(args, block);
    device const float* own = qkv + ulong(begin) * channels;
    threadgroup const float* ks = memory + block % 2 * SCAN_KQ;
    threadgroup const float* qs = ks + DELTA_BLOCK * SCAN_LD;
    device const float* from = scratch + (ulong(block) * args.value_heads + head) * DELTA_SCRATCH;
    for (uint i = tid * 4; i < DELTA_SCRATCH; i += SCAN_THREADS * 4) lily_copy16(prepared + i, from + i);
    UNROLL for (uint i = 0; i < DELTA_BLOCK * SCAN_VALUES / 4; i += SCAN_THREADS) {
      const uint r = (i + tid) / (SCAN_VALUES / 4), c = (i + tid) % (SCAN_VALUES / 4) * 4;
      lily_copy16_if(
          vs + scan_value(r, c), own + ulong(r < count ? r : 0u) * channels + v_at + c, r < count);
    }
    lily_copy_commit();
    if (block + 1 < blocks)
      scan_fetch(
          memory + (block + 1) % 2 * SCAN_KQ, qkv + ulong(delta_begin(args, block + 1)) * channels, channels, q_at, k_at,
          delta_count(args, block + 1), tid, SCAN_THREADS);
    lily_copy_commit();

    // S k and S q over this warp's keys, for all tokens.
    float u[8][4], o[8][4];
    UNROLL for (uint n = 0; n < 8; n++)
      UNROLL for (uint e = 0; e < 4; e++) u[n][e] = o[n][e] = 0.0f;
    threadgroup const float* k_pairs = ks + scan_key(row, part * 32 + turn * 2);
    threadgroup const float* q_pairs = qs + scan_key(row, part * 32 + turn * 2);
    UNROLL for (uint j = 0; j < 4; j++) {
      const F32Rows a = f32_rows(s[j][0], s[j][1], s[j][2], s[j][3]);
      F32Columns b[8];
      UNROLL for (uint n = 0; n < 8; n++) {
        const float2 two = *(threadgroup const float2*)(k_pairs + scan_key(n * 8, j * 8));
        b[n] = f32_columns(two[0], two[1]);
      }
      f32_multiply<8>(u, a, b);
      UNROLL for (uint n = 0; n < 8; n++) {
        const float2 two = *(threadgroup const float2*)(q_pairs + scan_key(n * 8, j * 8));
        b[n] = f32_columns(two[0], two[1]);
      }
      f32_multiply<8>(o, a, b);
    }
    // Warp p finishes tiles p and 7 − p, whose products with T and P cost every warp the same; the others send it their sums.
    float sum[2][4], done[2][4];
    UNROLL for (uint n = 0; n < 8; n++) {
      const uint owner = n < 4 ? n : 7 - n, which = n / 4;
      if (owner == part) {
        UNROLL for (uint e = 0; e < 4; e++) {
          sum[which][e] = u[n][e];
          done[which][e] = o[n][e];
        }
      } else {
        threadgroup float4* to = inbox + (owner * 12 + (part - owner - 1) % 4 * 4 + which) * 32;
        to[0] = scan_sums(u[n]);
        to[2 * 32] = scan_sums(o[n]);
      }
    }
    lily_copy_wait1();
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // R = β (v − e^G S k).
    UNROLL for (uint i = 0; i < 2; i++) {
      const uint n = i == 0 ? part : 7 - part;
      UNROLL for (uint x = 0; x < 3; x++) {
        const float4 k_sums = inbox[(part * 12 + x * 4 + i) * 32], q_sums = inbox[(part * 12 + x * 4 + 2 + i) * 32];
        UNROLL for (uint e = 0; e < 4; e++) {
          sum[i][e] += k_sums[e];
          done[i][e] += q_sums[e];
        }
      }
      float4 r;
      UNROLL for (uint e = 0; e < 4; e++) {
        const uint t = n * 8 + turn * 2 + e % 2;
        const float v = vs[scan_value(t, side * 16 + row + e / 2 * 8)], decay = prepared[DELTA_DECAY + t];
        r[e] = prepared[DELTA_BETA + t] * (v - decay * sum[i][e]);
        done[i][e] *= decay;
        sum[i][e] = 0.0f;
      }
      rs[n * 32] = r;
    }
    lily_meet(1 + side, 128);

    // U = T R, of this warp's tiles.
    scan_tiles(sum, prepared, rs, part, lane);
    us[part * 32] = scan_sums(sum[0]);
    us[(7 - part) * 32] = scan_sums(sum[1]);
    lily_meet(1 + side, 128);

    // S ← e^{G_C} S + Uᵀ (e^{G_C − G} k) for this warp's keys, and o = e^G S q + P U of its tiles.
    const float whole = prepared[DELTA_WHOLE];
    UNROLL for (uint j = 0; j < 4; j++)
      UNROLL for (uint e = 0; e < 4; e++) s[j][e] = whole * s[j][e];
    threadgroup const float* k_columns = ks + scan_key(turn * 2, part * 32 + row);
    UNROLL for (uint t = 0; t < 8; t++) {
      const float4 of_tile = us[t * 32];
      const float2 rest = *(threadgroup const float2*)(prepared + DELTA_REST + t * 8 + turn * 2);
      const F32Rows a = f32_rows(rest[0] * of_tile[0], rest[1] * of_tile[1], rest[0] * of_tile[2], rest[1] * of_tile[3]);
      F32Columns b[4];
      UNROLL for (uint j = 0; j < 4; j++)
        b[j] = f32_columns(k_columns[scan_key(t * 8, j * 8)], k_columns[scan_key(t * 8 + 1, j * 8)]);
      f32_multiply<4>(s, a, b);
    }
    scan_tiles(done, prepared + DELTA_P, us, part, lane);
    device float* to = out + ulong(begin) * out_ld + value + side * 16 + row;
    UNROLL for (uint i = 0; i < 2; i++)
      UNROLL for (uint e = 0; e < 4; e++) {
        const uint t = (i == 0 ? part : 7 - part) * 8 + turn * 2 + e % 2;
        if (t < count) to[ulong(t) * out_ld + e / 2 * 8] = done[i][e];
      }
    lily_copy_wait0();
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  UNROLL for (uint j = 0; j < 4; j++)
    UNROLL for (uint h = 0; h < 2; h++)
      *(device float2*)(next + (side * 16 + row + h * 8) * LINEAR_HEAD + part * 32 + j * 8 + turn * 2) =
          float2(s[j][2 * h], s[j][2 * h + 1]);
}
