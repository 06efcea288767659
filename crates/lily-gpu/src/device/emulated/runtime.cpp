// Fiber runtime: one fiber a GPU thread, one threadgroup at a time on each worker thread.
#include "metal_stdlib.h"
#include <atomic>
#include <cstdio>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <vector>
#ifdef LILY_TSAN
extern "C" {
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void* __tsan_get_current_fiber();
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#endif
#ifdef LILY_ASAN
extern "C" void __asan_poison_memory_region(const volatile void*, size_t);
extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t);
#endif

namespace {
enum { MAX_THREADS = 1024, STACK = 64 << 10, ARENA = 32 << 10, GAP = 64, ARRAYS = 1024, SCHEDULER = MAX_THREADS };

// Not memcpy and memset: the thread sanitizer would see those.
void copy(void* d, const void* s, size_t n) { asm volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n) : : "memory"); }
void fill(void* d, int v, size_t n) { asm volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(v) : "memory"); }

enum class Is : char { running, at_simd_operation, at_barrier, gone };
struct Fiber {
  void* stack_pointer;
  LilyThread place;
  int line;
  Is is;
};
struct Simdgroup {
  uint alive, arrived, mask, parity;
  int line;
  LilySlots slots[2]; // alternating: a fast lane may enter the next operation while a slow one still reads
};
struct Worker {
  Fiber fiber[MAX_THREADS];
  Simdgroup simdgroup[32];
  char* stacks;
  unsigned char* arena;
  uint n, alive, arrived, current, head, tail, seed;
  int barrier_line;
  void* main_stack_pointer;
#ifdef LILY_TSAN
  void *main_tsan, *tsan[MAX_THREADS]; // the sanitizer's fibers, made once; stack i belongs to the i-th of them
  uint turn, parity; // parity: of the barriers that this threadgroup has passed
#endif
  uint16_t ready[MAX_THREADS * 2];
  uint64_t random, switches, epoch;
  size_t arena_used, arrays_bytes, array_at[ARRAYS];
  uint64_t array_epoch[ARRAYS];
  const LilyKernel* kernel;
  LilyArguments* arguments;
  bool failed;
  char error[600];
};
thread_local Worker* W;

