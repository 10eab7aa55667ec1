//! Enters the fence that the server has written down for this process, before anything foreign is opened in it.
//!
//! Five parts hold on Linux: limits of memory, addresses and files; namespaces, where the system gives them; Landlock, which
//! restricts files, TCP and signals, and keeps other processes' memory and environment out of reach even for root; a seccomp
//! filter, which allows the calls that this kind of child needs; and the loss of root's capabilities. On macOS there are the limits
//! but those of memory, which the server watches where the policy has one, and a sandbox profile. Features that a kernel lacks are
//! left out and reported: an old system runs models too.

#[cfg(target_os = "linux")]
mod allowed;
#[cfg(target_os = "linux")]
mod capabilities;
#[cfg(target_os = "macos")]
mod crash_reports;
mod descriptors;
#[cfg(target_os = "linux")]
mod drivers;
#[cfg(target_os = "linux")]
mod filter;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(target_os = "linux")]
mod paths;
#[cfg(any(target_os = "macos", test))]
mod seatbelt;

use pensieve_protocol::fence::{Fenced, Policy, VARIABLE};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{io, os::fd::RawFd, sync::OnceLock, thread};

/// The stack of the first thread, which the limit of private memory does not count.
const STACK_BYTES_MAX: u64 = 64 << 20;

#[cfg(any(target_os = "linux", target_os = "macos"))]
const OPEN: &str = "files, network and processes: the configuration allows its plugin all of them";

static ENTERED: OnceLock<Fenced> = OnceLock::new();

/// Enters the fence of the environment, if there is one, and closes inherited descriptors other than the standard streams and
/// `socket`. To be called while the process has a single thread and has opened nothing.
pub fn enter_from_environment(socket: Option<RawFd>) -> Result<(), String> {
    let Some(text) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let text = text.into_string().map_err(|_| format!("{VARIABLE} is not UTF-8"))?;
    let policy: Policy = serde_json::from_str(&text).map_err(|error| format!("{VARIABLE} is not a policy: {error}"))?;
    descriptors::close_inherited(socket);
    let fenced = enter(&policy);
    // It is entered once per process.
    let _ = ENTERED.set(fenced);
    if policy.ends_with_input { end_with_input() } else { Ok(()) }
}

fn end_with_input() -> Result<(), String> {
    let watch = || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        crate::process::leave(0)
    };
    let started = thread::Builder::new().name("input".to_owned()).spawn(watch);
    started.map(drop).map_err(|error| format!("a thread does not start: {error}"))
}

/// The parts of the fence that are in force around this process; none outside of a fence.
pub fn entered() -> Fenced {
    ENTERED.get().cloned().unwrap_or_default()
}

fn enter(policy: &Policy) -> Fenced {
    let mut fenced = Fenced::default();
    limits(policy, &mut fenced);
    #[cfg(target_os = "linux")]
    enter_on_linux(policy, &mut fenced);
    #[cfg(target_os = "macos")]
    if let Err(why) = crash_reports::turn_off() {
        fenced.notes.push(format!("a crash is reported to the system, which delays its end: {why}"));
    }
    #[cfg(target_os = "macos")]
    sandbox(policy, &mut fenced, seatbelt::enter);
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    fenced.missing.push("files, network and processes: this system has neither Landlock nor seccomp".into());
    fenced
}

/// Enters the profile, unless the configuration trusts the plugin. A system that refuses, as it does inside another sandbox, is
/// no reason to end: the server says what is missing.
#[cfg(any(target_os = "macos", test))]
fn sandbox(policy: &Policy, fenced: &mut Fenced, enter: impl FnOnce(&Policy) -> Result<(), String>) {
    if policy.open {
        fenced.missing.push(OPEN.into());
    } else {
        fenced.note(seatbelt::HOLDS, enter(policy));
    }
}

#[cfg(target_os = "linux")]
fn enter_on_linux(policy: &Policy, fenced: &mut Fenced) {
    use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};

    if policy.kind.has_drivers() {
        drivers::prepare();
    }
    let writable = paths::writable(policy);
    if !policy.open {
        match namespaces::enter(&writable, policy.kind.has_drivers()) {
            Ok(()) => fenced.holds.push("a network and a read-only view of files of its own (namespaces)".into()),
            Err(why) => fenced.notes.push(format!("no namespaces ({why}): the other parts hold without them")),
        }
    }
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    fenced.note("its memory is hidden from other processes", hidden.map_err(|error| error.to_string()));
    fenced.note("no new privileges", no_new_privileges());
    if policy.open {
        fenced.missing.push(OPEN.into());
        return;
    }
    fenced.note("root's capabilities are dropped", capabilities::drop(geteuid().is_root()));
    paths::restrict(policy, writable, fenced);
    let sockets = if policy.kind.has_drivers() { "connections" } else { "sockets" };
    let holds = format!(
        "only the system calls that it needs: no processes, no {sockets}, nothing of other processes (seccomp)"
    );
    fenced.note(&holds, filter::install(policy.kind));
}

trait Note {
    fn note(&mut self, what: &str, done: Result<(), String>);
}

impl Note for Fenced {
    fn note(&mut self, what: &str, done: Result<(), String>) {
        match done {
            Ok(()) => self.holds.push(what.to_owned()),
            Err(why) => self.missing.push(format!("{what}: {why}")),
        }
    }
}

#[cfg(target_os = "linux")]
fn no_new_privileges() -> Result<(), String> {
    // SAFETY: the call takes plain numbers and sets a flag of this thread, which has no other yet.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().to_string()) }
}

