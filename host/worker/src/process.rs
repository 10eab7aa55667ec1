//! The worker: one model, one socket, four threads. The first thread owns the model and runs the loop; the others read
//! commands, write reports (`report_writer`) and enforce the deadline of steps (`watchdog`).
//!
//! A worker lives only for its server. When the socket is closed, the reading thread exits the process at once,
//! whatever the model is doing: the server is gone, and its streams with it. (A signal on the parent's death would be
//! tied to the thread that spawned the worker, and could kill healthy workers.) A hung model cannot be interrupted
//! either, so the process ends by `_exit` unless the first thread returns: no destructors, no exit handlers of other
//! libraries, nothing that could block.

mod heap;
pub mod numa;
mod report_writer;
mod session;
mod step_clock;
mod watchdog;

use std::{
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use pensieve_plugin_api::LogLevel;

use crate::engine::{
    chain::Samplers,
    formats::{Formats, ReadAdapter},
    model::Model,
    step::Engine,
    store::Store,
    tier::Tier,
};
use crate::plugin::HostServices;
use pensieve_protocol::{
    job::{Failure, FailureCode},
    outside::Outside,
    wire::{self, Command, Level, Load, PROTOCOL, Report, adapter_file_bytes_max},
};
use report_writer::ReportWriter;
use session::Session;
use step_clock::StepClock;

/// The server closed its end of the socket.
pub const EXIT_SERVER_GONE: i32 = 0;
/// The model did not load; the report has the reason.
pub const EXIT_NOT_LOADED: i32 = 80;
/// The server sent an invalid command.
pub const EXIT_BAD_COMMAND: i32 = 85;
/// A step took longer than its deadline.
pub const EXIT_STALLED: i32 = 86;
/// The server does not read the worker's reports.
pub const EXIT_REPORTS_UNREAD: i32 = 87;
/// The engine panicked.
pub const EXIT_PANICKED: i32 = 88;
/// The model's device fails whatever it is asked; another process may be able to use it.
pub const EXIT_DEVICE_LOST: i32 = 89;

/// A sampler stage may take this fraction (1/N) of a step's time limit.
const SAMPLER_SHARE: u32 = 12;

/// A worker with nothing left to answer usually has its blocks on disk and has ended within this time.
const HANDOVER: Duration = Duration::from_secs(1);

enum LoopInput {
    Command(Command),
    /// An adapter was read, successfully or not.
    AdapterRead {
        serial: u64,
        read: Result<ReadAdapter, Failure>,
    },
}

/// Serves the server at the other end of the socket until drained, and returns the exit status for the process. By then
/// no other thread of the worker runs.
pub fn run(socket: OwnedFd) -> i32 {
    heap::prepare();
    let socket = UnixStream::from(socket);
    let Ok(reading) = socket.try_clone() else { return EXIT_SERVER_GONE };
    let clock = Arc::new(StepClock::default());
    let reports = ReportWriter::start(socket, clock.clone());
    reports.send(Report::Hello { protocol: PROTOCOL });
    let (sender, inputs) = mpsc::channel();
    let (commands, alive) = (sender.clone(), clock.clone());
    start("reader", move || read(reading, &commands, &alive));
    let Ok(LoopInput::Command(Command::Load(load))) = inputs.recv() else { return EXIT_BAD_COMMAND };
    let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let (engine, formats) = match open(&load, &reports) {
            Ok(opened) => opened,
            Err(failure) => {
                reports.send(Report::LoadFailed(failure));
                return EXIT_NOT_LOADED;
            }
        };
        watchdog::spawn(&clock, &reports, load.spec.limits.step_timeout);
        let (reports, clock, adapter_file_max) = (&reports, &*clock, adapter_file_bytes_max(load.spec.adapter_memory));
        let session = Session { engine, formats, reports, clock, inputs, sender, adapter_file_max, draining: false };
        match session.run() {
            Ok(()) => 0,
            Err(failure) => {
                reports.send(Report::Dying(failure));
                EXIT_DEVICE_LOST
            }
        }
    }));
    let code = served.unwrap_or_else(|_| {
        // The panic hook has printed where and why.
        reports.send(Report::Dying(Failure::new(FailureCode::Internal, "the worker's engine panicked")));
        EXIT_PANICKED
    });
    reports.flush();
    clock.stop();
    code
}

