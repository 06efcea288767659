// F32 products on the matrix units of NVIDIA GPUs: a value is the sum of two that have the 11 bits of TF32, and a product of
// two values three products of those; the one left out is below 2^-22 of it. Sums are F32.
//
// A lane of an m16n8k8 step has group = lane / 4 and turn = lane % 4. Sums: rows group and group + 8, columns 2 · turn and
// 2 · turn + 1. Its columns of A and rows of B are named turn and turn + 4, but any naming serves that both keep: here they are
// neighbours, so that the sums of one product are the A of the next one as they are.

struct F32Rows { // A: 16 × 8
  uint high[4];
  uint low[4];
};
struct F32Columns { // B: 8 × 8
  uint high[2];
  uint low[2];
};

inline void f32_parts(float v, thread uint& high, thread uint& low) {
  high = as_type<uint>(v) & 0xffffe000u;
  low = as_type<uint>(v - as_type<float>(high));
}

// Of row `group` its neighbours a and b, of row `group + 8` c and d: as sums lie.
inline F32Rows f32_rows(float a, float b, float c, float d) {
  F32Rows m;
  f32_parts(a, m.high[0], m.low[0]);
  f32_parts(c, m.high[1], m.low[1]);
  f32_parts(b, m.high[2], m.low[2]);
  f32_parts(d, m.high[3], m.low[3]);
  return m;
}

inline F32Columns f32_columns(float a, float b) {
  F32Columns m;
  f32_parts(a, m.high[0], m.low[0]);
  f32_parts(b, m.high[1], m.low[1]);
  return m;
}

// sums[j] += a · b[j]. The three products of a tile stand apart, as each waits for the one before.
template <int N>
inline void f32_multiply(thread float (&sums)[N][4], thread const F32Rows& a, thread const F32Columns (&b)[N]) {
  UNROLL for (int j = 0; j < N; j++) lily_mma_tf32(sums[j], a.low, b[j].high);
  UNROLL for (int j = 0; j < N; j++) lily_mma_tf32(sums[j], a.high, b[j].low);
  UNROLL for (int j = 0; j < N; j++) lily_mma_tf32(sums[j], a.high, b[j].high);
}
