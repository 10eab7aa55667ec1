//! Keeps the system from writing a report of a crash: it holds the process for that, for seconds, and the server learns of its
//! end when the report is done. `RLIMIT_CORE` does not turn that off.
//!
//! The ports that are cleared are this process's own; one that the system has for all processes stays. Chromium and LLVM have
//! the signals exit instead, which no port hears of. But then the server reads an exit status where it now reads the signal,
//! and Rust's words about a stack that overflowed are lost; and by XNU's sources a process has ended before that port hears
//! (`thread_terminate_self`). The section `crash` of `doctor --report` measures what is left to gain.

use std::ffi::c_int;

type MachPort = u32;

const NO_PORT: MachPort = 0;
const EXCEPTION_DEFAULT: c_int = 1;
const NO_FLAVOR: c_int = 0;
/// Faults (access, instruction, arithmetic, emulation, software, breakpoint), resources and guards; the crash itself; and the
/// notice of what is left of the process.
const MASKS: [u32; 3] = [0b111_1110 | 1 << 11 | 1 << 12, 1 << 10, 1 << 13];

unsafe extern "C" {
    static mach_task_self_: MachPort;
    /// Of libSystem.
    fn task_set_exception_ports(task: MachPort, mask: u32, port: MachPort, behavior: c_int, flavor: c_int) -> c_int;
}

/// Clears the ports that this process inherited, each by itself: not every system lets a process clear all of them.
pub(super) fn turn_off() -> Result<(), String> {
    let clear = |mask| {
        // SAFETY: the call takes numbers, and the task is this process, whose name libSystem has set before `main`.
        unsafe { task_set_exception_ports(mach_task_self_, mask, NO_PORT, EXCEPTION_DEFAULT, NO_FLAVOR) }
    };
    let refused = MASKS.map(clear).into_iter().find(|code| *code != 0);
    refused.map_or(Ok(()), |code| Err(format!("task_set_exception_ports: {code}")))
}
