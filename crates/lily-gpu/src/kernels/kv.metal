// Cached keys and values of full attention: pages of 64 positions, a page holds all full layers
// (src/kernels/kv.rs). A kernel's pool begins at its layer inside page 0.
#define FULL_HEAD 256u // width of a full-attention head (docs/model.md §1)
#define KV_PAGE 64u    // positions of a page
#define KV_KEYS 0u
#define KV_VALUES 1u

// A head's key or value of one position: 256 values, or (`uchar`) 8 bits each: 256 codes of ±127, then a BF16 scale for each 32
// of them. `length`: of the type, from one row to the next; `words`: of 16 bytes that hold eight values from a multiple of 8 on,
// with their scale.
template <typename KV> struct KvRow {
  enum { length = 256, words = sizeof(KV) / 2 };
};
template <> struct KvRow<uchar> {
  enum { length = 272, words = 1 };
};

// Row `position` of a head: pool + kv_plane(…) + kv_place(…). `pages`: the sequence's row of the page table.
inline ulong kv_plane(uint kv_heads, uint part, uint head, uint length) {
  return ulong(part * kv_heads + head) * (KV_PAGE * length);
}
inline ulong kv_plane(uint kv_heads, uint part, uint head) { return kv_plane(kv_heads, part, head, FULL_HEAD); }
inline ulong kv_place(device const uint* pages, ulong page_stride, uint position, uint length) {
  return ulong(pages[position / KV_PAGE]) * page_stride + position % KV_PAGE * length;
}
inline ulong kv_place(device const uint* pages, ulong page_stride, uint position) {
  return kv_place(pages, page_stride, position, FULL_HEAD);
}

// Eight values of a row from dim `at` on, a multiple of 8, as they lie in memory: several rows are asked for before one is used.
inline void kv_load8(device const float* row, uint at, thread uint4* raw) {
  for (uint i = 0; i < 2; i++) raw[i] = ((device const uint4*)(row + at))[i];
}
inline void kv_load8(device const bfloat* row, uint at, thread uint4* raw) { raw[0] = *(device const uint4*)(row + at); }
inline void kv_load8(device const uchar* row, uint at, thread uint4* raw) {
  const uint2 codes = *(device const uint2*)(row + at);
  const uint scale = *(device const ushort*)(row + FULL_HEAD + at / 32 * 2);
  raw[0] = uint4(codes.x, codes.y, scale << 16, 0u);
}
template <typename KV>
inline void kv_unpack8(thread const uint4* raw, thread float* v);
template <>
inline void kv_unpack8<float>(thread const uint4* raw, thread float* v) {
  for (int i = 0; i < 8; i++) {
    const uint u = raw[i / 4][i % 4];
    v[i] = as_type<float>(u);
  }
}
template <>
inline void kv_unpack8<bfloat>(thread const uint4* raw, thread float* v) {
  for (int i = 0; i < 4; i++) {
    const uint u = raw[0][i];
    v[2 * i] = as_type<float>(u << 16);
    v[2 * i + 1] = as_type<float>(u & 0xffff0000u);
  }
}
template <>
inline void kv_unpack8<uchar>(thread const uint4* raw, thread float* v) {
  const uint u = raw[0][2];
  const float scale = as_type<float>(u);
  for (int i = 0; i < 8; i++) {
    const uint word = raw[0][i / 4];
    v[i] = scale * float(int(word << (24 - 8 * (i % 4))) >> 24);
  }
}

// A row of a head, of which a lane holds the dims lane, lane + 32, …: the whole simdgroup stores it.
inline void kv_store(device float* row, thread const float* v, uint lane) {
  for (uint i = 0; i < 8; i++) row[i * 32 + lane] = v[i];
}
inline void kv_store(device bfloat* row, thread const float* v, uint lane) {
  for (uint i = 0; i < 8; i++) row[i * 32 + lane] = bfloat(v[i]);
}
// The scale is the largest magnitude of its 32 values over 127; those whose scale would not be a normal number are zero
// (docs/kv.md).
inline void kv_store(device uchar* row, thread const float* v, uint lane) {
  for (uint i = 0; i < 8; i++) {
    const bfloat rounded = bfloat(simd_max(abs(v[i])) / 127.0f);
    const bool none = float(rounded) < 1.17549435e-38f;
    const bfloat scale = none ? bfloat(0.0f) : rounded;
    const float inverse = none ? 0.0f : 1.0f / float(rounded);
    row[i * 32 + lane] = uchar(int(rint(min(max(v[i] * inverse, -127.0f), 127.0f))));
    if (lane == i) *(device bfloat*)(row + FULL_HEAD + i * 2) = scale;
  }
}
