// Cached keys and values of full attention: pages of 64 positions, a page holds all full layers
// (src/kernels/kv.rs). A kernel's pool begins at its layer inside page 0.
#define FULL_HEAD 256u // width of a full-attention head (docs/model.md §1)
#define KV_PAGE 64u    // positions of a page
#define KV_KEYS 0u
#define KV_VALUES 1u

// The value at `position`, d of a head: pool[kv_plane(…) + kv_place(…) + d]. `pages`: the sequence's row of the page table.
inline ulong kv_plane(uint kv_heads, uint part, uint head) {
  return ulong(part * kv_heads + head) * (KV_PAGE * FULL_HEAD);
}
inline ulong kv_place(device const uint* pages, ulong page_stride, uint position) {
  return ulong(pages[position / KV_PAGE]) * page_stride + position % KV_PAGE * FULL_HEAD;
}
