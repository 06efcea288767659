// CUDA look-alike of <metal_stdlib>, for NVRTC with -default-device. simdgroup = warp, threadgroup = block.
#pragma once
#define LILY_FN __device__ __forceinline__
#define LILY_COMMA ,
#define LILY_KERNEL __device__ __forceinline__
#define LILY_CONSTANT static __device__ const
#define LILY_THREADGROUP(T, name, dims) __shared__ __align__(16) T name dims
#define LILY_RESTRICT __restrict__
typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned char uchar; typedef unsigned long long ulong;
typedef unsigned int uint32_t; typedef unsigned short uint16_t; typedef unsigned char uint8_t; typedef int int32_t;
typedef uint3 lily_cuda_uint3; // CUDA's own, before the names are taken over
typedef uint4 lily_cuda_uint4; typedef float4 lily_cuda_float4; typedef uint2 lily_cuda_uint2;
#define float2 lily_float2
#define float3 lily_float3
#define float4 lily_float4
#define uint2 lily_uint2
#define uint3 lily_uint3
#define uint4 lily_uint4
#define int2 lily_int2
#define int3 lily_int3
#define int4 lily_int4
#define ushort2 lily_ushort2
#define ushort3 lily_ushort3
#define ushort4 lily_ushort4
#define ulong2 lily_ulong2
LILY_FN unsigned short lily_f32_to_bf16(float f) { unsigned short r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(f)); return r; }
LILY_FN float lily_bf16_to_f32(unsigned short b) { return __uint_as_float(uint(b) << 16); }
LILY_FN unsigned short lily_f32_to_f16(float f) { unsigned short r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(f)); return r; }
LILY_FN float lily_f16_to_f32(unsigned short b) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(b)); return r; }
#include "vec.h"
typedef vec<float, 2> float2; typedef vec<float, 3> float3; typedef vec<float, 4> float4;
typedef vec<uint, 2> uint2; typedef vec<uint, 3> uint3; typedef vec<uint, 4> uint4;
typedef vec<int, 2> int2; typedef vec<int, 3> int3; typedef vec<int, 4> int4;
typedef vec<ushort, 2> ushort2; typedef vec<ushort, 4> ushort4; typedef vec<ulong, 2> ulong2;
typedef vec<half, 2> half2; typedef vec<half, 4> half4; typedef vec<bfloat, 2> bfloat2; typedef vec<bfloat, 4> bfloat4;

template <typename T, typename U> struct LilyAs { union { U u; T t; }; LILY_FN LilyAs(U x) : u(x) {} };
template <typename T, typename U> LILY_FN T as_type(U u) { static_assert(sizeof(T) == sizeof(U), "as_type"); return LilyAs<T, U>(u).t; }
LILY_FN float rsqrt(float x) { return rsqrtf(x); } // fast-math choices are made by NVRTC's options
namespace metal { using ::min; using ::max; using ::fma; using ::exp; using ::log; using ::sqrt; using ::rsqrt; using ::tanh; using ::abs; using ::sin; using ::cos; using ::rint;
namespace precise { using ::exp; using ::log; using ::sqrt; using ::rsqrt; using ::tanh; using ::sin; using ::cos; }
namespace fast { using namespace precise; } }

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
LILY_FN void threadgroup_barrier(mem_flags) { __syncthreads(); }
LILY_FN void simdgroup_barrier(mem_flags) { __syncwarp(); }
enum memory_order { memory_order_relaxed };
template <typename T> struct atomic { T v; };
typedef atomic<uint> atomic_uint; typedef atomic<int> atomic_int; typedef atomic<float> atomic_float;
template <typename T> LILY_FN T atomic_fetch_add_explicit(atomic<T>* a, T x, memory_order) { return atomicAdd(&a->v, x); }
template <typename T> LILY_FN T atomic_fetch_max_explicit(atomic<T>* a, T x, memory_order) { return atomicMax(&a->v, x); }
template <typename T> LILY_FN T atomic_load_explicit(const atomic<T>* a, memory_order) { return *(const volatile T*)&a->v; }
template <typename T> LILY_FN void atomic_store_explicit(atomic<T>* a, T x, memory_order) { *(volatile T*)&a->v = x; }

