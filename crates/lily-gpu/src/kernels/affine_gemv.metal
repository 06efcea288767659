// y = x · Wᵀ for one to eight rows of x, W of 4, 8 or 16 bits (docs/model.md §3.2); up to four matrices that share x in one
// dispatch. Decode only: the sum over the columns has another order than the prefill products'.
//
// A lane takes 32 columns of a row at a time; `lanes` lanes share a row, so that short rows fill a simdgroup too. Two
// neighbours share a group of 64: the even one loads its scale and the odd one its bias. Each byte of a matrix is so
// loaded once, and the next step's are on their way while this one's are used. Columns of x that belong to one step pass
// through threadgroup memory: read straight from device memory, the lanes' runs of 32 would lie a cache line apart.
// Grid: (threadgroups of all matrices), threads: 32 × GEMV_SIMDGROUPS.
//
// The norm before a projection is done here: x · weight on load, and the factor 1 / rms at the end, from sums of squares
// that the kernel before left. The residual addition after one is done here too, with the sums for the next norm.
#define GEMV_ROWS 4
#define GEMV_SIMDGROUPS 4
// Of the four runs of eight columns in a lane's 32, those that are in threadgroup memory at a time.
#define GEMV_RUNS(BATCH) (BATCH > 4 ? 2 : 4)
// From one part of four columns to the next, in float4; one over the lanes, so that neither filling nor reading the tile
// has bank conflicts.
#define GEMV_PITCH 33
#define GEMV_TILE(BATCH) (BATCH * 2 * GEMV_RUNS(BATCH) * GEMV_PITCH)

struct GemvMatrix {
  device const uint4* codes;
  device const bfloat* scales;
  device const bfloat* biases;
  uint bits, rows, columns;
  uint lanes; // that share a row: a power of two, 2 to 32
};

struct GemvInput {
  device const float* x;
  device const float* weight; // of the norm, read with `norm` only
  uint stride;                // values from one row of x to the next
  uint batch;
  bool norm;
};

// 1 / rms of a row from its `count` sums of squares, in every lane.
inline float norm_scale(device const float* partials, uint count, uint width, float eps, uint lane) {
  float sum = 0.0f;
  for (uint i = lane; i < count; i += 32) sum += partials[i];
  return 1.0f / precise::sqrt(simd_sum(sum) / float(width) + eps);
}

// Of chunk c of GEMV_ROWS rows: the 4-bit codes of all 32 columns, and the scale or the bias of each row's group; zeros
// past the end. Wider codes are loaded where they are used, so that they take no more registers.
template <int BITS>
inline void gemv_load(thread const GemvMatrix& m, uint c, uint row0, uint lane, thread uint4* q, thread float* mine) {
  const uint chunks = m.columns / 32;
  const uint packs = 32 / m.lanes;
  for (int r = 0; r < GEMV_ROWS; r++) {
    const uint row = row0 + uint(r) * packs + lane / m.lanes;
    q[r] = uint4(0u);
    mine[r] = 0.0f;
    if (c < chunks && row < m.rows) {
      if (BITS == 4) q[r] = m.codes[ulong(row) * chunks + c];
      if (BITS != 16) mine[r] = float(((lane & 1) ? m.biases : m.scales)[ulong(row) * (chunks / 2) + c / 2]);
    }
  }
}

// Runs `first` to `first` + GEMV_RUNS of the columns of one step, times the norm's weight, to the tile.
template <int BATCH>
inline void gemv_fill(
    thread const GemvInput& in, uint lanes, uint columns, uint step, uint first, threadgroup float4* tile, uint tid,
    uint threads) {
  const uint parts = 2 * GEMV_RUNS(BATCH);
  for (uint b = 0; b < BATCH; b++) {
    // A kernel for more rows than there are repeats the last one.
    device const float* x = in.x + ulong(min(b, in.batch - 1)) * in.stride;
    for (uint i = tid; i < lanes * parts; i += threads) {
      const uint l = i / parts, part = i % parts;
      const uint column = (step * lanes + l) * 32 + first * 8 + part * 4;
      if (column < columns) {
        float4 v = *(device const float4*)(x + column);
        if (in.norm) v = v * *(device const float4*)(in.weight + column);
        tile[(b * parts + part) * GEMV_PITCH + l] = v;
      }
    }
  }
}

