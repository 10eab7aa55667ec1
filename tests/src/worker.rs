//! A worker process as its server sees it: the real program at the other end of a socket pair.

use pensieve_protocol::{
    job::{Event, Failure, Finish, Job, Usage},
    wire::{self, Command, DiskTier, Load, Loaded, ModelSpec, Provider, Report, Stats},
};
use std::{
    collections::HashMap,
    os::{
        fd::AsRawFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::Path,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use crate::artifacts::{program, test_plugin};

/// Time limit of anything on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running worker.
pub struct Worker {
    /// The process.
    pub child: Child,
    /// Its report of the loaded model.
    pub loaded: Loaded,
    socket: Option<UnixStream>,
    /// Events of jobs that the test has not asked for yet.
    events: HashMap<u64, Vec<Event>>,
    others: Vec<Report>,
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// All token ids.
    pub ids: Vec<u32>,
    /// All bytes that were shown.
    pub text: Vec<u8>,
    /// How it ended.
    pub end: Result<(Finish, Usage), Failure>,
    /// All events.
    pub events: Vec<Event>,
}

/// Loads the `faults` test plugin.
pub fn faults() -> Load {
    Load {
        architecture: Provider { plugin: test_plugin("faults"), name: "faults".into() },
        samplers: Vec::new(),
        adapter_formats: Vec::new(),
        merged: Vec::new(),
        adapter_deadline: Duration::from_secs(60),
        source: "nowhere".into(),
        spec: ModelSpec { kv_budget: Some(64 << 12), adapter_memory: 64 << 20, ..ModelSpec::default() },
    }
}

/// A load with modified settings.
pub fn with(mut load: Load, change: impl FnOnce(&mut ModelSpec)) -> Load {
    change(&mut load.spec);
    load
}

/// Loads the `recurrent` test plugin with room for this many states.
pub fn recurrent(states: u64) -> Load {
    let architecture = Provider { plugin: test_plugin("recurrent"), name: "recurrent".into() };
    with(Load { architecture, ..faults() }, |spec| spec.kv_budget = Some(8 * states))
}

/// A load with a disk cache.
pub fn with_disk(load: Load, folder: &Path) -> Load {
    with(load, |spec| spec.disk = Some(DiskTier { folder: folder.to_owned(), bytes: 16 << 20 }))
}

/// A prompt of this many lowercase letters, different for each seed.
pub fn prompt(seed: u64, length: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let letter = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        97 + (state >> 40) as u32 % 26
    };
    (0..length).map(letter).collect()
}

/// A job that ends only after this many tokens.
pub fn job(id: u64, tokens: Vec<u32>, max_tokens: u32) -> Job {
    Job { id, client: id, tokens, max_tokens, ignore_end_of_turn: true, ..Job::default() }
}

impl Worker {
    /// Starts a worker and makes it load a model.
    pub fn start(load: Load) -> Self {
        Self::try_start(load).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Like [`Worker::start`], for loads that may fail.
    pub fn try_start(load: Load) -> Result<Self, Failure> {
        let mut worker = Self::spawn();
        worker.send(&Command::Load(Box::new(load)));
        match worker.until(|report| matches!(report, Report::Loaded(_) | Report::LoadFailed(_))) {
            Report::Loaded(loaded) => {
                worker.loaded = *loaded;
                Ok(worker)
            }
            Report::LoadFailed(failure) => {
                worker.exit_status();
                Err(failure)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Starts a worker without a model.
    pub fn spawn() -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let number = theirs.as_raw_fd();
        let mut command = std::process::Command::new(program());
        command.args(["worker", "--socket", &number.to_string()]);
        // SAFETY: between fork and exec only `fcntl` is called, which is allowed there, on an open descriptor.
        unsafe {
            command.pre_exec(move || match libc::fcntl(number, libc::F_SETFD, 0) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let child = command.spawn().expect("the worker starts");
        ours.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let (loaded, events, others) = (Loaded::default(), HashMap::new(), Vec::new());
        let mut worker = Self { child, loaded, socket: Some(ours), events, others };
        let first = worker.read().expect("a report");
        assert_eq!(first, Report::Hello { protocol: wire::PROTOCOL });
        worker
    }

    /// Sends a command.
    pub fn send(&mut self, command: &Command) {
        for frame in wire::command_frames(command) {
            self.send_raw(&frame.expect("a frame"));
        }
    }

    /// Sends bytes that may not be a command.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        std::io::Write::write_all(self.socket.as_mut().expect("an open socket"), bytes).expect("the worker listens");
    }

    /// Submits a job.
    pub fn submit(&mut self, job: &Job) {
        self.send(&Command::Submit(job.clone()));
    }

    /// Submits a job and waits for its end.
    pub fn run(&mut self, job: &Job) -> Outcome {
        self.submit(job);
        self.outcome(job.id)
    }

    /// Waits for the end of a job.
    pub fn outcome(&mut self, id: u64) -> Outcome {
        self.wait_for(id, Event::is_last);
        let events = self.events.remove(&id).unwrap_or_default();
        Outcome::of(events)
    }

    /// Waits for an event of a job.
    pub fn wait_for(&mut self, id: u64, wanted: impl Fn(&Event) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !self.events.get(&id).is_some_and(|events| events.iter().any(&wanted)) {
            assert!(Instant::now() < until, "job {id} does not get on: {:?}", self.events.get(&id));
            let report = self.read().unwrap_or_else(|| panic!("the worker ended: {:?}", self.others));
            self.sort(report);
        }
    }

    /// Waits for a report that is not a job's event.
    pub fn until(&mut self, wanted: impl Fn(&Report) -> bool) -> Report {
        loop {
            if let Some(place) = self.others.iter().position(&wanted) {
                return self.others.remove(place);
            }
            let report = self.read().unwrap_or_else(|| panic!("the worker ended: {:?}", self.others));
            self.sort(report);
        }
    }

    /// The worker's current activity, as reported.
    pub fn stats(&mut self) -> Stats {
        self.send(&Command::Stats);
        match self.until(|report| matches!(report, Report::Stats(_))) {
            Report::Stats(stats) => *stats,
            other => panic!("{other:?}"),
        }
    }

    /// Drains it and waits for its exit.
    pub fn drain(mut self) {
        self.send(&Command::Drain);
        self.until(|report| *report == Report::Drained);
        assert!(self.exit_status().success());
    }

    /// Closes this end of the socket.
    pub fn hang_up(&mut self) {
        self.socket = None;
    }

    /// Reads until the worker has exited; returns its exit status and keeps its reports other than events.
    pub fn exit_status(&mut self) -> ExitStatus {
        while let Some(report) = self.socket.is_some().then(|| self.read()).flatten() {
            self.sort(report);
        }
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < until, "the worker does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Its reports other than events.
    pub fn others(&self) -> &[Report] {
        &self.others
    }

    /// The next report; `None` at the end.
    pub fn read(&mut self) -> Option<Report> {
        match wire::read(self.socket.as_mut()?) {
            Ok(report) => report,
            Err(wire::WireError::Io(error)) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn sort(&mut self, report: Report) {
        match report {
            Report::Events(events) => {
                for (id, event) in events {
                    let of_job = self.events.entry(id).or_default();
                    assert!(!of_job.last().is_some_and(Event::is_last), "{event:?} after the end of job {id}");
                    of_job.push(event);
                }
            }
            Report::Heartbeat { .. } | Report::Progress { .. } => {}
            other => self.others.push(other),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Outcome {
    fn of(events: Vec<Event>) -> Self {
        let (mut ids, mut text, mut end) = (Vec::new(), Vec::new(), None);
        for event in &events {
            match event {
                Event::Tokens(tokens) => {
                    ids.extend_from_slice(&tokens.ids);
                    text.extend_from_slice(&tokens.bytes);
                }
                Event::Finished { reason, usage } => end = Some(Ok((*reason, *usage))),
                Event::Failed(failure) => end = Some(Err(failure.clone())),
                Event::Started { .. }
                | Event::Prompt { .. }
                | Event::Row { .. }
                | Event::Cache { .. }
                | Event::Timeline(_) => {}
            }
        }
        Self { ids, text, end: end.expect("an end"), events }
    }

    /// Why it finished.
    pub fn reason(&self) -> Finish {
        self.end.as_ref().unwrap_or_else(|failure| panic!("{failure}")).0
    }

    /// Its token usage.
    pub fn usage(&self) -> Usage {
        self.end.as_ref().unwrap_or_else(|failure| panic!("{failure}")).1
    }

    /// Why it failed.
    pub fn failure(&self) -> &Failure {
        self.end.as_ref().expect_err("a failure")
    }
}
