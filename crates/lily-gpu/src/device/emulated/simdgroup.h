// Collective operations of a simdgroup (included inside namespace metal). Every lane publishes, the last one computes.
#pragma once

template <typename T> LILY_UNINSTRUMENTED T lily_get(LilySlots* s, uint lane) {
  T t;
  memcpy(&t, s->value[lane], sizeof t);
  return t;
}
// Butterfly order, as the CUDA body's: all devices add in the same order.
template <typename T, typename F> LILY_UNINSTRUMENTED void lily_reduce(LilySlots* s) {
  T v[32];
  F f;
  for (int i = 0; i < 32; i++) {
    if (!(s->mask >> i & 1)) lily_rule("a reduction of a simdgroup with fewer than 32 lanes");
    memcpy(&v[i], s->value[i], sizeof(T));
  }
  for (int m = 16; m; m /= 2)
    for (int i = 0; i < m; i++) v[i] = f(v[i], v[i + m]);
  for (int i = 0; i < 32; i++) memcpy(s->value[i], &v[0], sizeof(T));
}
struct LilyAdd {
  template <typename T> T operator()(T a, T b) { return a + b; }
};
struct LilyMax {
  template <typename T> T operator()(T a, T b) { return a > b ? a : b; }
};
struct LilyMin {
  template <typename T> T operator()(T a, T b) { return a < b ? a : b; }
};
#define LILY_REDUCTION(name, F)                                                                     \
  template <typename T> LILY_FN T name(T x, int line = __builtin_LINE()) {                          \
    return lily_get<T>(lily_collect(&x, sizeof x, lily_reduce<T, F>, line), lily_lane());           \
  }
LILY_REDUCTION(simd_sum, LilyAdd)
LILY_REDUCTION(simd_max, LilyMax)
LILY_REDUCTION(simd_min, LilyMin)
#undef LILY_REDUCTION
template <typename T> LILY_FN T simd_shuffle(T x, ushort l, int line = __builtin_LINE()) {
  return lily_get<T>(lily_collect(&x, sizeof x, nullptr, line), l & 31);
}
template <typename T> LILY_FN T simd_broadcast(T x, ushort l, int line = __builtin_LINE()) {
  return simd_shuffle(x, l, line);
}
template <typename T> LILY_FN T simd_shuffle_xor(T x, ushort m, int line = __builtin_LINE()) {
  return simd_shuffle(x, ushort(lily_lane() ^ m), line);
}
template <typename T> LILY_FN T simd_shuffle_up(T x, ushort d, int line = __builtin_LINE()) {
  const uint l = lily_lane();
  return simd_shuffle(x, ushort(l >= d ? l - d : l), line);
}

// simdgroup_matrix: two elements a lane, where Apple GPUs keep them.
template <typename T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "8x8 only");
  T e[2];
  typedef T frag[2];
  LILY_FN frag& thread_elements() { return e; }
};
LILY_FN uint lily_matrix_row(uint l) { return (l / 4 & 4) + l / 2 % 4; }
LILY_FN uint lily_matrix_column(uint l) { return (l / 4 & 2) * 2 + l % 2 * 2; }
template <typename T, int R, int C> LILY_FN simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T x) {
  simdgroup_matrix<T, R, C> m;
  m.e[0] = m.e[1] = x;
  return m;
}
LILY_FN const void* lily_address(const void* p) { return p; }
template <typename T> LILY_FN const void* lily_address(lily_device<T> p) { return p.p; }
template <typename T, typename P>
LILY_FN void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, P p, ulong ld = 8, ulong2 o = ulong2(0, 0), bool tr = false) {
  const uint l = lily_lane(), r = lily_matrix_row(l), c = lily_matrix_column(l);
  if (sizeof(T) == 2 && (((uintptr_t)lily_address(p + (o.x + o.y * ld)) & 3) || (ld & 1)))
    lily_rule("simdgroup_load of 16-bit values needs 4-byte alignment and an even row length");
  for (uint i = 0; i < 2; i++) m.e[i] = tr ? p[(o.x + c + i) * ld + o.y + r] : p[(o.y + r) * ld + o.x + c + i];
}
template <typename T, typename P>
LILY_FN void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, P p, ulong ld = 8, ulong2 o = ulong2(0, 0), bool tr = false) {
  const uint l = lily_lane(), r = lily_matrix_row(l), c = lily_matrix_column(l);
  for (uint i = 0; i < 2; i++) p[tr ? (o.x + c + i) * ld + o.y + r : (o.y + r) * ld + o.x + c + i] = m.e[i];
}
LILY_UNINSTRUMENTED inline void lily_multiply(LilySlots* s) {
  float a[8][8], b[8][8], c[8][8];
  for (uint l = 0; l < 32; l++) {
    float e[6];
    memcpy(e, s->value[l], 24);
    const uint r = lily_matrix_row(l), k = lily_matrix_column(l);
    for (uint i = 0; i < 2; i++) a[r][k + i] = e[i], b[r][k + i] = e[2 + i], c[r][k + i] = e[4 + i];
  }
  for (int i = 0; i < 8; i++)
    for (int k = 0; k < 8; k++)
      for (int j = 0; j < 8; j++) c[i][j] = __builtin_fmaf(a[i][k], b[k][j], c[i][j]);
  for (uint l = 0; l < 32; l++) memcpy(s->value[l], &c[lily_matrix_row(l)][lily_matrix_column(l)], 8);
}
template <typename TA, typename TB>
LILY_FN void simdgroup_multiply_accumulate(
    simdgroup_matrix<float, 8, 8>& d, const simdgroup_matrix<TA, 8, 8>& a, const simdgroup_matrix<TB, 8, 8>& b,
    const simdgroup_matrix<float, 8, 8>& c, int line = __builtin_LINE()) {
  const float e[6] = {float(a.e[0]), float(a.e[1]), float(b.e[0]), float(b.e[1]), c.e[0], c.e[1]};
  const float2 r = lily_get<float2>(lily_collect(e, sizeof e, lily_multiply, line), lily_lane());
  d.e[0] = r.x;
  d.e[1] = r.y;
}
