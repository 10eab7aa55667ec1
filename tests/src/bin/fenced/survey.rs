//! Makes every system call, with arguments that have no effect if the kernel sees them. The filter answers before the
//! kernel does, with one of two errors; any other result means that the call got through.

use libc::c_int;
use std::{io, os::unix::process::parent_id};

/// Last number tried; today's kernels have fewer.
const LAST: i64 = 470;
/// An invalid descriptor, pointer or id.
const NOTHING: i64 = -1;
/// Calls that are allowed and would end the process. Filters do not apply to probes, which the kernel itself inserts
/// into programs: a program that calls them gets a signal.
const ENDING: [i64; 5] = [libc::SYS_exit, libc::SYS_exit_group, libc::SYS_rt_sigreturn, PROBES[0].0, PROBES[1].0];
const PROBES: [(i64, &str); 2] = [(335, "uretprobe"), (336, "uprobe")];

/// A call, the variant being tried, and its arguments.
type Attempt = (i64, &'static str, [i64; 6]);

/// One line per call: `allowed`, `refused`, `absent` or `untried`, its name, and the variant if that depends on
/// arguments.
pub fn all() -> Vec<String> {
    let attempts = attempts();
    let mut lines = Vec::new();
    for number in 0..=LAST {
        let own: Vec<&Attempt> = attempts.iter().filter(|attempt| attempt.0 == number).collect();
        if ENDING.contains(&number) {
            lines.push(format!("untried {}", name(number)));
        } else if own.is_empty() {
            lines.push(format!("{} {}", outcome(number, [NOTHING; 6]), name(number)));
        }
        for (_, what, arguments) in own {
            lines.push(format!("{} {} {what}", outcome(number, *arguments), name(number)).trim_end().to_owned());
        }
    }
    lines
}

fn outcome(number: i64, arguments: [i64; 6]) -> &'static str {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: none of these arguments leads to memory of this process that the kernel would write to or unmap.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == 0 && [libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone].contains(&number) {
        // SAFETY: in the child of a fork that should not have happened; ends the process and does not return.
        unsafe { libc::_exit(0) };
    }
    match io::Error::last_os_error().raw_os_error().filter(|_| result == -1) {
        Some(libc::EPERM) => "refused",
        Some(libc::ENOSYS) => "absent",
        _ => "allowed",
    }
}

/// Calls whose outcome depends on their arguments, and the one that accepts any.
fn attempts() -> Vec<Attempt> {
    let (own, parent) = (i64::from(std::process::id()), i64::from(parent_id()));
    let mut all = vec![(libc::SYS_futex, "", [0, i64::from(libc::FUTEX_WAKE), 1, 0, 0, 0])];
    let mut add = |number: i64, what, first: &[i64]| {
        let mut arguments = [0; 6];
        arguments[..first.len()].copy_from_slice(first);
        all.push((number, what, arguments));
    };
    let bits = |bits: c_int| i64::from(bits);
    add(libc::SYS_clone, "a thread", &[bits(libc::CLONE_THREAD)]);
    add(libc::SYS_clone, "a process", &[bits(libc::SIGCHLD)]);
    add(libc::SYS_clone, "a namespace", &[bits(libc::CLONE_THREAD | libc::CLONE_NEWUSER)]);
    for (what, first) in [("itself", &[own, NOTHING]), ("others", &[parent, parent])] {
        add(libc::SYS_tgkill, what, first);
    }
    for (what, process) in [("itself", 0), ("others", parent)] {
        add(libc::SYS_prlimit64, what, &[process, NOTHING]);
        add(libc::SYS_sched_getaffinity, what, &[process]);
        add(libc::SYS_sched_setaffinity, what, &[process]);
        add(libc::SYS_setpriority, what, &[0, process, 0]);
    }
    add(libc::SYS_setpriority, "a group", &[1, 0, 0]);
    add(libc::SYS_setpriority, "a user", &[2, 0, 0]);
    add(libc::SYS_sendto, "without an address", &[NOTHING, 1, 1, 0, 0]);
    add(libc::SYS_sendto, "to an address", &[NOTHING, 1, 1, 0, 1]);
    add(libc::SYS_sendto, "to an address above 4 GiB", &[NOTHING, 1, 1, 0, 1 << 32]);
    for (what, family) in [("local", libc::AF_UNIX), ("IP", libc::AF_INET), ("netlink", libc::AF_NETLINK)] {
        add(libc::SYS_socket, what, &[bits(family), NOTHING]);
    }
    let (private, shared) = (bits(libc::MAP_PRIVATE), bits(libc::MAP_SHARED));
    let (alone, growing) = (bits(libc::MAP_ANONYMOUS), bits(libc::MAP_GROWSDOWN));
    for (what, flags) in [
        ("private", private | alone),
        ("a file", private),
        ("a file, shared", shared),
        ("shared, no file", shared | alone),
        ("growing", private | alone | growing),
    ] {
        // With length zero, which the kernel rejects with a different error.
        add(libc::SYS_mmap, what, &[0, 0, 0, flags, NOTHING, 0]);
    }
    for (what, command) in FCNTL {
        add(libc::SYS_fcntl, what, &[NOTHING, bits(command), 0]);
    }
    add(libc::SYS_fcntl, "F_SETFL with O_ASYNC", &[NOTHING, bits(libc::F_SETFL), bits(libc::O_ASYNC)]);
    for (what, request) in IOCTL {
        add(libc::SYS_ioctl, what, &[NOTHING, request, 0]);
    }
    for (what, option) in PRCTL {
        add(libc::SYS_prctl, what, &[bits(option), NOTHING, NOTHING, NOTHING, NOTHING]);
    }
    all
}

