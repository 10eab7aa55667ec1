//! The runtime of a worker: a process or, for debugging a plugin, a thread of this process.
//!
//! A process can be killed at any time, including its process group. A thread cannot: one that is no longer needed is
//! left running, and if a worker must not continue, the whole process exits.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::ExitStatusExt},
    },
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    process::{Child, ChildStderr, Command},
    sync::watch,
    time::timeout,
};

use super::{
    child::{ProcessGroup, environment},
    footprint::{OverLimit, over_limit},
    program,
};
use pensieve_protocol::{
    fence::Policy,
    job::{Failure, FailureCode},
};

/// Time for the system to end a killed process.
const KILL_WAIT: Duration = Duration::from_secs(2);

/// The entry point of a worker: serves the server at the other end of the socket, and returns its exit status.
pub(crate) type WorkerMain = fn(OwnedFd) -> i32;

#[derive(Clone, Copy)]
pub(super) enum Placement<'a> {
    /// In its own process, which runs this program behind a fence.
    Process(&'a Path, &'a Policy),
    Thread(WorkerMain),
}

pub(super) enum WorkerRuntime {
    Process {
        child: Child,
        group: Option<ProcessGroup>,
        memory_limit: Option<u64>,
    },
    Thread {
        status: watch::Receiver<Option<i32>>,
        /// The server's end of the socket. When it is closed, a worker assumes that the server has exited, and ends the
        /// process.
        held: Option<UnixStream>,
    },
}

impl WorkerRuntime {
    /// Starts a worker at the `other` end of the server's `own` socket.
    pub(super) fn start(
        placement: Placement<'_>,
        own: &UnixStream,
        other: UnixStream,
    ) -> io::Result<(Self, Option<ChildStderr>)> {
        match placement {
            Placement::Process(program, policy) => {
                let mut child = spawn(program, policy, &other)?;
                let (group, stderr) = (Some(ProcessGroup::of(&child)), child.stderr.take());
                Ok((Self::Process { child, group, memory_limit: policy.data_bytes }, stderr))
            }
            Placement::Thread(code) => {
                let held = Some(own.try_clone()?);
                let (ended, status) = watch::channel(None);
                let thread = std::thread::Builder::new().name("worker".into());
                thread.spawn(move || {
                    let _ = ended.send(Some(code(other.into())));
                })?;
                Ok((Self::Thread { status, held }, None))
            }
        }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            Self::Process { child, .. } => child.id(),
            Self::Thread { .. } => Some(std::process::id()),
        }
    }

    /// Resolves once it exceeds its policy's memory limit, if the kernel does not enforce that.
    pub(super) fn over_limit(&self) -> impl Future<Output = OverLimit> + use<> {
        let (pid, limit) = match self {
            Self::Process { child, memory_limit, .. } => (child.id(), *memory_limit),
            // A thread has no separate memory.
            Self::Thread { .. } => (None, None),
        };
        over_limit(pid, limit)
    }

    /// Waits for its end; returns `None` if the status is unavailable.
    pub(super) async fn wait(&mut self) -> Option<ExitStatus> {
        match self {
            Self::Process { child, .. } => child.wait().await.ok(),
            Self::Thread { status, .. } => {
                let code = *status.wait_for(Option::is_some).await.ok()?;
                code.map(|code| ExitStatus::from_raw(code << 8))
            }
        }
    }

    /// Ends it, with this reason unless it is already exiting by itself.
    pub(super) async fn end(&mut self, reason: Option<&Failure>) -> Option<ExitStatus> {
        match self {
            Self::Process { group, .. } => drop(group.take()),
            Self::Thread { held, .. } => {
                if let Some(reason) = reason.filter(|reason| reason.code != FailureCode::Draining) {
                    tracing::error!("a worker {}, and cannot be ended without its server: both end", reason.message);
                    std::process::exit(1);
                }
                std::mem::forget(held.take());
            }
        }
        timeout(KILL_WAIT, self.wait()).await.ok().flatten()
    }
}

fn spawn(program: &Path, policy: &Policy, socket: &UnixStream) -> io::Result<Child> {
    program::check(program)?;
    let mut command = Command::new(program);
    let number = socket.as_raw_fd();
    command.args([OsString::from("worker"), "--socket".into(), number.to_string().into()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.env_clear().envs(environment(Some(policy))).process_group(0).kill_on_drop(true);
    let inherit = move || {
        // SAFETY: the descriptor is open in the child, which is a copy of this process made while `socket` was alive.
        let socket = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(socket.as_fd(), rustix::io::FdFlags::empty())?;
        Ok(())
    };
    // SAFETY: between fork and exec it makes a single system call, which needs no memory and no lock.
    unsafe { command.pre_exec(inherit) };
    command.spawn()
}
