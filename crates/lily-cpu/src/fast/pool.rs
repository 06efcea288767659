//! Threads that run the same closure over many small tasks.
//!
//! A decoded token has several hundred parallel sections of a few dozen microseconds each, so a section must begin and
//! end without a system call: idle workers spin for a moment before they sleep. (With a general thread pool the wake-ups
//! alone cost as much as the kernels of the demo model; `docs/performance.md` has the figures.)

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// Set in [`Shared::gate`] while a section is open; the lower bits count the workers inside.
const OPEN: usize = 1 << (usize::BITS - 1);
/// Looks at the gate before a worker sleeps: some tens of microseconds.
const SPINS: usize = 20_000;

type Task = *const (dyn Fn(usize) + Sync);

struct Shared {
    gate: AtomicUsize,
    task: Mutex<Option<SendTask>>,
    tasks: AtomicUsize,
    next: AtomicUsize,
    sleepers: AtomicUsize,
    asleep: Mutex<()>,
    wake: Condvar,
    panicked: AtomicBool,
    quit: AtomicBool,
}

#[derive(Clone, Copy)]
struct SendTask(Task);
// SAFETY: the closure behind the pointer is `Sync`, and `Pool::run` keeps it alive until every worker has left.
unsafe impl Send for SendTask {}

/// A fixed set of threads that runs one section at a time; a section begun inside another runs on its own thread alone.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    busy: AtomicBool,
}

impl Pool {
    /// `threads` counts the caller, which works too.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            gate: AtomicUsize::new(0),
            task: Mutex::new(None),
            tasks: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            asleep: Mutex::new(()),
            wake: Condvar::new(),
            panicked: AtomicBool::new(false),
            quit: AtomicBool::new(false),
        });
        let workers = (1..threads.max(1))
            .map(|i| {
                let shared = shared.clone();
                std::thread::Builder::new()
                    .name(format!("lily-cpu-{i}"))
                    .spawn(move || shared.work())
                    .expect("the system can start a thread")
            })
            .collect();
        Self { shared, workers, busy: AtomicBool::new(false) }
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(0)` … `task(tasks - 1)`, each once, in any order and on any thread; returns when all are done.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.workers.is_empty() || self.busy.swap(true, SeqCst) {
            (0..tasks).for_each(task);
            return;
        }
        let _free = Free(&self.busy);
        let s = &*self.shared;
        let erased: &(dyn Fn(usize) + Sync) = &task;
        // SAFETY: only the lifetime is erased. `Closing` (below, dropped before `task`) waits until no worker is inside,
        // and none can enter a closed gate, so the pointer is never used after this call.
        let erased: Task = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Task>(erased) };
        *s.task.lock().expect("no panic while locked") = Some(SendTask(erased));
        s.tasks.store(tasks, SeqCst);
        s.next.store(0, SeqCst);
        s.gate.store(OPEN, SeqCst);
        let closing = Closing(s);
        if s.sleepers.load(SeqCst) > 0 {
            let _guard = s.asleep.lock().expect("no panic while locked");
            s.wake.notify_all();
        }
        while let Some(i) = s.take() {
            task(i);
        }
        drop(closing);
        if s.panicked.swap(false, SeqCst) {
            panic!("a worker panicked");
        }
    }
}

/// Clears the flag, also when a task panics.
struct Free<'a>(&'a AtomicBool);

impl Drop for Free<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// Closes the gate and waits for the workers inside, also when the caller's own task panics.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        // Nothing is left to take, should the caller have panicked in the middle.
        self.0.next.store(usize::MAX / 2, SeqCst);
        self.0.gate.fetch_and(!OPEN, SeqCst);
        let mut spins = 0;
        while self.0.gate.load(SeqCst) != 0 {
            pause(&mut spins);
        }
    }
}

/// Waits a moment; gives the core away once it has waited long, for the thread it waits for may need it.
fn pause(spins: &mut usize) {
    *spins += 1;
    if spins.is_multiple_of(1024) { std::thread::yield_now() } else { std::hint::spin_loop() }
}

impl Shared {
    fn take(&self) -> Option<usize> {
        let i = self.next.fetch_add(1, SeqCst);
        (i < self.tasks.load(SeqCst)).then_some(i)
    }

    /// Enters an open gate.
    fn enter(&self) -> bool {
        let mut gate = self.gate.load(SeqCst);
        while gate & OPEN != 0 {
            match self.gate.compare_exchange_weak(gate, gate + 1, SeqCst, SeqCst) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    fn work(&self) {
        let mut spins = 0;
        while !self.quit.load(SeqCst) {
            if self.enter() {
                let task = self.task.lock().expect("no panic while locked").expect("set before the gate opens");
                while let Some(i) = self.take() {
                    // SAFETY: this worker is counted in the gate, so `Pool::run` has not returned.
                    let task = unsafe { &*task.0 };
                    if catch_unwind(AssertUnwindSafe(|| task(i))).is_err() {
                        self.panicked.store(true, SeqCst);
                    }
                }
                self.gate.fetch_sub(1, SeqCst);
                spins = 0;
            } else if spins < SPINS {
                pause(&mut spins);
            } else {
                self.sleep();
                spins = 0;
            }
        }
    }

    fn sleep(&self) {
        let mut guard = self.asleep.lock().expect("no panic while locked");
        self.sleepers.fetch_add(1, SeqCst);
        while self.gate.load(SeqCst) & OPEN == 0 && !self.quit.load(SeqCst) {
            guard = self.wake.wait(guard).expect("no panic while locked");
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, SeqCst);
        {
            let _guard = self.shared.asleep.lock().expect("no panic while locked");
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            worker.join().expect("workers catch panics");
        }
    }
}

/// A slice that tasks write at places that do not overlap.
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: the only access is `Disjoint::part`, whose callers promise that parts in use at one time do not overlap.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Borrows `slice` for as long as tasks write to it.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Elements `start..start + len`.
    ///
    /// # Safety
    /// No other part that overlaps this one is in use at the same time.
    #[allow(clippy::mut_from_ref, reason = "that is the purpose; the caller keeps parts apart")]
    pub unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "{start} + {len} of {}", self.len);
        // SAFETY: inside the slice by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_runs_once_in_many_small_sections() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            for round in 0..2_000 {
                let tasks = round % 17;
                let mut seen = vec![0u8; tasks];
                let parts = Disjoint::new(&mut seen);
                // SAFETY: task i touches element i only.
                pool.run(tasks, |i| unsafe { parts.part(i, 1)[0] += 1 });
                assert!(seen.iter().all(|&n| n == 1), "{threads} threads, {tasks} tasks: {seen:?}");
            }
        }
    }

    #[test]
    fn a_section_inside_a_section_runs_too() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        pool.run(4, |_| {
            pool.run(10, |i| {
                sum.fetch_add(i, SeqCst);
            })
        });
        assert_eq!(sum.into_inner(), 4 * 45);
    }

    #[test]
    fn workers_that_slept_wake_again() {
        let pool = Pool::new(3);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(30));
            let sum = AtomicUsize::new(0);
            pool.run(100, |i| {
                sum.fetch_add(i, SeqCst);
            });
            assert_eq!(sum.into_inner(), 4950);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        for bad in 0..8 {
            let caught = catch_unwind(AssertUnwindSafe(|| pool.run(8, |i| assert_ne!(i, bad))));
            assert!(caught.is_err());
            let n = AtomicUsize::new(0);
            pool.run(8, |_| {
                n.fetch_add(1, SeqCst);
            });
            assert_eq!(n.into_inner(), 8);
        }
    }
}
