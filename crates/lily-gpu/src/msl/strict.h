// Strict check with clang: MSL address spaces become clang address spaces, so that mixing device, threadgroup,
// constant and thread pointers does not compile, as under Metal. Vector types are clang's (all swizzles). Checked only.
#pragma once
#define LILY_AS_device __attribute__((address_space(1)))
#define LILY_AS_constant __attribute__((address_space(2)))
#define LILY_AS_threadgroup __attribute__((address_space(3)))
#define LILY_AS_thread
#define LILY_COMMA ,
#define LILY_KERNEL static
#define LILY_FUNCTION_CONSTANT extern const
#define LILY_CONSTANT static const
#define LILY_THREADGROUP(T, name, dims) static LILY_AS_threadgroup T name dims
#define LILY_FN inline
typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned char uchar; typedef unsigned long ulong;
typedef unsigned int uint32_t; typedef unsigned short uint16_t; typedef unsigned char uint8_t; typedef int int32_t;
typedef _Float16 half; typedef __bf16 bfloat;
template <typename T, int N> using vec = T __attribute__((ext_vector_type(N)));
#define LILY_V(T) typedef vec<T, 2> T##2; typedef vec<T, 3> T##3; typedef vec<T, 4> T##4;
LILY_V(float) LILY_V(uint) LILY_V(int) LILY_V(ushort) LILY_V(short) LILY_V(uchar) LILY_V(ulong) LILY_V(half) LILY_V(bfloat)
// T(a, b): a constructor call on a vector type
template <typename V> struct LilyEl; template <typename T, int N> struct LilyEl<T __attribute__((ext_vector_type(N)))> { typedef T t; };
template <typename V, typename... A> LILY_FN V lily_mk(A... a) { if constexpr (sizeof...(A) == 1) { return ((V(a)), ...); } else return V{typename LilyEl<V>::t(a)...}; }
#define float4(...) lily_mk<float4>(__VA_ARGS__)
#define float2(...) lily_mk<float2>(__VA_ARGS__)
#define uint4(...) lily_mk<uint4>(__VA_ARGS__)
#define uint2(...) lily_mk<uint2>(__VA_ARGS__)
#define uint3(...) lily_mk<uint3>(__VA_ARGS__)
#define ulong2(...) lily_mk<ulong2>(__VA_ARGS__)
#define bfloat4(...) lily_mk<bfloat4>(__VA_ARGS__)
namespace metal {
template <typename T, typename U> LILY_FN T as_type(U u) { static_assert(sizeof(T) == sizeof(U)); return __builtin_bit_cast(T, u); }
#define LILY_1(f) float f(float); float2 f(float2); float4 f(float4);
LILY_1(exp) LILY_1(log) LILY_1(sin) LILY_1(cos) LILY_1(tanh) LILY_1(sqrt) LILY_1(rsqrt) LILY_1(abs)
namespace precise { LILY_1(exp) LILY_1(log) LILY_1(sin) LILY_1(cos) LILY_1(tanh) LILY_1(sqrt) LILY_1(rsqrt) }
namespace fast { LILY_1(exp) LILY_1(log) LILY_1(sin) LILY_1(cos) LILY_1(tanh) LILY_1(sqrt) LILY_1(rsqrt) }
int min(int, int); uint min(uint, uint); float min(float, float); int max(int, int); uint max(uint, uint); float max(float, float);
float rint(float); float dot(float2, float2); float dot(float3, float3); float dot(float4, float4); float fma(float, float, float); float4 fma(float4, float4, float4);
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 }; mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags); void simdgroup_barrier(mem_flags);
enum memory_order { memory_order_relaxed };
// Enums: what stands in them is reached by these functions only.
enum class atomic_uint : uint {}; enum class atomic_int : int {};
#define LILY_AT(AS, A, T) \
  T atomic_fetch_add_explicit(AS A*, T, memory_order); T atomic_fetch_max_explicit(AS A*, T, memory_order); \
  T atomic_load_explicit(const AS A*, memory_order); void atomic_store_explicit(AS A*, T, memory_order);
LILY_AT(LILY_AS_device, atomic_uint, uint) LILY_AT(LILY_AS_threadgroup, atomic_uint, uint)
LILY_AT(LILY_AS_device, atomic_int, int) LILY_AT(LILY_AS_threadgroup, atomic_int, int)
template <typename T> T simd_sum(T); template <typename T> T simd_max(T); template <typename T> T simd_min(T); template <typename T> T simd_shuffle(T, ushort);
template <typename T> T simd_broadcast(T, ushort); template <typename T> T simd_shuffle_xor(T, ushort);
template <typename T> T simd_shuffle_up(T, ushort); template <typename T> T simd_shuffle_down(T, ushort);
template <typename T, int R, int C> struct simdgroup_matrix { T e[2]; vec<T, 2>& thread_elements(); };
template <typename T, int R, int C> simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T);
#define LILY_SM(AS) \
  template <typename T> void simdgroup_load(simdgroup_matrix<T, 8, 8>&, const AS T*, ulong ld = 8, ulong2 o = ulong2(0, 0), bool tr = false); \
  template <typename T> void simdgroup_store(const simdgroup_matrix<T, 8, 8>&, AS T*, ulong ld = 8, ulong2 o = ulong2(0, 0), bool tr = false);
LILY_SM(LILY_AS_device) LILY_SM(LILY_AS_threadgroup)
template <typename A, typename B, typename C, typename D> void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>&, const simdgroup_matrix<A, 8, 8>&, const simdgroup_matrix<B, 8, 8>&, const simdgroup_matrix<C, 8, 8>&);
}
// Tensor operations of Metal 4, as the tensor kernels use them.
namespace metal {
struct execution_simdgroup {};
template <typename T> struct LilyPlain { typedef T t; }; template <typename T> struct LilyPlain<T&> { typedef T t; }; template <typename T> struct LilyPlain<const T> { typedef T t; };
template <typename T> using remove_addrspace_t = typename LilyPlain<T>::t;
}
namespace mpp { namespace tensor_ops {
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k; bool left, right, relaxed; mode what;
  constexpr matmul2d_descriptor(int m, int n, int k, bool left = false, bool right = false, bool relaxed = false, mode what = mode::multiply) : m(m), n(n), k(k), left(left), right(right), relaxed(relaxed), what(what) {}
};
template <typename T> struct LilyTensor { T& operator[](ushort); vec<int, 2> get_multidimensional_index(ushort) const; };
template <matmul2d_descriptor D, typename S> struct matmul2d {
  template <typename L, typename R, typename T> LilyTensor<L> get_left_input_cooperative_tensor() const;
  template <typename L, typename R, typename T> LilyTensor<R> get_right_input_cooperative_tensor() const;
  template <typename L, typename R, typename T> LilyTensor<T> get_destination_cooperative_tensor() const;
  template <typename L, typename R, typename T> void run(L&, R&, T&) const;
};
} }
