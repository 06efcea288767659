// y = x · Wᵀ for one to eight rows of x, W of 4, 8 or 16 bits (docs/model.md §3.2); up to four matrices that share x in one
// dispatch. Decode only: the sum over the columns has another order than the prefill products'.
//
// A lane takes 32 columns of a row at a time; `lanes` lanes share a row, so that short rows fill a simdgroup too. Two
// neighbours share a group of 64: the even one loads its scale and the odd one its bias. Each byte of a matrix is so
// loaded once. Grid: (threadgroups of all matrices), threads: 32 × GEMV_SIMDGROUPS.
//
// The norm before a projection is done here: x · weight on load, and the factor 1 / rms at the end, from sums of squares
// that the kernel before left. The residual addition after one is done here too, with the sums for the next norm.
#define GEMV_ROWS 4
#define GEMV_SIMDGROUPS 2

// 1 / rms of a row from its `count` sums of squares, in every lane.
inline float norm_scale(device const float* partials, uint count, uint width, float eps, uint lane) {
  float sum = 0.0f;
  for (uint i = lane; i < count; i += 32) sum += partials[i];
  return 1.0f / precise::sqrt(simd_sum(sum) / float(width) + eps);
}

// Adds this lane's part of GEMV_ROWS rows to acc [GEMV_ROWS × BATCH]: rows row0 + r · (32 / lanes) + lane / lanes.
// `weight` is read with `norm` only.
template <int BITS, int BATCH>
inline void gemv_rows(
    device const uint4* codes, device const bfloat* scales, device const bfloat* biases, uint rows, uint columns,
    uint lanes, device const float* x, uint x_stride, uint batch, device const float* weight, bool norm, uint row0,
    uint lane, thread float* acc) {
  const uint chunks = columns / 32;
  const uint packs = 32 / lanes;
  const uint pack = lane / lanes;
  const uint steps = (chunks + lanes - 1) / lanes;
  const bool odd = lane & 1;
  for (uint step = 0; step < steps; step++) {
    const uint c = step * lanes + lane % lanes;
    uint4 q[GEMV_ROWS][BITS / 4];
    float mine[GEMV_ROWS];
    for (int r = 0; r < GEMV_ROWS; r++) {
      const uint row = row0 + uint(r) * packs + pack;
      for (int h = 0; h < BITS / 4; h++) q[r][h] = uint4(0u);
      mine[r] = 0.0f;
      if (c < chunks && row < rows) {
        for (int h = 0; h < BITS / 4; h++) q[r][h] = codes[(ulong(row) * chunks + c) * (BITS / 4) + h];
        if (BITS != 16) mine[r] = float((odd ? biases : scales)[ulong(row) * (chunks / 2) + c / 2]);
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
        float n[8];
        if (norm) load8(weight + c * 32 + uint(w) * 8, n);
        for (int b = 0; b < BATCH; b++) {
          float v[8];
          // A kernel for more rows than there are repeats the last one.
          load8(x + ulong(min(uint(b), batch - 1)) * x_stride + c * 32 + uint(w) * 8, v);
          for (int j = 0; j < 8; j++) {
            if (norm) v[j] *= n[j];
            sums[b] += v[j];
            for (int r = 0; r < GEMV_ROWS; r++) dots[r][b] = fma(k[r][j], v[j], dots[r][b]);
          }
        }
      }
    }
    for (int r = 0; r < GEMV_ROWS; r++) {
      const float other = simd_shuffle_xor(mine[r], 1);
      const float scale = BITS == 16 ? 1.0f : odd ? other : mine[r];
      const float bias = BITS == 16 ? 0.0f : odd ? mine[r] : other;
      for (int b = 0; b < BATCH; b++) acc[r * BATCH + b] += scale * dots[r][b] + bias * sums[b];
    }
  }
}

// The sum over the lanes that share a row, in each of them.
inline float row_sum(float t, uint lanes) {
  if (lanes == 32) return simd_sum(t);
  for (uint m = lanes / 2; m > 0; m /= 2) t += simd_shuffle_xor(t, ushort(m));
  return t;
}

