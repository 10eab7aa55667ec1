//! The seccomp filter: a short program that the kernel runs at every system call of this process.
//!
//! It refuses what no model needs and an intruder does: new processes and programs, sockets (Landlock knows TCP only),
//! signals and looks into other processes, and kernel interfaces with a long history of holes. Leaving the process group is
//! refused as well, so that killing the group, as the server does, leaves nothing behind. And it refuses memory that the
//! limit of private memory does not count: what is shared without a file, and what grows downwards.

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter, sock_fprog};
use std::io;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

// Places in `seccomp_data`; of the 64-bit arguments the lower half, on machines that have it first.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// Calls of another numbering on the same machine (x32).
const OTHER_NUMBERING: u32 = 0x4000_0000;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const DENY: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
/// A bit of the flag `MAP_SHARED` and of its variants, but not of `MAP_PRIVATE`.
const SHARED: u32 = 1;
/// The C library then uses `clone`, whose flags a filter can see.
const ABSENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Refused in every child.
const REFUSED: [c_long; 45] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_socket,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setsid,
    libc::SYS_setpgid,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_open_by_handle_at,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];
/// Refused besides where no GPU's driver has to work, as they make memory that no limit counts.
const REFUSED_WITHOUT_DRIVERS: [c_long; 2] = [libc::SYS_memfd_create, libc::SYS_shmget];

/// Old names of `clone` on some machines.
#[cfg(target_arch = "x86_64")]
const FORKS: [c_long; 2] = [libc::SYS_fork, libc::SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const FORKS: [c_long; 0] = [];

/// Installs the filter for this thread and all later ones.
pub(super) fn install(drivers: bool) -> Result<(), String> {
    let architecture = ARCHITECTURE.ok_or("the filter is not written for this machine")?;
    let mut program = program(architecture, drivers, std::process::id());
    let length = u16::try_from(program.len()).map_err(|error| error.to_string())?;
    let description = sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the description leads to as many instructions as it says, and both live through the call, which copies them.
    let installed = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const description) };
    if installed != 0 {
        return Err(io::Error::last_os_error().to_string());
    }
    Ok(())
}

fn program(architecture: u32, drivers: bool, process: u32) -> Vec<sock_filter> {
    let mut code = vec![load(MACHINE), jump(BPF_JEQ, architecture, 1, 0), give(DENY), load(NUMBER)];
    code.extend([jump(BPF_JSET, OTHER_NUMBERING, 0, 1), give(DENY)]);
    let without_drivers = REFUSED_WITHOUT_DRIVERS.iter().filter(|_| !drivers);
    for number in REFUSED.iter().chain(&FORKS).chain(without_drivers) {
        code.extend([jump(BPF_JEQ, *number as u32, 0, 1), give(DENY)]);
    }
    code.extend([jump(BPF_JEQ, libc::SYS_clone3 as u32, 0, 1), give(ABSENT)]);
    // Threads are cloned, too.
    code.extend([jump(BPF_JEQ, libc::SYS_clone as u32, 0, 4), load(argument(0))]);
    code.extend([jump(BPF_JSET, libc::CLONE_THREAD as u32, 0, 1), give(ALLOW), give(DENY)]);
    if !drivers {
        code.extend([jump(BPF_JEQ, libc::SYS_mmap as u32, 0, 6), load(argument(3))]);
        code.extend([jump(BPF_JSET, libc::MAP_GROWSDOWN as u32, 2, 0), jump(BPF_JSET, SHARED, 0, 2)]);
        code.extend([jump(BPF_JSET, libc::MAP_ANONYMOUS as u32, 0, 1), give(DENY), give(ALLOW)]);
    }
    // A process may change its own limits.
    code.extend([jump(BPF_JEQ, libc::SYS_prlimit64 as u32, 0, 5), load(argument(0))]);
    code.extend([jump(BPF_JEQ, 0, 1, 0), jump(BPF_JEQ, process, 0, 1), give(ALLOW), give(DENY)]);
    // It may abort itself.
    code.extend([jump(BPF_JEQ, libc::SYS_tgkill as u32, 0, 4), load(argument(0))]);
    code.extend([jump(BPF_JEQ, process, 0, 1), give(ALLOW), give(DENY)]);
    code.push(give(ALLOW));
    code
}

fn load(place: u32) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: place }
}

/// Skips `holds` instructions if the test holds, and `fails` if not.
fn jump(test: u32, value: u32, holds: u8, fails: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt: holds, jf: fails, k: value }
}

fn give(action: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: action }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel would, on a call with this value in the argument that matters.
    fn run(code: &[sock_filter], machine: u32, number: c_long, argument: u32) -> u32 {
        let (mut place, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = code[place];
            let code = u32::from(code);
            place += 1;
            match code & 0x07 {
                BPF_LD => {
                    value = match k {
                        NUMBER => number as u32,
                        MACHINE => machine,
                        _ => argument,
                    }
                }
                BPF_RET => return k,
                _ => {
                    let holds = if code & 0xf0 == BPF_JEQ { value == k } else { value & k != 0 };
                    place += usize::from(if holds { jt } else { jf });
                }
            }
        }
    }

    #[test]
    fn refuses_what_leaves_the_process_and_allows_the_rest() {
        const MACHINE: u32 = 7;
        const PROCESS: u32 = 4711;
        let thread = (libc::CLONE_VM | libc::CLONE_THREAD) as u32;
        let map = |flags: i32| (libc::SYS_mmap, flags as u32);
        for ((number, argument), alone, with_drivers) in [
            ((libc::SYS_read, 0), ALLOW, ALLOW),
            ((libc::SYS_ptrace, 0), DENY, DENY),
            ((libc::SYS_setdomainname, 0), DENY, DENY),
            ((libc::SYS_setsid, 0), DENY, DENY),
            ((libc::SYS_execve, 0), DENY, DENY),
            ((libc::SYS_socket, libc::AF_INET as u32), DENY, DENY),
            ((libc::SYS_clone3, 0), ABSENT, ABSENT),
            ((libc::SYS_clone, thread), ALLOW, ALLOW),
            ((libc::SYS_clone, libc::SIGCHLD as u32), DENY, DENY),
            ((libc::SYS_tgkill, PROCESS), ALLOW, ALLOW),
            ((libc::SYS_tgkill, PROCESS + 1), DENY, DENY),
            ((libc::SYS_kill, PROCESS), DENY, DENY),
            ((libc::SYS_prlimit64, 0), ALLOW, ALLOW),
            ((libc::SYS_prlimit64, PROCESS), ALLOW, ALLOW),
            ((libc::SYS_prlimit64, PROCESS + 1), DENY, DENY),
            (map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS), ALLOW, ALLOW),
            (map(libc::MAP_PRIVATE), ALLOW, ALLOW),
            (map(libc::MAP_SHARED), ALLOW, ALLOW),
            (map(libc::MAP_SHARED | libc::MAP_ANONYMOUS), DENY, ALLOW),
            (map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN), DENY, ALLOW),
            ((libc::SYS_memfd_create, 0), DENY, ALLOW),
            ((c_long::from(OTHER_NUMBERING), 0), DENY, DENY),
        ] {
            for (drivers, expected) in [(false, alone), (true, with_drivers)] {
                let code = program(MACHINE, drivers, PROCESS);
                let done = run(&code, MACHINE, number, argument);
                assert_eq!(done, expected, "call {number}({argument}), drivers: {drivers}");
                assert_eq!(run(&code, MACHINE + 1, number, argument), DENY, "another machine's call {number}");
            }
        }
    }
}
