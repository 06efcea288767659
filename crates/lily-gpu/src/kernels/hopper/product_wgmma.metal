// Products with 4-bit weights on the matrix units of Hopper (product.metal): wgmma of 64×128×16, BF16 operands, F32 sums. A
// threadgroup of two warpgroups takes 128 columns and 128 rows, 64 a warpgroup; 64 columns of x and of W stand in threadgroup
// memory at a time: x three deep, copied two steps ahead by the copy unit, and W two deep, dequantised while the last step
// multiplies. Codes are loaded four steps ahead, which is what the latency of device memory asks for. One barrier a step.
//
// Tiles lie as wgmma wants them with a swizzle of 128 bytes: a row has 8 pieces of 16 bytes, piece p at p ^ (row % 8).
#define WGMMA_DEPTH 64
#define WGMMA_TILE (128 * 8) // of x or W, in uint4

inline uint wgmma_place(uint row, uint piece) { return row * 8 + (piece ^ (row & 7u)); }

struct WgmmaBody {
  static constexpr uint columns() { return 128u; }

  // Of pairs the two matrices take turns of 8 columns, so that a lane holds both values of a pair.
  template <bool PAIR, typename X>
  static void accumulate(
      thread float (&sums)[64], thread const X& x, uint rows, thread const WeightBlock& w, uint depth,
      threadgroup uint4* memory, uint tid, uint sg) {
    threadgroup uint4* xs = memory;
    threadgroup uint4* ws = memory + 3 * WGMMA_TILE;
    UNROLL for (int e = 0; e < 64; e++) sums[e] = 0.0f;
    const bool active = sg / 4 * 64 < rows; // the whole warpgroup

    // Rows past the last are not copied: whatever stands there reaches their own sums only, which are not visited.
    const uint x_row = tid / 8, x_piece = tid % 8;
    device const bfloat* x_from[4];
    UNROLL for (int i = 0; i < 4; i++) x_from[i] = x.row(min(x_row + uint(i) * 32, rows - 1)) + x_piece * 8;
    const uint w_row = tid / 2, w_half = tid % 2;
    const uint w_index = PAIR ? w_row / 16 * 8 + w_row % 8 : w_row;
    Weights matrix = w.first;
    if (PAIR && w_row / 8 % 2 == 1) matrix = w.second;
    // Columns past the last repeat it.
    const ulong w_from = (w.row0 + min(w_index, w.live - 1)) * depth;
    device const uint4* codes_from = (device const uint4*)matrix.codes + w_from / 32 + w_half;
    device const uint2* scales_from = (device const uint2*)(matrix.scales + w_from / 64);
    device const uint2* biases_from = (device const uint2*)(matrix.biases + w_from / 64);
    const uint steps = depth / WGMMA_DEPTH;

    UNROLL for (int s = 0; s < 2; s++) {
      UNROLL for (int i = 0; i < 4; i++)
        if (x_row + uint(i) * 32 < rows)
          lily_copy16(&xs[s * WGMMA_TILE + wgmma_place(x_row + uint(i) * 32, x_piece)], x_from[i] + s * WGMMA_DEPTH);
      lily_copy_commit();
    }
    uint4 codes[4];
    UNROLL for (int i = 0; i < 4; i++) codes[i] = codes_from[i * 2];
    uint2 scales = scales_from[0], biases = biases_from[0];
    uint stage = 0;
    for (uint from = 0; from < steps; from += 4) {
      const uint2 scales_now = scales, biases_now = biases;
      const bool more = from + 4 < steps;
      if (more) {
        scales = scales_from[from / 4 + 1];
        biases = biases_from[from / 4 + 1];
      }
      UNROLL for (int i = 0; i < 4; i++) {
        threadgroup uint4* w_now = ws + i % 2 * WGMMA_TILE;
        const uint scale2 = lily_bytes(scales_now[i / 2], 0u, i % 2 ? 0x3232u : 0x1010u);
        const uint bias2 = lily_bytes(biases_now[i / 2], 0u, i % 2 ? 0x3232u : 0x1010u);
        UNROLL for (int p = 0; p < 4; p++)
          w_now[wgmma_place(w_row, w_half * 4 + uint(p))] = mma_weights8(codes[i][p], scale2, bias2);
        if (more) codes[i] = codes_from[(from + uint(i) + 4) * 2];
        lily_copy_wait1();
        lily_group_wait<0>();
        lily_group_publish();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (active) {
          const ulong a = lily_operand(&xs[stage * WGMMA_TILE + sg / 4 * (WGMMA_TILE / 2)], 16, 1024), b = lily_operand(w_now, 16, 1024);
          lily_group_fence();
          UNROLL for (int k = 0; k < 4; k++) lily_group_mma(sums, a + uint(k) * 2, b + uint(k) * 2);
          lily_group_commit();
        }
        const uint s = from + uint(i), to = stage == 0 ? 2 : stage - 1;
        if (s + 2 < steps) {
          UNROLL for (int c = 0; c < 4; c++)
            if (x_row + uint(c) * 32 < rows)
              lily_copy16(
                  &xs[to * WGMMA_TILE + wgmma_place(x_row + uint(c) * 32, x_piece)], x_from[c] + (s + 2) * WGMMA_DEPTH);
        }
        lily_copy_commit(); // an empty one counts too
        stage = stage == 2 ? 0 : stage + 1;
      }
    }
    lily_group_wait<0>();
    lily_group_held(sums);
  }

  template <typename T, int BM, typename X, typename V>
  static void product(
      thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint, thread const V& visit,
      threadgroup uint4* memory, uint tid, uint sg, uint lane) {
    static_assert(sizeof(T) == 2 && BM == 128, "BF16 in blocks of 128");
    float sums[64];
    accumulate<false>(sums, x, rows, w, depth, memory, tid, sg);
    UNROLL for (int j = 0; j < 16; j++)
      UNROLL for (int e = 0; e < 4; e++) {
        const uint r = sg * 16 + lane / 4 + uint(e / 2) * 8, c = uint(j) * 8 + lane % 4 * 2 + uint(e % 2);
        if (r < rows && c < w.live) visit.put(r, c, sums[j * 4 + e]);
      }
  }

  template <typename T, int BM, typename X, typename V>
  static void product_pair(
      thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint, thread const V& visit,
      threadgroup uint4* memory, uint tid, uint sg, uint lane) {
    static_assert(sizeof(T) == 2 && BM == 128, "BF16 in blocks of 128");
    float sums[64];
    accumulate<true>(sums, x, rows, w, depth, memory, tid, sg);
    UNROLL for (int j = 0; j < 8; j++)
      UNROLL for (int e = 0; e < 4; e++) {
        const uint r = sg * 16 + lane / 4 + uint(e / 2) * 8, c = uint(j) * 8 + lane % 4 * 2 + uint(e % 2);
        if (r < rows && c < w.live) visit.put(r, c, sums[j * 8 + e], sums[j * 8 + 4 + e]);
      }
  }
};
