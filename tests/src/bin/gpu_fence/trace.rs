//! A small tracer: which system calls of a child and its threads fail the way the filter and Landlock make them fail.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::c_void,
    io,
    os::unix::process::CommandExt,
    process::Command,
    ptr::null_mut,
};

const OPTIONS: usize = (libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_EXITKILL) as usize;

/// Runs the child to its end; returns true if it succeeded.
pub fn run(command: &mut Command) -> io::Result<bool> {
    let traced = || {
        // SAFETY: the request takes no arguments.
        let asked = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<c_void>(), null_mut::<c_void>()) };
        if asked == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec there is one system call.
    let child = unsafe { command.pre_exec(traced) }.spawn()?;
    let main = child.id().cast_signed();
    let (mut entered, mut failed) = (HashMap::new(), BTreeMap::<(i64, i64), (u32, String)>::new());
    let mut known = false;
    let succeeded = loop {
        let mut status = 0;
        // SAFETY: the status lives through the call.
        let stopped = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        if stopped < 0 {
            break false;
        }
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            if stopped == main {
                break libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
            }
            continue;
        }
        if !known {
            known = true;
            request(libc::PTRACE_SETOPTIONS, main, OPTIONS);
        }
        let mut signal = libc::WSTOPSIG(status);
        if signal == libc::SIGTRAP | 0x80 {
            note(stopped, &mut entered, &mut failed);
            signal = 0;
        } else if signal == libc::SIGTRAP || signal == libc::SIGSTOP {
            signal = 0;
        }
        request(libc::PTRACE_SYSCALL, stopped, usize::try_from(signal).unwrap_or(0));
    };
    for ((number, error), (times, what)) in failed {
        println!(
            "   system call {number} failed {times} times: {}, {what}",
            io::Error::from_raw_os_error(error as i32)
        );
    }
    Ok(succeeded)
}

fn request(what: libc::c_uint, process: libc::pid_t, value: usize) {
    // SAFETY: these requests take a number where others take a pointer.
    unsafe { libc::ptrace(what, process, null_mut::<c_void>(), value as *mut c_void) };
}

fn note(
    process: libc::pid_t,
    entered: &mut HashMap<libc::pid_t, [u64; 4]>,
    failed: &mut BTreeMap<(i64, i64), (u32, String)>,
) {
    // SAFETY: registers are plain numbers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the child is stopped, and there is room for its registers.
    unsafe { libc::ptrace(libc::PTRACE_GETREGS, process, null_mut::<c_void>(), &raw mut registers) };
    let Some(call) = entered.remove(&process) else {
        entered.insert(process, [registers.orig_rax, registers.rdi, registers.rsi, registers.rdx]);
        return;
    };
    let error = -(registers.rax.cast_signed());
    if ![libc::EPERM, libc::ENOSYS, libc::EACCES, libc::EROFS].iter().any(|known| i64::from(*known) == error) {
        return;
    }
    let [number, a, b, c] = call;
    let path = match number.cast_signed() {
        libc::SYS_openat | libc::SYS_mkdirat | libc::SYS_unlinkat => text(process, b),
        libc::SYS_open | libc::SYS_mkdir | libc::SYS_unlink | libc::SYS_execve => text(process, a),
        _ => String::new(),
    };
    let entry = failed.entry((number.cast_signed(), error)).or_default();
    entry.0 += 1;
    let one = format!("({a:#x}, {b:#x}, {c:#x}) {path}; ");
    if entry.1.len() < 600 && !entry.1.contains(&one) {
        entry.1.push_str(&one);
    }
}

/// Reads a string from the child's memory, as far as it is readable.
fn text(process: libc::pid_t, from: u64) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < 200 {
        let place = (from as usize + bytes.len()) as *mut c_void;
        // SAFETY: the child is stopped; an unmapped address yields an error.
        let word = unsafe { libc::ptrace(libc::PTRACE_PEEKDATA, process, place, null_mut::<c_void>()) };
        bytes.extend(word.to_ne_bytes());
        if word == -1 || word.to_ne_bytes().contains(&0) {
            break;
        }
    }
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}
