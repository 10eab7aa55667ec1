//! Namespaces: no network but a loopback that is down, no System V objects of others, and a view of the files in which
//! nothing can be changed but the child's own folders. A second wall: Landlock and the filter hold all of it, too.
//!
//! An ordinary user needs a user namespace for that, which maps the user to itself and grants the right to create the others;
//! dropping capabilities takes that right away again. Root creates them directly, since in a user namespace it could not read
//! other users' files. There is no PID namespace: it would need a process between the server and each child.

use std::{
    ffi::{CString, c_int},
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    ptr::null,
};

/// The layout of `mount_setattr`'s argument.
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

const READ_ONLY: u64 = 0x1;
const NO_SETUID: u64 = 0x2;
const RECURSIVE: libc::c_uint = 0x8000;

const PROCESSES: &str = "/proc";

/// Enters the namespaces. Only these folders stay writable, and `/proc` for a GPU driver, which writes the names of its threads
/// there and fails if it cannot. To be called while the process has a single thread, and before its memory is hidden, which makes
/// `/proc/self` unwritable.
pub(super) fn enter(writable: &[PathBuf], has_drivers: bool) -> Result<(), String> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let is_root = user == 0;
    let others = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWNET;
    unshare(if is_root { others } else { others | libc::CLONE_NEWUSER })?;
    if !is_root {
        let said = |what: io::Result<()>| what.map_err(|error| format!("the user's number: {error}"));
        said(fs::write("/proc/self/setgroups", "deny"))?;
        said(fs::write("/proc/self/uid_map", format!("{user} {user} 1")))?;
        said(fs::write("/proc/self/gid_map", format!("{group} {group} 1")))?;
    }
    // What is unmounted outside is so here, and what is done here stays here.
    mount(None, Path::new("/"), libc::MS_REC | libc::MS_SLAVE)?;
    for folder in writable.iter().filter(|folder| folder.exists()) {
        mount(Some(folder), folder, libc::MS_BIND)?;
    }
    set_attributes(Path::new("/"), RECURSIVE, READ_ONLY | NO_SETUID, 0)?;
    for folder in writable.iter().filter(|folder| folder.exists()) {
        set_attributes(folder, 0, 0, READ_ONLY)?;
    }
    if has_drivers { set_attributes(Path::new(PROCESSES), 0, 0, READ_ONLY) } else { Ok(()) }
}

fn unshare(flags: c_int) -> Result<(), String> {
    // SAFETY: the call takes a number; the process has one thread, whose descriptors and memory stay as they are.
    succeeded("unshare", i64::from(unsafe { libc::unshare(flags) }))
}

fn mount(from: Option<&Path>, to: &Path, flags: libc::c_ulong) -> Result<(), String> {
    let (from, to) = (from.map(text).transpose()?, text(to)?);
    let from = from.as_ref().map_or(null(), |from| from.as_ptr());
    // SAFETY: both paths end with a zero and live through the call; kind and options may be absent for these flags.
    succeeded("mount", i64::from(unsafe { libc::mount(from, to.as_ptr(), null(), flags, null()) }))
}

fn set_attributes(path: &Path, flags: libc::c_uint, set: u64, clear: u64) -> Result<(), String> {
    let path = text(path)?;
    let attributes = Attributes { set, clear, propagation: 0, user_namespace: 0 };
    let (attributes, bytes) = (&raw const attributes, size_of::<Attributes>());
    // SAFETY: the path ends with a zero, the attributes have the layout and length of the first version, and both live on.
    let done =
        unsafe { libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), flags, attributes, bytes) };
    succeeded("mount_setattr", done)
}

fn text(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())
}

fn succeeded(call: &str, result: i64) -> Result<(), String> {
    if result == 0 { Ok(()) } else { Err(format!("{call}: {}", io::Error::last_os_error())) }
}
