// Products by Metal 4's tensor operations (product.metal): matmul2d of 16×32×16 within a simdgroup, BF16 operands that are
// made in registers, F32 sums. No threadgroup memory and no barrier: each simdgroup takes all rows of the block and 32 of
// its 128 columns (of pairs: 16 of the first matrix and 16 of the second), so that a weight is dequantised once for all rows.
//
// Which element of an operand a lane holds is the hardware's choice: element e of a 16×16 fragment is row
// tensor_row + e / 4 · 8 and column tensor_column + e % 4. `layout_tensor` asks the device, and the host uses these kernels
// only where the answer is this one.
//
// The order of the columns in a product is free as long as both operands have it. A lane takes 16 neighbouring columns of 64
// for its 4 columns of four products, so that it loads codes and rows in long pieces.
inline uint tensor_row(uint lane) { return ((lane & 16) >> 2) | ((lane >> 1) & 3); }
inline uint tensor_column(uint lane) { return (lane & 8) | ((lane & 1) << 2); }

// A lane's part of 64 columns: of each row that it holds, four times four neighbours.
struct TensorRow {
  bfloat4 part[4];
};

struct TensorBody {
  static constexpr uint columns() { return 128u; }

  // sums [16 × 32] += x [16 × 16] · W [32 × 16]ᵀ for the columns of part s.
  static void multiply(thread float (&sums)[16], thread const TensorRow (&x)[2], thread const TensorRow (&w)[4], int s) {
    constexpr auto what = mpp::tensor_ops::matmul2d_descriptor(
        16, 32, 16, false, true, true, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
    mpp::tensor_ops::matmul2d<what, execution_simdgroup> product;
    auto left = product.template get_left_input_cooperative_tensor<bfloat, bfloat, float>();
    auto right = product.template get_right_input_cooperative_tensor<bfloat, bfloat, float>();
    auto to = product.template get_destination_cooperative_tensor<
        remove_addrspace_t<decltype(left)>, remove_addrspace_t<decltype(right)>, float>();
#pragma clang loop unroll(full)
    for (ushort e = 0; e < 8; e++) left[e] = x[e / 4].part[s][e % 4];
#pragma clang loop unroll(full)
    for (ushort e = 0; e < 16; e++) right[e] = w[e / 4].part[s][e % 4];
#pragma clang loop unroll(full)
    for (ushort e = 0; e < 16; e++) to[e] = sums[e];
    product.run(left, right, to);
#pragma clang loop unroll(full)
    for (ushort e = 0; e < 16; e++) sums[e] = to[e];
  }

  // Of a simdgroup that has columns.
  template <typename T, int BM, int BITS, bool PAIR, typename X>
  static void accumulate(
      thread float (&sums)[BM / 16][16], thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint sg,
      uint lane) {
    const uint row = tensor_row(lane), at = tensor_column(lane) * 4;
    for (int i = 0; i < BM / 16; i++)
      for (int e = 0; e < 16; e++) sums[i][e] = 0.0f;
    // Rows past the last repeat it: their sums are not visited.
    device const T* x_from[BM / 16][2];
    for (int i = 0; i < BM / 16; i++)
      for (int h = 0; h < 2; h++) x_from[i][h] = x.row(min(uint(i) * 16 + uint(h) * 8 + row, rows - 1)) + at;

    for (uint k = 0; k < depth; k += 64) {
      TensorRow weights[4];
#pragma clang loop unroll(full)
      for (int h = 0; h < 4; h++) {
        const uint n = PAIR ? sg * 16 + uint(h % 2) * 8 + row : sg * 32 + uint(h) * 8 + row;
        Weights matrix = w.first;
        if (PAIR && h >= 2) matrix = w.second;
        float v[16];
        for (int j = 0; j < 16; j++) v[j] = 0.0f;
        if (n < w.live) {
          const ulong from = (w.row0 + n) * depth + k;
          float scale = 0.0f, bias = 0.0f;
          if (BITS != 16) {
            scale = float(matrix.scales[from / 64]);
            bias = float(matrix.biases[from / 64]);
          }
          weights16<BITS>(matrix, from + at, scale, bias, v);
        }
        for (int s = 0; s < 4; s++)
          weights[h].part[s] =
              bfloat4(bfloat(v[4 * s]), bfloat(v[4 * s + 1]), bfloat(v[4 * s + 2]), bfloat(v[4 * s + 3]));
      }
#pragma clang loop unroll(full)
      for (int i = 0; i < BM / 16; i++) {
        if (uint(i) * 16 < rows) { // the whole simdgroup
          TensorRow part[2];
          for (int h = 0; h < 2; h++)
            for (int s = 0; s < 4; s++) part[h].part[s] = *(device const bfloat4*)(x_from[i][h] + k + 4 * s);
          for (int s = 0; s < 4; s++) multiply(sums[i], part, weights, s);
        }
      }
    }
  }

  template <typename T, int BM, bool PAIR, typename X>
  static void accumulate(
      thread float (&sums)[BM / 16][16], thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint bits,
      uint sg, uint lane) {
    static_assert(sizeof(T) == 2, "BF16 only");
    if (bits == 4)
      accumulate<T, BM, 4, PAIR>(sums, x, rows, w, depth, sg, lane);
    else if (bits == 8)
      accumulate<T, BM, 8, PAIR>(sums, x, rows, w, depth, sg, lane);
    else
      accumulate<T, BM, 16, PAIR>(sums, x, rows, w, depth, sg, lane);
  }

  template <typename T, int BM, typename X, typename V>
  static void product(
      thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint bits, thread const V& visit,
      threadgroup uint4*, uint, uint sg, uint lane) {
    if (sg * 32 >= w.live) return; // the whole simdgroup
    float sums[BM / 16][16];
    accumulate<T, BM, false>(sums, x, rows, w, depth, bits, sg, lane);
    for (uint i = 0; i < BM / 16; i++)
      for (uint e = 0; e < 16; e++) {
        const uint r = i * 16 + e % 8 / 4 * 8 + tensor_row(lane);
        const uint c = sg * 32 + e / 8 * 16 + tensor_column(lane) + e % 4;
        if (r < rows && c < w.live) visit.put(r, c, sums[i][e]);
      }
  }

  template <typename T, int BM, typename X, typename V>
  static void product_pair(
      thread const X& x, uint rows, thread const WeightBlock& w, uint depth, uint bits, thread const V& visit,
      threadgroup uint4*, uint, uint sg, uint lane) {
    if (sg * 16 >= w.live) return; // the whole simdgroup
    float sums[BM / 16][16];
    accumulate<T, BM, true>(sums, x, rows, w, depth, bits, sg, lane);
    for (uint i = 0; i < BM / 16; i++)
      for (uint e = 0; e < 8; e++) {
        const uint r = i * 16 + e / 4 * 8 + tensor_row(lane);
        const uint c = sg * 16 + tensor_column(lane) + e % 4;
        if (r < rows && c < w.live) visit.put(r, c, sums[i][e], sums[i][8 + e]);
      }
  }
};

// Where each lane's elements lie: of the left operand (8), the right one (16) and the destination (16) the two indices that
// the device gives, innermost first. One threadgroup of 32 threads.
kernel void layout_tensor(
    device uint* out [[buffer(0)]], // [32 × 80]
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr auto what = mpp::tensor_ops::matmul2d_descriptor(
      16, 32, 16, false, true, true, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<what, execution_simdgroup> product;
  auto left = product.template get_left_input_cooperative_tensor<bfloat, bfloat, float>();
  auto right = product.template get_right_input_cooperative_tensor<bfloat, bfloat, float>();
  auto to = product.template get_destination_cooperative_tensor<
      remove_addrspace_t<decltype(left)>, remove_addrspace_t<decltype(right)>, float>();
  device uint* mine = out + ulong(lane) * 80;
  for (ushort e = 0; e < 8; e++)
    for (ushort i = 0; i < 2; i++) mine[e * 2 + i] = uint(left.get_multidimensional_index(e)[i]);
  for (ushort e = 0; e < 16; e++)
    for (ushort i = 0; i < 2; i++) mine[16 + e * 2 + i] = uint(right.get_multidimensional_index(e)[i]);
  for (ushort e = 0; e < 16; e++)
    for (ushort i = 0; i < 2; i++) mine[48 + e * 2 + i] = uint(to.get_multidimensional_index(e)[i]);
}