/// Exits the process without running anything else in it.
pub fn leave(code: i32) -> ! {
    // SAFETY: `_exit` takes no pointers and does not return; nothing of this process is used afterwards.
    unsafe { libc::_exit(code) }
}

/// Starts a thread of the worker. Exits the process if that fails, because without this thread it could not end
/// otherwise.
fn start(name: &str, code: impl FnOnce() + Send + 'static) {
    if thread::Builder::new().name(name.to_owned()).spawn(code).is_err() {
        leave(EXIT_PANICKED);
    }
}

fn read(mut socket: UnixStream, commands: &mpsc::Sender<LoopInput>, clock: &StepClock) {
    let mut items = wire::ItemAssembly::default();
    loop {
        let read = wire::read(&mut socket).and_then(|command| command.map(|command| items.take(command)).transpose());
        if clock.has_stopped() {
            return;
        }
        match read {
            Ok(Some(None)) => {}
            Ok(Some(Some(command))) => {
                // The receiver lives as long as the worker.
                let _ = commands.send(LoopInput::Command(command));
            }
            Ok(None) | Err(wire::WireError::Io(_)) => leave(EXIT_SERVER_GONE),
            Err(error) => {
                eprintln!("pensieve worker: {error}");
                leave(EXIT_BAD_COMMAND);
            }
        }
    }
}

fn open(load: &Load, reports: &Arc<ReportWriter>) -> Result<(Engine, Formats), Failure> {
    let samplers = Samplers::open(&load.samplers, load.spec.limits.step_timeout / SAMPLER_SHARE)?;
    let formats = Formats::open(&load.adapter_formats)?;
    let (lines, progress) = (reports.clone(), reports.clone());
    let services = HostServices::new()
        .on_log(move |level, message| lines.try_send(Report::Log { level: level_of(level), message: message.into() }))
        .on_progress(move |done, total, what| progress.try_send(Report::Progress { done, total, what: what.into() }));
    let model = Model::load(load, services, &formats)?;
    let tier = Tier::new(store(load, &model, reports));
    let mut engine = Engine::new(model, tier, samplers, load);
    reports.send(Report::Loaded(Box::new(engine.loaded())));
    Ok((engine, formats))
}

/// Opens the model's block cache on disk. A broken cache does not fail the load; the reason goes to the log.
fn store(load: &Load, model: &Model, reports: &ReportWriter) -> Option<Store> {
    let tier = load.spec.disk.as_ref().filter(|tier| tier.bytes > 0)?;
    let Some(group_bytes) = model.group_bytes() else {
        let message = "this model's blocks cannot be kept on disk: its plugin does not export them".into();
        reports.send(Report::Log { level: Level::Info, message });
        return None;
    };
    let opened = Store::open(tier, &model.identity, model.card.block_tokens as usize, group_bytes.to_vec());
    let opened = opened.and_then(|mut store| store.take_within(HANDOVER).map(|_| store));
    let complain = |level, why: &str| {
        let message = format!("this model runs without its cache in '{}'{why}", Outside::path(&tier.folder));
        reports.send(Report::Log { level, message });
    };
    match &opened {
        Ok(store) if store.is_taken() => {}
        Ok(_) => complain(Level::Info, " until the worker of this model that has it ends"),
        Err(error) => complain(Level::Warn, &format!(": {error}")),
    }
    opened.ok()
}

fn level_of(level: LogLevel) -> Level {
    match level {
        LogLevel::ERROR => Level::Error,
        LogLevel::WARN => Level::Warn,
        LogLevel::DEBUG => Level::Debug,
        _ => Level::Info,
    }
}
