// Products of a warp group (128 threads), Hopper only (compute capability 9.0), and what goes with them; for kernels/hopper.
//
// Sums lie as those of m16n8k16: warp w of the group holds rows 16 w to 16 w + 15; element e is in row lane / 4, 8 lower where
// e / 2 is odd, and column e / 4 * 8 + lane % 4 * 2 + e % 2. Operands in registers likewise.
//
// Operands in shared memory are made of pieces: 8 rows of 128 bytes, one after another, from a multiple of 1024 bytes on. Part c of
// row r, 16 bytes, stands in place c ^ r. `step`: bytes from one piece to the next rows. `lead`: to the piece beside it, where rows
// are steps of the sum; else a row holds 64 steps and the next 64 are another operand.
LILY_FN ulong lily_operand(const void* p, uint lead, uint step) {
  return ulong((lily_shared_address(p) & 0x3ffffu) >> 4) | ulong(lead >> 4) << 16 | ulong(step >> 4) << 32 | 1ull << 62;
}
LILY_FN ulong lily_operand_at(ulong operand, uint bytes) { return operand + (bytes >> 4); }
LILY_FN void lily_group_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LILY_FN void lily_group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> LILY_FN void lily_group_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
// The compiler moves no use of the sums past this: before a fence and after a wait.
template <int N> LILY_FN void lily_group_held(float (&c)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i]) :: "memory");
}
#define LILY_F4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define LILY_F16(c, i) LILY_F4(c, i), LILY_F4(c, i + 4), LILY_F4(c, i + 8), LILY_F4(c, i + 12)
#define LILY_F32(c, i) LILY_F16(c, i), LILY_F16(c, i + 16)
// c = a * b, added to c if `add`: 64 rows, 64 columns, 16 steps. Rows of both operands hold the steps of the sum.
LILY_FN void lily_group_mma(float (&c)[32], ulong a, ulong b, int add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, %32, %33, p, 1, 1, 0, 0;}"
      : LILY_F32(c, 0) : "l"(a), "l"(b), "r"(add));
}
// 64 rows, 128 columns, 16 steps.
LILY_FN void lily_group_mma(float (&c)[64], ulong a, ulong b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, %64, %65, 1, 1, 1, 0, 0;"
      : LILY_F32(c, 0), LILY_F32(c, 32) : "l"(a), "l"(b));
}
// 64 rows, 256 columns, 16 steps: a in registers, and the rows of b are steps of the sum.
LILY_FN void lily_group_mma(float (&c)[128], const uint* a, ulong b, int add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
      "}, {%128,%129,%130,%131}, %132, p, 1, 1, 1;}"
      : LILY_F32(c, 0), LILY_F32(c, 32), LILY_F32(c, 64), LILY_F32(c, 96)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// Products see what this thread's stores and copies wrote to shared memory.
LILY_FN void lily_group_publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
LILY_FN void lily_copy_wait0() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
// Gates, 8 bytes of shared memory each: one opens when `count` have arrived, and is closed for the next round. The rounds' parities
// are 0, 1, 0, …; waiting for a round that is over ends at once.
LILY_FN void lily_gate_init(ulong* gate, uint count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(lily_shared_address(gate)), "r"(count) : "memory");
}
LILY_FN void lily_gate_arrive(ulong* gate) {
  asm volatile("{.reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0];}" :: "r"(lily_shared_address(gate)) : "memory");
}
LILY_FN void lily_gate_wait(ulong* gate, uint parity) {
  asm volatile("{.reg .pred p;\nagain: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:}"
      :: "r"(lily_shared_address(gate)), "r"(parity) : "memory");
}
// `threads` of a block meet, whole warps; threadgroup_barrier is barrier 0.
LILY_FN void lily_meet(uint barrier, uint threads) { asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory"); }
// Registers of each thread of a warp group from here on.
template <int N> LILY_FN void lily_registers_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> LILY_FN void lily_registers_fewer() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }
LILY_FN bool lily_any(bool x) { return __any_sync(0xffffffffu, x); }
LILY_FN float lily_exp2(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
LILY_FN float lily_reciprocal(float x) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