// Scales, adds and stores what `acc` holds; squares [GEMV_SIMDGROUPS × BATCH] of the new residual stream.
template <int BATCH>
inline void gemv_store(
    thread float* acc, uint rows, device const float* partials, device float* y, constant GemvArgs& args,
    threadgroup float* squares, uint row0, uint sg, uint lane) {
  const uint packs = 32 / args.lanes;
  for (int b = 0; b < BATCH; b++) {
    float scale = 1.0f;
    if (args.partials > 0) {
      device const float* of_row = partials + ulong(min(uint(b), args.batch - 1)) * args.partials;
      scale = norm_scale(of_row, args.partials, args.columns, args.eps, lane);
    }
    float square = 0.0f;
    for (int r = 0; r < GEMV_ROWS; r++) {
      const uint row = row0 + uint(r) * packs + lane / args.lanes;
      float t = row_sum(acc[r * BATCH + b], args.lanes) * scale;
      if (lane % args.lanes == 0 && row < rows && uint(b) < args.batch) {
        const ulong at = ulong(b) * args.y_stride + row;
        if (args.sums > 0) {
          t += y[at];
          square += t * t;
        }
        y[at] = t;
      }
    }
    if (args.sums > 0) {
      square = simd_sum(square);
      if (lane == 0) squares[sg * BATCH + b] = square;
    }
  }
}

#define AFFINE_GEMV(NAME, BATCH)                                                                               \
  [[max_total_threads_per_threadgroup(64)]] kernel void NAME(                                                  \
      device const uint4* codes0 [[buffer(0)]], device const bfloat* scales0 [[buffer(1)]],                    \
      device const bfloat* biases0 [[buffer(2)]], device const uint4* codes1 [[buffer(3)]],                    \
      device const bfloat* scales1 [[buffer(4)]], device const bfloat* biases1 [[buffer(5)]],                  \
      device const uint4* codes2 [[buffer(6)]], device const bfloat* scales2 [[buffer(7)]],                    \
      device const bfloat* biases2 [[buffer(8)]], device const uint4* codes3 [[buffer(9)]],                    \
      device const bfloat* scales3 [[buffer(10)]], device const bfloat* biases3 [[buffer(11)]],                \
      device const float* x [[buffer(12)]],        /* [batch × columns] */                                     \
      device const float* weight [[buffer(13)]],   /* [columns] */                                             \
      device const float* partials [[buffer(14)]], /* [batch × partials] */                                    \
      device float* y [[buffer(15)]],              /* [batch × (rows0 | rows1 | rows2 | rows3)] */             \
      device float* sums [[buffer(16)]],           /* [batch × sums] */                                        \
      constant GemvArgs& args [[buffer(17)]], uint group [[threadgroup_position_in_grid]],                     \
      uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {                   \
    threadgroup float squares[GEMV_SIMDGROUPS * BATCH];                                                        \
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
    const uint row0 = ((group - first) * GEMV_SIMDGROUPS + sg) * GEMV_ROWS * (32 / args.lanes);                \
    const uint bits = (args.bits >> (8 * matrix)) & 255;                                                       \
    const bool norm = args.partials > 0;                                                                       \
    float acc[GEMV_ROWS * BATCH];                                                                              \
    for (int i = 0; i < GEMV_ROWS * BATCH; i++) acc[i] = 0.0f;                                                 \
    if (bits == 4)                                                                                             \
      gemv_rows<4, BATCH>(codes, scales, biases, rows, args.columns, args.lanes, x, args.x_stride, args.batch, \
                          weight, norm, row0, lane, acc);                                                      \
    else if (bits == 8)                                                                                        \
      gemv_rows<8, BATCH>(codes, scales, biases, rows, args.columns, args.lanes, x, args.x_stride, args.batch, \
                          weight, norm, row0, lane, acc);                                                      \
    else                                                                                                       \
      gemv_rows<16, BATCH>(codes, scales, biases, rows, args.columns, args.lanes, x, args.x_stride,            \
                           args.batch, weight, norm, row0, lane, acc);                                         \
    gemv_store<BATCH>(acc, rows, partials, y + before, args, squares, row0, sg, lane);                         \
    if (args.sums > 0) {                                                                                       \
      threadgroup_barrier(mem_flags::mem_threadgroup);                                                         \
      const uint b = sg * 32 + lane;                                                                           \
      if (b < args.batch) {                                                                                    \
        float sum = squares[b];                                                                                \
        for (uint s = 1; s < GEMV_SIMDGROUPS; s++) sum += squares[s * BATCH + b];                              \
        sums[ulong(b) * args.sums + group] = sum;                                                              \
      }                                                                                                        \
    }                                                                                                          \
  }
AFFINE_GEMV(affine_gemv_1, 1)
AFFINE_GEMV(affine_gemv_2, 2)
AFFINE_GEMV(affine_gemv_4, 4)
AFFINE_GEMV(affine_gemv_8, 8)
