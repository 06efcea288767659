// Products on the matrix units of NVIDIA GPUs (product.metal, msl/mma.h): mma of 16×8×16, BF16 operands, F32 sums. A threadgroup
// of eight warps takes 128 columns, and BM rows; 32 columns of x and of W stand in threadgroup memory at a time: x three deep,
// copied ahead by the copy unit, and W two deep, dequantised from codes that were loaded one step ahead. One barrier a step.
//
// A staged row has four pieces of 16 bytes, which are exchanged by row so that the eight rows that a warp loads at once lie
// in different banks.
#define MMA_DEPTH 32
#define MMA_COLUMNS 128
// Threadgroup memory in uint4.
#define MMA_MEMORY(BM) (3 * BM * 4 + 2 * MMA_COLUMNS * 4)

inline uint mma_place(uint row, uint piece) { return row * 4 + (piece ^ ((row >> 1) & 3u)); }

// Eight codes of four bits as BF16 times scale plus bias, in order. A code becomes the low bits of 128 + code, which is exact.
inline uint4 mma_weights8(uint u, uint scale2, uint bias2) {
  const uint even = u & 0x0f0f0f0fu, odd = (u >> 4) & 0x0f0f0f0fu;
  const uint low = lily_bytes(even, odd, 0x5140u), high = lily_bytes(even, odd, 0x7362u);
  uint4 v;
  v[0] = lily_affine2(lily_bytes(low, 0x43434343u, 0x4140u), scale2, bias2);
  v[1] = lily_affine2(lily_bytes(low, 0x43434343u, 0x4342u), scale2, bias2);
  v[2] = lily_affine2(lily_bytes(high, 0x43434343u, 0x4140u), scale2, bias2);
  v[3] = lily_affine2(lily_bytes(high, 0x43434343u, 0x4342u), scale2, bias2);
  return v;
}

struct MmaBody {
  static constexpr uint columns() { return uint(MMA_COLUMNS); }

  // A thread's 16 weights of a step: a half of one column's 32.
  template <int BITS>
  struct Ahead {
    uint4 codes[BITS == 16 ? 2 : 1];
    uint scale2;
    uint bias2;
  };

  template <int BITS>
  static void load(
      thread Ahead<BITS>& a, thread const Weights& m, ulong at, bool wanted) {
    a.codes[0] = uint4(0u);
    a.scale2 = 0;
    a.bias2 = 0;
    if (BITS == 16) a.codes[BITS / 16] = uint4(0u);
    if (wanted) {
      if (BITS == 4) {
        const uint2 q = m.codes[at / 16];
        a.codes[0][0] = q[0];
        a.codes[0][1] = q[1];
      } else if (BITS == 8) {
        a.codes[0] = ((device const uint4*)m.codes)[at / 16];
      } else {
        a.codes[0] = ((device const uint4*)m.codes)[at / 8];
        a.codes[BITS / 16] = ((device const uint4*)m.codes)[at / 8 + 1];
      }
      if (BITS != 16) {
        a.scale2 = uint(as_type<ushort>(m.scales[at / 64])) * 0x10001u;
        a.bias2 = uint(as_type<ushort>(m.biases[at / 64])) * 0x10001u;
      }
    }
  }

  template <int BITS>
  static void stage(thread const Ahead<BITS>& a, threadgroup uint4* ws, uint row, uint half_) {
    UNROLL for (int h = 0; h < 2; h++) {
      uint4 v;
      if (BITS == 4) {
        v = mma_weights8(a.codes[0][h], a.scale2, a.bias2);
      } else if (BITS == 8) {
        const float scale = as_type<float>(a.scale2 << 16), bias = as_type<float>(a.bias2 << 16);
        UNROLL for (int j = 0; j < 4; j++) {
          const uint u = a.codes[0][2 * h + j / 2] >> (16 * (j % 2));
          v[j] = lily_pack2(fma(float(u & 255u), scale, bias), fma(float((u >> 8) & 255u), scale, bias));
        }
      } else {
        v = a.codes[h * (BITS / 16)];
      }
      ws[mma_place(row, half_ * 2 + uint(h))] = v;
    }
  }

  // Where tile j (8 columns) of a warp begins among the staged columns. Of pairs the first two tiles belong to the first
  // matrix and the last two to the second, so that a lane holds both values of a pair.
  static uint column(bool pair, uint quarter, uint j) {
    return pair ? j / 2 * 64 + quarter * 16 + j % 2 * 8 : quarter * 32 + j * 8;
  }

