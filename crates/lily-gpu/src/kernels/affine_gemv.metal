// y = x · Wᵀ for one to eight rows of x, W quantised in groups of 64 (docs/model.md §3.2); up to four matrices that share x
// in one dispatch. Decode only: the sum over the columns has another order than the prefill products'.
//
// A lane takes 32 codes of a row at a time; `lanes` lanes share a row, so that short rows fill a simdgroup too. Two
// neighbours share a group of 64: the even one loads its scale and the odd one its bias. Each byte of a matrix is so
// loaded once. Grid: (threadgroups of all matrices), threads: 32 × simdgroups.
#define GEMV_ROWS 4

template <int BITS>
inline void unpack8(thread const uint4* q, int w, thread float* k);
template <>
inline void unpack8<4>(thread const uint4* q, int w, thread float* k) {
  const uint u = q[0][w];
  for (int j = 0; j < 8; j++) k[j] = float((u >> (4 * j)) & 15u);
}
template <>
inline void unpack8<8>(thread const uint4* q, int w, thread float* k) {
  for (int j = 0; j < 8; j++) k[j] = float((q[w / 2][w % 2 * 2 + j / 4] >> (8 * (j % 4))) & 255u);
}

template <int BITS, int BATCH>
inline void gemv_rows(
    device const uint4* codes, device const bfloat* scales, device const bfloat* biases, uint rows,
    device const float* x, device float* y, constant GemvArgs& args, uint row0, uint lane) {
  const uint chunks = args.columns / 32;
  const uint packs = 32 / args.lanes;
  const uint pack = lane / args.lanes;
  const uint steps = (chunks + args.lanes - 1) / args.lanes;
  const bool odd = lane & 1;
  float acc[GEMV_ROWS][BATCH];
  for (int r = 0; r < GEMV_ROWS; r++)
    for (int b = 0; b < BATCH; b++) acc[r][b] = 0.0f;

  for (uint step = 0; step < steps; step++) {
    const uint c = step * args.lanes + lane % args.lanes;
    uint4 q[GEMV_ROWS][BITS / 4];
    float mine[GEMV_ROWS];
    for (int r = 0; r < GEMV_ROWS; r++) {
      const uint row = row0 + uint(r) * packs + pack;
      for (int h = 0; h < BITS / 4; h++) q[r][h] = uint4(0u);
      mine[r] = 0.0f;
      if (c < chunks && row < rows) {
        for (int h = 0; h < BITS / 4; h++) q[r][h] = codes[(ulong(row) * chunks + c) * (BITS / 4) + h];
        mine[r] = float((odd ? biases : scales)[ulong(row) * (chunks / 2) + c / 2]);
      }
    }
    float dots[GEMV_ROWS][BATCH];
    float sums[BATCH];
    for (int b = 0; b < BATCH; b++) {
      sums[b] = 0.0f;
      for (int r = 0; r < GEMV_ROWS; r++) dots[r][b] = 0.0f;
    }
    if (c < chunks) {
      for (int w = 0; w < 4; w++) {
        float k[GEMV_ROWS][8];
        for (int r = 0; r < GEMV_ROWS; r++) unpack8<BITS>(q[r], w, k[r]);
        for (int b = 0; b < BATCH; b++) {
          float v[8];
          // A kernel for more rows than there are repeats the last one.
          load8(x + ulong(min(uint(b), args.batch - 1)) * args.x_stride + c * 32 + uint(w) * 8, v);
          for (int j = 0; j < 8; j++) {
            sums[b] += v[j];
            for (int r = 0; r < GEMV_ROWS; r++) dots[r][b] = fma(k[r][j], v[j], dots[r][b]);
          }
        }
      }
    }
    for (int r = 0; r < GEMV_ROWS; r++) {
      const float other = simd_shuffle_xor(mine[r], 1);
      const float scale = odd ? other : mine[r];
      const float bias = odd ? mine[r] : other;
      for (int b = 0; b < BATCH; b++) acc[r][b] += scale * dots[r][b] + bias * sums[b];
    }
  }

  for (int r = 0; r < GEMV_ROWS; r++) {
    const uint row = row0 + uint(r) * packs + pack;
    for (int b = 0; b < BATCH; b++) {
      float t = acc[r][b];
      if (args.lanes == 32) {
        t = simd_sum(t);
      } else {
        for (uint m = args.lanes / 2; m > 0; m /= 2) t += simd_shuffle_xor(t, ushort(m));
      }
      if (lane % args.lanes == 0 && row < rows && uint(b) < args.batch) y[ulong(b) * args.y_stride + row] = t;
    }
  }
}

#define AFFINE_GEMV(NAME, BATCH)                                                                               \
  kernel void NAME(                                                                                            \
      device const uint4* codes0 [[buffer(0)]], device const bfloat* scales0 [[buffer(1)]],                    \
      device const bfloat* biases0 [[buffer(2)]], device const uint4* codes1 [[buffer(3)]],                    \
      device const bfloat* scales1 [[buffer(4)]], device const bfloat* biases1 [[buffer(5)]],                  \
      device const uint4* codes2 [[buffer(6)]], device const bfloat* scales2 [[buffer(7)]],                    \
      device const bfloat* biases2 [[buffer(8)]], device const uint4* codes3 [[buffer(9)]],                    \
      device const bfloat* scales3 [[buffer(10)]], device const bfloat* biases3 [[buffer(11)]],                \
      device const float* x [[buffer(12)]], /* [batch × columns] */                                            \
      device float* y [[buffer(13)]],       /* [batch × (rows0 | rows1 | rows2 | rows3)] */                    \
      constant GemvArgs& args [[buffer(14)]], uint group [[threadgroup_position_in_grid]],                     \
      uint sgs [[simdgroups_per_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],                     \
      uint lane [[thread_index_in_simdgroup]]) {                                                               \
    device const uint4* codes = codes0;                                                                        \
    device const bfloat* scales = scales0;                                                                     \
    device const bfloat* biases = biases0;                                                                     \
    uint rows = args.rows0, first = 0, before = 0, matrix = 0;                                                 \
    if (group >= args.group3) {                                                                                \
      codes = codes3, scales = scales3, biases = biases3, rows = args.rows3;                                   \
      first = args.group3, before = args.rows0 + args.rows1 + args.rows2, matrix = 3;                          \
    } else if (group >= args.group2) {                                                                         \
      codes = codes2, scales = scales2, biases = biases2, rows = args.rows2;                                   \
      first = args.group2, before = args.rows0 + args.rows1, matrix = 2;                                       \
    } else if (group >= args.group1) {                                                                         \
      codes = codes1, scales = scales1, biases = biases1, rows = args.rows1;                                   \
      first = args.group1, before = args.rows0, matrix = 1;                                                    \
    }                                                                                                          \
    const uint row0 = ((group - first) * sgs + sg) * GEMV_ROWS * (32 / args.lanes);                            \
    if ((args.eight_bit >> matrix) & 1)                                                                        \
      gemv_rows<8, BATCH>(codes, scales, biases, rows, x, y + before, args, row0, lane);                       \
    else                                                                                                       \
      gemv_rows<4, BATCH>(codes, scales, biases, rows, x, y + before, args, row0, lane);                       \
  }
AFFINE_GEMV(affine_gemv_1, 1)
AFFINE_GEMV(affine_gemv_2, 2)
AFFINE_GEMV(affine_gemv_4, 4)
AFFINE_GEMV(affine_gemv_8, 8)
