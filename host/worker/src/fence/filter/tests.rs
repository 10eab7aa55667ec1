//! The filter, interpreted as the kernel does it: what each kind of child gets for a call.

use super::*;
use libc::c_long;

const THIS_MACHINE: u32 = 7;
const PROCESS: u32 = 4711;
const ALL: [Kind; 4] = [Kind::Look, Kind::Prompt, Kind::Worker, Kind::GpuWorker];

/// Runs the filter as the kernel would, on a call with these arguments.
fn run(code: &[sock_filter], machine: u32, number: c_long, arguments: [u64; 6]) -> u32 {
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
                    _ => {
                        let whole = arguments[(k as usize - 16) / 8];
                        if (k - 16) % 8 == 0 { whole as u32 } else { (whole >> 32) as u32 }
                    }
                }
            }
            BPF_ALU => value &= k,
            BPF_RET => return k,
            _ => {
                let holds = match code & 0xf0 {
                    BPF_JEQ => value == k,
                    BPF_JGE => value >= k,
                    _ => value & k != 0,
                };
                place += usize::from(if holds { jt } else { jf });
            }
        }
    }
}

fn filter(kind: Kind) -> Vec<sock_filter> {
    program(THIS_MACHINE, &rules(kind, PROCESS))
}

/// The filter's answer to each kind of child (look, prompt, worker, worker with a GPU) for a call with these first arguments.
fn check(number: c_long, first: &[u64], expected: [u32; 4]) {
    let mut arguments = [0; 6];
    arguments[..first.len()].copy_from_slice(first);
    for (kind, expected) in ALL.into_iter().zip(expected) {
        let code = filter(kind);
        assert_eq!(run(&code, THIS_MACHINE, number, arguments), expected, "{kind:?}: call {number} {first:x?}");
        assert_eq!(run(&code, THIS_MACHINE + 1, number, arguments), DENY, "another machine's call {number}");
    }
}

const YES: [u32; 4] = [ALLOW; 4];
const NO: [u32; 4] = [DENY; 4];
const NEW: [u32; 4] = [DENY_AS_ABSENT; 4];
const WORKERS: [u32; 4] = [DENY, DENY, ALLOW, ALLOW];
const GPU: [u32; 4] = [DENY, DENY, DENY, ALLOW];

#[test]
fn allows_what_children_need_and_refuses_all_else() {
    check(libc::SYS_read, &[], YES);
    check(libc::SYS_openat, &[], YES);
    check(libc::SYS_getdents64, &[], [ALLOW, DENY, ALLOW, ALLOW]);
    check(libc::SYS_unlinkat, &[], WORKERS);
    check(libc::SYS_memfd_create, &[], GPU);
    let refused = [
        libc::SYS_execve,
        libc::SYS_ptrace,
        libc::SYS_kill,
        libc::SYS_tkill,
        libc::SYS_setsid,
        libc::SYS_setpgid,
        libc::SYS_connect,
        libc::SYS_socketpair,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        libc::SYS_recvmsg,
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_fchown,
        libc::SYS_setxattr,
        libc::SYS_fsetxattr,
        libc::SYS_removexattr,
        libc::SYS_utimensat,
        libc::SYS_linkat,
        libc::SYS_symlinkat,
        libc::SYS_mknodat,
        libc::SYS_truncate,
        libc::SYS_inotify_init1,
        libc::SYS_fanotify_init,
        libc::SYS_shmget,
        libc::SYS_semget,
        libc::SYS_msgget,
        libc::SYS_mq_open,
        libc::SYS_keyctl,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_ioprio_set,
        libc::SYS_sched_setscheduler,
        libc::SYS_timer_create,
        libc::SYS_remap_file_pages,
        libc::SYS_setdomainname,
    ];
    refused.into_iter().for_each(|number| check(number, &[], NO));
    check(c_long::from(OTHER_NUMBERING), &[], NO);
}

#[test]
fn calls_newer_than_the_lists_are_absent() {
    for number in [libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_openat2, libc::SYS_pidfd_open, 470, 5000] {
        check(number, &[], NEW);
    }
    check(libc::SYS_faccessat2, &[], YES);
}

