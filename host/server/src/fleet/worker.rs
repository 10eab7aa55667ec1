//! One worker process: starts it with one end of a socket pair, sends commands, watches it, and reaps it.
//!
//! The task that reads its socket absorbs floods. Token events go to their streams ([`JobStreams`]), log lines to the
//! log at a bounded rate, and only reports that change the worker's state go to the supervisor, through a bounded
//! channel. At most one frame waits between the socket and this task; a worker that exceeds its frame budget blocks on
//! its own socket. However the worker ends (a signal, an exit, silence, malformed frames), the last signal is a single
//! [`WorkerSignal::Exited`] with the reason, and by then none of its processes is left.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{
        mpsc::{self, UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use super::{
    child::signal_name,
    footprint,
    pace::{Bucket, LogLimiter},
    stderr::StderrTail,
    streams::{JobStreams, bounded_failure},
    worker_runtime::{Placement, WorkerRuntime},
};
use pensieve_protocol::{
    awake::Silence,
    job::{Failure, FailureCode},
    refusal::clean,
    wire::{self, Command, Level, PROTOCOL, Report},
};

/// Lets the worker's own watchdog act first.
const STEP_GRACE: Duration = Duration::from_secs(2);
/// Frame rate of a worker, and its burst; beyond it the worker blocks on its socket.
const FRAMES_PER_SECOND: u32 = 50_000;
/// Cost of a report to the supervisor in frames: each makes it examine all models.
const CONTROL_COST: u32 = 100;
/// Growth of a worker's memory that is worth a report.
const NOTICEABLE_BYTES: u64 = 1 << 20;
/// Maximum length of a log line accepted from a worker.
const LOG_CHARS_MAX: usize = 4096;

/// A running worker. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Worker {
    /// The process id, for `/health`.
    pub(super) pid: Option<u32>,
    commands: UnboundedSender<Command>,
    kill_request: Option<oneshot::Sender<Failure>>,
    task: JoinHandle<()>,
}

/// A signal from a worker to the supervisor.
#[derive(Debug)]
pub(super) enum WorkerSignal {
    /// A report that changes the worker's state.
    Report(Report),
    /// These jobs have ended; their streams have received the outcome.
    JobsEnded(Vec<u64>),
    /// The largest memory of its process so far, in bytes.
    Measured(u64),
    /// The process has exited. This is the last signal.
    Exited(Failure),
}

/// The channel for a worker's signals, which carry its serial number.
#[derive(Clone, Debug)]
pub(super) struct Signals {
    pub(super) serial: u64,
    pub(super) sender: mpsc::Sender<(u64, WorkerSignal)>,
}