LILY_FN uint lily_lane() { uint l; asm("mov.u32 %0, %%laneid;" : "=r"(l)); return l; }
template <typename T> LILY_FN T simd_shuffle(T x, ushort l) { return __shfl_sync(0xffffffffu, x, l); }
template <typename T> LILY_FN T simd_broadcast(T x, ushort l) { return __shfl_sync(0xffffffffu, x, l); }
template <typename T> LILY_FN T simd_shuffle_xor(T x, ushort m) { return __shfl_xor_sync(0xffffffffu, x, m); }
template <typename T> LILY_FN T simd_shuffle_up(T x, ushort d) { return __shfl_up_sync(0xffffffffu, x, d); }
template <typename T> LILY_FN T simd_shuffle_down(T x, ushort d) { return __shfl_down_sync(0xffffffffu, x, d); }
template <typename T> LILY_FN T simd_sum(T x) {
#pragma unroll
  for (int m = 16; m; m /= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
  return x;
}
template <typename T> LILY_FN T simd_max(T x) {
#pragma unroll
  for (int m = 16; m; m /= 2) { T o = __shfl_xor_sync(0xffffffffu, x, m); x = x > o ? x : o; }
  return x;
}
template <typename T> LILY_FN T simd_min(T x) {
#pragma unroll
  for (int m = 16; m; m /= 2) { T o = __shfl_xor_sync(0xffffffffu, x, m); x = x < o ? x : o; }
  return x;
}

// One instruction where the hardware has it; F32 in an order of unsigned integers.
LILY_FN uint simd_min(uint x) { uint r; asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(x)); return r; }
LILY_FN float simd_max(float x) {
  uint u = __float_as_uint(x), r;
  u = u & 0x80000000u ? ~u : u | 0x80000000u;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(u));
  return __uint_as_float(r & 0x80000000u ? r & 0x7fffffffu : ~r);
}

#define LILY_RESIDENT(N) // for the entry's launch bounds

