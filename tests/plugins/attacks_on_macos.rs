//! Attacks by calls that macOS alone has, or has in a form of its own. It was never run.

use std::{
    fs::File,
    os::fd::AsRawFd,
    path::Path,
    ptr::{null, null_mut},
};

use libc::{c_int, pid_t};

use super::{Attempt, text};

pub(super) fn of_files(home: &Path, files: &[&Path]) -> Vec<Attempt> {
    // Both are tried.
    let attributes = files.iter().filter(|path| sets_attribute(path)).count();
    vec![("changed a file's attributes", attributes > 0), ("watched a folder", watches(home))]
}

pub(super) fn of_others(parent: pid_t) -> Vec<Attempt> {
    vec![
        ("read its parent's environment", reads_environment(parent)),
        ("had the kernel signal its parent", owns(parent)),
    ]
}

pub(super) fn of_the_kernel() -> Vec<Attempt> {
    vec![("left shared memory by name", shares_by_name())]
}

fn sets_attribute(path: &Path) -> bool {
    let (name, value) = (text(path), c"user.planted");
    // SAFETY: all texts end with a zero and live through the calls, which read as many bytes of the value as they are told.
    let set = || unsafe { libc::setxattr(name.as_ptr(), value.as_ptr(), value.as_ptr().cast(), 4, 0, 0) } == 0;
    // SAFETY: as above, with an open descriptor.
    let by =
        |file: File| unsafe { libc::fsetxattr(file.as_raw_fd(), value.as_ptr(), value.as_ptr().cast(), 4, 0, 0) } == 0;
    set() || File::open(path).is_ok_and(by)
}

fn watches(folder: &Path) -> bool {
    // SAFETY: the path ends with a zero and lives through the call.
    let folder = unsafe { libc::open(text(folder).as_ptr(), libc::O_EVTONLY) };
    // SAFETY: a change is plain numbers and a pointer that may be null.
    let mut change: libc::kevent = unsafe { std::mem::zeroed() };
    change.ident = usize::try_from(folder).unwrap_or(usize::MAX);
    (change.filter, change.flags, change.fflags) =
        (libc::EVFILT_VNODE, libc::EV_ADD | libc::EV_CLEAR, libc::NOTE_WRITE);
    // SAFETY: there is one change, which lives through the call, and no room for events.
    folder >= 0 && unsafe { libc::kevent(libc::kqueue(), &raw const change, 1, null_mut(), 0, null()) } == 0
}

/// The arguments and variables that a process was started with, which the kernel gives to the same user.
fn reads_environment(process: pid_t) -> bool {
    let mut name = [libc::CTL_KERN, libc::KERN_PROCARGS2, process];
    let mut bytes = vec![0_u8; 1 << 20];
    let mut length = bytes.len();
    // SAFETY: the name has three parts, and at most as many bytes are written as there are.
    let read =
        unsafe { libc::sysctl(name.as_mut_ptr(), 3, bytes.as_mut_ptr().cast(), &raw mut length, null_mut(), 0) } == 0;
    read && bytes[..length].split(|byte| *byte == 0).any(|text| text.starts_with(b"HOME="))
}

/// As the owner of a descriptor, that process gets a signal when something can be read.
fn owns(process: pid_t) -> bool {
    // SAFETY: the call takes plain numbers.
    unsafe { libc::fcntl(2, libc::F_SETOWN, process) == 0 }
}

fn shares_by_name() -> bool {
    const MODE: c_int = 0o600;
    // SAFETY: the name ends with a zero; what was made is removed again.
    unsafe {
        libc::shm_open(c"/planted".as_ptr(), libc::O_CREAT | libc::O_RDWR, MODE) >= 0
            && libc::shm_unlink(c"/planted".as_ptr()) == 0
    }
}
