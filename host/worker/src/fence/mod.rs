//! Enters the fence that the server has written down for this process, before anything foreign is opened in it.
//!
//! Five parts hold on Linux: limits of memory, addresses and files; namespaces, where the system gives them; Landlock, which
//! restricts files, TCP and signals, and keeps other processes' memory and environment out of reach even for root; a seccomp
//! filter, which allows the calls that this kind of child needs; and the loss of root's capabilities. On macOS there are the limits
//! and a sandbox profile. What a kernel does not know is left out and said: an old system runs models too.

#[cfg(target_os = "linux")]
mod allowed;
#[cfg(target_os = "linux")]
mod capabilities;
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
use std::{io, sync::OnceLock, thread};

/// The stack of the first thread, which the limit of private memory does not count.
const STACK_BYTES_MAX: u64 = 64 << 20;

#[cfg(any(target_os = "linux", target_os = "macos"))]
const OPEN: &str = "files, network and processes: the configuration allows its plugin all of them";

static ENTERED: OnceLock<Fenced> = OnceLock::new();

/// Enters the fence of the environment, if there is one. To be called while the process has a single thread.
pub fn enter_from_environment() -> Result<(), String> {
    let Some(text) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let text = text.into_string().map_err(|_| format!("{VARIABLE} is not UTF-8"))?;
    let policy: Policy = serde_json::from_str(&text).map_err(|error| format!("{VARIABLE} is not a policy: {error}"))?;
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
    if policy.open {
        fenced.missing.push(OPEN.into());
    } else {
        fenced.note(seatbelt::HOLDS, seatbelt::enter(policy));
    }
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    fenced.missing.push("files, network and processes: this system has neither Landlock nor seccomp".into());
    fenced
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

/// Each by itself, as a system may refuse one of them alone.
fn limits(policy: &Policy, fenced: &mut Fenced) {
    let limits = [
        (Resource::Core, Some(0)),
        (Resource::Data, policy.data_bytes),
        (Resource::As, policy.address_bytes),
        (Resource::Stack, Some(STACK_BYTES_MAX)),
        (Resource::Nofile, Some(policy.files)),
    ];
    let mut refused = Vec::new();
    for (resource, bytes) in limits {
        let Some(bytes) = bytes else { continue };
        // A limit that is lower already stays.
        let known = getrlimit(resource);
        let lower = |limit: Option<u64>| Some(limit.map_or(bytes, |limit| limit.min(bytes)));
        let limit = Rlimit { current: lower(known.current), maximum: lower(known.maximum) };
        if let Err(error) = setrlimit(resource, limit) {
            refused.push(format!("{resource:?}: {error}"));
        }
    }
    let limited = if refused.is_empty() { Ok(()) } else { Err(refused.join(", ")) };
    fenced.note("limits of memory, addresses and files, no core dumps", limited);
}
