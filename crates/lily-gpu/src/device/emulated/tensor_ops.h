// Look-alike of the part of Metal 4's tensor operations that the kernels use (included after metal_stdlib.h): matmul2d of
// 16×32×16 within a simdgroup, the right operand transposed, with operands in registers. A lane holds the elements that it
// holds on Apple GPUs with tensor hardware. Sums are taken one column after another.
#pragma once

namespace metal {
struct execution_simdgroup {};
template <typename T> struct LilyPlain { typedef T type; };
template <typename T> struct LilyPlain<const T> { typedef T type; };
template <typename T> struct LilyPlain<T&> { typedef T type; };
template <typename T> using remove_addrspace_t = typename LilyPlain<T>::type;
} // namespace metal

namespace mpp {
namespace tensor_ops {
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int m, int n, int k, bool left = false, bool right = false, bool relaxed = false, mode mode = mode::multiply)
      : m(m), n(n), k(k), transpose_left(left), transpose_right(right), relaxed_precision(relaxed), matmul_mode(mode) {}
};

enum class LilyOperand { left, right, destination };

struct LilyIndex {
  int i[2];
  LILY_FN int operator[](int n) const { return i[n]; }
};
// Innermost first: columns of x (k) and its row, columns of W (k) and its row (n), column (n) and row of the result.
LILY_FN LilyIndex lily_tensor_index(LilyOperand operand, uint lane, uint e) {
  const int row = int((lane & 16) / 4 + lane / 2 % 4 + e % 8 / 4 * 8);
  const int column = int((lane & 8) + lane % 2 * 4 + e % 4), second = int(e / 8 * 16);
  if (operand == LilyOperand::right) return LilyIndex{{column, row + second}};
  return LilyIndex{{column + second, row}};
}

template <typename T, int N, LilyOperand O> struct LilyTensor {
  T e[N];
  // NaN: what a kernel forgets to set is seen.
  LILY_FN LilyTensor() { memset(e, 0xff, sizeof e); }
  LILY_FN T& operator[](ushort i) {
    if (i >= N) lily_rule("an element that a lane's cooperative tensor does not have");
    return e[i];
  }
  LILY_FN LilyIndex get_multidimensional_index(ushort i) const { return lily_tensor_index(O, lily_lane(), i); }
};

// Places of a lane's three operands, on its stack: all lanes stand still while the last one computes.
template <typename L, typename R, typename D> struct LilyOperands {
  L* left;
  R* right;
  D* to;
};
template <typename L, typename R, typename D> LILY_UNINSTRUMENTED void lily_matmul(LilySlots* s) {
  float x[16][16], w[32][16], y[16][32];
  LilyOperands<L, R, D> of[32];
  for (uint l = 0; l < 32; l++) {
    if (!(s->mask >> l & 1)) lily_rule("matmul2d of a simdgroup with fewer than 32 lanes");
    memcpy(&of[l], s->value[l], sizeof of[l]);
    for (uint e = 0; e < 8; e++) {
      const LilyIndex i = lily_tensor_index(LilyOperand::left, l, e);
      x[i[1]][i[0]] = float(of[l].left->e[e]);
    }
    for (uint e = 0; e < 16; e++) {
      const LilyIndex i = lily_tensor_index(LilyOperand::right, l, e), j = lily_tensor_index(LilyOperand::destination, l, e);
      w[i[1]][i[0]] = float(of[l].right->e[e]);
      y[j[1]][j[0]] = of[l].to->e[e];
    }
  }
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 32; j++)
      for (int k = 0; k < 16; k++) y[i][j] = __builtin_fmaf(x[i][k], w[j][k], y[i][j]);
  for (uint l = 0; l < 32; l++)
    for (uint e = 0; e < 16; e++) {
      const LilyIndex j = lily_tensor_index(LilyOperand::destination, l, e);
      of[l].to->e[e] = y[j[1]][j[0]];
    }
}

template <matmul2d_descriptor D, typename Scope> struct matmul2d {
  static_assert(D.m == 16 && D.n == 32 && D.k == 16 && !D.transpose_left && D.transpose_right, "16×32×16, W transposed, only");
  static_assert(D.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate, "multiply_accumulate only");
  template <typename L, typename R, typename T> LILY_FN LilyTensor<L, 8, LilyOperand::left> get_left_input_cooperative_tensor() const { return {}; }
  template <typename L, typename R, typename T> LILY_FN LilyTensor<R, 16, LilyOperand::right> get_right_input_cooperative_tensor() const { return {}; }
  template <typename L, typename R, typename T> LILY_FN LilyTensor<T, 16, LilyOperand::destination> get_destination_cooperative_tensor() const { return {}; }
  template <typename L, typename R, typename T> LILY_FN void run(L& left, R& right, T& to, int line = __builtin_LINE()) const {
    const LilyOperands<L, R, T> mine = {&left, &right, &to};
    lily_collect(&mine, sizeof mine, lily_matmul<L, R, T>, line);
  }
};
} // namespace tensor_ops
} // namespace mpp
