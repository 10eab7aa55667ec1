//! Attacks by calls that Linux alone has, or has in a form of its own.

use std::{
    fs::{self, File, OpenOptions},
    os::fd::AsRawFd,
    path::Path,
    ptr::{null, null_mut},
};

use libc::{c_int, c_long, pid_t};

use super::{Attempt, LARGE_BYTES, maps, text};

pub(super) fn of_files(home: &Path, files: &[&Path]) -> Vec<Attempt> {
    // Both are tried.
    let attributes = files.iter().filter(|path| sets_attribute(path)).count();
    vec![("changed a file's attributes", attributes > 0), ("watched a folder", watches(home))]
}

pub(super) fn of_others(parent: pid_t) -> Vec<Attempt> {
    let environment = fs::read(format!("/proc/{parent}/environ"));
    let memory = OpenOptions::new().write(true).open(format!("/proc/{parent}/mem"));
    vec![
        ("read its parent's environment", environment.is_ok_and(|bytes| !bytes.is_empty())),
        ("opened its parent's memory", memory.is_ok()),
        ("had the kernel signal its parent", owns(parent)),
        ("may trace its parent", may_trace(parent)),
        ("set its parent's scheduler", sets_scheduler(parent)),
        ("set its parent's processors", sets_processors(parent)),
        ("set its parent's priority for files", sets_file_priority(parent)),
        ("set its parent's limits", sets_limits(parent)),
    ]
}

pub(super) fn of_the_kernel() -> Vec<Attempt> {
    const GROWING: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN;
    vec![
        ("grew by six gigabytes", maps(LARGE_BYTES, libc::PROT_WRITE, GROWING)),
        ("left messages in the kernel", makes_queues()),
    ]
}

fn sets_attribute(path: &Path) -> bool {
    let (name, value) = (text(path), c"user.planted");
    // SAFETY: all texts end with a zero and live through the calls, which read as many bytes of the value as they are told.
    let set = || unsafe { libc::setxattr(name.as_ptr(), value.as_ptr(), value.as_ptr().cast(), 4, 0) } == 0;
    // SAFETY: as above, with an open descriptor.
    let by =
        |file: File| unsafe { libc::fsetxattr(file.as_raw_fd(), value.as_ptr(), value.as_ptr().cast(), 4, 0) } == 0;
    set() || File::open(path).is_ok_and(by)
}

fn watches(folder: &Path) -> bool {
    // SAFETY: the call takes plain numbers.
    let watch = unsafe { libc::inotify_init1(0) };
    // SAFETY: the path ends with a zero and lives through the call.
    watch >= 0 && unsafe { libc::inotify_add_watch(watch, text(folder).as_ptr(), libc::IN_CREATE) } >= 0
}

/// As the owner of a descriptor, that process gets a signal when something can be read.
fn owns(process: pid_t) -> bool {
    const FIOSETOWN: libc::Ioctl = 0x8901;
    // SAFETY: the calls take plain numbers, or read one that lives on.
    unsafe { libc::fcntl(2, libc::F_SETOWN, process) == 0 || libc::ioctl(2, FIOSETOWN, &raw const process) == 0 }
}

fn may_trace(process: pid_t) -> bool {
    // SAFETY: attaching takes a process alone.
    unsafe { libc::ptrace(libc::PTRACE_SEIZE, process, null_mut::<()>(), null_mut::<()>()) == 0 }
}

fn sets_scheduler(process: pid_t) -> bool {
    // SAFETY: a parameter is plain numbers.
    let parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the parameter lives through the call.
    unsafe { libc::sched_setscheduler(process, libc::SCHED_OTHER, &raw const parameter) == 0 }
}

fn sets_processors(process: pid_t) -> bool {
    // SAFETY: a set is plain numbers.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set has the length that the calls are told, and lives through them.
    unsafe {
        libc::sched_getaffinity(process, size_of_val(&set), &raw mut set);
        libc::sched_setaffinity(process, size_of_val(&set), &raw const set) == 0
    }
}

fn sets_file_priority(process: pid_t) -> bool {
    const BEST_EFFORT_4: c_int = 2 << 13 | 4;
    // SAFETY: the call takes plain numbers; 1 stands for a process.
    unsafe { libc::syscall(libc::SYS_ioprio_set, 1, process, BEST_EFFORT_4) == 0 }
}

fn sets_limits(process: pid_t) -> bool {
    // SAFETY: a limit is plain numbers.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: the limit lives through both calls.
    unsafe {
        libc::prlimit(process, libc::RLIMIT_CORE, null(), &raw mut limit) == 0
            && libc::prlimit(process, libc::RLIMIT_CORE, &raw const limit, null_mut()) == 0
    }
}

/// A queue of messages of System V, and one of POSIX.
fn makes_queues() -> bool {
    // SAFETY: all of these calls take plain numbers, or a name that ends with a zero; what was made is removed again.
    unsafe {
        let messages = libc::msgget(libc::IPC_PRIVATE, 0o600);
        let queue: c_long =
            libc::syscall(libc::SYS_mq_open, c"planted".as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600, 0);
        if queue >= 0 {
            libc::syscall(libc::SYS_mq_unlink, c"planted".as_ptr());
        }
        let removed = messages >= 0 && libc::msgctl(messages, libc::IPC_RMID, null_mut()) == 0;
        removed || queue >= 0
    }
}
