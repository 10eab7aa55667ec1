//! The seccomp filter: a short program that the kernel runs at every system call of this process.
//!
//! It allows what [`allowed`](super::allowed) lists for the kind of child, and refuses the rest: new processes and programs, sockets
//! (Landlock knows TCP only), signals and looks into other processes, and kernel interfaces with a long history of holes.
//! Leaving the process group is refused as well, so that killing the group, as the server does, leaves nothing behind.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter,
    sock_fprog,
};
use std::io;

use super::allowed::{ABSENT, ABSENT_FROM, Rule, Test, rules};
use pensieve_protocol::fence::Kind;

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
const UPPER_HALF: u32 = 4;

/// Calls of another numbering on the same machine (x32).
const OTHER_NUMBERING: u32 = 0x4000_0000;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const DENY: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
/// The C library goes on without it then: with `clone` for `clone3`, for example, whose flags a filter can see.
const DENY_AS_ABSENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
/// A jump to where a rule does not hold, until its length is known. No rule is so long.
const FAIL: u8 = u8::MAX;

/// Installs the filter for this thread and all later ones.
pub(super) fn install(kind: Kind) -> Result<(), String> {
    let architecture = ARCHITECTURE.ok_or("the filter is not written for this machine")?;
    let mut program = program(architecture, &rules(kind, std::process::id()));
    let length = u16::try_from(program.len()).map_err(|error| error.to_string())?;
    let description = sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the description leads to as many instructions as it says, and both live through the call, which copies them.
    let installed = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const description) };
    if installed != 0 {
        return Err(io::Error::last_os_error().to_string());
    }
    Ok(())
}

/// The rules one after the other: the kernel itself remembers the calls that are allowed whatever their arguments are.
fn program(architecture: u32, rules: &[Rule]) -> Vec<sock_filter> {
    let mut code = vec![load(MACHINE), jump(BPF_JEQ, architecture, 1, 0), give(DENY), load(NUMBER)];
    code.extend([jump(BPF_JSET, OTHER_NUMBERING, 0, 1), give(DENY)]);
    rules.iter().for_each(|rule| code.extend(compile(rule)));
    for number in ABSENT {
        code.extend([jump(BPF_JEQ, number as u32, 0, 1), give(DENY_AS_ABSENT)]);
    }
    code.extend([jump(BPF_JGE, ABSENT_FROM, 0, 1), give(DENY_AS_ABSENT), give(DENY)]);
    code
}

/// Allows the call if the rule is about it and holds. Otherwise the next rule follows, with the call's number loaded.
fn compile(rule: &Rule) -> Vec<sock_filter> {
    if rule.tests.is_empty() {
        return vec![jump(BPF_JEQ, rule.number as u32, 0, 1), give(ALLOW)];
    }
    let mut tests: Vec<sock_filter> = rule.tests.iter().flat_map(test).collect();
    // Past the tests there is the answer, then what loads the number again.
    let failed = tests.len() + 1;
    for (place, instruction) in tests.iter_mut().enumerate() {
        let skipped = u8::try_from(failed - place - 1).unwrap_or(FAIL - 1);
        for way in [&mut instruction.jt, &mut instruction.jf] {
            *way = if *way == FAIL { skipped } else { *way };
        }
    }
    let past = u8::try_from(failed + 1).unwrap_or(FAIL - 1);
    let mut code = vec![jump(BPF_JEQ, rule.number as u32, 0, past)];
    code.extend(tests);
    code.extend([give(ALLOW), load(NUMBER)]);
    code
}

fn test(test: &Test) -> Vec<sock_filter> {
    match test {
        Test::IsOneOf(place, values) => {
            let mut code = vec![load(argument(*place))];
            for (index, value) in values.iter().enumerate() {
                let left = values.len() - index - 1;
                let fails = if left == 0 { FAIL } else { 0 };
                code.push(jump(BPF_JEQ, *value, u8::try_from(left).unwrap_or(FAIL - 1), fails));
            }
            code
        }
        Test::HasAny(place, bits) => vec![load(argument(*place)), jump(BPF_JSET, *bits, 0, FAIL)],
        Test::HasNone(place, bits) => vec![load(argument(*place)), jump(BPF_JSET, *bits, FAIL, 0)],
        Test::Masked(place, bits, value) => {
            let and = sock_filter { code: (BPF_ALU | BPF_AND | BPF_K) as u16, jt: 0, jf: 0, k: *bits };
            vec![load(argument(*place)), and, jump(BPF_JEQ, *value, 0, FAIL)]
        }
        Test::IsNull(place) => vec![
            load(argument(*place)),
            jump(BPF_JEQ, 0, 0, FAIL),
            load(argument(*place) + UPPER_HALF),
            jump(BPF_JEQ, 0, 0, FAIL),
        ],
    }
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
mod tests;
