//! One worker: started with one end of a socket pair, told what to do, listened to, and buried.
//!
//! Whatever happens to it (a signal, an exit, silence, nonsense on the socket), the last thing that is heard of it is one
//! [`Said::Ended`] with the reason. Nothing of it is left then.

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
    life::{Life, Place},
};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    wire::{self, Command, PROTOCOL, Report},
};

/// Lines of a worker's stderr that are kept for its obituary.
const WORDS_KEPT: usize = 3;
/// A worker's own watchdog acts first.
const STEP_GRACE: Duration = Duration::from_secs(2);

/// A worker that runs. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Worker {
    /// The process, for whoever looks after it from outside.
    pub(super) pid: Option<u32>,
    commands: UnboundedSender<Command>,
    sentence: Option<oneshot::Sender<Failure>>,
    minding: JoinHandle<()>,
}

/// What is heard of a worker.
#[derive(Debug)]
pub(super) enum Said {
    /// Its own words.
    Report(Report),
    /// It is gone, and nothing follows.
    Ended(Failure),
}

/// What a worker may not exceed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) silence: Duration,
    pub(super) step: Duration,
}

impl Worker {
    /// Starts a worker, whose words go to `hear`.
    pub(super) fn start(
        place: Place<'_>,
        model: &str,
        patience: Patience,
        hear: impl Fn(Said) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (own, other) = std::os::unix::net::UnixStream::pair()?;
        own.set_nonblocking(true)?;
        let (mut life, stderr) = Life::begin(place, &own, other)?;
        let socket = UnixStream::from_std(own)?;
        let pid = life.pid();
        let (commands, orders) = unbounded_channel();
        let (sentence, mut sentenced) = oneshot::channel();
        let (heard, frames) = unbounded_channel();
        let words = Words::listen(stderr, model);
        let model = model.to_owned();
        let minding = tokio::spawn(async move {
            let (reading, writing) = socket.into_split();
            let mut halves = JoinSet::new();
            halves.spawn(tell(writing, orders));
            halves.spawn(read(reading, heard));
            let verdict = listen(frames, &mut life, patience, &mut sentenced, &hear).await;
            if matches!(verdict, Verdict::Silent(_)) {
                // It is about to end by itself, and how it does is worth knowing.
                let _ = timeout(Duration::from_millis(300), life.wait()).await;
            }
            let sentence = match &verdict {
                Verdict::Guilty(failure) => Some(failure),
                Verdict::Silent(_) => None,
            };
            let status = life.end(sentence).await;
            hear(Said::Ended(obituary(&model, verdict, status, &words.last().await)));
        });
        Ok(Self { pid, commands, sentence: Some(sentence), minding })
    }

    /// Tells it something; a worker that is gone does not hear it, and its end is told elsewhere.
    pub(super) fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Ends it for this reason.
    pub(super) fn end(&mut self, reason: Failure) {
        if let Some(sentence) = self.sentence.take() {
            // Otherwise it has ended already.
            let _ = sentence.send(reason);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.minding.abort();
    }
}

/// Why nobody listens to a worker any more.
enum Verdict {
    /// It has closed its socket, most likely by ending; it may have said why.
    Silent(Option<Failure>),
    /// It has to be ended.
    Guilty(Failure),
}

async fn tell(mut socket: OwnedWriteHalf, mut orders: UnboundedReceiver<Command>) {
    while let Some(command) = orders.recv().await {
        let Ok(frame) = wire::encode(&command) else { continue };
        if socket.write_all(&frame).await.is_err() {
            // The listening half tells of the end.
            return;
        }
    }
}

async fn listen(
    mut frames: UnboundedReceiver<Result<Report, wire::WireError>>,
    life: &mut Life,
    patience: Patience,
    sentence: &mut oneshot::Receiver<Failure>,
    hear: &impl Fn(Said) -> bool,
) -> Verdict {
    let guilty = |code, message: String| Verdict::Guilty(Failure::new(code, message));
    let (mut greeted, mut ended, mut last_words) = (false, false, None);
    loop {
        // What an ended worker has said is there in a moment, even if something that it left behind holds the socket.
        let silence = if ended { Duration::from_millis(100) } else { patience.silence };
        let report = tokio::select! {
            biased;
            Ok(failure) = &mut *sentence, if !ended => return Verdict::Guilty(failure),
            read = timeout(silence, frames.recv()) => match read {
                Err(_) if ended => return Verdict::Silent(last_words),
                Err(_) => {
                    let message = format!("said nothing for {} s", silence.as_secs_f32());
                    return guilty(FailureCode::Stalled, message);
                }
                Ok(None) => return Verdict::Silent(last_words),
                Ok(Some(Err(error))) => return guilty(FailureCode::Plugin, format!("spoke nonsense: {error}")),
                Ok(Some(Ok(report))) => report,
            },
            _ = life.wait(), if !ended => {
                ended = true;
                continue;
            }
        };
        match report {
            Report::Hello { protocol: PROTOCOL } => greeted = true,
            Report::Hello { protocol } => {
                return guilty(FailureCode::Internal, format!("speaks protocol {protocol}, this server {PROTOCOL}"));
            }
            _ if !greeted => return guilty(FailureCode::Internal, "did not introduce itself".into()),
            Report::Heartbeat { step_ms: Some(step), .. }
                if Duration::from_millis(step) > patience.step.saturating_add(STEP_GRACE) =>
            {
                return guilty(FailureCode::Stalled, format!("did not end a step within {step} ms"));
            }
            Report::Heartbeat { .. } => {}
            Report::Dying(failure) => last_words = Some(failure),
            report => {
                if !hear(Said::Report(report)) {
                    return guilty(FailureCode::Draining, "is not needed any more".into());
                }
            }
        }
    }
}

/// Reads frames until the socket or its sense ends. A task of its own, as a frame that has begun must be read to its end.
async fn read(socket: OwnedReadHalf, frames: UnboundedSender<Result<Report, wire::WireError>>) {
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

fn obituary(model: &str, verdict: Verdict, status: Option<ExitStatus>, words: &str) -> Failure {
    let said = if words.is_empty() { String::new() } else { format!("; it said: {words}") };
    let help = "ask again: the model is being loaded anew";
    match (verdict, status) {
        (Verdict::Guilty(failure), _) if failure.code == FailureCode::Draining => {
            let message = format!("the worker of model '{model}' {}", failure.message);
            Failure { message, ..failure }
        }
        (Verdict::Guilty(failure), _) => {
            let message = format!("the worker of model '{model}' {} and was ended{said}", failure.message);
            Failure::new(failure.code, message).with_help(help)
        }
        (Verdict::Silent(Some(failure)), _) => {
            let message = format!("the worker of model '{model}' ended: {}{said}", failure.message);
            Failure::new(failure.code, message).with_help(failure.help)
        }
        (Verdict::Silent(None), status) => {
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
struct Words {
    kept: Arc<Mutex<VecDeque<String>>>,
    listening: Option<JoinHandle<()>>,
}

impl Words {
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
                if lines.len() > WORDS_KEPT {
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
