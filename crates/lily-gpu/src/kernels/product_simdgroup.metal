// Products by simdgroup_matrix 8×8 (product.metal): float or bfloat operands, F32 sums. x and the dequantised W are staged in
// threadgroup memory, 32 columns at a time; each word of codes is loaded by one lane. The four simdgroups take a half of
// the rows and a half of the columns each, so that both staged tiles are used twice.
#define SIMDGROUP_DEPTH 32
// Values from one staged row to the next: 16 bytes more than it has, against bank conflicts.
#define SIMDGROUP_STRIDE(T) (SIMDGROUP_DEPTH + 16 / int(sizeof(T)))
// Threadgroup memory in uint4: the staged rows of x and W, and later the scratch of `visit`, which is smaller.
#define SIMDGROUP_MEMORY(T, BM) ((BM + 64) * (2 * sizeof(T) + 1))
// Values from one row to the next of a simdgroup's scratch [8 × 32].
#define SIMDGROUP_SCRATCH 36

inline void stage8(threadgroup bfloat* to, device const bfloat* from) {
  *(threadgroup uint4*)to = *(device const uint4*)from;
}
inline void stage8(threadgroup float* to, device const float* from) {
  for (int h = 0; h < 2; h++) *(threadgroup float4*)(to + 4 * h) = *(device const float4*)(from + 4 * h);
}
inline void stage4(threadgroup float* to, thread const float* v) {
  *(threadgroup float4*)to = float4(v[0], v[1], v[2], v[3]);
}
inline void stage4(threadgroup bfloat* to, thread const float* v) {
  *(threadgroup bfloat4*)to = bfloat4(bfloat(v[0]), bfloat(v[1]), bfloat(v[2]), bfloat(v[3]));
}

struct SimdgroupBody {
  typedef simdgroup_matrix<float, 8, 8> Sums;

  static constexpr uint columns() { return 64u; }

  // Where 8×8 tile j of a simdgroup lies among the staged columns. Of pairs the first two tiles belong to the first
  // matrix and the last two to the second, so that a simdgroup holds both values of a pair.
  static uint column(bool pair, uint half_, uint j) {
    return pair ? j / 2 * 32 + half_ * 16 + j % 2 * 8 : half_ * 32 + j * 8;
  }

