//! A small fork-join pool.
//!
//! A decode step is about two hundred short parallel loops with almost nothing between them, so what matters is how
//! fast workers start and how little they disturb when idle: they spin for some tens of microseconds after a loop and
//! then sleep. The caller works too and never waits for a worker that has not started: it closes the gate when no tasks
//! are left, and waits only for workers already inside. Each thread has its share of the tasks, which it counts in a cache
//! line of its own, and takes what others have left when that is done. The pool also carries the instruction set for its kernels,
//! because every kernel has a pool at hand and tests want to choose.

use std::any::{Any, type_name_of_val};
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::simd::Level;
use super::timeline::{Timeline, TimelineSpan};

const SPIN: Duration = Duration::from_micros(40);
const THREADS_MAX: usize = 256;

/// A thread pool that runs one loop at a time.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held while a loop runs: loops of different callers take turns.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
    level: Level,
}

impl Pool {
    /// A pool of `threads` threads including the caller of [`run`](Self::run); 0 uses all of the machine's, up to 256.
    pub fn new(threads: usize) -> Self {
        Self::with_level(threads, Level::best())
    }

    /// Like [`Pool::new`], with a given instruction set.
    pub fn with_level(threads: usize, level: Level) -> Self {
        let threads = if threads == 0 { thread::available_parallelism().map_or(1, usize::from) } else { threads };
        let threads = threads.min(THREADS_MAX);
        let shared = Arc::new(Shared::new(threads));
        // If a thread cannot be started, the pool is just smaller.
        let workers = (1..threads)
            .filter_map(|index| {
                let shared = Arc::clone(&shared);
                thread::Builder::new().name(format!("kernels-{index}")).spawn(move || shared.work(index)).ok()
            })
            .collect();
        Self { shared, turn: Mutex::new(()), workers, level }
    }

    /// How many threads a loop that starts here runs on: one within a task.
    pub fn threads(&self) -> usize {
        if INSIDE.get() { 1 } else { self.workers.len() + 1 }
    }

    pub fn level(&self) -> Level {
        self.level
    }

