//! What each thread of a pool did when: recorded on demand, to see which loops are short of work and who waits for whom.
//!
//! While nothing is recorded, a loop costs one more relaxed load per thread. Each thread writes to a list of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Spans of all threads together, at most. The recording ends when one of the threads has its share.
const SPANS_MAX: usize = 1 << 16;

/// A stretch of time of one thread. Times are since the recording began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineSpan {
    /// 0 is the thread that runs the loops, others are the pool's.
    pub thread: usize,
    /// What it worked on; `None` while it waits for the other threads to finish a loop.
    pub what: Option<String>,
    pub start: Duration,
    pub end: Duration,
}

/// The recorder of a pool.
#[derive(Debug)]
pub(super) struct Timeline {
    is_on: AtomicBool,
    began: Mutex<Instant>,
    threads: Vec<Mutex<Vec<Record>>>,
}

#[derive(Debug)]
struct Record {
    /// The type of the loop's task, which names the function that it stands in; `None` for waiting.
    task: Option<&'static str>,
    start: Instant,
    end: Instant,
}

impl Timeline {
    pub(super) fn new(threads: usize) -> Self {
        let threads = (0..threads).map(|_| Mutex::default()).collect();
        Self { is_on: AtomicBool::new(false), began: Mutex::new(Instant::now()), threads }
    }

    pub(super) fn start(&self) {
        self.threads.iter().for_each(|thread| lock(thread).clear());
        *lock(&self.began) = Instant::now();
        self.is_on.store(true, Ordering::SeqCst);
    }

    pub(super) fn finish(&self) -> Vec<TimelineSpan> {
        self.is_on.store(false, Ordering::SeqCst);
        let began = *lock(&self.began);
        let of_thread = |(thread, records): (usize, &Mutex<Vec<Record>>)| {
            let span = move |record: Record| TimelineSpan {
                thread,
                what: record.task.map(function),
                start: record.start.saturating_duration_since(began),
                end: record.end.saturating_duration_since(began),
            };
            std::mem::take(&mut *lock(records)).into_iter().map(span)
        };
        self.threads.iter().enumerate().flat_map(of_thread).collect()
    }

    /// The time, if something is being recorded.
    #[inline]
    pub(super) fn now(&self) -> Option<Instant> {
        self.is_on.load(Ordering::Relaxed).then(Instant::now)
    }

    /// Records what a thread has done from `start`, a result of [`Self::now`], until now; returns the latter.
    pub(super) fn record(&self, thread: usize, task: Option<&'static str>, start: Option<Instant>) -> Option<Instant> {
        let (start, end) = (start?, self.now()?);
        let mut records = lock(self.threads.get(thread)?);
        records.push(Record { task, start, end });
        // The caller has two spans for each loop: it waits as well.
        let share = SPANS_MAX / (self.threads.len() + 1) * if thread == 0 { 2 } else { 1 };
        if records.len() >= share {
            self.is_on.store(false, Ordering::SeqCst);
        }
        Some(end)
    }
}

/// The function in which a task's closure stands, without crate and generics: `matmul::tiles::multiply`.
fn function(task: &str) -> String {
    // A closure in a method of a trait is `<type as trait>::method::{{closure}}`; the type says more.
    let path = task.strip_prefix('<').map_or(task, |task| task.split(" as ").next().unwrap_or(task));
    let mut depth = 0_usize;
    let mut plain = String::new();
    for letter in path.chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    let parts = plain.split("::").filter(|part| !part.is_empty() && *part != "{{closure}}");
    let mut parts: Vec<&str> = parts.collect();
    if parts.len() > 1 {
        parts.remove(0);
    }
    parts.join("::")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::Pool;
    use super::*;

    #[test]
    fn spans_say_what_each_thread_did_and_waiting_follows_work() {
        let pool = Pool::new(3);
        let work = || pool.run(12, |_| std::thread::sleep(Duration::from_millis(2)));
        work();
        pool.start_timeline();
        work();
        let spans = pool.finish_timeline();
        work();
        assert!(pool.finish_timeline().is_empty());
        let of = |thread| spans.iter().filter(move |span| span.thread == thread);
        let [own, waiting] = of(0).collect::<Vec<_>>()[..] else { panic!("{spans:?}") };
        assert_eq!((own.what.as_deref(), waiting.what.as_deref()), (Some(NAME), None));
        assert_eq!(own.end, waiting.start);
        for thread in [1, 2] {
            let [span] = of(thread).collect::<Vec<_>>()[..] else { panic!("{spans:?}") };
            assert_eq!(span.what.as_deref(), Some(NAME));
            assert!(span.start < span.end && span.end <= waiting.end, "{spans:?}");
        }
    }

    const NAME: &str = "timeline::tests::spans_say_what_each_thread_did_and_waiting_follows_work";

    #[test]
    fn a_recording_ends_for_all_threads_when_one_is_full() {
        let pool = Pool::new(2);
        pool.start_timeline();
        (0..SPANS_MAX).for_each(|_| pool.run(2, |_| {}));
        let spans = pool.finish_timeline();
        assert!(spans.len() <= SPANS_MAX, "{}", spans.len());
        let last = |thread| spans.iter().filter(|span| span.thread == thread).map(|span| span.end).max();
        let own = spans.iter().filter(|span| span.thread == 0).count();
        assert!(last(0) >= last(1) && own > SPANS_MAX / 4, "{own}");
    }

    #[test]
    fn functions_are_named_without_crate_and_generics() {
        for (task, expected) in [
            ("pensieve_kernels::matmul::tiles::multiply::{{closure}}", "matmul::tiles::multiply"),
            ("<pensieve_kernels::a::Multiply<X<Y>> as b::Kernel<S>>::run::{{closure}}", "a::Multiply"),
            ("pensieve_kernels::norm::run<f32>::{{closure}}::{{closure}}", "norm::run"),
            ("lonely", "lonely"),
        ] {
            assert_eq!(function(task), expected);
        }
    }
}
