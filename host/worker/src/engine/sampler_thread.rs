//! A thread for samplers, which are untrusted code and may not return. It cannot be interrupted, so a call that exceeds
//! its deadline is abandoned along with its thread, and queued calls continue on a new one.
//!
//! An abandoned thread runs at the lowest priority. Its sampler is barred, so a worker accumulates few such threads:
//! one per sampler, or as many as were in it at once.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use pensieve_protocol::job::{Failure, FailureCode};

/// A sampler's name, whether its stages may run on several threads at once, and whether one has exceeded its deadline.
#[derive(Debug)]
pub struct SamplerName {
    pub name: String,
    pub is_concurrent: bool,
    barred: AtomicBool,
}

/// A closure for the thread. It reports which sampler it is about to enter.
pub type Call = Box<dyn FnOnce(&dyn Fn(&Arc<SamplerName>)) + Send>;

/// An abandoned call, and the sampler that it is in.
pub struct Overdue {
    pub id: u64,
    pub sampler: Arc<SamplerName>,
}

/// The thread, started by the first call.
pub struct SamplerThread {
    deadline: Duration,
    queue: Option<Arc<CallQueue>>,
}

/// State shared by the engine's thread and one sampler thread.
#[derive(Default)]
struct CallQueue {
    state: Mutex<QueueState>,
    queued: Condvar,
    idle: Condvar,
}

#[derive(Default)]
struct QueueState {
    queue: VecDeque<(u64, Call)>,
    busy: bool,
    /// The running call, the sampler that it is in, and since when.
    entered: Option<(u64, Arc<SamplerName>, Instant)>,
    /// No more calls will come for this thread.
    closed: bool,
    #[cfg(target_os = "linux")]
    thread: Option<u32>,
}

impl SamplerName {
    pub fn new(name: &str, is_concurrent: bool) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), is_concurrent, barred: AtomicBool::new(false) })
    }

    /// Fails if the sampler has exceeded its deadline before.
    pub fn check(&self) -> Result<(), Failure> {
        if !self.barred.load(Ordering::Relaxed) {
            return Ok(());
        }
        let message = format!("sampling stage '{}' is barred, as it has exceeded its deadline before", self.name);
        Err(Failure::new(FailureCode::Plugin, message).with_help("leave it out, or replace its plugin"))
    }
}

impl Overdue {
    /// Returns the failure for the request of this call.
    pub fn failure(&self, deadline: Duration) -> Failure {
        let (name, limit) = (&self.sampler.name, deadline.as_secs_f32());
        let message = format!("sampling stage '{name}' did not end within {limit} s, and is barred from now on");
        Failure::new(FailureCode::Stalled, message).with_help("this is a defect of the plugin; tell its author")
    }
}

impl SamplerThread {
    /// `deadline` is the time that a call may spend in each sampler's code.
    pub fn new(deadline: Duration) -> Self {
        Self { deadline, queue: None }
    }

    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Queues a call. If the system cannot start a thread, runs the call here.
    pub fn call(&mut self, id: u64, call: Call) {
        let queue = self.queue.get_or_insert_with(CallQueue::start);
        let mut state = lock(&queue.state);
        if state.closed {
            drop(state);
            return call(&|_| ());
        }
        state.queue.push_back((id, call));
        drop(state);
        queue.queued.notify_one();
    }

    /// Waits until all calls are done or abandoned, and returns the abandoned ones.
    pub fn wait(&mut self) -> Vec<Overdue> {
        let mut overdue = Vec::new();
        while let Some(queue) = self.queue.clone() {
            let mut state = lock(&queue.state);
            while state.busy || !state.queue.is_empty() {
                let left = match &state.entered {
                    Some((_, _, since)) => self.deadline.saturating_sub(since.elapsed()),
                    // No untrusted code runs yet.
                    None => self.deadline,
                };
                if left.is_zero() {
                    break;
                }
                state = queue.idle.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            let Some((id, sampler, _)) = state.entered.take().filter(|_| state.busy) else { break };
            state.closed = true;
            state.yield_to_others();
            sampler.barred.store(true, Ordering::Relaxed);
            overdue.push(Overdue { id, sampler });
            self.queue = None;
            for (id, call) in std::mem::take(&mut state.queue) {
                self.call(id, call);
            }
        }
        overdue
    }
}

impl Drop for SamplerThread {
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            lock(&queue.state).closed = true;
            queue.queued.notify_one();
        }
    }
}

impl CallQueue {
    fn start() -> Arc<Self> {
        let queue = Arc::new(Self::default());
        let shared = queue.clone();
        let started = thread::Builder::new().name("samplers".to_owned()).spawn(move || shared.run());
        lock(&queue.state).closed = started.is_err();
        queue
    }

