//! One prompt process: questions to its standard input, answers from its standard output.

use std::{
    fmt, io,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::fleet::{
    child::signal_name,
    footprint::{OverLimit, over_limit},
    patience::within,
    program,
};
use pensieve_protocol::{
    fence::{Policy, VARIABLE},
    prompt::{Numbered, PANICKED},
    wire,
};

/// Environment variables that the process inherits: the library search paths that the program needs, and the time zone.
const VARIABLES: [&str; 4] = ["LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "TZ"];
/// Bytes that a pipe holds, instead of 64 KiB. All pipes of a user together may hold 64 MiB (`pipe-user-pages-soft`).
#[cfg(target_os = "linux")]
const PIPE_BYTES: usize = 512 << 10;
/// Time to wait for the status of a process that has exited.
const REAP_TIME: Duration = Duration::from_secs(1);

/// A running process. It is killed on drop.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    /// Number of questions asked.
    asked: u64,
    memory_limit: Option<u64>,
}

/// Why there is no answer. The process must not be used again.
#[derive(Debug)]
pub(super) enum Death {
    Spawn(io::Error),
    /// The question does not fit into a frame.
    TooLong(wire::WireError),
    Overdue(Duration),
    /// The process was killed at its memory limit.
    TooLarge(OverLimit),
    /// The process exited; `None` if its status is unknown.
    Ended(Option<ExitStatus>),
    /// The output is not a valid answer.
    Garbled,
}

impl Process {
    /// Starts the program with this hidden subcommand.
    pub fn start(program: &Path, verb: &str, policy: &Policy) -> Result<Self, Death> {
        program::check(program).map_err(Death::Spawn)?;
        let mut command = Command::new(program);
        command.arg(verb);
        command.env_clear().envs(VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.env(VARIABLE, policy.to_variable());
        // It writes only the allocator's last message, and the status says the same.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.process_group(0).kill_on_drop(true).spawn().map_err(Death::Spawn)?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(stdin), Some(stdout)) => Ok(Self { child, stdin, stdout, asked: 0, memory_limit: policy.data_bytes }),
            _ => Err(Death::Garbled),
        }
    }

    /// Makes the pipes larger, so that their two sides wake each other less often for a picture of megabytes. They stay as
    /// they are where that is not allowed.
    #[cfg(target_os = "linux")]
    pub fn widen_pipes(&self) {
        let _ = rustix::pipe::fcntl_setpipe_size(&self.stdin, PIPE_BYTES);
        let _ = rustix::pipe::fcntl_setpipe_size(&self.stdout, PIPE_BYTES);
    }

    /// Other systems have no such setting.
    #[cfg(not(target_os = "linux"))]
    pub fn widen_pipes(&self) {}

    /// Returns false if the process exited while it was idle.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the process and waits for it to exit.
    pub async fn end(mut self) {
        // It has exited by itself or cannot be reached; there is nothing else to do.
        let _ = timeout(REAP_TIME, self.child.kill()).await;
    }

    pub async fn ask<Q, A>(&mut self, question: &Q, deadline: Duration) -> Result<A, Death>
    where
        Q: Serialize,
        A: DeserializeOwned,
    {
        self.asked += 1;
        let frame = wire::encode(&Numbered { number: self.asked, message: question }).map_err(Death::TooLong)?;
        let over_limit = over_limit(self.child.id(), self.memory_limit);
        let answered = tokio::select! {
            answered = within(deadline, self.exchange(&frame)) => answered,
            over = over_limit => return Err(Death::TooLarge(over)),
        };
        match answered {
            None => Err(Death::Overdue(deadline)),
            Some(Ok(body)) => match wire::decode::<Numbered<A>>(&body) {
                Ok(Numbered { number, message }) if number == self.asked => Ok(message),
                _ => Err(Death::Garbled),
            },
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => Err(Death::Garbled),
            Some(Err(_)) => {
                let status = timeout(REAP_TIME, self.child.wait()).await;
                Err(Death::Ended(status.ok().and_then(Result::ok)))
            }
        }
    }

    async fn exchange(&mut self, frame: &[u8]) -> io::Result<Vec<u8>> {
        self.stdin.write_all(frame).await?;
        self.stdin.flush().await?;
        let mut header = [0; wire::HEADER_BYTES];
        self.stdout.read_exact(&mut header).await?;
        let length = wire::frame_len(header).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let mut body = Vec::with_capacity(length.min(wire::RESERVED_BYTES_MAX));
        (&mut self.stdout).take(length as u64).read_to_end(&mut body).await?;
        if body.len() < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(body)
    }
}

impl Death {
    /// True if the question caused it, and would kill the next process as well.
    pub fn is_of_the_question(&self) -> bool {
        !matches!(self, Self::Spawn(_))
    }

    /// True if something outside of the process killed it, as the system does when it runs out of memory. Most often that
    /// was while the process was idle and its end was not seen yet, so another process should get the question, once.
    pub fn is_from_outside(&self) -> bool {
        matches!(self, Self::Ended(Some(status)) if status.signal() == Some(libc::SIGKILL))
    }
}

/// A predicate about the work: `takes longer than …`.
impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spawn(error) => write!(f, "failed: its process does not start: {error}"),
            Self::TooLong(error) => write!(f, "failed: {error}"),
            Self::Overdue(limit) => write!(f, "takes longer than {:.0} seconds", limit.as_secs_f32()),
            Self::TooLarge(over) => write!(f, "failed: its process {over}"),
            Self::Garbled => f.write_str("failed: its process answered nonsense"),
            Self::Ended(None) => f.write_str("failed: its process ended"),
            Self::Ended(Some(status)) => match status.signal() {
                Some(signal) => {
                    write!(f, "ended its process by {}, most likely at its limit of memory", signal_name(signal))
                }
                None if status.code() == Some(PANICKED) => f.write_str("failed: it panicked"),
                None => write!(f, "failed: its process ended with {status}"),
            },
        }
    }
}
