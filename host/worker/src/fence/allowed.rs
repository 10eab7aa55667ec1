//! The system calls that each kind of child may make. Whatever is on none of these lists is refused, so that a call that
//! nobody has thought of, or that a newer kernel brings, is no way out.
//!
//! The lists were learned from the calls that children make, on several C libraries and on both machines that the filter is
//! written for. Three rules hold for all of them: no call reaches another process, none changes what belongs to a file
//! beside its bytes (mode, owner, times, attributes), and none makes something in the kernel that no limit counts or that
//! stays when the process has ended. `docs/security.md` has the whole as a table, which a test compares with what the kernel does.

use libc::c_long;

use pensieve_protocol::fence::Kind;

/// A call that is allowed if all of its tests hold. Several rules for one call are alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub number: c_long,
    pub tests: Vec<Test>,
}

/// A test of one argument, by its place among the call's own. The kernel takes the lower half of all but `IsNull`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    IsOneOf(u32, Vec<u32>),
    /// At least one of these bits is set.
    HasAny(u32, u32),
    HasNone(u32, u32),
    /// These bits have this value.
    Masked(u32, u32, u32),
    /// Both halves are zero.
    IsNull(u32),
}

use Test::{HasAny, HasNone, IsNull, IsOneOf, Masked};

/// A bit of the flag `MAP_SHARED` and of its variants, but not of `MAP_PRIVATE`.
const SHARED: u32 = 1;
const ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;
const GROWS_DOWN: u32 = libc::MAP_GROWSDOWN as u32;
const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Calls of every child: its descriptors, its memory, its threads, the time, and files to read.
const COMMON: [c_long; 52] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_ppoll,
    libc::SYS_openat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_membarrier,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_fadvise64,
];
/// Names of the same that only this machine has; other C libraries still use them.
#[cfg(target_arch = "x86_64")]
const COMMON_OLD: [c_long; 9] = [
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_poll,
    libc::SYS_dup2,
    libc::SYS_time,
    libc::SYS_getrlimit,
    // It changes registers of the thread that calls it; kernels for AMX ask for their tiles by it.
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const COMMON_OLD: [c_long; 0] = [];

/// Folders are read where plugins and checkpoints are, not where prompts are rendered.
const FOLDERS: [c_long; 3] = [libc::SYS_getdents64, libc::SYS_getcwd, libc::SYS_readlinkat];
#[cfg(target_arch = "x86_64")]
const FOLDERS_OLD: [c_long; 2] = [libc::SYS_getdents, libc::SYS_readlink];
#[cfg(not(target_arch = "x86_64"))]
const FOLDERS_OLD: [c_long; 0] = [];

/// The socket that a worker inherits, and its cache on disk.
const WORKER: [c_long; 11] = [
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_pwrite64,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
];
#[cfg(target_arch = "x86_64")]
const WORKER_OLD: [c_long; 4] = [libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_unlink, libc::SYS_rename];
#[cfg(not(target_arch = "x86_64"))]
const WORKER_OLD: [c_long; 0] = [];

/// Further calls of GPU drivers: they wait for events, lock pages, place memory, and open a socket to tell their own
/// tools of this process. No connection leaves from it, as there is no `connect`.
const DRIVERS: [c_long; 34] = [
    libc::SYS_mmap,
    libc::SYS_memfd_create,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_mbind,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getparam,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_capget,
    libc::SYS_fallocate,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_pselect6,
];
#[cfg(target_arch = "x86_64")]
const DRIVERS_OLD: [c_long; 6] = [
    libc::SYS_pipe,
    libc::SYS_eventfd,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_accept,
    libc::SYS_select,
];
#[cfg(not(target_arch = "x86_64"))]
const DRIVERS_OLD: [c_long; 0] = [];

/// Refused as if the kernel did not have them, since C libraries go on without them then. `sched_getaffinity` of another
/// thread of its own cannot be told from that of another process; the start of a thread asks for it.
pub(super) const ABSENT: [c_long; 1] = [libc::SYS_sched_getaffinity];
/// Every call from this number on came after Linux 5.0. Programs ask for those on the chance that they are there.
pub(super) const ABSENT_FROM: u32 = 424;

/// Descriptors: copies, flags, and whether reading waits. No owner, to whom the kernel would send signals, no locks on
/// files that others use, no leases.
const FCNTL: [i32; 5] = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL];
/// Drivers lock the index of their cache.
const FCNTL_DRIVERS: [i32; 3] = [libc::F_GETLK, libc::F_SETLK, libc::F_SETLKW];
/// `ioctl` requests: whether a descriptor is a terminal, blocks, and is inherited.
const IOCTL: [u32; 6] = [0x5401, 0x5413, 0x541b, 0x5421, 0x5450, 0x5451];
/// The types of requests that drivers take: NVIDIA's (`F`), those of the kernel's graphics and AMD's (`d`, `K`), and WSL's (`G`).
const IOCTL_DRIVERS: [u32; 4] = [0x4600, 0x6400, 0x4b00, 0x4700];
/// NVIDIA's unified memory takes plain numbers, and is opened and closed by two of their own.
const PLAIN: u32 = 0xffff_ff00;
const IOCTL_UVM: [u32; 2] = [0x3000_0001, 0x3000_0002];