#ifdef LILY_TSAN
// Which stack, and which of the sanitizer's fibers, thread i of this threadgroup has. It changes from threadgroup to
// threadgroup, so that what thread i wrote in two of them is seen as two threads' writes.
uint own(const Worker* w, uint i) { return (i + w->turn) % w->n; }
// Two addresses a threadgroup and barrier for release and acquire, never used again. They take turns: a thread that
// leaves a barrier late would otherwise be ordered after what the others did up to the next one.
void* sync(Worker* w, uint i) {
  static char* base = (char*)mmap(nullptr, size_t(1) << 32, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base + (((w->epoch * 128 + i) * 8 + size_t((uintptr_t)w >> 6)) & 0xfffffff8u);
}
#endif

uint random_number(Worker* w) {
  w->random ^= w->random << 13, w->random ^= w->random >> 7, w->random ^= w->random << 17;
  return uint(w->random >> 32);
}
uint16_t& queued(Worker* w, uint i) { return w->ready[i % (MAX_THREADS * 2)]; }
void push(Worker* w, uint i) { queued(w, w->tail++) = (uint16_t)i; }
// The last n of the queue in random order.
void shuffle_tail(Worker* w, uint n) {
  if (!w->seed) return;
  for (uint i = n; i > 1; i--) std::swap(queued(w, w->tail - i), queued(w, w->tail - i + random_number(w) % i));
}

extern "C" void lily_switch(void** save, void* to);
asm(R"(
.text
.globl lily_switch
.type lily_switch,@function
lily_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

void go(Worker* w, uint from, uint to) {
  w->switches++, w->current = to;
#ifdef LILY_TSAN
  __tsan_switch_to_fiber(to == SCHEDULER ? w->main_tsan : w->tsan[own(w, to)], 1); // 1: the switch itself orders nothing
#endif
  lily_switch(from == SCHEDULER ? &w->main_stack_pointer : &w->fiber[from].stack_pointer,
              to == SCHEDULER ? w->main_stack_pointer : w->fiber[to].stack_pointer);
}

// Ends the dispatch. The fibers are left where they stand; the next threadgroup starts fresh ones.
[[noreturn]] void fail(Worker* w, const char* what) {
  const uint me = w->current;
  const LilyThread& t = w->fiber[me].place;
  int used = snprintf(w->error, sizeof w->error, "%s; kernel %s, threadgroup (%u, %u, %u)", what, w->kernel->name, t.group[0], t.group[1], t.group[2]);
  for (uint i = 0, shown = 0; i < w->n && shown < 4; i++) {
    const Fiber& f = w->fiber[i];
    if (i && f.is == w->fiber[i - 1].is && f.line == w->fiber[i - 1].line) continue;
    const char* where = f.is == Is::gone ? "left, last seen at" : f.is == Is::at_barrier ? "at threadgroup_barrier," : f.is == Is::at_simd_operation ? "at a simdgroup operation," : "running after";
    if (used < (int)sizeof w->error) used += snprintf(w->error + used, sizeof w->error - used, "; from thread %u: %s line %d", i, where, f.line);
    shown++;
  }
  w->failed = true;
  go(w, me, SCHEDULER);
  __builtin_unreachable();
}
void next(Worker* w, uint me) {
  if (w->head == w->tail) fail(w, "divergence: no thread can go on");
  go(w, me, queued(w, w->head++));
}
void release_simdgroup(Worker* w, Simdgroup* s, uint index, uint me, void (*last)(LilySlots*)) {
  LilySlots* slots = &s->slots[s->parity];
  slots->mask = s->mask;
  if (last) last(slots);
  s->parity ^= 1, s->arrived = 0;
  uint n = 0;
  for (uint l = 0; l < 32; l++)
    if (const uint i = index * 32 + l; (s->mask >> l & 1) && i != me) w->fiber[i].is = Is::running, push(w, i), n++;
  s->mask = 0;
  shuffle_tail(w, n);
}
void release_barrier(Worker* w, uint me) {
  w->arrived = 0;
#ifdef LILY_TSAN
  w->parity ^= 1;
#endif
  uint n = 0;
  for (uint i = 0; i < w->n; i++)
    if (i != me && w->fiber[i].is == Is::at_barrier) w->fiber[i].is = Is::running, push(w, i), n++;
  shuffle_tail(w, n);
}
void fiber_main() {
  Worker* w = W;
  const uint me = w->current;
  Fiber* f = &w->fiber[me];
#ifdef LILY_TSAN
  __tsan_acquire(&w->kernel); // what was done before this dispatch
#endif
  w->kernel->run(w->arguments, &f->place);
  f->is = Is::gone, w->alive--;
  Simdgroup* s = &w->simdgroup[f->place.simdgroup];
  s->alive--;
#ifdef LILY_TSAN
  __tsan_release(w);
#endif
  if (s->arrived && s->arrived == s->alive) fail(w, "a lane left the kernel before a simdgroup operation of the others");
  if (w->arrived) fail(w, "a thread left the kernel while others wait at threadgroup_barrier");
  if (w->alive == 0) go(w, me, SCHEDULER);
  next(w, me);
  __builtin_unreachable();
}

void run_threadgroup(Worker* w) {
#ifdef LILY_TSAN // forget what earlier threadgroups did with the arena
  mmap(w->arena, ARENA * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  w->turn++;
  for (uint i = 0; i < w->n; i++)
    if (!w->tsan[i]) w->tsan[i] = __tsan_create_fiber(0);
  w->main_tsan = __tsan_get_current_fiber();
#endif
#ifdef LILY_ASAN
  __asan_poison_memory_region(w->arena, ARENA * 2);
  __asan_unpoison_memory_region(w->stacks, size_t(w->n) * STACK);
#endif
  W = w;
  w->epoch++, w->alive = w->n, w->arrived = 0, w->head = w->tail = 0, w->arena_used = w->arrays_bytes = 0;
  for (uint s = 0; s * 32 < w->n; s++) {
    Simdgroup* d = &w->simdgroup[s];
    d->alive = w->n - s * 32 < 32 ? w->n - s * 32 : 32, d->arrived = d->mask = d->parity = 0;
  }
  for (uint i = 0; i < w->n; i++) {
    Fiber* f = &w->fiber[i];
    f->line = 0, f->is = Is::running;
    // Staggered: with equal stacks all lanes would share cache sets.
#ifdef LILY_TSAN
    const uint stack = own(w, i);
#else
    const uint stack = i;
#endif
    char* top = w->stacks + size_t(stack + 1) * STACK - 1024 - (i % 32) * 704;
    void** sp = (void**)((uintptr_t)top & ~uintptr_t(63));
    *--sp = nullptr, *--sp = (void*)fiber_main;
    for (int r = 0; r < 6; r++) *--sp = nullptr;
    f->stack_pointer = sp;
    push(w, i);
  }
  shuffle_tail(w, w->n);
  go(w, SCHEDULER, queued(w, w->head++));
#ifdef LILY_TSAN // stopped fibers are in the middle of functions: the next threadgroup gets fresh ones
  for (uint i = 0; i < MAX_THREADS && w->failed; i++)
    if (w->tsan[i]) __tsan_destroy_fiber(w->tsan[i]), w->tsan[i] = nullptr;
  if (w->failed)
    mmap(w->stacks, size_t(MAX_THREADS) * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
#endif
}

Worker* new_worker() {
  Worker* w = (Worker*)mmap(nullptr, sizeof(Worker), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  w->stacks = (char*)mmap(nullptr, size_t(MAX_THREADS) * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  w->arena = (unsigned char*)mmap(nullptr, ARENA * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return w;
}
} // namespace

extern "C" {
void lily_rule(const char* what) { fail(W, what); }
void lily_fault(const LilyBuffer* b, const void* p, uint bytes, uint alignment, int store) {
  char text[200];
  const long offset = (const unsigned char*)p - b->base;
  const bool misaligned = (uintptr_t)p & (alignment - 1);
  snprintf(text, sizeof text, "%s of %u bytes at byte %ld of `%s` (%lu bytes)%s", store ? "store" : "load", bytes, offset, b->name, b->size, misaligned ? ": misaligned" : ": out of bounds");
  fail(W, text);
}
uint lily_lane() { return W->fiber[W->current].place.lane; }
LilySlots* lily_collect(const void* in, uint bytes, void (*last)(LilySlots*), int line) {
  Worker* w = W;
  const uint me = w->current;
  Fiber* f = &w->fiber[me];
  Simdgroup* s = &w->simdgroup[f->place.simdgroup];
  const uint parity = s->parity;
  f->line = line, f->is = Is::at_simd_operation;
  if (!s->arrived) s->line = line;
  else if (s->line != line) fail(w, "lanes of a simdgroup at different operations");
  copy(s->slots[parity].value[f->place.lane], in, bytes);
  s->mask |= 1u << f->place.lane;
  if (++s->arrived == s->alive) release_simdgroup(w, s, f->place.simdgroup, me, last), f->is = Is::running;
  else next(w, me);
  return &s->slots[parity];
}
void lily_simd_barrier(int line) {
  const char c = 0;
#ifdef LILY_TSAN
  const uint simdgroup = W->fiber[W->current].place.simdgroup;
  void* address = sync(W, 2 + 2 * simdgroup + W->simdgroup[simdgroup].parity);
  __tsan_release(address);
#endif
  lily_collect(&c, 1, nullptr, line);
#ifdef LILY_TSAN
  __tsan_acquire(address);
#endif
}
void lily_barrier(int line) {
  Worker* w = W;
  const uint me = w->current;
  Fiber* f = &w->fiber[me];
  f->line = line, f->is = Is::at_barrier;
#ifdef LILY_TSAN
  void* address = sync(w, w->parity);
  __tsan_release(address);
#endif
  if (!w->arrived) w->barrier_line = line;
  else if (w->barrier_line != line) fail(w, "threads at different barriers");
  if (w->alive != w->n) fail(w, "threadgroup_barrier after a thread left the kernel");
  if (++w->arrived == w->alive) f->is = Is::running, release_barrier(w, me);
  else next(w, me);
#ifdef LILY_TSAN
  __tsan_acquire(address);
#endif
}
void* lily_threadgroup_memory(int id, size_t bytes) {
  Worker* w = W;
  if (id >= ARRAYS) fail(w, "more threadgroup arrays in the source than the emulator's table holds");
  if (w->array_epoch[id] != w->epoch) {
    w->array_epoch[id] = w->epoch, w->array_at[id] = w->arena_used;
    w->arena_used += (bytes + 15) & ~size_t(15), w->arrays_bytes += bytes;
    if (w->arrays_bytes > ARENA) fail(w, "more than 32 KiB of threadgroup memory");
    unsigned char* p = w->arena + w->array_at[id];
#ifdef LILY_ASAN
    w->array_at[id] += GAP, w->arena_used += GAP, p += GAP; // poisoned gaps between the arrays
    __asan_unpoison_memory_region(p, bytes);
#endif
    fill(p, 0xff, bytes); // NaN until written
  }
  return w->arena + w->array_at[id];
}

// Runs a dispatch on `workers` threads; seed 0: in order, else threads and threadgroups in random order. Traffic is added
// to the arguments' buffers. Returns the fiber switches done, or -1 with the reason in `error`.
int64_t lily_dispatch(const LilyKernel* kernel, LilyArguments* arguments, const uint groups[3], const uint threads[3],
                      const LilySetting* settings, uint workers, uint seed, char* error, size_t error_size) {
  // One dispatch at a time in a process: function constants are globals.
  static std::mutex one;
  static std::vector<Worker*> pool;
  std::lock_guard<std::mutex> lock(one);
  for (; settings->address; settings++) memcpy(settings->address, &settings->value, 4);
  while (pool.size() < workers) pool.push_back(new_worker());
  const uint n = threads[0] * threads[1] * threads[2];
  const ulong total = ulong(groups[0]) * groups[1] * groups[2];
  std::vector<ulong> order(total);
  for (ulong i = 0; i < total; i++) order[i] = i;
  uint64_t r = seed * 0x9e3779b97f4a7c15ull + 1;
  for (ulong i = seed ? total : 0; i > 1; i--) {
    r ^= r << 13, r ^= r >> 7, r ^= r << 17;
    std::swap(order[i - 1], order[(r >> 33) % i]);
  }
  std::atomic<ulong> at{0};
  auto work = [&](uint index) {
    Worker* w = pool[index];
    LilyArguments own = *arguments;
    for (LilyBuffer& b : own.buffer) b.bytes[0] = b.bytes[1] = 0;
    w->kernel = kernel, w->arguments = &own, w->n = n, w->seed = seed, w->switches = 0, w->failed = false;
    w->random = seed * 7919u + index + 88172645463325252ull;
#ifdef LILY_TSAN
    __tsan_release(&w->kernel);
#endif
    for (ulong o; !w->failed && (o = at.fetch_add(1)) < total;) {
      const ulong q = order[o];
      const uint x = uint(q % groups[0]), y = uint(q / groups[0] % groups[1]), z = uint(q / groups[0] / groups[1]);
      for (uint i = 0; i < n; i++)
        w->fiber[i].place = LilyThread{{x, y, z}, {groups[0], groups[1], groups[2]},
          {i % threads[0], i / threads[0] % threads[1], i / threads[0] / threads[1]}, {threads[0], threads[1], threads[2]},
          i, i % 32, i / 32, (n + 31) / 32};
      run_threadgroup(w);
    }
#ifdef LILY_TSAN
    __tsan_acquire(w);
#endif
    static std::mutex sum;
    std::lock_guard<std::mutex> lock(sum);
    for (int i = 0; i < 31; i++)
      for (int s = 0; s < 2; s++) arguments->buffer[i].bytes[s] += own.buffer[i].bytes[s];
  };
  if (workers <= 1) work(0);
  else {
    std::vector<std::thread> all;
    for (uint i = 0; i < workers; i++) all.emplace_back(work, i);
    for (auto& t : all) t.join();
  }
  int64_t switches = 0;
  for (uint i = 0; i < workers; i++) {
    switches += pool[i]->switches;
    if (pool[i]->failed) {
      snprintf(error, error_size, "%s", pool[i]->error);
      return -1;
    }
  }
  return switches;
}
}
