// The experts' products (docs/model.md §4.6) over rows sorted by expert (product.metal). A block of GROUPED_ROWS sorted rows
// belongs to one expert; the grid holds as many blocks as there can be, and those past the last say NO_EXPERT.
// Sorted row r is assignment order[r] = token · per_token + place. Grid: (blocks of outputs, blocks of rows), threads:
// PRODUCT_THREADS.
#ifndef GROUPED_ROWS
#define GROUPED_ROWS 32
#endif
#define NO_EXPERT 0xffffffffu

// Rows of x by the token of each sorted row.
template <typename T>
struct RowsOfTokens {
  device const T* x;
  device const uint* order; // of the block's first row
  uint per_token;
  uint stride;
  device const T* row(uint r) const { return x + ulong(order[r] / per_token) * stride; }
};

// silu(gate) ⊙ up.
template <typename T>
struct SwigluOutput {
  device T* out;
  uint stride;
  void put(uint r, uint c, float gate, float up) const { out[ulong(r) * stride + c] = T(silu(gate) * up); }
};

// Back to the order of the assignments, times the expert's weight.
struct WeightedOutput {
  device float* y;
  device const uint* order; // of the block's first row
  device const float* weights;
  uint stride;
  void put(uint r, uint c, float v) const {
    const ulong a = order[r];
    y[a * stride + c] = weights[a] * v;
  }
};

inline WeightBlock expert_rows(
    Weights first, Weights second, ulong expert, uint column0, uint columns, constant GroupedArgs& args) {
  WeightBlock w;
  w.first = first;
  w.second = second;
  w.row0 = expert * args.outputs + column0;
  w.live = min(args.outputs - column0, columns);
  return w;
}

#define GROUPED_GATE_UP(NAME, BODY, T, MEMORY)                                                                 \
  [[max_total_threads_per_threadgroup(PRODUCT_THREADS)]] kernel void NAME(                                     \
      device const uint2* gate_codes [[buffer(0)]], device const bfloat* gate_scales [[buffer(1)]],            \
      device const bfloat* gate_biases [[buffer(2)]], device const uint2* up_codes [[buffer(3)]],              \
      device const bfloat* up_scales [[buffer(4)]], device const bfloat* up_biases [[buffer(5)]],              \
      device const T* x [[buffer(6)]],               /* [tokens × columns] */                                  \
      device const uint* order [[buffer(7)]],        /* [assignments] */                                       \
      device const uint* block_expert [[buffer(8)]], /* [blocks] */                                            \
      device const uint* block_first [[buffer(9)]],  /* [blocks] */                                            \
      device const uint* block_end [[buffer(10)]],   /* [blocks] */                                            \
      device T* out [[buffer(11)]],                  /* [assignments × outputs], sorted */                     \
      constant GroupedArgs& args [[buffer(12)]], uint3 group [[threadgroup_position_in_grid]],                 \
      uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],                    \
      uint lane [[thread_index_in_simdgroup]]) {                                                               \
    MEMORY;                                                                                                    \
    const uint expert = block_expert[group.y];                                                                 \
    if (expert == NO_EXPERT) return; /* the whole threadgroup */                                               \
    const uint first = block_first[group.y], column0 = group.x * (BODY::columns() / 2);                        \
    Weights gate, up;                                                                                          \
    gate.codes = gate_codes, gate.scales = gate_scales, gate.biases = gate_biases;                             \
    up.codes = up_codes, up.scales = up_scales, up.biases = up_biases;                                         \
    RowsOfTokens<T> from;                                                                                      \
    from.x = x, from.order = order + first, from.per_token = args.per_token, from.stride = args.columns;       \
    SwigluOutput<T> to;                                                                                        \
    to.out = out + ulong(first) * args.outputs + column0, to.stride = args.outputs;                            \
    BODY::template product_pair<T, GROUPED_ROWS>(                                                              \
        from, block_end[group.y] - first, expert_rows(gate, up, expert, column0, BODY::columns() / 2, args),   \
        args.columns, args.bits, to, memory, tid, sg, lane);                                                   \
  }

