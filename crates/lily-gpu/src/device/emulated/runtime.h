// The runtime that translated kernels call.
#pragma once
#include "abi.h"

// Values that the lanes of a simdgroup hand over at a collective operation.
struct LilySlots {
  uint mask;
  uint pad[15];
  unsigned char value[32][32];
};

#ifdef LILY_ASAN // it would look for the end of a stack that is not the one it knows
#define LILY_NO_RETURN
#else
#define LILY_NO_RETURN [[noreturn]]
#endif

extern "C" {
// A rule is broken: the dispatch ends with this text. Does not return.
LILY_NO_RETURN void lily_rule(const char* what);
LILY_NO_RETURN void lily_fault(const LilyBuffer* b, const void* p, uint bytes, uint alignment, int store);
void lily_barrier(int line);
void lily_simd_barrier(int line);
// Publishes `bytes` of this lane and waits for all lanes of the simdgroup; the last to arrive runs `last`.
LilySlots* lily_collect(const void* in, uint bytes, void (*last)(LilySlots*), int line);
uint lily_lane();
void* lily_threadgroup_memory(int id, size_t bytes);
}