  // Rows 16 · (2i + sg / 4) on, for tile i of a warp: neighbours take turns, so that a short block keeps all busy.
  template <typename T, int BM, int BITS, bool PAIR, typename X>
  static void accumulate(
      thread float (&sums)[BM / 32][4][4], thread const X& x, uint rows, thread const WeightBlock& w, uint depth,
      threadgroup uint4* memory, uint tid, uint sg, uint lane) {
    constexpr int TILES = BM / 32;
    constexpr int PIECES = BM * 4 / PRODUCT_THREADS;          // of x, a thread's
    constexpr int COPIES = PIECES > 0 ? PIECES : 1;
    threadgroup uint4* xs = memory;
    threadgroup uint4* ws = memory + 3 * BM * 4;
    UNROLL for (int i = 0; i < TILES; i++)
      UNROLL for (int j = 0; j < 4; j++)
        UNROLL for (int e = 0; e < 4; e++) sums[i][j][e] = 0.0f;

    // Rows past the last repeat it: their sums are not visited.
    device const T* x_from[COPIES];
    UNROLL for (int i = 0; i < COPIES; i++) {
      const uint r = (tid + uint(i) * PRODUCT_THREADS) / 4 % BM;
      x_from[i] = x.row(min(r, rows - 1)) + tid % 4 * 8;
    }
    const bool copies = PIECES > 0 || tid < BM * 4;
    const uint w_row = tid / 2, w_half = tid % 2;
    const uint w_index = PAIR ? w_row % 64 : w_row;
    const bool wanted = w_index < w.live;
    Weights matrix = w.first;
    if (PAIR && w_row >= 64) matrix = w.second;
    const ulong w_from = (w.row0 + w_index) * depth + w_half * 16;
    const uint steps = depth / MMA_DEPTH;

    UNROLL for (int s = 0; s < 2; s++) {
      UNROLL for (int i = 0; i < COPIES; i++)
        if (copies) {
          const uint at = tid + uint(i) * PRODUCT_THREADS;
          lily_copy16(&xs[uint(s) * BM * 4 + mma_place(at / 4, at % 4)], x_from[i] + s * MMA_DEPTH);
        }
      lily_copy_commit();
    }
    Ahead<BITS> ahead;
    load<BITS>(ahead, matrix, w_from, wanted);
    uint x_stage = 0;
    for (uint s = 0; s < steps; s++) {
      threadgroup uint4* w_now = ws + (s % 2) * (MMA_COLUMNS * 4);
      stage<BITS>(ahead, w_now, w_row, w_half);
      if (s + 1 < steps) load<BITS>(ahead, matrix, w_from + (s + 1) * MMA_DEPTH, wanted);
      lily_copy_wait1();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (s + 2 < steps) {
        const uint to = x_stage == 0 ? 2 : x_stage - 1;
        UNROLL for (int i = 0; i < COPIES; i++)
          if (copies) {
            const uint at = tid + uint(i) * PRODUCT_THREADS;
            lily_copy16(&xs[to * BM * 4 + mma_place(at / 4, at % 4)], x_from[i] + (s + 2) * MMA_DEPTH);
          }
      }
      lily_copy_commit(); // an empty one counts too
      threadgroup uint4* x_now = xs + x_stage * (BM * 4);
      UNROLL for (int k = 0; k < 2; k++) {
        uint4 b[2];
        UNROLL for (int j = 0; j < 2; j++) {
          const uint n = column(PAIR, sg % 4, uint(j) * 2) + lane % 8 + lane / 16 * 8;
          b[j] = lily_matrices(&w_now[mma_place(n, uint(k) * 2 + lane / 8 % 2)]);
        }
        UNROLL for (int i = 0; i < TILES; i++) {
          const uint r = (uint(i) * 2 + sg / 4) * 16;
          if (r < rows) { // the whole warp
            const uint4 a = lily_matrices(&x_now[mma_place(r + lane % 16, uint(k) * 2 + lane / 16)]);
            UNROLL for (int j = 0; j < 4; j++) lily_mma(sums[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
          }
        }
      }
      x_stage = x_stage == 2 ? 0 : x_stage + 1;
    }
  }

  template <typename T, int BM, bool PAIR, typename X>
  static void accumulate(
      thread float (&sums)[BM / 32][4][4], thread const X& x, uint rows, thread const WeightBlock& w, uint depth,
      uint bits, threadgroup uint4* memory, uint tid, uint sg, uint lane) {
    static_assert(sizeof(T) == 2, "BF16 only");
    if (bits == 4)
      accumulate<T, BM, 4, PAIR>(sums, x, rows, w, depth, memory, tid, sg, lane);
    else if (bits == 8)
      accumulate<T, BM, 8, PAIR>(sums, x, rows, w, depth, memory, tid, sg, lane);
    else
      accumulate<T, BM, 16, PAIR>(sums, x, rows, w, depth, memory, tid, sg, lane);
  }

  template <typename T, int BM, typename X, typename V>
  static void product(
      thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint bits, thread const V& visit,
      threadgroup uint4* memory, uint tid, uint sg, uint lane) {
    float sums[BM / 32][4][4];
    accumulate<T, BM, false>(sums, x, rows, w, depth, bits, memory, tid, sg, lane);
    UNROLL for (int i = 0; i < BM / 32; i++)
      UNROLL for (int j = 0; j < 4; j++)
        UNROLL for (int e = 0; e < 4; e++) {
          const uint r = (uint(i) * 2 + sg / 4) * 16 + lane / 4 + uint(e / 2) * 8;
          const uint c = column(false, sg % 4, uint(j)) + lane % 4 * 2 + uint(e % 2);
          if (r < rows && c < w.live) visit.put(r, c, sums[i][j][e]);
        }
  }

  template <typename T, int BM, typename X, typename V>
  static void product_pair(
      thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint bits, thread const V& visit,
      threadgroup uint4* memory, uint tid, uint sg, uint lane) {
    float sums[BM / 32][4][4];
    accumulate<T, BM, true>(sums, x, rows, w, depth, bits, memory, tid, sg, lane);
    UNROLL for (int i = 0; i < BM / 32; i++)
      UNROLL for (int j = 0; j < 2; j++)
        UNROLL for (int e = 0; e < 4; e++) {
          const uint r = (uint(i) * 2 + sg / 4) * 16 + lane / 4 + uint(e / 2) * 8;
          const uint c = column(true, sg % 4, uint(j)) + lane % 4 * 2 + uint(e % 2);
          if (r < rows && c < w.live) visit.put(r, c, sums[i][j][e], sums[i][2 + j][e]);
        }
  }
};
