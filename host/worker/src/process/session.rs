//! The loop: commands in, a step, events out.
//!
//! Between steps all commands that have arrived are taken, so a cancelled job is gone before the next step. Without jobs
//! the loop puts the cache on disk, a few blocks at a time, and then sleeps until something arrives.

use std::sync::{
    Arc,
    mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError},
};

use super::{Input, Outbox, Pulse, start};
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
    pub(super) outbox: &'a Arc<Outbox>,
    pub(super) pulse: &'a Pulse,
    pub(super) inputs: Receiver<Input>,
    pub(super) sender: Sender<Input>,
    /// Bytes of the largest file that an adapter may have.
    pub(super) adapter_file_max: u64,
    pub(super) draining: bool,
}

impl Session<'_> {
    /// Serves until it has been drained. The model is dropped before this returns.
    pub(super) fn run(mut self) {
        let mut computed = true;
        loop {
            self.wait(computed);
            let beat = self.pulse.begin();
            while let Ok(input) = self.inputs.try_recv() {
                self.take(input);
            }
            computed = self.engine.step();
            for (serial, location) in self.engine.take_wanted_adapters() {
                self.read_adapter(serial, location);
            }
            // A server that does not listen is no fault of a plugin.
            drop(beat);
            self.tell();
            if self.draining && self.engine.is_idle() {
                break;
            }
        }
        while self.engine.tidy() {
            let _beat = self.pulse.begin();
        }
        self.tell();
        let (outbox, pulse) = (self.outbox, self.pulse);
        let beat = pulse.begin();
        drop(self);
        drop(beat);
        outbox.send(Report::Drained);
    }

    /// Returns when there may be something to do.
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
        let _beat = self.pulse.begin();
        self.take(received);
    }

    fn wait_idle(&mut self) -> Option<Input> {
        if self.draining {
            return None;
        }
        loop {
            match self.inputs.try_recv() {
                Ok(input) => return Some(input),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            let beat = self.pulse.begin();
            let more = self.engine.tidy();
            drop(beat);
            self.tell();
            if !more {
                return self.inputs.recv().ok();
            }
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Command(command) => self.obey(command),
            Input::AdapterRead { serial, read } => {
                if let Some((attempt, result)) = self.engine.take_adapter_in(serial, read) {
                    self.outbox.send(Report::Attached { attempt, result });
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Load(_) => {
                let message = "this worker has its model already".into();
                self.outbox.send(Report::Log { level: Level::Error, message });
            }
            Command::Submit(job) if self.draining => self.refuse(&job),
            Command::Submit(job) => self.engine.submit(job),
            Command::Cancel { id } => self.engine.cancel(id),
            Command::Attach { attempt, name, location } => {
                match self.engine.begin_attachment(attempt, &name, location.clone()) {
                    Ok(serial) => self.read_adapter(serial, location),
                    Err(failure) => self.outbox.send(Report::Attached { attempt, result: Err(failure) }),
                }
            }
            Command::Detach { name } => {
                self.engine.detach(&name);
                self.outbox.send(Report::Detached { name });
            }
            Command::Stats => {
                let stats = Box::new(self.engine.stats());
                self.outbox.send(Report::Stats(stats));
            }
            Command::Drain => self.draining = true,
        }
    }

    /// Has an adapter read where that holds nobody up.
    fn read_adapter(&self, serial: u64, location: Location) {
        let (formats, sender, bytes_max) = (self.formats.clone(), self.sender.clone(), self.adapter_file_max);
        start("adapter", move || {
            let read = formats.read(&location, bytes_max);
            // Without an engine nobody waits for it.
            let _ = sender.send(Input::AdapterRead { serial, read });
        });
    }

    fn refuse(&self, job: &Job) {
        let failure = Failure::new(FailureCode::Draining, "this worker takes no new jobs, as it is about to end");
        self.outbox.send(Report::Events(vec![(job.id, Event::Failed(failure))]));
    }

    fn tell(&mut self) {
        let events = self.engine.take_events();
        if !events.is_empty() {
            self.outbox.send(Report::Events(events));
        }
        for message in self.engine.take_notes() {
            self.outbox.send(Report::Log { level: Level::Info, message });
        }
        for message in self.engine.take_troubles() {
            self.outbox.send(Report::Log { level: Level::Warn, message });
        }
    }
}
