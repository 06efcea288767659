// Causal attention of a chunk with the warp-group products of Hopper (msl/wgmma.h); its twin is attention_prefill.metal. A
// threadgroup takes 128 rows of scores, the query heads of one kv head at neighbouring positions: 64 rows to each of two warp
// groups. Four more warps copy tiles of 64 keys or values (a page's) into a ring of four places, every warp its own place,
// so that products wait for no memory. While the values of a tile are multiplied, so are the scores of the next, and the softmax
// of these is taken.
//
// As in the twin, key tiles begin at position 0, and a tile that a row sees nothing of changes no bit of it.
#define ATTEND_ROWS 128u
#define ATTEND_KEYS 64u // of a tile; a page
#define ATTEND_Q_BYTES (ATTEND_ROWS * FULL_HEAD * 2u)
#define ATTEND_TILE_BYTES (ATTEND_KEYS * FULL_HEAD * 2u)
#define ATTEND_OUT_ROW 264u // of sums in threadgroup memory: eight rows lie in different banks
#define ATTEND_LOG2E 1.44269504088896341f

// Where 16 bytes of a row stand in threadgroup memory, in bytes: four blocks of 64 dims and `rows` rows each (msl/wgmma.h).
inline uint attend_place(uint rows, uint row, uint part) {
  return part / 8 * (rows * 128) + row * 128 + ((part % 8) ^ (row % 8)) * 16;
}

// What the warp of place `w` copies: keys or values of every second tile.
inline void attend_copy(
    device const bfloat* pool, device const uint* pages, constant PrefillArgs& args, uint kv_head, uint end, uint tiles, uint w,
    uint lane, threadgroup char* place, threadgroup ulong* full, threadgroup ulong* empty) {
  device const bfloat* from = pool + kv_plane(args.kv_heads, w % 2 == 0 ? KV_KEYS : KV_VALUES, kv_head) + lane * 8;
  uint use = 0;
  uint page = w / 2 < tiles ? pages[w / 2] : 0u;
  for (uint tile = w / 2; tile < tiles; tile += 2) {
    device const bfloat* rows = from + ulong(page) * args.page_stride;
    if (tile + 2 < tiles) page = pages[tile + 2];
    if (use > 0) lily_gate_wait(empty, (use - 1) % 2);
    _Pragma("unroll 8") for (uint r = 0; r < ATTEND_KEYS; r++) {
      // Memory behind the last position may hold anything, and no weight of 0 would stop a NaN.
      const bool there = tile * ATTEND_KEYS + r < end;
      lily_copy16_if(place + attend_place(ATTEND_KEYS, r, lane), rows + (there ? r * FULL_HEAD : 0u), there);
    }
    lily_copy_commit();
    lily_copy_wait0();
    lily_group_publish();
    lily_gate_arrive(full);
    use += 1;
  }
}

