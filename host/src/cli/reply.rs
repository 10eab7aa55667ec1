//! The child's side of a question to a process that runs plugin code: it replies with one or more lines of JSON.
//!
//! The answer goes to what was stdout when the process began. Foreign code that prints, prints to stderr, so that it does
//! not spoil the answer. The process makes no core file when it crashes, as crashing is one of the expected answers, and it
//! ends by itself should the one that would have ended it be gone.

use super::terminal::tell;
use pensieve_plugin_api::LogLevel;
use rustix::process::{Resource, Rlimit};
use serde::Serialize;
use std::{
    fs::File,
    io::{self, Write},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use pensieve_worker::plugin::HostServices;

/// Longer than any deadline of a server.
const LIFE_MAX: Duration = Duration::from_secs(120);

/// Where the reply is written.
#[derive(Debug)]
pub(super) struct Reply(File);

/// A reply of many lines, which the plugin's threads may add to.
#[derive(Clone, Debug)]
pub(super) struct SharedReply(Arc<Mutex<Reply>>);

impl Reply {
    /// To be called before any foreign code runs.
    pub(super) fn begin() -> io::Result<Self> {
        Self::until(|| thread::sleep(LIFE_MAX))
    }

    /// The same for work without a deadline: the parent holds standard input open, and this process ends when it closes.
    pub(super) fn attended() -> io::Result<SharedReply> {
        let reply = Self::until(|| drop(io::copy(&mut io::stdin().lock(), &mut io::sink())))?;
        Ok(SharedReply(Arc::new(Mutex::new(reply))))
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

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

impl SharedReply {
    pub(super) fn line(&self, line: &impl Serialize) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).line(line)
    }

    /// Passes a plugin's warnings and progress on to the parent, as the events that these functions make of them.
    pub(super) fn services<E: Serialize + 'static>(
        &self,
        warns: fn(String) -> E,
        reaches: fn(u64, u64, String) -> E,
    ) -> HostServices {
        let (logs, loads) = (self.clone(), self.clone());
        // Without a parent this process is about to end, so that a line which is not written is not missed.
        HostServices::new()
            .on_log(move |level, message| {
                if level == LogLevel::ERROR || level == LogLevel::WARN {
                    let _ = logs.line(&warns(message.into()));
                }
            })
            .on_progress(move |done, total, what| drop(loads.line(&reaches(done, total, what.into()))))
    }
}

/// The status of a process whose reply was written, or could not be.
pub(super) fn status(replied: io::Result<()>) -> ExitCode {
    match replied {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format_args!("cannot answer: {error}"));
            ExitCode::FAILURE
        }
    }
}
