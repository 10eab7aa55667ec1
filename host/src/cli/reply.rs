//! Replies of child processes that run plugin code: one or more lines of JSON.
//!
//! The reply goes to the original stdout, while stdout itself is redirected to stderr, so that plugin code that prints
//! cannot corrupt the reply. The process writes no core file, as a crash is an expected outcome, and exits if its
//! parent is gone.

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

/// The child kills itself after this time; longer than any deadline of a server.
const LIFE_MAX: Duration = Duration::from_secs(120);

/// The original stdout.
#[derive(Debug)]
pub(super) struct Reply(File);

/// A reply of several lines, which the plugin's threads may write to.
#[derive(Clone, Debug)]
pub(super) struct SharedReply(Arc<Mutex<Reply>>);

impl Reply {
    /// Must be called before any plugin code runs.
    pub(super) fn begin() -> io::Result<Self> {
        Self::until(|| thread::sleep(LIFE_MAX))
    }

    /// Like `begin`, for work without a deadline: the parent holds stdin open, and the process is killed when it
    /// closes.
    pub(super) fn attended() -> io::Result<SharedReply> {
        let reply = Self::until(|| drop(io::copy(&mut io::stdin().lock(), &mut io::sink())))?;
        Ok(SharedReply(Arc::new(Mutex::new(reply))))
    }

    fn until(end: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let original = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
        rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        thread::Builder::new().name("deadline".into()).spawn(|| {
            end();
            // An orderly exit could wait for locks that plugin code holds.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        })?;
        Ok(Self(original.into()))
    }

    /// Sends the only line of the reply.
    pub(super) fn send(mut self, reply: &impl Serialize) -> io::Result<()> {
        self.line(reply)
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

    /// Host services that forward a plugin's warnings and progress to the parent as the given events.
    pub(super) fn services<E: Serialize + 'static>(
        &self,
        warns: fn(String) -> E,
        reaches: fn(u64, u64, String) -> E,
    ) -> HostServices {
        let (logs, loads) = (self.clone(), self.clone());
        // Writing fails only if the parent is gone, and then this process is about to be killed.
        HostServices::new()
            .on_log(move |level, message| {
                if level == LogLevel::ERROR || level == LogLevel::WARN {
                    let _ = logs.line(&warns(message.into()));
                }
            })
            .on_progress(move |done, total, what| drop(loads.line(&reaches(done, total, what.into()))))
    }
}

/// The exit code after the reply was written.
pub(super) fn status(replied: io::Result<()>) -> ExitCode {
    match replied {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format_args!("the reply cannot be written: {error}"));
            ExitCode::FAILURE
        }
    }
}
