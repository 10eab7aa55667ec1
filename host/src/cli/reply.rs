//! The child's side of a question to a process that runs plugin code: it replies with one or more lines of JSON.
//!
//! The answer goes to what was stdout when the process began. Foreign code that prints, prints to stderr, so that it does
//! not spoil the answer. The process makes no core file when it crashes, as crashing is one of the expected answers, and it
//! ends by itself should the one that would have ended it be gone.

use rustix::process::{Resource, Rlimit};
use serde::Serialize;
use std::{fs::File, io, io::Write, thread, time::Duration};

/// Longer than any deadline of a server.
const LIFE_MAX: Duration = Duration::from_secs(120);

/// Where the reply is written.
#[derive(Debug)]
pub(super) struct Reply(File);

impl Reply {
    /// To be called before any foreign code runs.
    pub(super) fn begin() -> io::Result<Self> {
        Self::until(|| thread::sleep(LIFE_MAX))
    }

    /// The same for work without a deadline: the parent holds standard input open, and this process ends when it closes.
    pub(super) fn attended() -> io::Result<Self> {
        Self::until(|| drop(io::copy(&mut io::stdin().lock(), &mut io::sink())))
    }

    fn until(end: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let answer = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
        rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        thread::Builder::new().name("deadline".into()).spawn(|| {
            end();
            // Foreign code may hold locks that an orderly exit waits for.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        })?;
        Ok(Self(answer.into()))
    }

    /// Sends the only line of the reply.
    pub(super) fn send(mut self, answer: &impl Serialize) -> io::Result<()> {
        self.line(answer)
    }

    /// Sends one line of a reply that has several.
    pub(super) fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}
