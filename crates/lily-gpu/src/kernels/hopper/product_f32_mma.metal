// Products with F32 operands (product.metal) for the few outputs of router and gates: warp w of eight takes groups w, w + 8, … of 64
// columns straight from device memory, and the warps' sums are added in their order.

// A warp's sums of one row of tiles, in uint4.
#define MMA_F32_MEMORY(COLUMNS) (8 * COLUMNS / 8 * 32)

template <int COLUMNS>
struct MmaF32Body {
  static constexpr uint columns() { return uint(COLUMNS); }

  template <int BITS>
  static float weight(thread const uint4* codes, int i, float scale, float bias) {
    if (BITS == 4) return fma(float((codes[0][i / 8] >> (4 * (i % 8))) & 15u), scale, bias);
    if (BITS == 8) return fma(float((codes[0][i / 4] >> (8 * (i % 4))) & 255u), scale, bias);
    const uint pair = codes[i / 8 * (BITS / 16)][i % 8 / 2];
    return as_type<float>(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
  }

  // A lane takes columns 16 · turn on of a group.
  template <int BM, int BITS, typename X>
  static void accumulate(
      thread float (&sums)[BM / 16][COLUMNS / 8][4], thread const X& x, uint rows, thread const WeightBlock& w,
      uint depth, uint sg, uint lane) {
    constexpr int TILES = BM / 16, WIDE = COLUMNS / 8;
    const uint group = lane / 4, turn = lane % 4;
    device const float* x_from[TILES][2];
    UNROLL for (int i = 0; i < TILES; i++)
      UNROLL for (int h = 0; h < 2; h++)
        x_from[i][h] = x.row(min(uint(i * 16 + h * 8) + group, rows - 1)) + turn * 16;
    UNROLL for (int i = 0; i < TILES; i++)
      UNROLL for (int j = 0; j < WIDE; j++)
        UNROLL for (int e = 0; e < 4; e++) sums[i][j][e] = 0.0f;

    for (uint k = sg * 64; k < depth; k += 8 * 64) {
      uint4 codes[WIDE][BITS == 16 ? 2 : 1];
      float scale[WIDE], bias[WIDE];
      UNROLL for (int j = 0; j < WIDE; j++) {
        const ulong at = (w.row0 + min(uint(j * 8) + group, w.live - 1)) * depth + k + turn * 16;
        scale[j] = bias[j] = 0.0f;
        if (BITS == 4) {
          const uint2 q = w.first.codes[at / 16];
          codes[j][0] = uint4(q[0], q[1], 0u, 0u);
        } else {
          codes[j][0] = ((device const uint4*)w.first.codes)[at / (128 / BITS)];
          if (BITS == 16) codes[j][BITS / 16] = ((device const uint4*)w.first.codes)[at / (128 / BITS) + 1];
        }
        if (BITS != 16) {
          scale[j] = float(w.first.scales[at / 64]);
          bias[j] = float(w.first.biases[at / 64]);
        }
      }
      float4 all[4][TILES][2];
      UNROLL for (int q = 0; q < 4; q++)
        UNROLL for (int i = 0; i < TILES; i++)
          UNROLL for (int h = 0; h < 2; h++) all[q][i][h] = *(device const float4*)(x_from[i][h] + k + uint(q) * 4);
      UNROLL for (int q = 0; q < 4; q++) {
        thread const float4 (&v)[TILES][2] = all[q];
        UNROLL for (int s = 0; s < 2; s++) {
          F32Columns b[WIDE];
          UNROLL for (int j = 0; j < WIDE; j++)
            b[j] = f32_columns(
                weight<BITS>(codes[j], q * 4 + s * 2, scale[j], bias[j]),
                weight<BITS>(codes[j], q * 4 + s * 2 + 1, scale[j], bias[j]));
          UNROLL for (int i = 0; i < TILES; i++)
            f32_multiply<WIDE>(
                sums[i], f32_rows(v[i][0][s * 2], v[i][0][s * 2 + 1], v[i][1][s * 2], v[i][1][s * 2 + 1]), b);
        }
      }
    }
  }

  template <typename T, int BM, typename X, typename V>
  static void product(
      thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint bits, thread const V& visit,
      threadgroup uint4* memory, uint tid, uint sg, uint lane) {
    static_assert(sizeof(T) == 4, "F32 only");
    constexpr int WIDE = COLUMNS / 8;
    float sums[BM / 16][WIDE][4];
    if (bits == 4)
      accumulate<BM, 4>(sums, x, rows, w, depth, sg, lane);
    else if (bits == 8)
      accumulate<BM, 8>(sums, x, rows, w, depth, sg, lane);
    else
      accumulate<BM, 16>(sums, x, rows, w, depth, sg, lane);
    threadgroup float4* parts = (threadgroup float4*)memory;
    UNROLL for (int i = 0; i < BM / 16; i++) {
      if (i > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
      UNROLL for (int j = 0; j < WIDE; j++)
        parts[(sg * WIDE + uint(j)) * 32 + lane] = float4(sums[i][j][0], sums[i][j][1], sums[i][j][2], sums[i][j][3]);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (sg < uint(WIDE)) {
        float4 sum = parts[sg * 32 + lane];
        UNROLL for (int s = 1; s < 8; s++) sum = sum + parts[(uint(s) * WIDE + sg) * 32 + lane];
        UNROLL for (int e = 0; e < 4; e++) {
          const uint r = uint(i) * 16 + lane / 4 + uint(e / 2) * 8, c = sg * 8 + lane % 4 * 2 + uint(e % 2);
          if (r < rows && c < w.live) visit.put(r, c, sum[e]);
        }
      }
    }
  }
};
