// The emulator's look-alike of <metal_stdlib>: just what the kernels use.
#pragma once
#include "runtime.h"
#include <string.h>

#define LILY_FN inline __attribute__((always_inline))
#define LILY_COMMA ,
#define LILY_KERNEL static
#define LILY_FUNCTION_CONSTANT
#define LILY_CONSTANT static const
#define LILY_THREADGROUP(T, name, dims) \
  typedef T lily_t_##name dims;         \
  lily_t_##name& name = *(lily_t_##name*)lily_threadgroup_memory(__COUNTER__, sizeof(lily_t_##name))
#if defined(__clang__)
#define LILY_UNINSTRUMENTED __attribute__((no_sanitize("thread"), noinline))
#else
#define LILY_UNINSTRUMENTED __attribute__((no_sanitize_thread, noinline))
#endif

#include "device_pointer.h"

namespace metal {
LILY_FN ushort lily_f32_to_bf16(float f) {
  uint u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (ushort)((u >> 16) | 0x40);
  return (ushort)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
LILY_FN float lily_bf16_to_f32(ushort b) {
  uint u = uint(b) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
LILY_FN ushort lily_f32_to_f16(float f) {
  _Float16 h = (_Float16)f;
  ushort b;
  memcpy(&b, &h, 2);
  return b;
}
LILY_FN float lily_f16_to_f32(ushort b) {
  _Float16 h;
  memcpy(&h, &b, 2);
  return (float)h;
}
#include "vec.h"
#define LILY_VECTORS(T) typedef vec<T, 2> T##2; typedef vec<T, 3> T##3; typedef vec<T, 4> T##4;
LILY_VECTORS(float) LILY_VECTORS(uint) LILY_VECTORS(int) LILY_VECTORS(ushort) LILY_VECTORS(ulong)
LILY_VECTORS(half) LILY_VECTORS(bfloat)
#undef LILY_VECTORS

template <typename T, typename U> LILY_FN T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "as_type");
  T t;
  memcpy(&t, &u, sizeof t);
  return t;
}
#define LILY_MIN_MAX(T)                                 \
  LILY_FN T min(T a, T b) { return a < b ? a : b; }     \
  LILY_FN T max(T a, T b) { return a > b ? a : b; }
LILY_MIN_MAX(int) LILY_MIN_MAX(uint) LILY_MIN_MAX(ulong)
#undef LILY_MIN_MAX
LILY_FN float min(float a, float b) { return __builtin_fminf(a, b); }
LILY_FN float max(float a, float b) { return __builtin_fmaxf(a, b); }
LILY_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
LILY_FN float exp(float a) { return __builtin_expf(a); }
LILY_FN float log(float a) { return __builtin_logf(a); }
LILY_FN float sin(float a) { return __builtin_sinf(a); }
LILY_FN float cos(float a) { return __builtin_cosf(a); }
LILY_FN float sqrt(float a) { return __builtin_sqrtf(a); }
LILY_FN float rsqrt(float a) { return 1.0f / __builtin_sqrtf(a); }
LILY_FN float rint(float a) { return __builtin_rintf(a); }
LILY_FN float abs(float a) { return __builtin_fabsf(a); }
namespace precise {
using metal::cos;
using metal::exp;
using metal::log;
using metal::rsqrt;
using metal::sin;
using metal::sqrt;
}
namespace fast {
using namespace precise;
}

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
LILY_FN mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
LILY_FN void threadgroup_barrier(mem_flags, int line = __builtin_LINE()) { lily_barrier(line); }
LILY_FN void simdgroup_barrier(mem_flags, int line = __builtin_LINE()) { lily_simd_barrier(line); }

// Atomics are relaxed only, as in MSL.
enum memory_order { memory_order_relaxed };
template <typename T> struct atomic { T v; };
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
template <typename T> LILY_FN T atomic_fetch_add_explicit(atomic<T>* a, T x, memory_order) {
  return __atomic_fetch_add(&a->v, x, __ATOMIC_RELAXED);
}
template <typename T> LILY_FN T atomic_load_explicit(const atomic<T>* a, memory_order) {
  return __atomic_load_n(&a->v, __ATOMIC_RELAXED);
}
template <typename T> LILY_FN void atomic_store_explicit(atomic<T>* a, T x, memory_order) {
  __atomic_store_n(&a->v, x, __ATOMIC_RELAXED);
}
template <typename T> LILY_FN T atomic_fetch_add_explicit(lily_device<atomic<T>> a, T x, memory_order o) {
  lily_touch(a.b, a.p, sizeof(T), alignof(T), 0);
  lily_touch(a.b, a.p, sizeof(T), alignof(T), 1);
  return atomic_fetch_add_explicit(a.p, x, o);
}
template <typename T> LILY_FN T atomic_load_explicit(lily_device<atomic<T>> a, memory_order o) {
  lily_touch(a.b, a.p, sizeof(T), alignof(T), 0);
  return atomic_load_explicit(a.p, o);
}
template <typename T> LILY_FN void atomic_store_explicit(lily_device<atomic<T>> a, T x, memory_order o) {
  lily_touch(a.b, a.p, sizeof(T), alignof(T), 1);
  atomic_store_explicit(a.p, x, o);
}

#include "simdgroup.h"
} // namespace metal
#if __cplusplus >= 202002L
#include "tensor_ops.h"
#endif

// A thread's place, and what a kernel's built-in arguments are made of.
struct LilyThread {
  uint group[3], groups[3], thread[3], threads[3], index, lane, simdgroup, simdgroups;
  typedef metal::uint3 u3;
  u3 threadgroup_position_in_grid() const { return u3(group[0], group[1], group[2]); }
  u3 threadgroups_per_grid() const { return u3(groups[0], groups[1], groups[2]); }
  u3 thread_position_in_threadgroup() const { return u3(thread[0], thread[1], thread[2]); }
  u3 threads_per_threadgroup() const { return u3(threads[0], threads[1], threads[2]); }
  u3 thread_position_in_grid() const {
    return u3(group[0] * threads[0] + thread[0], group[1] * threads[1] + thread[1], group[2] * threads[2] + thread[2]);
  }
  uint thread_index_in_threadgroup() const { return index; }
  uint thread_index_in_simdgroup() const { return lane; }
  uint simdgroup_index_in_threadgroup() const { return simdgroup; }
  uint simdgroups_per_threadgroup() const { return simdgroups; }
};
template <typename T> struct LilyConvert {
  static T of(metal::uint3 v) { return T(v.x); }
  static T of(uint v) { return T(v); }
};
template <typename T> struct LilyConvert<metal::vec<T, 2>> {
  static metal::vec<T, 2> of(metal::uint3 v) { return metal::vec<T, 2>(T(v.x), T(v.y)); }
};
template <typename T> struct LilyConvert<metal::vec<T, 3>> {
  static metal::vec<T, 3> of(metal::uint3 v) { return metal::vec<T, 3>(T(v.x), T(v.y), T(v.z)); }
};
template <typename T, typename V> LILY_FN T lily_convert(V v) { return LilyConvert<T>::of(v); }