/// All rules for a kind of child in the process of this number.
pub(super) fn rules(kind: Kind, process: u32) -> Vec<Rule> {
    let mut numbers: Vec<c_long> = COMMON.iter().chain(&COMMON_OLD).copied().collect();
    if kind != Kind::Prompt {
        numbers.extend(FOLDERS.iter().chain(&FOLDERS_OLD));
    }
    if kind.is_worker() {
        numbers.extend(WORKER.iter().chain(&WORKER_OLD));
    }
    if kind.has_drivers() {
        numbers.extend(DRIVERS.iter().chain(&DRIVERS_OLD));
    }
    let mut rules: Vec<Rule> = numbers.into_iter().map(|number| Rule { number, tests: Vec::new() }).collect();
    let mut add = |number: c_long, tests: Vec<Test>| rules.push(Rule { number, tests });
    let own = || IsOneOf(0, vec![0, process]);
    let words = |words: &[i32]| words.iter().map(|word| *word as u32).collect::<Vec<_>>();
    // Threads, not processes. The flags of `clone3` lie in memory, where no filter sees them.
    add(libc::SYS_clone, vec![HasAny(0, libc::CLONE_THREAD as u32), HasNone(0, NAMESPACES)]);
    add(libc::SYS_tgkill, vec![IsOneOf(0, vec![process])]);
    add(libc::SYS_prlimit64, vec![own()]);
    add(libc::SYS_prctl, vec![IsOneOf(0, words(&[libc::PR_SET_NAME, libc::PR_GET_NAME]))]);
    add(libc::SYS_fcntl, vec![IsOneOf(1, words(&FCNTL))]);
    add(libc::SYS_fcntl, vec![IsOneOf(1, words(&[libc::F_SETFL])), HasNone(2, libc::O_ASYNC as u32)]);
    add(libc::SYS_ioctl, vec![IsOneOf(1, IOCTL.to_vec())]);
    if kind.is_worker() {
        add(libc::SYS_sendto, vec![IsNull(4)]);
        // Its own thread alone.
        add(libc::SYS_setpriority, vec![IsOneOf(0, vec![0]), IsOneOf(1, vec![0])]);
        add(libc::SYS_sched_setaffinity, vec![IsOneOf(0, vec![0])]);
    }
    if kind.has_drivers() {
        add(libc::SYS_socket, vec![IsOneOf(0, words(&[libc::AF_UNIX]))]);
        add(libc::SYS_fcntl, vec![IsOneOf(1, words(&FCNTL_DRIVERS))]);
        IOCTL_DRIVERS.iter().for_each(|letter| add(libc::SYS_ioctl, vec![Masked(1, 0xff00, *letter)]));
        add(libc::SYS_ioctl, vec![Masked(1, PLAIN, 0)]);
        add(libc::SYS_ioctl, vec![IsOneOf(1, IOCTL_UVM.to_vec())]);
    } else {
        // No memory that the limit of private memory does not count: what is shared without a file, and what grows by itself.
        add(libc::SYS_mmap, vec![HasNone(3, GROWS_DOWN | SHARED)]);
        add(libc::SYS_mmap, vec![HasNone(3, GROWS_DOWN | ANONYMOUS)]);
        add(libc::SYS_sched_getaffinity, vec![own()]);
    }
    rules
}
