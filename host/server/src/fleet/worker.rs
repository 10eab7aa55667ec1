//! One worker process: started with one end of a socket pair, sent commands, watched, and reaped.
//!
//! Whatever happens to it (a signal, an exit, silence, nonsense on the socket), the last thing that is reports of it is one
//! [`WorkerSignal::Exited`] with the reason. Nothing of it is left then.

use std::{
    collections::VecDeque,
    io,
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::ChildStderr,
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use super::{
    child::signal_name,
    worker_runtime::{Placement, WorkerRuntime},
};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    wire::{self, Command, PROTOCOL, Report},
};

/// Lines of a worker's stderr that are kept for its exit_failure.
const STDERR_LINES_KEPT: usize = 3;
/// A worker's own watchdog acts first.
const STEP_GRACE: Duration = Duration::from_secs(2);

/// A worker that runs. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Worker {
    /// The process id, for `/health`.
    pub(super) pid: Option<u32>,
    commands: UnboundedSender<Command>,
    kill_request: Option<oneshot::Sender<Failure>>,
    task: JoinHandle<()>,
}

/// What is reports of a worker.
#[derive(Debug)]
pub(super) enum WorkerSignal {
    /// Its own stderr_tail.
    Report(Report),
    /// It is gone, and nothing follows.
    Exited(Failure),
}

/// What a worker may not exceed.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerDeadlines {
    pub(super) silence: Duration,
    pub(super) step: Duration,
}

impl Worker {
    /// Starts a worker, whose stderr_tail go to `notify`.
    pub(super) fn start(
        placement: Placement<'_>,
        model: &str,
        deadlines: WorkerDeadlines,
        notify: impl Fn(WorkerSignal) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (own, other) = std::os::unix::net::UnixStream::pair()?;
        own.set_nonblocking(true)?;
        let (mut runtime, stderr) = WorkerRuntime::start(placement, &own, other)?;
        let socket = UnixStream::from_std(own)?;
        let pid = runtime.pid();
        let (commands, messages) = unbounded_channel();
        let (kill_request, mut kill_requested) = oneshot::channel();
        let (reports, frames) = unbounded_channel();
        let stderr_tail = StderrTail::listen(stderr, model);
        let model = model.to_owned();
        let task = tokio::spawn(async move {
            let (reading, writing) = socket.into_split();
            let mut halves = JoinSet::new();
            halves.spawn(write_commands(writing, messages));
            halves.spawn(read_reports(reading, reports));
            let cause = watch(frames, &mut runtime, deadlines, &mut kill_requested, &notify).await;
            if matches!(cause, EndCause::SocketClosed(_)) {
                // It is about to end by itself, and how it does is worth knowing.
                let _ = timeout(Duration::from_millis(300), runtime.wait()).await;
            }
            let kill_request = match &cause {
                EndCause::Violation(failure) => Some(failure),
                EndCause::SocketClosed(_) => None,
            };
            let status = runtime.end(kill_request).await;
            notify(WorkerSignal::Exited(exit_failure(&model, cause, status, &stderr_tail.last().await)));
        });
        Ok(Self { pid, commands, kill_request: Some(kill_request), task })
    }

