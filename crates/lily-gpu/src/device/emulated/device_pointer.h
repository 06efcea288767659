// `device T*`: a pointer that knows its buffer. Every access is checked for bounds and alignment, and counted.
#pragma once

#ifdef LILY_TSAN // the counters are shared by the fibers of a worker, which the sanitizer takes for threads
#define LILY_COUNT LILY_UNINSTRUMENTED static
#else
#define LILY_COUNT LILY_FN
#endif
LILY_COUNT void lily_count(LilyBuffer* b, const void* p, uint n, int store) {
  b->bytes[store] += n;
  if (b->lines[store]) {
    const ulong line = ((uintptr_t)p >> 7) - ((uintptr_t)b->base >> 7);
    unsigned char* byte = b->lines[store] + (line >> 3);
    const unsigned char bit = (unsigned char)(1u << (line & 7));
    if (!(__atomic_load_n(byte, __ATOMIC_RELAXED) & bit)) __atomic_fetch_or(byte, bit, __ATOMIC_RELAXED);
  }
}

LILY_FN void lily_touch(LilyBuffer* b, const void* p, uint n, uint alignment, int store) {
  const ulong offset = ulong((const unsigned char*)p - b->base);
  if (__builtin_expect(b->size < n || offset > b->size - n || ((uintptr_t)p & (alignment - 1)), 0))
    lily_fault(b, p, n, alignment, store);
  lily_count(b, p, n, store);
}

template <typename T> struct lily_device;

// What `p[i]` is for a `device T*` that may be written.
template <typename T> struct lily_reference {
  T* p;
  LilyBuffer* b;
  LILY_FN T load() const {
    lily_touch(b, p, sizeof(T), alignof(T), 0);
    return *p;
  }
  LILY_FN operator T() const { return load(); }
  template <typename U> LILY_FN explicit operator U() const { return U(load()); }
  LILY_FN const lily_reference& operator=(T v) const {
    lily_touch(b, p, sizeof(T), alignof(T), 1);
    *p = v;
    return *this;
  }
  LILY_FN const lily_reference& operator=(const lily_reference& o) const { return *this = o.load(); }
  LILY_FN const lily_reference& operator+=(T v) const { return *this = load() + v; }
  LILY_FN const lily_reference& operator-=(T v) const { return *this = load() - v; }
  LILY_FN const lily_reference& operator*=(T v) const { return *this = load() * v; }
  LILY_FN lily_device<T> operator&() const { return lily_device<T>(p, b); }
};

template <typename T> struct LilyElement {
  typedef lily_reference<T> type;
  LILY_FN static type of(T* p, LilyBuffer* b) { return type{p, b}; }
};
template <typename T> struct LilyElement<const T> {
  typedef T type;
  LILY_FN static type of(const T* p, LilyBuffer* b) {
    lily_touch(b, p, sizeof(T), alignof(T), 0);
    return *p;
  }
};
template <typename T> struct LilyIsConst { static constexpr bool value = false; };
template <typename T> struct LilyIsConst<const T> { static constexpr bool value = true; };

template <typename T> struct lily_device {
  T* p;
  LilyBuffer* b;
  typedef typename LilyElement<T>::type element;
  lily_device() = default;
  LILY_FN explicit lily_device(LilyBuffer* b) : p((T*)b->base), b(b) {}
  LILY_FN lily_device(T* p, LilyBuffer* b) : p(p), b(b) {}
  template <typename U> LILY_FN explicit lily_device(lily_device<U> o) : p((T*)o.p), b(o.b) {
    static_assert(LilyIsConst<T>::value || !LilyIsConst<U>::value, "cast drops const");
  }
  LILY_FN operator lily_device<const T>() const { return lily_device<const T>(p, b); }
  template <typename I> LILY_FN element operator[](I i) const { return LilyElement<T>::of(p + i, b); }
  LILY_FN element operator*() const { return LilyElement<T>::of(p, b); }
  template <typename I> LILY_FN lily_device operator+(I i) const { return lily_device(p + i, b); }
  template <typename I> LILY_FN lily_device operator-(I i) const { return lily_device(p - i, b); }
  template <typename I> LILY_FN lily_device& operator+=(I i) {
    p += i;
    return *this;
  }
};