#define GROUPED_DOWN(NAME, BODY, T, MEMORY)                                                                    \
  [[max_total_threads_per_threadgroup(PRODUCT_THREADS)]] kernel void NAME(                                     \
      device const uint2* codes [[buffer(0)]], device const bfloat* scales [[buffer(1)]],                      \
      device const bfloat* biases [[buffer(2)]],                                                               \
      device const T* x [[buffer(3)]],               /* [assignments × columns], sorted */                     \
      device const uint* order [[buffer(4)]],        /* [assignments] */                                       \
      device const uint* block_expert [[buffer(5)]], /* [blocks] */                                            \
      device const uint* block_first [[buffer(6)]],  /* [blocks] */                                            \
      device const uint* block_end [[buffer(7)]],    /* [blocks] */                                            \
      device const float* weights [[buffer(8)]],     /* [assignments], by token */                             \
      device float* y [[buffer(9)]],                 /* [assignments × outputs], by token */                   \
      constant GroupedArgs& args [[buffer(10)]], uint3 group [[threadgroup_position_in_grid]],                 \
      uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],                    \
      uint lane [[thread_index_in_simdgroup]]) {                                                               \
    MEMORY;                                                                                                    \
    const uint expert = block_expert[group.y];                                                                 \
    if (expert == NO_EXPERT) return; /* the whole threadgroup */                                               \
    const uint first = block_first[group.y], column0 = group.x * BODY::columns();                              \
    Weights m;                                                                                                 \
    m.codes = codes, m.scales = scales, m.biases = biases;                                                     \
    RowsApart<T> from;                                                                                         \
    from.x = x + ulong(first) * args.columns, from.stride = args.columns;                                      \
    WeightedOutput to;                                                                                         \
    to.y = y + column0, to.order = order + first, to.weights = weights, to.stride = args.outputs;              \
    BODY::template product<T, GROUPED_ROWS>(                                                                   \
        from, block_end[group.y] - first, expert_rows(m, m, expert, column0, BODY::columns(), args),           \
        args.columns, args.bits, to, memory, tid, sg, lane);                                                   \
  }

// The shared expert: every token's row, in larger blocks.
#define SHARED_GATE_UP(NAME, BODY, T, BM, MEMORY)                                                              \
  [[max_total_threads_per_threadgroup(PRODUCT_THREADS)]] kernel void NAME(                                     \
      device const uint2* gate_codes [[buffer(0)]], device const bfloat* gate_scales [[buffer(1)]],            \
      device const bfloat* gate_biases [[buffer(2)]], device const uint2* up_codes [[buffer(3)]],              \
      device const bfloat* up_scales [[buffer(4)]], device const bfloat* up_biases [[buffer(5)]],              \
      device const T* x [[buffer(6)]], /* [tokens × columns] */                                                \
      device T* out [[buffer(7)]],     /* [tokens × outputs] */                                                \
      constant GroupedArgs& args [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],                  \
      uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],                    \
      uint lane [[thread_index_in_simdgroup]]) {                                                               \
    MEMORY;                                                                                                    \
    const uint first = group.y * BM, column0 = group.x * (BODY::columns() / 2);                                \
    Weights gate, up;                                                                                          \
    gate.codes = gate_codes, gate.scales = gate_scales, gate.biases = gate_biases;                             \
    up.codes = up_codes, up.scales = up_scales, up.biases = up_biases;                                         \
    RowsApart<T> from;                                                                                         \
    from.x = x + ulong(first) * args.columns, from.stride = args.columns;                                      \
    SwigluOutput<T> to;                                                                                        \
    to.out = out + ulong(first) * args.outputs + column0, to.stride = args.outputs;                            \
    BODY::template product_pair<T, BM>(                                                                        \
        from, min(args.tokens - first, uint(BM)), expert_rows(gate, up, 0, column0, BODY::columns() / 2, args), \
        args.columns, args.bits, to, memory, tid, sg, lane);                                                   \
  }