const FCNTL: [(&str, c_int); 26] = [
    ("F_DUPFD", 0),
    ("F_GETFD", 1),
    ("F_SETFD", 2),
    ("F_GETFL", 3),
    ("F_SETFL", 4),
    ("F_GETLK", 5),
    ("F_SETLK", 6),
    ("F_SETLKW", 7),
    ("F_SETOWN", 8),
    ("F_GETOWN", 9),
    ("F_SETSIG", 10),
    ("F_GETSIG", 11),
    ("F_SETOWN_EX", 15),
    ("F_GETOWN_EX", 16),
    ("F_OFD_GETLK", 36),
    ("F_OFD_SETLK", 37),
    ("F_OFD_SETLKW", 38),
    ("F_SETLEASE", 1024),
    ("F_GETLEASE", 1025),
    ("F_NOTIFY", 1026),
    ("F_CANCELLK", 1029),
    ("F_DUPFD_CLOEXEC", 1030),
    ("F_SETPIPE_SZ", 1031),
    ("F_GETPIPE_SZ", 1032),
    ("F_ADD_SEALS", 1033),
    ("F_SET_RW_HINT", 1036),
];

const IOCTL: [(&str, i64); 19] = [
    ("TCGETS", 0x5401),
    ("TCSETS", 0x5402),
    ("TIOCSTI", 0x5412),
    ("TIOCGWINSZ", 0x5413),
    ("FIONREAD", 0x541b),
    ("TIOCLINUX", 0x541c),
    ("FIONBIO", 0x5421),
    ("FIONCLEX", 0x5450),
    ("FIOCLEX", 0x5451),
    ("FIOASYNC", 0x5452),
    ("FIOSETOWN", 0x8901),
    ("FS_IOC_SETFLAGS", 0x4008_6602),
    ("FS_IOC_FSSETXATTR", 0x401c_5820),
    ("FICLONE", 0x4004_9409),
    ("of NVIDIA", 0xc020_462a),
    ("of NVIDIA's memory", 0x25),
    ("of DRM", 0xc004_6401),
    ("of AMD", 0x8008_4b01),
    ("of WSL", 0xc008_4701),
];

const PRCTL: [(&str, c_int); 12] = [
    ("PR_SET_PDEATHSIG", 1),
    ("PR_SET_DUMPABLE", 4),
    ("PR_SET_NAME", 15),
    ("PR_GET_NAME", 16),
    ("PR_SET_SECCOMP", 22),
    ("PR_SET_TIMERSLACK", 29),
    ("PR_SET_MM", 35),
    ("PR_SET_CHILD_SUBREAPER", 36),
    ("PR_SET_NO_NEW_PRIVS", 38),
    ("PR_SET_IO_FLUSHER", 57),
    ("PR_SCHED_CORE", 62),
    ("PR_SET_PTRACER", 0x5961_6d61),
];

macro_rules! named {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}

/// Names of calls expected to be allowed; any other is shown by number.
const NAMES: &[(i64, &str)] = named! {
    SYS_read SYS_write SYS_open SYS_close SYS_stat SYS_fstat SYS_lstat SYS_poll SYS_lseek SYS_mmap SYS_mprotect
    SYS_munmap SYS_brk SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_ioctl SYS_pread64 SYS_pwrite64
    SYS_readv SYS_writev SYS_access SYS_pipe SYS_select SYS_sched_yield SYS_mremap SYS_msync SYS_mincore
    SYS_madvise SYS_dup SYS_dup2 SYS_nanosleep SYS_getpid SYS_sendto SYS_recvfrom SYS_shutdown SYS_bind
    SYS_listen SYS_getsockname SYS_setsockopt SYS_getsockopt SYS_socket SYS_accept SYS_clone SYS_exit SYS_uname
    SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync SYS_ftruncate SYS_getdents SYS_getcwd SYS_rename SYS_mkdir
    SYS_rmdir SYS_unlink SYS_readlink SYS_gettimeofday SYS_getrlimit SYS_getrusage SYS_sysinfo SYS_getuid
    SYS_getgid SYS_geteuid SYS_getegid SYS_getppid SYS_capget SYS_sigaltstack SYS_statfs SYS_fstatfs
    SYS_sched_getparam SYS_sched_getscheduler SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_mlock
    SYS_munlock SYS_prctl SYS_arch_prctl SYS_setpriority SYS_gettid SYS_time SYS_futex SYS_sched_setaffinity
    SYS_sched_getaffinity SYS_epoll_create SYS_getdents64 SYS_set_tid_address SYS_restart_syscall SYS_fadvise64
    SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_exit_group SYS_epoll_wait SYS_epoll_ctl
    SYS_tgkill SYS_mbind SYS_set_mempolicy SYS_get_mempolicy SYS_openat SYS_mkdirat SYS_newfstatat SYS_unlinkat
    SYS_renameat SYS_readlinkat SYS_faccessat SYS_pselect6 SYS_ppoll SYS_set_robust_list SYS_epoll_pwait
    SYS_eventfd SYS_timerfd_create SYS_fallocate SYS_timerfd_settime SYS_timerfd_gettime SYS_accept4
    SYS_eventfd2 SYS_epoll_create1 SYS_dup3 SYS_pipe2 SYS_prlimit64 SYS_getcpu SYS_renameat2 SYS_getrandom
    SYS_memfd_create SYS_membarrier SYS_mlock2 SYS_statx SYS_rseq SYS_faccessat2 SYS_clone3 SYS_chmod SYS_kill
    SYS_connect
};

fn name(number: i64) -> String {
    let known = NAMES
        .iter()
        .chain(&PROBES)
        .find(|(known, _)| *known == number)
        .map(|(_, name)| name.trim_start_matches("SYS_"));
    known.map_or_else(|| number.to_string(), str::to_owned)
}