  template <typename T, int BM, int BITS, bool PAIR, typename X>
  static void accumulate(
      thread Sums (&sums)[BM / 16][4], thread const X& x, uint rows, thread const WeightBlock& w, uint depth,
      threadgroup T* xs, threadgroup T* ws, uint tid, uint sg) {
    constexpr int TILES = BM / 16;
    constexpr int STRIDE = SIMDGROUP_STRIDE(T);
    for (int i = 0; i < TILES; i++)
      for (int j = 0; j < 4; j++) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    // A thread stages 8 values of BM / 32 rows of x, and 16 of one row of W. Rows that don't exist are not staged: their
    // values reach no row and no column but their own, which nobody visits.
    const uint x_row = tid / 4, x_at = tid % 4 * 8;
    device const T* x_from[BM / 32];
    for (int i = 0; i < BM / 32; i++) x_from[i] = x.row(min(x_row + uint(i) * 32, rows - 1)) + x_at;
    const uint w_row = tid / 2, w_at = tid % 2 * 16;
    const uint w_index = PAIR ? w_row % 32 : w_row;
    const bool w_wanted = w_index < w.live;
    Weights matrix = w.first;
    if (PAIR && w_row >= 32) matrix = w.second;
    const ulong w_from = (w.row0 + w_index) * depth + w_at;
    const uint row0 = sg / 2 * (BM / 2);
    float scale = 0.0f, bias = 0.0f;

    for (uint k = 0; k < depth; k += SIMDGROUP_DEPTH) {
      for (int i = 0; i < BM / 32; i++) {
        const uint r = x_row + uint(i) * 32;
        if (r < rows) stage8(xs + r * STRIDE + x_at, x_from[i] + k);
      }
      if (BITS != 16 && k % 64 == 0) {
        // Two neighbours share a row: the even lane loads its scale and the odd one its bias.
        const bool odd = tid & 1;
        const float mine = w_wanted ? float((odd ? matrix.biases : matrix.scales)[(w_from + k) / 64]) : 0.0f;
        const float other = simd_shuffle_xor(mine, 1);
        scale = odd ? other : mine;
        bias = odd ? mine : other;
      }
      if (w_wanted) {
        float v[16];
        weights16<BITS>(matrix, w_from + k, scale, bias, v);
        for (int j = 0; j < 4; j++) stage4(ws + w_row * STRIDE + w_at + uint(j) * 4, v + 4 * j);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (row0 < rows) { // the whole simdgroup
        for (uint kk = 0; kk < SIMDGROUP_DEPTH; kk += 8) {
          simdgroup_matrix<T, 8, 8> a[TILES];
          simdgroup_matrix<T, 8, 8> b[4];
          for (int i = 0; i < TILES; i++) simdgroup_load(a[i], xs + (row0 + uint(i) * 8) * STRIDE + kk, STRIDE);
          for (int j = 0; j < 4; j++)
            simdgroup_load(b[j], ws + column(PAIR, sg % 2, uint(j)) * STRIDE + kk, STRIDE, ulong2(0, 0), true);
          for (int i = 0; i < TILES; i++)
            for (int j = 0; j < 4; j++) simdgroup_multiply_accumulate(sums[i][j], a[i], b[j], sums[i][j]);
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }

  template <typename T, int BM, bool PAIR, typename X>
  static void accumulate(
      thread Sums (&sums)[BM / 16][4], thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint bits,
      threadgroup uint4* memory, uint tid, uint sg) {
    threadgroup T* xs = (threadgroup T*)memory;
    threadgroup T* ws = xs + BM * SIMDGROUP_STRIDE(T);
    if (bits == 4)
      accumulate<T, BM, 4, PAIR>(sums, x, rows, w, depth, xs, ws, tid, sg);
    else if (bits == 8)
      accumulate<T, BM, 8, PAIR>(sums, x, rows, w, depth, xs, ws, tid, sg);
    else
      accumulate<T, BM, 16, PAIR>(sums, x, rows, w, depth, xs, ws, tid, sg);
  }

  // Eight rows of a simdgroup's sums into its scratch, so that a lane knows which element it has and rows are written whole.
  static void spread(thread Sums (&sums)[4], threadgroup float* scratch) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int j = 0; j < 4; j++) simdgroup_store(sums[j], scratch + 8 * j, SIMDGROUP_SCRATCH);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }

  template <typename T, int BM, typename X, typename V>
  static void product(
      thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint bits, thread const V& visit,
      threadgroup uint4* memory, uint tid, uint sg, uint lane) {
    Sums sums[BM / 16][4];
    accumulate<T, BM, false>(sums, x, rows, w, depth, bits, memory, tid, sg);
    threadgroup float* scratch = (threadgroup float*)memory + sg * (8 * SIMDGROUP_SCRATCH);
    const uint c = sg % 2 * 32 + lane;
    for (uint i = 0; i < BM / 16; i++) {
      const uint row0 = sg / 2 * (BM / 2) + i * 8;
      if (row0 >= rows) continue; // the whole simdgroup
      spread(sums[i], scratch);
      for (uint r = 0; r < 8; r++)
        if (row0 + r < rows && c < w.live) visit.put(row0 + r, c, scratch[r * SIMDGROUP_SCRATCH + lane]);
    }
  }

  template <typename T, int BM, typename X, typename V>
  static void product_pair(
      thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint bits, thread const V& visit,
      threadgroup uint4* memory, uint tid, uint sg, uint lane) {
    Sums sums[BM / 16][4];
    accumulate<T, BM, true>(sums, x, rows, w, depth, bits, memory, tid, sg);
    threadgroup float* scratch = (threadgroup float*)memory + sg * (8 * SIMDGROUP_SCRATCH);
    const uint c = sg % 2 * 16 + lane % 16;
    for (uint i = 0; i < BM / 16; i++) {
      const uint row0 = sg / 2 * (BM / 2) + i * 8;
      if (row0 >= rows) continue; // the whole simdgroup
      spread(sums[i], scratch);
      for (uint r = lane / 16; r < 8; r += 2) {
        threadgroup const float* pair = scratch + r * SIMDGROUP_SCRATCH + lane % 16;
        if (row0 + r < rows && c < w.live) visit.put(row0 + r, c, pair[0], pair[16]);
      }
    }
  }
};
