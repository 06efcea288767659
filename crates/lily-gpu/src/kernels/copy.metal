// Slices of device memory to another place: slice i lies `from_stride` and goes `to_stride` words of 16 bytes after the one
// before. Grid: (threadgroups of a slice, slices), threads: COPY_THREADS.
#define COPY_THREADS 256u
#define COPY_WORDS 4u // a thread's

[[max_total_threads_per_threadgroup(256)]] kernel void copy_slices(
    device const uint4* from [[buffer(0)]],
    device uint4* to [[buffer(1)]],
    constant CopyArgs& args [[buffer(2)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  device const uint4* in = from + ulong(at.y) * args.from_stride;
  device uint4* out = to + ulong(at.y) * args.to_stride;
  const ulong first = ulong(at.x) * (COPY_THREADS * COPY_WORDS) + tid;
  for (uint w = 0; w < COPY_WORDS; w++) {
    const ulong i = first + w * COPY_THREADS;
    if (i < args.words) out[i] = in[i];
  }
}
