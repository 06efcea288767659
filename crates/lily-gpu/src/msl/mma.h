// Matrix units, 16-byte copies past the registers, and bytes; for kernels/hopper. From compute capability 8.0 on.
LILY_FN uint lily_shared_address(const void* p) { return (uint)__cvta_generic_to_shared(p); }
LILY_FN void lily_copy16(void* to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(lily_shared_address(to)), "l"(from) : "memory"); }
// Zeros where there is nothing to copy.
LILY_FN void lily_copy16_if(void* to, const void* from, bool there) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(lily_shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory"); }
LILY_FN void lily_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
LILY_FN void lily_copy_wait1() { asm volatile("cp.async.wait_group 1;" ::: "memory"); } // all but the last group are there
LILY_FN uint lily_bytes(uint a, uint b, uint which) { return __byte_perm(a, b, which); }
// Two BF16 128 + code: code * scale + bias, rounded once. The first step, times 1 minus 128, is exact.
LILY_FN uint lily_affine2(uint v, uint scale2, uint bias2) {
  uint q, r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(q) : "r"(v), "r"(0x3f803f80u), "r"(0xc300c300u));
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(q), "r"(scale2), "r"(bias2));
  return r;
}
// The same code alone.
LILY_FN uint lily_code2(uint v) { uint q; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(q) : "r"(v), "r"(0x3f803f80u), "r"(0xc300c300u)); return q; }
LILY_FN uint lily_same(uint x) { return __match_any_sync(0xffffffffu, x); } // lanes that have the same
LILY_FN uint lily_ones(uint x) { return __popc(x); }
LILY_FN uint lily_pack2(float low, float high) { uint r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
// Four 8x8 matrices; lane l names row l % 8 of matrix l / 8.
LILY_FN uint4 lily_matrices(const void* row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(lily_shared_address(row)) : "memory");
  return v;
}
// The same transposed.
LILY_FN uint4 lily_matrices_across(const void* row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(lily_shared_address(row)) : "memory");
  return v;
}
LILY_FN void lily_mma(float (&c)[4], uint4 a, uint b0, uint b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
// 16x8x8, F32 values whose lower 13 bits are not read.
LILY_FN void lily_mma_tf32(float (&c)[4], const uint (&a)[4], const uint (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
