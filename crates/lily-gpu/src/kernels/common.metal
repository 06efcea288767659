// Shared by all kernels. The rules that kernels keep are in docs/metal.md.

#define LINEAR_HEAD 128u // width of a linear-attention head (docs/model.md §1)
#define CONV_TAPS 4u

// Before a loop that indexes an array of registers: without it compilers may keep the array in memory.
#define UNROLL _Pragma("unroll")

// On CUDA a kernel of a decoded token may begin while those before it still run (msl/cuda.h). Between these two it loads what
// no kernel of the command buffer writes. Each thread passes both; elsewhere they are nothing.
#ifdef LILY_CUDA
#define EARLY_BEGIN lily_release();
#define EARLY_END lily_await();
#else
#define EARLY_BEGIN
#define EARLY_END
#endif

// Eight activations from p on, which is 16-byte aligned.
inline void load8(device const float* p, thread float* v) {
  const float4 a = *(device const float4*)p;
  const float4 b = *(device const float4*)(p + 4);
  for (int i = 0; i < 4; i++) {
    v[i] = a[i];
    v[4 + i] = b[i];
  }
}

// Four values to p on, which is aligned to them.
inline void store4(device float* p, float4 v) { *(device float4*)p = v; }
inline void store4(device bfloat* p, float4 v) {
  bfloat4 h;
  for (int i = 0; i < 4; i++) h[i] = bfloat(v[i]);
  *(device bfloat4*)p = h;
}

#ifndef INFINITY
#define INFINITY (as_type<float>(0x7f800000u))
#endif

inline float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }

inline float silu(float x) { return x * sigmoid(x); }

// ln(1 + e^x). MSL has no log1p: the quotient takes back what rounding 1 + e lost.
inline float softplus(float x) {
  const float e = precise::exp(-abs(x));
  const float u = 1.0f + e;
  const float log1p = u == 1.0f ? e : precise::log(u) * (e / (u - 1.0f));
  return max(x, 0.0f) + log1p;
}

// Codes 8w to 8w + 7 of a lane's 32, from BITS / 4 words of 16 bytes; with 16 bits the values themselves.
template <int BITS>
inline void unpack8(thread const uint4* q, int w, thread float* k);
template <>
inline void unpack8<4>(thread const uint4* q, int w, thread float* k) {
  const uint u = q[0][w];
  for (int j = 0; j < 8; j++) k[j] = float((u >> (4 * j)) & 15u);
}
template <>
inline void unpack8<8>(thread const uint4* q, int w, thread float* k) {
  for (int j = 0; j < 8; j++) k[j] = float((q[w / 2][w % 2 * 2 + j / 4] >> (8 * (j % 4))) & 255u);
}
template <>
inline void unpack8<16>(thread const uint4* q, int w, thread float* k) {
  for (int j = 0; j < 4; j++) {
    const uint u = q[w][j];
    k[2 * j] = as_type<float>(u << 16);
    k[2 * j + 1] = as_type<float>(u & 0xffff0000u);
  }
}