// The softmax of a tile: `s` becomes weights, `top` (of scores times log2 e) and `total` (a lane's share) move on, and earlier sums
// shrink by `factor`.
inline void attend_weights(
    thread float (&s)[32], thread float (&top)[2], thread float (&total)[2], thread float (&factor)[2]) {
  UNROLL for (int h = 0; h < 2; h++) {
    float most = s[2 * h];
    UNROLL for (int j = 0; j < 8; j++) most = max(most, max(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
    most = max(most, simd_shuffle_xor(most, ushort(1)));
    most = max(most, simd_shuffle_xor(most, ushort(2)));
    const float now = max(top[h], most * ATTEND_LOG2E);
    factor[h] = lily_exp2(top[h] - now);
    top[h] = now;
    float sum = 0.0f;
    UNROLL for (int j = 0; j < 8; j++)
      UNROLL for (int e = 0; e < 2; e++) {
        const float w = lily_exp2(fma(s[4 * j + 2 * h + e], ATTEND_LOG2E, -now));
        sum += w;
        s[4 * j + 2 * h + e] = w;
      }
    total[h] = fma(total[h], factor[h], sum);
  }
}

// Keys from `key` on that a row does not see.
inline void attend_mask(thread float (&s)[32], thread const uint (&position)[2], uint key) {
  UNROLL for (int j = 0; j < 8; j++)
    UNROLL for (int e = 0; e < 4; e++)
      if (key + uint(j) * 8 + uint(e % 2) > position[e / 2]) s[4 * j + e] = -INFINITY;
}

inline void attend_pack(thread const float (&s)[32], thread uint (&p)[16]) {
  UNROLL for (int i = 0; i < 16; i++) p[i] = lily_pack2(s[2 * i], s[2 * i + 1]);
}

inline void attend_scores(thread float (&s)[32], ulong q, ulong k) {
  UNROLL for (uint d = 0; d < 16; d++)
    lily_group_mma(
        s, lily_operand_at(q, d / 4 * (ATTEND_ROWS * 128) + d % 4 * 32),
        lily_operand_at(k, d / 4 * (ATTEND_KEYS * 128) + d % 4 * 32), d > 0);
  lily_group_commit();
}

inline void attend_values(thread float (&o)[128], thread const uint (&p)[16], ulong v, bool add) {
  UNROLL for (uint k = 0; k < 4; k++) lily_group_mma(o, p + 4 * k, lily_operand_at(v, k * 16 * 128), k > 0 || add);
  lily_group_commit();
}

[[max_total_threads_per_threadgroup(384)]] kernel void attention_prefill_bf16_mma(
    device const bfloat* q [[buffer(0)]], device const bfloat* pool [[buffer(1)]], device const uint* table [[buffer(2)]],
    device const float* projections [[buffer(3)]], device bfloat* out [[buffer(4)]], constant PrefillArgs& args [[buffer(5)]],
    uint2 at [[threadgroup_position_in_grid]], uint2 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  LILY_DYNAMIC(char, memory, 196672);
  threadgroup char* tile_memory = memory + ATTEND_Q_BYTES;
  threadgroup ulong* full = (threadgroup ulong*)(tile_memory + 4 * ATTEND_TILE_BYTES);
  threadgroup ulong* empty = full + 4;
  const uint heads = args.query_heads / args.kv_heads;
  const uint span = ATTEND_ROWS / heads; // positions
  const uint kv_head = at.x % args.kv_heads;
  const uint t0 = (groups.x - 1 - at.x) / args.kv_heads * span; // the longest rows first
  const uint end = args.start + min(t0 + span, args.rows);
  const uint tiles = (end + ATTEND_KEYS - 1) / ATTEND_KEYS;
  // The same for the threads of a warp, which the compiler can't see by itself.
  const uint warp = simd_broadcast(tid / 32, ushort(0));
  const uint lane = tid % 32;
  if (tid < 4) {
    lily_gate_init(full + tid, 32);
    lily_gate_init(empty + tid, 8);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (warp >= 8) {
    lily_registers_fewer<40>();
    const uint w = warp - 8;
    attend_copy(pool, table, args, kv_head, end, tiles, w, lane, tile_memory + w * ATTEND_TILE_BYTES, full + w, empty + w);
  } else {
    lily_registers_more<232>();
    const uint group = warp / 4;
    // Rows without a position of their own repeat the last one and are not stored.
    _Pragma("unroll 4") for (uint i = 0; i < 16; i++) {
      const uint m = group * 64 + i * 4 + warp % 4;
      const uint t = min(t0 + min(m / heads, span - 1), args.rows - 1);
      device const bfloat* from = q + (ulong(t) * args.query_heads + kv_head * heads + m % heads) * FULL_HEAD + lane * 8;
      lily_copy16(memory + attend_place(ATTEND_ROWS, m, lane), from);
    }
    lily_copy_commit();
    lily_copy_wait0();
    lily_group_publish();
    lily_meet(1 + group, 128);

    uint position[2];
    UNROLL for (uint h = 0; h < 2; h++) {
      const uint m = group * 64 + warp % 4 * 16 + lane / 4 + h * 8;
      position[h] = args.start + min(t0 + min(m / heads, span - 1), args.rows - 1);
    }
    const uint first = args.start + t0; // the least position here
    const uint column = lane % 4 * 2;
    const ulong q_operand = lily_operand(memory + group * 64 * 128, 16, 1024);
    float o[128];
    float s[32];
    uint p[16];
    float top[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f}, factor[2];

    lily_gate_wait(full, 0);
    lily_group_held(s);
    lily_group_fence();
    attend_scores(s, q_operand, lily_operand(tile_memory, 16, 1024));
    lily_group_wait<0>();
    lily_group_held(s);
    if (lane == 0) lily_gate_arrive(empty);
    if (ATTEND_KEYS - 1 > first) attend_mask(s, position, column);
    attend_weights(s, top, total, factor);
    attend_pack(s, p);
    for (uint tile = 1; tile < tiles; tile++) {
      const uint k_place = tile % 2 * 2, v_place = (tile - 1) % 2 * 2 + 1;
      lily_gate_wait(full + k_place, tile / 2 % 2);
      lily_group_held(s);
      lily_group_held(o);
      lily_group_fence();
      attend_scores(s, q_operand, lily_operand(tile_memory + k_place * ATTEND_TILE_BYTES, 16, 1024));
      lily_gate_wait(full + v_place, (tile - 1) / 2 % 2);
      attend_values(o, p, lily_operand(tile_memory + v_place * ATTEND_TILE_BYTES, ATTEND_KEYS * 128, 1024), tile > 1);
      lily_group_wait<1>();
      lily_group_held(s);
      if (lane == 0) lily_gate_arrive(empty + k_place);
      if (tile * ATTEND_KEYS + ATTEND_KEYS - 1 > first) attend_mask(s, position, tile * ATTEND_KEYS + column);
      attend_weights(s, top, total, factor);
      lily_group_wait<0>();
      lily_group_held(o);
      if (lane == 0) lily_gate_arrive(empty + v_place);
      // Times 1 changes nothing, and on most tiles of a long context no row of a warp finds a larger score.
      if (lily_any(factor[0] != 1.0f || factor[1] != 1.0f))
        UNROLL for (int i = 0; i < 128; i++) o[i] *= factor[i / 2 % 2];
      attend_pack(s, p);
    }
    const uint v_place = (tiles - 1) % 2 * 2 + 1;
    lily_gate_wait(full + v_place, (tiles - 1) / 2 % 2);
    lily_group_held(o);
    lily_group_fence();
    attend_values(o, p, lily_operand(tile_memory + v_place * ATTEND_TILE_BYTES, ATTEND_KEYS * 128, 1024), tiles > 1);
    lily_group_wait<0>();
    lily_group_held(o);

    // Sums go through threadgroup memory, so that rows are read and written whole. It holds tiles until both groups are here; then
    // a warp meets its own rows only.
    lily_meet(3, 256);
    threadgroup float* rows = (threadgroup float*)memory + (group * 64 + warp % 4 * 16) * ATTEND_OUT_ROW;
    UNROLL for (uint h = 0; h < 2; h++) {
      float all = total[h];
      all += simd_shuffle_xor(all, ushort(1));
      all += simd_shuffle_xor(all, ushort(2));
      const float part = 1.0f / all;
      threadgroup float* row = rows + (lane / 4 + h * 8) * ATTEND_OUT_ROW + column;
      UNROLL for (uint j = 0; j < 32; j++)
        *(threadgroup float2*)(row + j * 8) = float2(o[4 * j + 2 * h] * part, o[4 * j + 2 * h + 1] * part);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    _Pragma("unroll 4") for (uint i = 0; i < 16; i++) {
      const uint m = group * 64 + warp % 4 * 16 + i;
      const bool own = m < span * heads && t0 + m / heads < args.rows;
      const uint t = own ? t0 + m / heads : 0u;
      const uint head = kv_head * heads + m % heads;
      device const float* gate = projections + ulong(t) * args.stride + (2 * head + 1) * FULL_HEAD + lane * 4;
      device bfloat* to = out + (ulong(t) * args.query_heads + head) * FULL_HEAD + lane * 4;
      UNROLL for (uint d = 0; d < FULL_HEAD; d += 128) {
        float4 g = *(device const float4*)(gate + d);
        const float4 v = *(threadgroup const float4*)(rows + i * ATTEND_OUT_ROW + lane * 4 + d);
        UNROLL for (int e = 0; e < 4; e++) g[e] = v[e] * lily_reciprocal(1.0f + lily_exp2(g[e] * -ATTEND_LOG2E));
        if (own) store4(to + d, g);
      }
    }
  }
}