    /// Calls `task` once with every number below `tasks`, on any thread and in any order, and returns when all calls
    /// have returned. A panic in a task ends the loop early and is raised here. A loop inside a task runs on the task's
    /// own thread.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        self.run_named(type_name_of_val(&task), tasks, &task);
    }

    /// As [`run`](Self::run), with a name for the timeline: the type of the innermost task, which says where it stands.
    pub(super) fn run_named(&self, name: &'static str, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if INSIDE.get() {
            (0..tasks).for_each(task);
            return;
        }
        if tasks <= 1 || self.workers.is_empty() {
            let start = self.shared.timeline.now();
            (0..tasks).for_each(task);
            self.shared.timeline.record(0, Some(name), start);
            return;
        }
        let _turn = lock(&self.turn);
        // SAFETY: only the lifetime changes. Workers use the reference only inside the gate, and this function does not
        // return before the gate is closed and empty.
        let task: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(task) };
        self.shared.run(Job { name, task, tasks });
    }

    /// Cuts `data` into pieces of `piece` elements (the last may be shorter) and calls `task` with each index and
    /// piece.
    pub fn run_pieces<T: Send>(&self, data: &mut [T], piece: usize, task: impl Fn(usize, &mut [T]) + Sync) {
        self.run_pieces_named(type_name_of_val(&task), data, piece, task);
    }

    /// As [`run_pieces`](Self::run_pieces), with a name for the timeline.
    pub(super) fn run_pieces_named<T: Send>(
        &self,
        name: &'static str,
        data: &mut [T],
        piece: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(piece > 0, "pieces of no elements");
        let len = data.len();
        let shared = Disjoint::new(data);
        self.run_named(name, len.div_ceil(piece), &|index| {
            let start = index * piece;
            // SAFETY: pieces of different numbers do not overlap, and each number is given to one task.
            task(index, unsafe { shared.range(start..len.min(start + piece)) });
        });
    }

    /// Begins to record what each thread does; whatever was recorded before is dropped.
    pub fn start_timeline(&self) {
        self.shared.timeline.start();
    }

    /// Ends the recording and returns it, by thread and time.
    pub fn finish_timeline(&self) -> Vec<TimelineSpan> {
        self.shared.timeline.finish()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.asleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// A slice that tasks write in parallel, each its own part.
pub(super) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]`, whose parts may be sent to other threads if `T` may.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(super) fn new(data: &'a mut [T]) -> Self {
        Self { start: data.as_mut_ptr(), len: data.len(), owner: PhantomData }
    }

    /// Address of an element; may be out of bounds.
    pub(super) fn at(&self, index: usize) -> *const T {
        self.start.wrapping_add(index)
    }

    /// Address of the first element of a range within the slice. Only tiles write through it.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn part(&self, range: Range<usize>) -> *mut T {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        self.start.wrapping_add(range.start)
    }

    /// # Safety
    /// No other live slice from this value overlaps `range`.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        // SAFETY: within the slice as just checked; not aliased as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[derive(Clone, Copy)]
struct Job {
    name: &'static str,
    task: &'static (dyn Fn(usize) + Sync),
    tasks: usize,
}

/// The gate is one word, which only the caller changes: an open flag, and the loop's number.
const OPEN: u64 = 1;
const LOOP: u64 = 2;

/// A thread's words for others to see, in cache lines of its own (processors fetch them in pairs): a line that many threads
/// write is handed from core to core for each of their tasks.
#[derive(Default)]
#[repr(align(128))]
struct Seat {
    /// True while the thread works on a loop.
    inside: AtomicBool,
    /// How many of its tasks were taken. Of `n` seats, seat `s` has tasks `s`, `s + n`, `s + 2n` and so on.
    taken: AtomicUsize,
}

struct Shared {
    timeline: Timeline,
    /// One for each thread, the first for the caller.
    seats: Box<[Seat]>,
    gate: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: AtomicUsize,
    asleep: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
}

// SAFETY: everything but `job` is Sync by itself. `job` is written by the one caller that holds the turn, while the
// gate is closed and empty, and read by workers that are inside.
unsafe impl Sync for Shared {}

thread_local! {
    /// True while this thread runs a task; a loop started then must not wait for the pool that it is part of.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Shared {
    fn new(threads: usize) -> Self {
        Self {
            timeline: Timeline::new(threads),
            seats: (0..threads.max(1)).map(|_| Seat::default()).collect(),
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            asleep: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
        }
    }

    fn run(&self, job: Job) {
        let start = self.timeline.now();
        // SAFETY: the caller holds the turn, and the previous loop left the gate closed and no worker inside.
        unsafe { *self.job.get() = Some(job) };
        for seat in &self.seats {
            seat.taken.store(0, Ordering::Relaxed);
        }
        let gate = self.gate.load(Ordering::Relaxed).wrapping_add(LOOP) | OPEN;
        self.gate.store(gate, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.asleep));
            self.wake.notify_all();
        }
        self.take_tasks(0, job);
        let worked = self.timeline.record(0, Some(job.name), start);
        self.gate.store(gate & !OPEN, Ordering::SeqCst);
        for seat in &self.seats[1..] {
            let mut turns = 0u32;
            while seat.inside.load(Ordering::SeqCst) {
                turns += 1;
                if turns < 1 << 14 { std::hint::spin_loop() } else { thread::yield_now() }
            }
        }
        self.timeline.record(0, None, worked);
        // SAFETY: as above; the gate is closed and no worker inside again.
        unsafe { *self.job.get() = None };
        if let Some(panic) = lock(&self.panic).take() {
            resume_unwind(panic);
        }
    }

    /// Works on the tasks of a thread's own seat, and then on what others have left.
    fn take_tasks(&self, thread: usize, job: Job) {
        INSIDE.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| {
            let seats = self.seats.len();
            for first in (thread..seats).chain(0..thread) {
                let taken = &self.seats[first].taken;
                // To look first is cheaper: at the end of a loop nothing is left at most seats.
                while first + taken.load(Ordering::Relaxed) * seats < job.tasks {
                    let index = first + taken.fetch_add(1, Ordering::Relaxed) * seats;
                    if index < job.tasks {
                        (job.task)(index);
                    }
                }
            }
        }));
        INSIDE.set(false);
        if let Err(panic) = result {
            for seat in &self.seats {
                seat.taken.store(job.tasks, Ordering::Relaxed);
            }
            lock(&self.panic).get_or_insert(panic);
        }
    }

    fn work(&self, thread: usize) {
        let (mut seen, seat) = (0, &self.seats[thread]);
        while let Some(number) = self.enter(seat, seen) {
            seen = number;
            // SAFETY: this thread is inside the gate, so the caller does not change the job.
            if let Some(job) = unsafe { *self.job.get() } {
                let start = self.timeline.now();
                self.take_tasks(thread, job);
                self.timeline.record(thread, Some(job.name), start);
            }
            seat.inside.store(false, Ordering::Release);
        }
    }

    /// Waits for a loop other than `seen` and enters the gate; `None` when the pool is being dropped.
    fn enter(&self, seat: &Seat, seen: u64) -> Option<u64> {
        let mut since = None;
        loop {
            for _ in 0..64 {
                if let Some(number) = self.try_enter(seat, seen) {
                    return Some(number);
                }
                std::hint::spin_loop();
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            if since.get_or_insert_with(Instant::now).elapsed() > SPIN {
                self.sleep(seen);
                since = None;
            }
        }
    }

    /// Enters an open gate. A worker says that it is inside and then looks at the gate again; the caller closes the gate and
    /// then looks who is inside. Of these four accesses, in one order for all threads, one sees the other side's first.
    fn try_enter(&self, seat: &Seat, seen: u64) -> Option<u64> {
        let gate = self.gate.load(Ordering::Acquire);
        if !is_open(gate, seen) {
            return None;
        }
        seat.inside.store(true, Ordering::SeqCst);
        if self.gate.load(Ordering::SeqCst) == gate {
            return Some(gate / LOOP);
        }
        seat.inside.store(false, Ordering::Release);
        None
    }

    fn sleep(&self, seen: u64) {
        let mut guard = lock(&self.asleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.stop.load(Ordering::SeqCst) {
            if is_open(self.gate.load(Ordering::SeqCst), seen) {
                break;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// True while a loop other than `seen` runs.
fn is_open(gate: u64, seen: u64) -> bool {
    gate & OPEN != 0 && gate / LOOP != seen
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_every_task_once_in_many_loops() {
        let pool = Pool::new(4);
        for tasks in [0, 1, 2, 3, 17, 1000] {
            for _ in 0..200 {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, |index| {
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn wakes_workers_that_sleep() {
        let pool = Pool::new(3);
        for _ in 0..5 {
            thread::sleep(SPIN * 20);
            let threads = Mutex::new(std::collections::HashSet::new());
            pool.run(64, |_| {
                thread::sleep(Duration::from_millis(1));
                lock(&threads).insert(thread::current().id());
            });
            assert_eq!(lock(&threads).len(), 3);
        }
    }

    #[test]
    fn raises_a_panic_of_a_task_in_the_caller_and_goes_on() {
        let pool = Pool::new(3);
        for bad in [0, 7, 99] {
            let caught = catch_unwind(AssertUnwindSafe(|| pool.run(100, |index| assert_ne!(index, bad, "task fell"))));
            let message = caught.unwrap_err();
            assert!(message.downcast_ref::<String>().unwrap().contains("task fell"));
        }
        let count = AtomicUsize::new(0);
        pool.run(100, |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 100);
    }

    #[test]
    fn runs_a_loop_inside_a_task_and_callers_in_turn() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    pool.run(8, |_| {
                        pool.run(4, |_| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                });
            }
        });
        assert_eq!(count.into_inner(), 3 * 8 * 4);
    }

    #[test]
    fn gives_each_task_its_own_piece() {
        let pool = Pool::new(3);
        let mut data = vec![0; 1003];
        pool.run_pieces(&mut data, 10, |index, piece| piece.fill(index));
        assert!(data.iter().enumerate().all(|(at, value)| *value == at / 10));
    }
}