// Kernels of a graph may overlap (device/cuda/graph.rs): the first call lets the threadgroups of the next kernel come, the
// second waits until the kernels before this one have ended and what they wrote is there.
LILY_FN void lily_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
LILY_FN void lily_await() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// simdgroup_matrix: the element pair of a lane is row lane/4, columns 2*(lane%4) and +1 (the tensor core's C layout).
// A 16-bit matrix loaded with transpose keeps the layout of memory and says so in tr (a constant once inlined):
// that is just what the tensor core wants for B.
template <typename T> struct LilyIs16 { static constexpr bool v = sizeof(T) == 2; };
LILY_FN uint lily_trans(uint x) { uint r; asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x)); return r; }
template <typename T, int R, int C> struct simdgroup_matrix {
  T e[2]; bool tr = false; typedef T frag[2];
  LILY_FN frag& thread_elements() { if (LilyIs16<T>::v && tr) { uint x = lily_trans(*(uint*)e); *(uint*)e = x; tr = false; } return e; }
};
template <typename T, int R, int C> LILY_FN simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T x) { simdgroup_matrix<T, R, C> m; m.e[0] = m.e[1] = x; return m; }
template <typename T> LILY_FN void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* p, uint ld = 8, ulong2 o = ulong2(0, 0), bool tr = false) {
  uint l = lily_lane(), r = l >> 2, c = (l & 3) * 2;
  if constexpr (LilyIs16<T>::v) { // pairs by one 4-byte load: p 4-byte aligned, ld even (the emulator checks)
    const T* q = p + (uint(o.y) + r) * ld + uint(o.x) + c;
    uint x = *(const uint*)q; m.e[0] = as_type<T>(ushort(x)); m.e[1] = as_type<T>(ushort(x >> 16)); m.tr = tr;
  } else if (tr) { const T* q = p + (uint(o.x) + c) * ld + uint(o.y) + r; m.e[0] = q[0]; m.e[1] = q[ld]; }
  else { const T* q = p + (uint(o.y) + r) * ld + uint(o.x) + c; m.e[0] = q[0]; m.e[1] = q[1]; }
}
template <typename T> LILY_FN void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* p, uint ld = 8, ulong2 o = ulong2(0, 0), bool tr = false) {
  uint l = lily_lane(), r = l >> 2, c = (l & 3) * 2;
  if (tr != (LilyIs16<T>::v && m.tr)) { T* q = p + (uint(o.x) + c) * ld + uint(o.y) + r; q[0] = m.e[0]; q[ld] = m.e[1]; }
  else { T* q = p + (uint(o.y) + r) * ld + uint(o.x) + c; q[0] = m.e[0]; q[1] = m.e[1]; }
}
template <typename T> LILY_FN uint lily_frag(const simdgroup_matrix<T, 8, 8>& m, bool tr) { uint x = uint(as_type<ushort>(m.e[0])) | uint(as_type<ushort>(m.e[1])) << 16; return m.tr == tr ? x : lily_trans(x); }
// 16-bit inputs: one m16n8k8, its lower 8 rows zero
LILY_FN void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8>& d, const simdgroup_matrix<bfloat, 8, 8>& a, const simdgroup_matrix<bfloat, 8, 8>& b, const simdgroup_matrix<float, 8, 8>& c) {
  float u0, u1;
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%9};"
      : "=f"(d.e[0]), "=f"(d.e[1]), "=f"(u0), "=f"(u1)
      : "r"(lily_frag(a, false)), "r"(0), "r"(lily_frag(b, true)), "f"(c.e[0]), "f"(c.e[1]), "f"(0.0f));
}
LILY_FN void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8>& d, const simdgroup_matrix<half, 8, 8>& a, const simdgroup_matrix<half, 8, 8>& b, const simdgroup_matrix<float, 8, 8>& c) {
  float u0, u1;
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%9};"
      : "=f"(d.e[0]), "=f"(d.e[1]), "=f"(u0), "=f"(u1)
      : "r"(lily_frag(a, false)), "r"(0), "r"(lily_frag(b, true)), "f"(c.e[0]), "f"(c.e[1]), "f"(0.0f));
}
#define LILY_MMA16(T, NAME) \
  LILY_FN void mma16x8x16(simdgroup_matrix<float, 8, 8>& c0, simdgroup_matrix<float, 8, 8>& c1, simdgroup_matrix<T, 8, 8>& a00, simdgroup_matrix<T, 8, 8>& a10, simdgroup_matrix<T, 8, 8>& a01, simdgroup_matrix<T, 8, 8>& a11, simdgroup_matrix<T, 8, 8>& b0, simdgroup_matrix<T, 8, 8>& b1) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(c0.e[0]), "+f"(c0.e[1]), "+f"(c1.e[0]), "+f"(c1.e[1]) \
        : "r"(lily_frag(a00, false)), "r"(lily_frag(a10, false)), "r"(lily_frag(a01, false)), "r"(lily_frag(a11, false)), "r"(lily_frag(b0, true)), "r"(lily_frag(b1, true))); }
template <typename T> LILY_FN void mma16x8x16(simdgroup_matrix<float, 8, 8>& c0, simdgroup_matrix<float, 8, 8>& c1, simdgroup_matrix<T, 8, 8>& a00, simdgroup_matrix<T, 8, 8>& a10, simdgroup_matrix<T, 8, 8>& a01, simdgroup_matrix<T, 8, 8>& a11, simdgroup_matrix<T, 8, 8>& b0, simdgroup_matrix<T, 8, 8>& b1) {
  simdgroup_multiply_accumulate(c0, a00, b0, c0); simdgroup_multiply_accumulate(c0, a01, b1, c0);
  simdgroup_multiply_accumulate(c1, a10, b0, c1); simdgroup_multiply_accumulate(c1, a11, b1, c1);
}
LILY_MMA16(bfloat, "bf16")
LILY_MMA16(half, "f16")
// float inputs: exact float sums by shuffles (as the emulator), or the tf32 unit with -DLILY_TF32
LILY_FN void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8>& d, const simdgroup_matrix<float, 8, 8>& a, const simdgroup_matrix<float, 8, 8>& b, const simdgroup_matrix<float, 8, 8>& c) {
  uint l = lily_lane();
#ifdef LILY_TF32
  // A: a0 (row l/4, k l%4), a2 (k l%4+4); B: b0 (k l%4, col l/4), b1 (k +4). k is relabelled: k' = 2*(l%4), 2*(l%4)+1
  uint a0, a2, b0, b1; float x0, x1, u0, u1;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(a0) : "f"(a.e[0])); asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(a2) : "f"(a.e[1]));
  uint src0 = (l & 3) * 8 + (l >> 3), odd = (l >> 2) & 1; // B[2*(l%4)][l/4] sits in lane row*4 + col/2
  float p0 = __shfl_sync(~0u, b.e[0], src0), p1 = __shfl_sync(~0u, b.e[1], src0), q0 = __shfl_sync(~0u, b.e[0], src0 + 4), q1 = __shfl_sync(~0u, b.e[1], src0 + 4);
  x0 = odd ? p1 : p0; x1 = odd ? q1 : q0;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(b0) : "f"(x0)); asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(b1) : "f"(x1));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%5}, {%7,%8}, {%9,%10,%11,%11};"
      : "=f"(d.e[0]), "=f"(d.e[1]), "=f"(u0), "=f"(u1) : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1), "f"(c.e[0]), "f"(c.e[1]), "f"(0.0f));
