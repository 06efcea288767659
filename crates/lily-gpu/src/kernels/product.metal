// Products of prefill: blocks of x · Wᵀ, W dequantised on the way (docs/model.md §3.2). The kernels of affine_gemm.metal and
// grouped_gemm.metal are written against this interface, and a body implements it for a kind of matrix hardware:
//
//   Body::product<T, BM>(x, rows, w, depth, bits, visit, memory, tid, sg, lane)
//     accumulates x[r] · W[c] over all of `depth`, a multiple of 64, for r < rows ≤ BM and c < w.live ≤ Body::columns(), then
//     calls visit.put(r, c, value) once for each of them.
//   Body::product_pair<T, BM>(…)
//     does so for two matrices at once, c < w.live ≤ Body::columns() / 2, and calls visit.put(r, c, first, second).
//
// T: type of x and of W as multiplied: float, or bfloat (then a dequantised weight is rounded to it once). Sums are F32. The
// sum of an element takes its columns in one order whatever the rows, the block and the place in it: with one body, a row's
// bits depend on nothing but the row.
//
// X has `device const T* row(uint r)`: where row r of the block begins, 16-byte aligned.
// All threads of a threadgroup (PRODUCT_THREADS) call it with the same block; `memory` is threadgroup memory of the body's size.
#ifndef PRODUCT_THREADS
#define PRODUCT_THREADS 128
#endif
// How the kernels declare it; N in uint4.
#define PRODUCT_MEMORY(N) threadgroup uint4 memory[N]

// A matrix [rows × depth]: codes of 4 or 8 bits with a scale and a bias for each 64, or BF16 values.
struct Weights {
  device const uint2* codes;
  device const bfloat* scales;
  device const bfloat* biases;
};

// Rows `row0` to `row0 + live` of one matrix, or of each of two.
struct WeightBlock {
  Weights first;
  Weights second;
  ulong row0;
  uint live;
};

// 16 weights from value `at` of a matrix on, a multiple of 16: code · scale + bias. A code has 8 bits and a scale 8, so that
// the product is exact and the sum rounds once.
template <int BITS>
inline void weights16(thread const Weights& w, ulong at, float scale, float bias, thread float* v);
template <>
inline void weights16<4>(thread const Weights& w, ulong at, float scale, float bias, thread float* v) {
  const uint2 q = w.codes[at / 16];
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 8; j++) v[8 * i + j] = fma(float((q[i] >> (4 * j)) & 15u), scale, bias);
}
template <>
inline void weights16<8>(thread const Weights& w, ulong at, float scale, float bias, thread float* v) {
  const uint4 q = ((device const uint4*)w.codes)[at / 16];
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) v[4 * i + j] = fma(float((q[i] >> (8 * j)) & 255u), scale, bias);
}
template <>
inline void weights16<16>(thread const Weights& w, ulong at, float, float, thread float* v) {
  for (int h = 0; h < 2; h++) {
    const uint4 q = ((device const uint4*)w.codes)[at / 8 + ulong(h)];
    for (int i = 0; i < 4; i++) {
      v[8 * h + 2 * i] = as_type<float>(q[i] << 16);
      v[8 * h + 2 * i + 1] = as_type<float>(q[i] & 0xffff0000u);
    }
  }
}

// Rows of x that lie `stride` values apart.
template <typename T>
struct RowsApart {
  device const T* x;
  uint stride;
  device const T* row(uint r) const { return x + ulong(r) * stride; }
};