    /// Sends a command. A worker that has exited does not receive it; its exit is reported by [`WorkerSignal::Exited`].
    pub(super) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Ends it for this reason.
    pub(super) fn end(&mut self, reason: Failure) {
        if let Some(kill_request) = self.kill_request.take() {
            // Otherwise it has ended already.
            let _ = kill_request.send(reason);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a worker's reports are not read any more.
enum EndCause {
    /// It has closed its socket, most likely by ending; it may have said why.
    SocketClosed(Option<Failure>),
    /// It has to be ended.
    Violation(Failure),
}

async fn write_commands(mut socket: OwnedWriteHalf, mut messages: UnboundedReceiver<Command>) {
    while let Some(command) = messages.recv().await {
        let Ok(frame) = wire::encode(&command) else { continue };
        if socket.write_all(&frame).await.is_err() {
            // The reading half reports the exit.
            return;
        }
    }
}

async fn watch(
    mut frames: UnboundedReceiver<Result<Report, wire::WireError>>,
    runtime: &mut WorkerRuntime,
    deadlines: WorkerDeadlines,
    kill_request: &mut oneshot::Receiver<Failure>,
    notify: &impl Fn(WorkerSignal) -> bool,
) -> EndCause {
    let violation = |code, message: String| EndCause::Violation(Failure::new(code, message));
    let (mut introduced, mut ended, mut dying) = (false, false, None);
    loop {
        // What an ended worker has said is there in a moment, even if something that it left behind holds the socket.
        let silence = if ended { Duration::from_millis(100) } else { deadlines.silence };
        let report = tokio::select! {
            biased;
            Ok(failure) = &mut *kill_request, if !ended => return EndCause::Violation(failure),
            read = timeout(silence, frames.recv()) => match read {
                Err(_) if ended => return EndCause::SocketClosed(dying),
                Err(_) => {
                    let message = format!("said nothing for {} s", silence.as_secs_f32());
                    return violation(FailureCode::Stalled, message);
                }
                Ok(None) => return EndCause::SocketClosed(dying),
                Ok(Some(Err(error))) => return violation(FailureCode::Plugin, format!("spoke nonsense: {error}")),
                Ok(Some(Ok(report))) => report,
            },
            _ = runtime.wait(), if !ended => {
                ended = true;
                continue;
            }
        };
        match report {
            Report::Hello { protocol: PROTOCOL } => introduced = true,
            Report::Hello { protocol } => {
                return violation(FailureCode::Internal, format!("speaks protocol {protocol}, this server {PROTOCOL}"));
            }
            _ if !introduced => return violation(FailureCode::Internal, "did not introduce itself".into()),
            Report::Heartbeat { step_ms: Some(step), .. }
                if Duration::from_millis(step) > deadlines.step.saturating_add(STEP_GRACE) =>
            {
                return violation(FailureCode::Stalled, format!("did not end a step within {step} ms"));
            }
            Report::Heartbeat { .. } => {}
            Report::Dying(failure) => dying = Some(failure),
            report => {
                if !notify(WorkerSignal::Report(report)) {
                    return violation(FailureCode::Draining, "is not needed any more".into());
                }
            }
        }
    }
}

/// Reads frames until the socket or its sense ends. A task of its own, as a frame that has begun must be read to its end.
async fn read_reports(socket: OwnedReadHalf, frames: UnboundedSender<Result<Report, wire::WireError>>) {
    let mut socket = BufReader::new(socket);
    while let Some(frame) = read_frame(&mut socket).await.transpose() {
        let last = frame.is_err();
        if frames.send(frame).is_err() || last {
            return;
        }
    }
}

async fn read_frame(socket: &mut BufReader<OwnedReadHalf>) -> Result<Option<Report>, wire::WireError> {
    // A worker that was killed leaves half a frame, or a connection that was reset.
    let mut header = [0; wire::HEADER_BYTES];
    if socket.read_exact(&mut header).await.is_err() {
        return Ok(None);
    }
    let length = wire::frame_len(header)?;
    let mut body = Vec::new();
    let read = socket.take(length as u64).read_to_end(&mut body).await;
    if read.is_err() || body.len() < length {
        return Ok(None);
    }
    wire::decode(&body).map(Some)
}

fn exit_failure(model: &str, cause: EndCause, status: Option<ExitStatus>, stderr_tail: &str) -> Failure {
    let said = if stderr_tail.is_empty() { String::new() } else { format!("; it said: {stderr_tail}") };
    let help = "ask again: the model is being loaded anew";
    match (cause, status) {
        (EndCause::Violation(failure), _) if failure.code == FailureCode::Draining => {
            let message = format!("the worker of model '{model}' {}", failure.message);
            Failure { message, ..failure }
        }
        (EndCause::Violation(failure), _) => {
            let message = format!("the worker of model '{model}' {} and was ended{said}", failure.message);
            Failure::new(failure.code, message).with_help(help)
        }
        (EndCause::SocketClosed(Some(failure)), _) => {
            let message = format!("the worker of model '{model}' ended: {}{said}", failure.message);
            Failure::new(failure.code, message).with_help(failure.help)
        }
        (EndCause::SocketClosed(None), status) => {
            let how = match status.map(|status| (status.signal(), status)) {
                Some((Some(signal), _)) => format!("was ended by {}", signal_name(signal)),
                Some((None, status)) => format!("ended by itself, with {status}"),
                None => "ended in an unknown way".into(),
            };
            Failure::new(FailureCode::WorkerLost, format!("the worker of model '{model}' {how}{said}")).with_help(help)
        }
    }
}

/// The last lines of a worker's stderr, which are also passed on.
struct StderrTail {
    kept: Arc<Mutex<VecDeque<String>>>,
    listening: Option<JoinHandle<()>>,
}

impl StderrTail {
    fn listen(pipe: Option<ChildStderr>, model: &str) -> Self {
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let Some(pipe) = pipe else { return Self { kept, listening: None } };
        let (model, lines) = (model.to_owned(), Arc::clone(&kept));
        let listening = tokio::spawn(async move {
            const LINE_BYTES_MAX: u64 = 4096;
            let mut reader = BufReader::new(pipe);
            let mut line = Vec::new();
            while (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
                let text = pensieve_protocol::refusal::clean(String::from_utf8_lossy(&line).trim_end());
                line.clear();
                tracing::info!(model, "its worker says: {text}");
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                lines.push_back(text);
                if lines.len() > STDERR_LINES_KEPT {
                    lines.pop_front();
                }
            }
        });
        Self { kept, listening: Some(listening) }
    }

    /// What a worker that has ended said last. Its pipe may still hold some of that, or be held by a process it left behind.
    async fn last(self) -> String {
        if let Some(listening) = self.listening {
            let _ = timeout(Duration::from_millis(200), listening).await;
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().filter(|line| !line.trim().is_empty()).cloned().collect::<Vec<_>>().join(" / ")
    }
}