impl Signals {
    /// Sends a signal, waiting while the supervisor is busy. Returns false if the supervisor is gone.
    async fn send(&self, signal: WorkerSignal) -> bool {
        self.sender.send((self.serial, signal)).await.is_ok()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerDeadlines {
    pub(super) silence: Duration,
    pub(super) step: Duration,
}

impl Worker {
    /// Starts a worker. Its token events go to `streams`, everything else to `signals`.
    pub(super) fn start(
        placement: Placement<'_>,
        model: &str,
        deadlines: WorkerDeadlines,
        streams: JobStreams,
        signals: Signals,
    ) -> io::Result<Self> {
        let (own, other) = std::os::unix::net::UnixStream::pair()?;
        own.set_nonblocking(true)?;
        let (mut runtime, stderr) = WorkerRuntime::start(placement, &own, other)?;
        let socket = UnixStream::from_std(own)?;
        let pid = runtime.pid();
        // The memory of a thread cannot be told from its server's.
        let measured = pid.filter(|_| matches!(placement, Placement::Process(..)));
        let (commands, queued) = unbounded_channel();
        let (kill_request, kill_requested) = oneshot::channel();
        let stderr = StderrTail::listen(stderr, model);
        let model = model.to_owned();
        let cancellations = commands.clone();
        let task = tokio::spawn(async move {
            let (reading, writing) = socket.into_split();
            let (reports, frames) = mpsc::channel(1);
            let mut halves = JoinSet::new();
            halves.spawn(write_commands(writing, queued));
            halves.spawn(read_reports(reading, reports));
            let mut watch = Watch {
                model: &model,
                pid: measured,
                peak: 0,
                deadlines,
                streams,
                signals,
                cancellations,
                log: LogLimiter::default(),
            };
            let cause = watch.run(frames, &mut runtime, kill_requested).await;
            if matches!(cause, EndCause::SocketClosed(_)) {
                // The process is about to exit by itself; wait for its exit status.
                let _ = timeout(Duration::from_millis(300), runtime.wait()).await;
            }
            let violation = match &cause {
                EndCause::Violation(failure) => Some(failure),
                EndCause::SocketClosed(_) => None,
            };
            let status = runtime.end(violation).await;
            let failure = exit_failure(&model, cause, status, &stderr.last().await);
            watch.signals.send(WorkerSignal::Exited(failure)).await;
        });
        Ok(Self { pid, commands, kill_request: Some(kill_request), task })
    }

    /// Sends a command. A worker that has exited does not receive it; its exit is reported by [`WorkerSignal::Exited`].
    pub(super) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    pub(super) fn end(&mut self, reason: Failure) {
        if let Some(kill_request) = self.kill_request.take() {
            // Fails if the worker has already ended.
            let _ = kill_request.send(reason);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why reading a worker's reports has ended.
enum EndCause {
    /// The worker closed its socket, most likely by exiting; it may have sent a reason.
    SocketClosed(Option<Failure>),
    /// The worker must be killed.
    Violation(Failure),
}

type Frame = Result<Report, wire::WireError>;

/// The reader of one worker's reports.
struct Watch<'a> {
    model: &'a str,
    pid: Option<u32>,
    /// The largest memory of its process that was reported.
    peak: u64,
    deadlines: WorkerDeadlines,
    streams: JobStreams,
    signals: Signals,
    /// For cancelling jobs whose clients do not read.
    cancellations: UnboundedSender<Command>,
    log: LogLimiter,
}

impl Watch<'_> {
    async fn run(
        &mut self,
        mut frames: mpsc::Receiver<Frame>,
        runtime: &mut WorkerRuntime,
        mut kill_requested: oneshot::Receiver<Failure>,
    ) -> EndCause {
        let (mut introduced, mut ended, mut dying) = (false, false, None);
        let mut budget = Bucket::new(FRAMES_PER_SECOND, Instant::now());
        let over_limit = runtime.over_limit();
        tokio::pin!(over_limit);
        let mut silence = Silence::new(self.deadlines.silence, Instant::now());
        loop {
            // Frames of an ended worker arrive within a moment; do not wait longer if a process that it left behind
            // holds the socket.
            let wait = if ended { Duration::from_millis(100) } else { silence.wait() };
            let report = tokio::select! {
                biased;
                Ok(failure) = &mut kill_requested, if !ended => return EndCause::Violation(failure),
                over = &mut over_limit, if !ended => return violation(FailureCode::WorkerLost, over.to_string()),
                read = timeout(wait, frames.recv()) => match read {
                    Err(_) if ended => return EndCause::SocketClosed(dying),
                    Err(_) if silence.is_over(Instant::now()) => {
                        let message = format!("said nothing for {} s", self.deadlines.silence.as_secs_f32());
                        return violation(FailureCode::Stalled, message);
                    }
                    Err(_) => continue,
                    Ok(None) => return EndCause::SocketClosed(dying),
                    Ok(Some(Err(error))) => return violation(FailureCode::Plugin, format!("spoke nonsense: {error}")),
                    Ok(Some(Ok(report))) => report,
                },
                _ = runtime.wait(), if !ended => {
                    ended = true;
                    continue;
                }
            };
            silence.broken(Instant::now());
            let cost = if matches!(report, Report::Events(_)) { 1 } else { CONTROL_COST };
            match report {
                Report::Hello { protocol: PROTOCOL } => introduced = true,
                Report::Hello { protocol } => {
                    let message = format!("speaks protocol {protocol}, this server {PROTOCOL}");
                    return violation(FailureCode::Internal, message);
                }
                _ if !introduced => return violation(FailureCode::Internal, "did not introduce itself".into()),
                Report::Dying(failure) => dying = Some(bounded_failure(failure)),
                report => {
                    if let Err(failure) = self.take(report).await {
                        return EndCause::Violation(failure);
                    }
                }
            }
            let pause = budget.take(cost, Instant::now());
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Dispatches a report. Returns an error if the worker must be killed for it.
    async fn take(&mut self, report: Report) -> Result<(), Failure> {
        let signal = match report {
            Report::Events(events) => {
                let delivered = self.streams.deliver(events);
                for id in delivered.unread {
                    // The worker reports the job's end; until then it counts as running.
                    let _ = self.cancellations.send(Command::Cancel { id });
                }
                if let Some(what) = delivered.violation {
                    return Err(Failure::new(FailureCode::Plugin, what));
                }
                if delivered.ended.is_empty() {
                    return Ok(());
                }
                WorkerSignal::JobsEnded(delivered.ended)
            }
            Report::Heartbeat { step_ms: Some(step), .. }
                if Duration::from_millis(step) > self.deadlines.step.saturating_add(STEP_GRACE) =>
            {
                let message = format!("did not end a step within {step} ms");
                return Err(Failure::new(FailureCode::Stalled, message));
            }
            Report::Heartbeat { .. } => match self.growth() {
                Some(peak) => WorkerSignal::Measured(peak),
                None => return Ok(()),
            },
            Report::Log { level, message } => {
                let message: String = message.chars().take(LOG_CHARS_MAX).collect();
                self.log(level, &clean(&message));
                return Ok(());
            }
            Report::Hello { .. } | Report::Detached { .. } | Report::Drained | Report::Dying(_) => return Ok(()),
            Report::LoadFailed(failure) => WorkerSignal::Report(Report::LoadFailed(bounded_failure(failure))),
            Report::Attached { attempt, result } => {
                let result = result.map_err(bounded_failure);
                WorkerSignal::Report(Report::Attached { attempt, result })
            }
            Report::Progress { done, total, what } => {
                let what = what.chars().take(LOG_CHARS_MAX).collect();
                WorkerSignal::Report(Report::Progress { done, total, what })
            }
            report @ (Report::Loaded(_) | Report::Stats(_)) => WorkerSignal::Report(report),
        };
        match self.signals.send(signal).await {
            true => Ok(()),
            false => Err(Failure::new(FailureCode::Draining, "is not needed any more")),
        }
    }

    /// The largest memory of the process, if it has grown noticeably.
    fn growth(&mut self) -> Option<u64> {
        let peak = footprint::peak(self.pid?)?;
        (peak > self.peak.saturating_add(NOTICEABLE_BYTES)).then(|| {
            self.peak = peak;
            peak
        })
    }

    fn log(&mut self, level: Level, message: &str) {
        let model = self.model;
        let Some(dropped) = self.log.admit(Instant::now()) else { return };
        if dropped > 0 {
            tracing::warn!(model, "{dropped} lines of its worker's log were dropped: it writes too many");
        }
        match level {
            Level::Error => tracing::error!(model, "{message}"),
            Level::Warn => tracing::warn!(model, "{message}"),
            Level::Info => tracing::info!(model, "{message}"),
            Level::Debug => tracing::debug!(model, "{message}"),
        }
    }
}

fn violation(code: FailureCode, message: String) -> EndCause {
    EndCause::Violation(Failure::new(code, message))
}

async fn write_commands(mut socket: OwnedWriteHalf, mut commands: UnboundedReceiver<Command>) {
    while let Some(command) = commands.recv().await {
        for frame in wire::command_frames(&command) {
            let Ok(frame) = frame else { continue };
            if socket.write_all(&frame).await.is_err() {
                // The reading half will report the exit.
                return;
            }
        }
    }
}

/// Reads frames until the socket is closed or a frame is malformed. A separate task, because a frame must be read to
/// its end once begun.
async fn read_reports(socket: OwnedReadHalf, frames: mpsc::Sender<Frame>) {
    let mut socket = BufReader::new(socket);
    while let Some(frame) = read_frame(&mut socket).await.transpose() {
        let last = frame.is_err();
        if frames.send(frame).await.is_err() || last {
            return;
        }
    }
}

async fn read_frame(socket: &mut BufReader<OwnedReadHalf>) -> Result<Option<Report>, wire::WireError> {
    // A killed worker leaves a partial frame or a reset connection.
    let mut header = [0; wire::HEADER_BYTES];
    if socket.read_exact(&mut header).await.is_err() {
        return Ok(None);
    }
    let length = wire::report_len(header)?;
    let mut body = Vec::new();
    let read = socket.take(length as u64).read_to_end(&mut body).await;
    if read.is_err() || body.len() < length {
        return Ok(None);
    }
    wire::decode(&body).map(Some)
}

fn exit_failure(model: &str, cause: EndCause, status: Option<ExitStatus>, stderr: &str) -> Failure {
    let said = if stderr.is_empty() { String::new() } else { format!("; it said: {stderr}") };
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
