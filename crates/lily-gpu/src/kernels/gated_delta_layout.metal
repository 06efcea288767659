// The delta rule over many tokens of one sequence (docs/model.md §4.5), in blocks of 64 that are cut at multiples of 64 of the
// absolute position: a row's sums do not depend on where a prompt was cut at such multiples. Two dispatches:
//
//   gated_delta_chunk_prepare, parallel over blocks: T = (I + A)⁻¹ and P = (q kᵀ) ∘ L, which do not need the state;
//   gated_delta_chunk_scan, block after block: U = T β (v − e^G S k), o = e^G S q + P U, S ← e^{G_C} S + Uᵀ (e^{G_C − G} k).
//
// A block may be short at both ends of the dispatch: rows that are not there have k = q = v = β = 0. All exponents are
// differences that are never positive. G is a sum of two floats: behind a strong decay, which makes G large, the small
// differences of later tokens keep their digits.
#define DELTA_BLOCK 64u
#define DELTA_TILES 36u                               // 8 × 8 tiles of a lower triangle, row after row
#define DELTA_P (DELTA_TILES * 64u)                   // in the scratch of a block and value head: T, P,
#define DELTA_BETA (2u * DELTA_TILES * 64u)           //   β,
#define DELTA_DECAY (DELTA_BETA + DELTA_BLOCK)        //   e^G,
#define DELTA_REST (DELTA_BETA + 2u * DELTA_BLOCK)    //   e^{G_C − G},
#define DELTA_WHOLE (DELTA_BETA + 3u * DELTA_BLOCK)   //   and e^{G_C} in the first of 64 values
#define DELTA_SCRATCH (DELTA_BETA + 4u * DELTA_BLOCK)

inline uint delta_tile(uint i, uint j) { return (i * (i + 1) / 2 + j) * 64; }

// The tokens of a block: the first one and how many.
inline uint delta_begin(constant DeltaChunkArgs& args, uint block) {
  return block == 0 ? 0u : block * DELTA_BLOCK - args.first;
}
inline uint delta_count(constant DeltaChunkArgs& args, uint block) {
  return min(args.tokens, (block + 1) * DELTA_BLOCK - args.first) - delta_begin(args, block);
}

// G of each token as high + low, by all threads; `low` holds g before. Threads from 64 on only wait.
inline void delta_sums(threadgroup float* high, threadgroup float* low, uint tid) {
  float h = 0.0f, l = 0.0f;
  if (tid < DELTA_BLOCK) {
    for (uint i = 0; i <= tid; i++) {
      const float g = low[i];
      const float sum = h + g;
      const float added = sum - h;
      l += (h - (sum - added)) + (g - added); // what rounding the sum lost
      h = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < DELTA_BLOCK) {
    high[tid] = h;
    low[tid] = l;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// e^{G_i − G_j} for j ≤ i.
inline float delta_between(threadgroup const float* high, threadgroup const float* low, uint i, uint j) {
  return precise::exp(min((high[i] - high[j]) + (low[i] - low[j]), 0.0f));
}