#[test]
fn a_call_that_can_reach_others_is_for_itself_alone() {
    let (own, other) = (u64::from(PROCESS), u64::from(PROCESS) + 1);
    let thread = (libc::CLONE_VM | libc::CLONE_THREAD) as u64;
    check(libc::SYS_clone, &[thread], YES);
    check(libc::SYS_clone, &[thread | libc::CLONE_NEWNET as u64], NO);
    check(libc::SYS_clone, &[libc::SIGCHLD as u64], NO);
    check(libc::SYS_tgkill, &[own], YES);
    check(libc::SYS_tgkill, &[other], NO);
    for (process, expected) in [(0, YES), (own, YES), (other, NO)] {
        check(libc::SYS_prlimit64, &[process], expected);
    }
    check(libc::SYS_sched_getaffinity, &[0], YES);
    check(libc::SYS_sched_getaffinity, &[other], [DENY_AS_ABSENT, DENY_AS_ABSENT, DENY_AS_ABSENT, ALLOW]);
    check(libc::SYS_sched_setaffinity, &[0], WORKERS);
    check(libc::SYS_sched_setaffinity, &[other], NO);
    check(libc::SYS_setpriority, &[0, 0], WORKERS);
    check(libc::SYS_setpriority, &[0, other], NO);
    check(libc::SYS_setpriority, &[2, 0], NO);
    check(libc::SYS_sendto, &[3, 1, 1, 0, 0], WORKERS);
    // A pointer whose lower half is zero is one all the same.
    check(libc::SYS_sendto, &[3, 1, 1, 0, 1 << 32], NO);
    check(libc::SYS_sendto, &[3, 1, 1, 0, 1], NO);
    check(libc::SYS_socket, &[libc::AF_UNIX as u64], GPU);
    check(libc::SYS_socket, &[libc::AF_INET as u64], NO);
}

#[test]
fn descriptors_get_no_owner_and_requests_are_harmless() {
    let word = |word: i32| word as u64;
    for command in [libc::F_DUPFD, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC] {
        check(libc::SYS_fcntl, &[0, word(command)], YES);
    }
    check(libc::SYS_fcntl, &[0, word(libc::F_SETFL), word(libc::O_NONBLOCK)], YES);
    check(libc::SYS_fcntl, &[0, word(libc::F_SETFL), word(libc::O_ASYNC)], NO);
    const F_SETOWN_EX: i32 = 15;
    const F_SETSIG: i32 = 10;
    for command in [libc::F_SETOWN, F_SETOWN_EX, F_SETSIG, libc::F_NOTIFY, libc::F_SETLEASE, libc::F_SETPIPE_SZ] {
        check(libc::SYS_fcntl, &[0, word(command)], NO);
    }
    check(libc::SYS_fcntl, &[0, word(libc::F_SETLK)], GPU);
    check(libc::SYS_ioctl, &[0, 0x5421], YES);
    check(libc::SYS_ioctl, &[0, 0x5401], YES);
    // Input for a terminal, owners of descriptors, attributes of files, a clone of a file.
    for request in [0x5412, 0x541c, 0x8901, 0x8902, 0x5452, 0x4008_6602, 0x401c_5820, 0x4004_9409] {
        check(libc::SYS_ioctl, &[0, request], NO);
    }
    for request in [0xc020_462a, 0x3000_0001, 0x25, 0xc004_6401] {
        check(libc::SYS_ioctl, &[0, request], GPU);
    }
    check(libc::SYS_prctl, &[word(libc::PR_SET_NAME)], YES);
    check(libc::SYS_prctl, &[word(libc::PR_SET_DUMPABLE), 1], NO);
}

#[test]
fn memory_is_of_the_kinds_that_limits_count() {
    let map = |flags: i32, expected| check(libc::SYS_mmap, &[0, 0, 0, flags as u64], expected);
    let without_drivers = [DENY, DENY, DENY, ALLOW];
    map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, YES);
    map(libc::MAP_PRIVATE, YES);
    map(libc::MAP_SHARED, YES);
    map(libc::MAP_SHARED | libc::MAP_ANONYMOUS, without_drivers);
    map(libc::MAP_SHARED_VALIDATE | libc::MAP_ANONYMOUS, without_drivers);
    map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN, without_drivers);
}

#[test]
fn no_jump_is_longer_than_a_rule() {
    for kind in ALL {
        let code = filter(kind);
        assert!(code.len() < 600, "{kind:?}: {} instructions", code.len());
        for (place, instruction) in code.iter().enumerate() {
            if u32::from(instruction.code) & 0x07 == BPF_JMP {
                let longest = usize::from(instruction.jt.max(instruction.jf));
                assert!(longest < 32 && place + 1 + longest < code.len(), "{kind:?}: {place} jumps {longest}");
            }
        }
    }
}