#else
  float r0 = c.e[0], r1 = c.e[1];
#pragma unroll
  for (int k = 0; k < 8; k++) {
    float av = __shfl_sync(~0u, a.e[k & 1], (l & ~3u) + k / 2);
    float b0 = __shfl_sync(~0u, b.e[0], k * 4 + (l & 3)), b1 = __shfl_sync(~0u, b.e[1], k * 4 + (l & 3));
    r0 = fmaf(av, b0, r0); r1 = fmaf(av, b1, r1);
  }
  d.e[0] = r0; d.e[1] = r1;
#endif
}
#include "mma.h"
#include "wgmma.h"
extern __shared__ __align__(1024) char lily_dyn[];
#define LILY_DYNAMIC(T, name, bytes) T* name = (T*)lily_dyn
LILY_FN uint3 lily_threadgroup_position_in_grid() { return uint3(blockIdx.x, blockIdx.y, blockIdx.z); }
LILY_FN uint3 lily_threadgroups_per_grid() { return uint3(gridDim.x, gridDim.y, gridDim.z); }
LILY_FN uint3 lily_thread_position_in_threadgroup() { return uint3(threadIdx.x, threadIdx.y, threadIdx.z); }
LILY_FN uint3 lily_threads_per_threadgroup() { return uint3(blockDim.x, blockDim.y, blockDim.z); }
LILY_FN uint3 lily_threads_per_grid() { return uint3(blockDim.x * gridDim.x, blockDim.y * gridDim.y, blockDim.z * gridDim.z); }
LILY_FN uint3 lily_thread_position_in_grid() { return uint3(blockDim.x * blockIdx.x + threadIdx.x, blockDim.y * blockIdx.y + threadIdx.y, blockDim.z * blockIdx.z + threadIdx.z); }
LILY_FN uint lily_thread_index_in_threadgroup() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
LILY_FN uint lily_thread_index_in_simdgroup() { return lily_thread_index_in_threadgroup() & 31; }
LILY_FN uint lily_simdgroup_index_in_threadgroup() { return lily_thread_index_in_threadgroup() >> 5; }
LILY_FN uint lily_simdgroups_per_threadgroup() { return (blockDim.x * blockDim.y * blockDim.z + 31) / 32; }
LILY_FN uint lily_threads_per_simdgroup() { return 32; }
template <typename T> struct LilyConvert { LILY_FN static T of(uint3 v) { return T(v.x); } LILY_FN static T of(uint v) { return T(v); } };
template <typename T> struct LilyConvert<vec<T, 2>> { LILY_FN static vec<T, 2> of(uint3 v) { return vec<T, 2>(T(v.x), T(v.y)); } };
template <typename T> struct LilyConvert<vec<T, 3>> { LILY_FN static vec<T, 3> of(uint3 v) { return vec<T, 3>(T(v.x), T(v.y), T(v.z)); } };
template <typename T, typename V> LILY_FN T lily_convert(V v) { return LilyConvert<T>::of(v); }