    fn run(&self) {
        let mut state = lock(&self.state);
        state.remember_thread();
        while !state.closed {
            let Some((id, call)) = state.queue.pop_front() else {
                state = self.queued.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.busy = true;
            drop(state);
            call(&|sampler| {
                let mut state = lock(&self.state);
                // Ignore an abandoned call that continues after all.
                if !state.closed {
                    state.entered = Some((id, sampler.clone(), Instant::now()));
                }
            });
            state = lock(&self.state);
            (state.busy, state.entered) = (false, None);
            if state.queue.is_empty() {
                self.idle.notify_one();
            }
        }
    }
}

#[cfg(target_os = "linux")]
impl QueueState {
    fn remember_thread(&mut self) {
        // SAFETY: the call takes nothing and cannot fail. glibc has had a function for it only since 2.30.
        self.thread = u32::try_from(unsafe { libc::syscall(libc::SYS_gettid) }).ok();
    }

    /// Lowers the thread's priority to the minimum. A fenced thread may not change the priority of any other, as the
    /// fence cannot tell its own threads' ids from foreign ones. So the thread is interrupted by a signal and lowers
    /// itself. Nothing else in the process uses this signal, and its default action is to be ignored.
    fn yield_to_others(&self) {
        let Some(thread) = self.thread else { return };
        let handler = lower_own_priority as extern "C" fn(libc::c_int);
        // SAFETY: the handler makes one system call, which takes plain numbers and is safe in a handler.
        let known = unsafe { libc::signal(libc::SIGURG, handler as libc::sighandler_t) };
        if known != libc::SIG_ERR {
            // SAFETY: the call takes plain numbers; if the thread has ended meanwhile, the error can be ignored.
            unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, libc::SIGURG) };
        }
    }
}

#[cfg(target_os = "linux")]
extern "C" fn lower_own_priority(_signal: libc::c_int) {
    const LOWEST: libc::c_int = 19;
    // SAFETY: the call takes plain numbers; zero is the calling thread, and lowering always succeeds.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST) };
}

#[cfg(not(target_os = "linux"))]
impl QueueState {
    fn remember_thread(&mut self) {}

    /// Other systems only change the priority of whole processes.
    fn yield_to_others(&self) {}
}

fn lock(state: &Mutex<QueueState>) -> MutexGuard<'_, QueueState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_is_left_behind_has_the_lowest_priority_and_the_next_one_has_not() {
        let nice = || std::fs::read_to_string("/proc/thread-self/stat").unwrap().split(' ').nth(18).unwrap().to_owned();
        let mut thread = SamplerThread::new(Duration::from_millis(100));
        let bad = SamplerName::new("bad", false);
        let (sender, read) = channel();
        let (usual, after) = (nice(), sender.clone());
        let spin = move |enter: &dyn Fn(&Arc<SamplerName>)| {
            enter(&bad);
            let began = Instant::now();
            while nice() != "19" && began.elapsed() < Duration::from_secs(20) {}
            sender.send(nice()).unwrap();
        };
        thread.call(0, Box::new(spin));
        assert_eq!(thread.wait().len(), 1);
        assert_eq!(read.recv().unwrap(), "19");
        thread.call(1, Box::new(move |_| after.send(nice()).unwrap()));
        assert!(thread.wait().is_empty());
        assert_eq!(read.recv().unwrap(), usual);
    }

    #[test]
    fn a_call_that_does_not_return_is_left_behind_and_the_others_are_made() {
        let mut thread = SamplerThread::new(Duration::from_millis(200));
        let (good, bad) = (SamplerName::new("good", false), SamplerName::new("bad", false));
        let (sender, made) = channel();
        let (release, held) = channel::<()>();
        let mut held = Some(held);
        for id in 0..5 {
            let (sender, sampler) = (sender.clone(), if id == 2 { bad.clone() } else { good.clone() });
            let held = held.take_if(|_| id == 2);
            let call = move |enter: &dyn Fn(&Arc<SamplerName>)| {
                enter(&sampler);
                if let Some(held) = held {
                    let _ = held.recv();
                }
                sender.send(id).unwrap();
            };
            thread.call(id, Box::new(call));
        }
        let overdue = thread.wait();
        assert_eq!(overdue.iter().map(|call| (call.id, &*call.sampler.name)).collect::<Vec<_>>(), [(2, "bad")]);
        assert_eq!(made.try_iter().collect::<Vec<_>>(), [0, 1, 3, 4]);
        assert!(good.check().is_ok());
        assert!(bad.check().unwrap_err().message.contains("'bad' is barred"));
        // It may return eventually, without disturbing anything.
        drop(release);
        assert_eq!(made.recv().unwrap(), 2);
        thread.call(5, Box::new(move |_| sender.send(5).unwrap()));
        assert!(thread.wait().is_empty());
        assert_eq!(made.try_iter().collect::<Vec<_>>(), [5]);
    }
}