// Adds this lane's part of GEMV_ROWS rows to acc [GEMV_ROWS × BATCH]: rows row0 + r · (32 / lanes) + lane / lanes. With
// TILED x goes through the tile, and all threads of the threadgroup take part, in the same columns.
template <int BITS, int BATCH, bool TILED>
inline void gemv_rows(
    thread const GemvMatrix& m, thread const GemvInput& in, uint row0, threadgroup float4* tile, uint tid, uint threads,
    uint lane, thread float* acc) {
  const uint chunks = m.columns / 32;
  const uint packs = 32 / m.lanes;
  const uint l = lane % m.lanes;
  const uint steps = (chunks + m.lanes - 1) / m.lanes;
  const bool odd = lane & 1;
  uint4 coming[GEMV_ROWS];
  float coming_mine[GEMV_ROWS];
  gemv_load<BITS>(m, l, row0, lane, coming, coming_mine);
  for (uint step = 0; step < steps; step++) {
    const uint c = step * m.lanes + l;
    uint4 q[GEMV_ROWS];
    float mine[GEMV_ROWS];
    for (int r = 0; r < GEMV_ROWS; r++) {
      q[r] = coming[r];
      mine[r] = coming_mine[r];
    }
    if (step + 1 < steps) gemv_load<BITS>(m, c + m.lanes, row0, lane, coming, coming_mine);
    float dots[GEMV_ROWS][BATCH];
    float sums[BATCH];
    for (int b = 0; b < BATCH; b++) {
      sums[b] = 0.0f;
      for (int r = 0; r < GEMV_ROWS; r++) dots[r][b] = 0.0f;
    }
    for (int first = 0; first < 4; first += GEMV_RUNS(BATCH)) {
      if (TILED) {
        threadgroup_barrier(mem_flags::mem_threadgroup); // the tile's readers have done
        gemv_fill<BATCH>(in, m.lanes, m.columns, step, uint(first), tile, tid, threads);
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      if (c >= chunks) continue;
      for (int w = first; w < first + GEMV_RUNS(BATCH); w++) {
        float k[GEMV_ROWS][8];
        for (int r = 0; r < GEMV_ROWS; r++) {
          if (BITS != 4 && w * BITS % 16 == 0) {
            const uint row = row0 + uint(r) * packs + lane / m.lanes;
            if (row < m.rows) q[r] = m.codes[(ulong(row) * chunks + c) * (BITS / 4) + uint(w * BITS / 16)];
          }
          unpack8<BITS>(q + r, BITS == 4 ? w : BITS == 8 ? w % 2 : 0, k[r]);
        }
        for (int b = 0; b < BATCH; b++) {
          float v[8];
          if (TILED) {
            for (int half = 0; half < 2; half++) {
              const float4 part = tile[((b * GEMV_RUNS(BATCH) + w - first) * 2 + half) * GEMV_PITCH + int(l)];
              for (int j = 0; j < 4; j++) v[half * 4 + j] = part[j];
            }
          } else {
            load8(in.x + ulong(b) * in.stride + c * 32 + uint(w) * 8, v);
          }
          for (int j = 0; j < 8; j++) {
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

// The same for a matrix of any bits, from zero.
template <int BATCH, bool TILED>
inline void gemv_matrix(
    thread const GemvMatrix& m, thread const GemvInput& in, uint row0, threadgroup float4* tile, uint tid, uint threads,
    uint lane, thread float* acc) {
  for (int i = 0; i < GEMV_ROWS * BATCH; i++) acc[i] = 0.0f;
  if (m.bits == 4)
    gemv_rows<4, BATCH, TILED>(m, in, row0, tile, tid, threads, lane, acc);
  else if (m.bits == 8)
    gemv_rows<8, BATCH, TILED>(m, in, row0, tile, tid, threads, lane, acc);
  else
    gemv_rows<16, BATCH, TILED>(m, in, row0, tile, tid, threads, lane, acc);
}

// The sum over the lanes that share a row, in each of them.
inline float row_sum(float t, uint lanes) {
  if (lanes == 32) return simd_sum(t);
  for (uint m = 16; m > 0; m /= 2) {
    const float other = simd_shuffle_xor(t, ushort(m));
    if (m < lanes) t += other;
  }
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
  [[max_total_threads_per_threadgroup(128)]] kernel void NAME(                                                 \
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
    threadgroup float4 tile[GEMV_TILE(BATCH)];                                                                 \
    GemvMatrix m;                                                                                              \
    m.codes = codes0, m.scales = scales0, m.biases = biases0, m.rows = args.rows0;                             \
    m.columns = args.columns, m.lanes = args.lanes;                                                            \
    uint first = 0, before = 0, matrix = 0;                                                                    \
    if (group >= args.group3) {                                                                                \
      m.codes = codes3, m.scales = scales3, m.biases = biases3, m.rows = args.rows3;                           \
      first = args.group3, before = args.rows0 + args.rows1 + args.rows2, matrix = 3;                          \
    } else if (group >= args.group2) {                                                                         \
      m.codes = codes2, m.scales = scales2, m.biases = biases2, m.rows = args.rows2;                           \
      first = args.group2, before = args.rows0 + args.rows1, matrix = 2;                                       \
    } else if (group >= args.group1) {                                                                         \
      m.codes = codes1, m.scales = scales1, m.biases = biases1, m.rows = args.rows1;                           \
      first = args.group1, before = args.rows0, matrix = 1;                                                    \
    }                                                                                                          \
    m.bits = (args.bits >> (8 * matrix)) & 255;                                                                \
    GemvInput in;                                                                                              \
    in.x = x, in.weight = weight, in.stride = args.x_stride, in.batch = args.batch, in.norm = args.partials > 0;\
    const uint row0 = ((group - first) * GEMV_SIMDGROUPS + sg) * GEMV_ROWS * (32 / args.lanes);                \
    float acc[GEMV_ROWS * BATCH];                                                                              \
    gemv_matrix<BATCH, true>(m, in, row0, tile, sg * 32 + lane, GEMV_SIMDGROUPS * 32, lane, acc);              \
    gemv_store<BATCH>(acc, m.rows, partials, y + before, args, squares, row0, sg, lane);                       \
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
