// y = x · Wᵀ for any number of rows of x (product.metal); up to four matrices that share x in one dispatch, their outputs
// side by side in a row of y. A threadgroup takes BM rows and Body::columns() outputs. Grid: (blocks of all matrices, blocks
// of rows), threads: PRODUCT_THREADS. Neighbouring threadgroups share rows of x and walk through W, which is the larger.
struct GemmOutput {
  device float* y;
  uint stride;
  void put(uint r, uint c, float v) const { y[ulong(r) * stride + c] = v; }
};

template <typename Body, typename T, int BM>
inline void gemm_block(
    Weights m, uint matrix, uint rows, uint block, uint before, device const T* x, device float* y,
    constant GemmArgs& args, uint row_block, threadgroup uint4* memory, uint tid, uint sg, uint lane) {
  const uint row0 = row_block * BM, column0 = block * Body::columns();
  RowsApart<T> from;
  from.x = x + ulong(row0) * args.x_stride;
  from.stride = args.x_stride;
  WeightBlock w;
  w.first = m;
  w.second = m;
  w.row0 = column0;
  w.live = min(rows - column0, Body::columns());
  GemmOutput to;
  to.y = y + ulong(row0) * args.y_stride + before + column0;
  to.stride = args.y_stride;
  const uint bits = (args.bits >> (8 * matrix)) & 255u;
  Body::template product<T, BM>(
      from, min(args.rows - row0, uint(BM)), w, args.columns, bits, to, memory, tid, sg, lane);
}

#define AFFINE_GEMM(NAME, BODY, T, BM, MEMORY)                                                                 \
  [[max_total_threads_per_threadgroup(PRODUCT_THREADS)]] kernel void NAME(                                     \
      device const uint2* codes0 [[buffer(0)]], device const bfloat* scales0 [[buffer(1)]],                    \
      device const bfloat* biases0 [[buffer(2)]], device const uint2* codes1 [[buffer(3)]],                    \
      device const bfloat* scales1 [[buffer(4)]], device const bfloat* biases1 [[buffer(5)]],                  \
      device const uint2* codes2 [[buffer(6)]], device const bfloat* scales2 [[buffer(7)]],                    \
      device const bfloat* biases2 [[buffer(8)]], device const uint2* codes3 [[buffer(9)]],                    \
      device const bfloat* scales3 [[buffer(10)]], device const bfloat* biases3 [[buffer(11)]],                \
      device const T* x [[buffer(12)]], /* [rows × x_stride] */                                                \
      device float* y [[buffer(13)]],   /* [rows × y_stride]: rows0 | rows1 | rows2 | rows3 */                 \
      constant GemmArgs& args [[buffer(14)]], uint3 group [[threadgroup_position_in_grid]],                    \
      uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],                    \
      uint lane [[thread_index_in_simdgroup]]) {                                                               \
    MEMORY;                                                                                                    \
    Weights m;                                                                                                 \
    m.codes = codes0, m.scales = scales0, m.biases = biases0;                                                  \
    uint rows = args.rows0, first = 0, before = 0, matrix = 0;                                                 \
    if (group.x >= args.group3) {                                                                              \
      m.codes = codes3, m.scales = scales3, m.biases = biases3, rows = args.rows3;                             \
      first = args.group3, before = args.rows0 + args.rows1 + args.rows2, matrix = 3;                          \
    } else if (group.x >= args.group2) {                                                                       \
      m.codes = codes2, m.scales = scales2, m.biases = biases2, rows = args.rows2;                             \
      first = args.group2, before = args.rows0 + args.rows1, matrix = 2;                                       \
    } else if (group.x >= args.group1) {                                                                       \
      m.codes = codes1, m.scales = scales1, m.biases = biases1, rows = args.rows1;                             \
      first = args.group1, before = args.rows0, matrix = 1;                                                    \
    }                                                                                                          \
    gemm_block<BODY, T, BM>(                                                                                   \
        m, matrix, rows, group.x - first, before, x, y, args, group.y, memory, tid, sg, lane);                 \
  }
