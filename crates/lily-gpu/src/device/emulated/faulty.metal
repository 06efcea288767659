// Each kernel but the first breaks one rule.

constant uint FAULTY_CONSTANT [[function_constant(100)]];

// Copies and adds a function constant; what the others are compared with.
kernel void faulty_none(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = in[i] + FAULTY_CONSTANT;
}

kernel void faulty_load_past_the_end(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = in[i + 1];
}

kernel void faulty_store_before_the_start(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  device uint* before = out - 1;
  before[i] = in[i];
}

kernel void faulty_alignment(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  const uint4 v = *(device const uint4*)(in + 1);
  out[i] = v.x;
}

kernel void faulty_barrier_in_a_branch(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  if (i < 7) threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = in[i];
}

kernel void faulty_sum_in_a_branch(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = i % 32 < 7 ? simd_sum(in[i]) : 0;
}

kernel void faulty_return_before_a_barrier(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  if (i == 3) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = in[i];
}

kernel void faulty_threadgroup_memory(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
  threadgroup uint a[8000];
  threadgroup uint b[193];
  a[i] = in[i];
  b[i] = a[i];
  out[i] = b[i];
}

// Gives NaN, as its array is not written.
kernel void faulty_unwritten(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
  threadgroup float a[64];
  out[i] = as_type<uint>(a[i] * float(in[i]));
}

// Works in order; another order of the threads shows that the barrier is missing.
kernel void faulty_missing_barrier(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
  threadgroup uint a[64];
  a[i] = in[i];
  out[i] = i > 0 ? a[i - 1] : 0u;
}

// Two threadgroups write one word, each the same value.
kernel void faulty_shared_word(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
  if (i == 0) out[0] = in[0];
}

// One past the end of a threadgroup array, into the space that pads it.
kernel void faulty_array_index(
    device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
  threadgroup uint a[64];
  a[i + (in[0] == 100u ? 1u : 0u)] = in[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = a[i];
}
