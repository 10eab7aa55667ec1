//! The loop: commands in, a step, events out.
//!
//! Between steps all pending commands are handled, so a cancelled job is gone before the next step. Without jobs the
//! loop writes the cache to disk, a few blocks at a time, and then sleeps until something arrives.

use std::sync::{
    Arc,
    mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError},
};

use super::{LoopInput, ReportWriter, StepClock, heap, start};
use crate::engine::{
    formats::Formats,
    step::{Engine, PAUSE},
};
use pensieve_protocol::{
    job::{Event, Failure, FailureCode, Job},
    wire::{Command, Level, Location, Report},
};

pub(super) struct Session<'a> {
    pub(super) engine: Engine,
    pub(super) formats: Formats,
    pub(super) reports: &'a Arc<ReportWriter>,
    pub(super) clock: &'a StepClock,
    pub(super) inputs: Receiver<LoopInput>,
    pub(super) sender: Sender<LoopInput>,
    /// Maximum size of an adapter's file in bytes.
    pub(super) adapter_file_max: u64,
    pub(super) draining: bool,
}

impl Session<'_> {
    /// Serves until drained, or fails once the model's device is lost. The model is dropped before this returns.
    pub(super) fn run(mut self) -> Result<(), Failure> {
        let mut computed = true;
        loop {
            self.wait(computed);
            let step = self.clock.begin_step();
            while let Ok(input) = self.inputs.try_recv() {
                self.handle(input);
            }
            computed = self.engine.step();
            for (serial, location) in self.engine.take_wanted_adapters() {
                self.read_adapter(serial, location);
            }
            // A server that does not read is not the plugin's fault.
            drop(step);
            self.send_reports();
            if let Some(failure) = self.engine.lost_device() {
                self.end();
                return Err(failure);
            }
            if self.draining && self.engine.is_idle() {
                break;
            }
        }
        while self.engine.tidy() {
            let _step = self.clock.begin_step();
        }
        self.send_reports();
        let reports = self.reports;
        self.end();
        reports.send(Report::Drained);
        Ok(())
    }

    /// Drops the model. Its destructors are the plugin's code, so that the watchdog counts them as a step.
    fn end(self) {
        let clock = self.clock;
        let step = clock.begin_step();
        drop(self);
        drop(step);
    }

    /// Waits until there may be something to do.
    fn wait(&mut self, computed: bool) {
        let received = if !self.engine.is_idle() {
            if computed {
                return;
            }
            match self.inputs.recv_timeout(PAUSE) {
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
                Ok(input) => input,
            }
        } else {
            match self.wait_idle() {
                Some(input) => input,
                None => return,
            }
        };
        let _step = self.clock.begin_step();
        self.handle(received);
    }

    fn wait_idle(&mut self) -> Option<LoopInput> {
        if self.draining {
            return None;
        }
        loop {
            match self.inputs.try_recv() {
                Ok(input) => return Some(input),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            let step = self.clock.begin_step();
            let more = self.engine.tidy();
            drop(step);
            self.send_reports();
            if !more {
                heap::trim();
                return self.inputs.recv().ok();
            }
        }
    }

    fn handle(&mut self, input: LoopInput) {
        match input {
            LoopInput::Command(command) => self.handle_command(command),
            LoopInput::AdapterRead { serial, read } => {
                if let Some((attempt, result)) = self.engine.take_adapter_in(serial, read) {
                    self.reports.send(Report::Attached { attempt, result });
                }
            }
        }
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Load(_) => {
                let message = "this worker has its model already".into();
                self.reports.send(Report::Log { level: Level::Error, message });
            }
            // The reading thread has given it to its job.
            Command::Prepared { .. } => {}
            Command::Submit(job) if self.draining => self.refuse(&job),
            Command::Submit(job) => self.engine.submit(job),
            Command::Cancel { id } => self.engine.cancel(id),
            Command::Attach { attempt, name, location } => {
                match self.engine.begin_attachment(attempt, &name, location.clone()) {
                    Ok(serial) => self.read_adapter(serial, location),
                    Err(failure) => self.reports.send(Report::Attached { attempt, result: Err(failure) }),
                }
            }
            Command::Detach { name } => {
                self.engine.detach(&name);
                self.reports.send(Report::Detached { name });
            }
            Command::Stats => {
                let stats = Box::new(self.engine.stats());
                self.reports.send(Report::Stats(stats));
            }
            Command::Drain => self.draining = true,
        }
    }

    /// Reads an adapter on a separate thread, so that steps continue.
    fn read_adapter(&self, serial: u64, location: Location) {
        let (formats, sender, bytes_max) = (self.formats.clone(), self.sender.clone(), self.adapter_file_max);
        start("adapter", move || {
            let read = formats.read(&location, bytes_max);
            // The receiver is gone only if the engine is.
            let _ = sender.send(LoopInput::AdapterRead { serial, read });
        });
    }

    fn refuse(&self, job: &Job) {
        let failure = Failure::new(FailureCode::Draining, "this worker takes no new jobs, as it is about to end");
        self.reports.send(Report::Events(vec![(job.id, Event::Failed(failure))]));
    }

    fn send_reports(&mut self) {
        let events = self.engine.take_events();
        if !events.is_empty() {
            self.reports.send(Report::Events(events));
        }
        for message in self.engine.take_notes() {
            self.reports.send(Report::Log { level: Level::Info, message });
        }
        for message in self.engine.take_troubles() {
            self.reports.send(Report::Log { level: Level::Warn, message });
        }
    }
}