/// True if the kernel can limit the memory of a process. macOS counts what a process has mapped, hundreds of gigabytes on Apple
/// silicon, refuses any lower limit, and does not enforce the one of private memory.
const LIMITS_MEMORY: bool = cfg!(not(target_os = "macos"));

/// The limits that are in force around the process by this policy. A worker on a GPU has none of memory.
fn limits_held(policy: &Policy, limits_memory: bool) -> String {
    let of_memory = [(policy.data_bytes, "memory"), (policy.address_bytes, "addresses")];
    let of_memory = of_memory.into_iter().filter_map(|(bytes, what)| bytes.is_some().then_some(what));
    let kinds: Vec<&str> = of_memory.filter(|_| limits_memory).chain(["stacks"]).collect();
    let watched = if policy.data_bytes.is_some() && !limits_memory { "; the server watches its memory" } else { "" };
    format!("limits of {} and files, no core dumps{watched}", kinds.join(", "))
}

fn limits(policy: &Policy, fenced: &mut Fenced) {
    let set = |resource, bytes| {
        // A limit that is lower already stays.
        let known = getrlimit(resource);
        let lower = |limit: Option<u64>| Some(limit.map_or(bytes, |limit| limit.min(bytes)));
        setrlimit(resource, Rlimit { current: lower(known.current), maximum: lower(known.maximum) })
    };
    fenced.note(&limits_held(policy, LIMITS_MEMORY), set_each(&resource_limits(policy, LIMITS_MEMORY), set));
}

fn resource_limits(policy: &Policy, limits_memory: bool) -> Vec<(Resource, u64)> {
    let memory = [(Resource::Data, policy.data_bytes), (Resource::As, policy.address_bytes)];
    let memory = memory.into_iter().filter(|_| limits_memory).filter_map(|(what, bytes)| Some((what, bytes?)));
    let others = [(Resource::Core, 0), (Resource::Stack, STACK_BYTES_MAX), (Resource::Nofile, policy.files)];
    others.into_iter().chain(memory).collect()
}

/// Sets each limit, whether or not the system refuses another.
fn set_each(
    limits: &[(Resource, u64)],
    mut set: impl FnMut(Resource, u64) -> rustix::io::Result<()>,
) -> Result<(), String> {
    let set = limits.iter().map(|&(resource, bytes)| (resource, set(resource, bytes)));
    let refused = set.filter_map(|(resource, done)| Some(format!("{resource:?}: {}", done.err()?)));
    let refused: Vec<String> = refused.collect();
    if refused.is_empty() { Ok(()) } else { Err(refused.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_limit_leaves_the_others_in_force() {
        let policy = Policy { data_bytes: Some(1), address_bytes: Some(2), files: 3, ..Policy::default() };
        let mut tried = Vec::new();
        let done = set_each(&resource_limits(&policy, true), |resource, bytes| {
            tried.push((resource, bytes));
            if resource == Resource::Core || resource == Resource::Data {
                Err(rustix::io::Errno::INVAL)
            } else {
                Ok(())
            }
        });
        let said = done.expect_err("two are refused");
        assert!(said.contains("Core: ") && said.contains("Data: ") && !said.contains("Stack"), "{said}");
        for limit in [(Resource::Stack, STACK_BYTES_MAX), (Resource::Nofile, 3), (Resource::As, 2)] {
            assert!(tried.contains(&limit), "{limit:?} is not in {tried:?}");
        }
    }

    #[test]
    fn only_limits_that_the_policy_has_are_said_to_hold() {
        let held = |data_bytes, address_bytes, limits_memory| {
            limits_held(&Policy { data_bytes, address_bytes, ..Policy::default() }, limits_memory)
        };
        assert_eq!(held(Some(1), Some(2), true), "limits of memory, addresses, stacks and files, no core dumps");
        assert_eq!(held(None, Some(2), true), "limits of addresses, stacks and files, no core dumps");
        assert_eq!(held(None, None, true), "limits of stacks and files, no core dumps");
        let watched = "limits of stacks and files, no core dumps; the server watches its memory";
        assert_eq!(held(Some(1), Some(2), false), watched);
        assert_eq!(held(None, Some(2), false), "limits of stacks and files, no core dumps");
    }

    #[test]
    fn a_kernel_that_cannot_limit_memory_is_not_asked_to() {
        let policy = Policy { data_bytes: Some(1), address_bytes: Some(2), files: 3, ..Policy::default() };
        let limited: Vec<Resource> = resource_limits(&policy, false).into_iter().map(|(what, _)| what).collect();
        assert_eq!(limited, [Resource::Core, Resource::Stack, Resource::Nofile]);
        assert_eq!(resource_limits(&Policy::default(), true).len(), 3, "nothing where the policy has no limit");
    }

    #[test]
    fn a_profile_that_the_system_refuses_is_missing_and_nothing_else() {
        let entered = |open, outcome: Result<(), String>| {
            let mut fenced = Fenced { holds: vec!["limits".into()], ..Fenced::default() };
            sandbox(&Policy { open, ..Policy::default() }, &mut fenced, |_| outcome);
            fenced
        };
        // What the system says inside another sandbox.
        let refused = entered(false, Err("Operation not permitted".into()));
        assert_eq!(refused.holds, ["limits"]);
        assert_eq!(refused.missing, [format!("{}: Operation not permitted", seatbelt::HOLDS)]);
        let held = entered(false, Ok(()));
        assert_eq!((held.holds.last().map(String::as_str), held.missing.len()), (Some(seatbelt::HOLDS), 0));
        assert_eq!(entered(true, Err("not asked".into())).missing, [OPEN]);
    }
}
