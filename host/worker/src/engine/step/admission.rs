//! Admission of jobs and adapters: a job waits while its grammar is compiled or its adapter is read, and otherwise goes
//! to the scheduler.

use std::time::{Duration, Instant};

use super::Engine;
use crate::engine::{
    active_job::ActiveJob,
    adapters::{self, Waiting},
    blocks::ItemSpan,
    formats::ReadAdapter,
    grammars, items,
    pooled::Pool,
    scheduler::{Reading, Refused, Request},
};
use pensieve_grammar::Constraint;
use pensieve_protocol::{
    job::{Event, Failure, FailureCode, Finish, Job, Usage},
    wire::{Attachment, Location},
};

impl Engine {
    /// Accepts a job; a refusal becomes its `Failed` event.
    pub fn submit(&mut self, job: Job) {
        let id = job.id;
        if job.timeline
            && let Err(failure) = self.recorder.start(id, &mut self.model)
        {
            return self.refuse(id, Err(failure));
        }
        let admitted = match job.grammar.clone() {
            None => self.admit(job, None, Duration::ZERO),
            Some(spec) => self.grammars.begin(job, &spec, &self.text),
        };
        self.refuse(id, admitted);
    }

    /// Starts attaching an adapter. The caller reads it and hands it to [`Engine::take_adapter_in`] under the returned
    /// number.
    pub fn begin_attachment(&mut self, attempt: u64, name: &str, location: Location) -> Result<u64, Failure> {
        self.adapters.begin(attempt, name, location)
    }

    /// Takes in an adapter that was read, or the error. Returns the result of the attach attempt if the server waits
    /// for one; a reloaded adapter has no attempt.
    pub fn take_adapter_in(&mut self, serial: u64, read: Result<ReadAdapter, Failure>) -> Option<(u64, Attachment)> {
        self.adapters.take_in(serial, read, &mut self.model)
    }

    /// Returns the adapters to reload because jobs wait for them.
    pub fn take_wanted_adapters(&mut self) -> Vec<(u64, Location)> {
        self.adapters.take_wanted()
    }

    /// Detaches an adapter: closes it to new jobs and drops it with its last one.
    pub fn detach(&mut self, name: &str) {
        self.adapters.retire(name, &mut self.model);
    }

    /// Resumes jobs whose grammar or adapter is ready.
    pub(super) fn admit_waiting(&mut self) {
        for grammars::Ready { job, waited, constraint } in self.grammars.take_ready() {
            let id = job.id;
            let admitted = constraint.and_then(|constraint| self.admit(job, constraint, waited));
            self.refuse(id, admitted);
        }
        while let Some(ready) = self.adapters.next_ready(&mut self.model) {
            match ready {
                adapters::Ready::Begin(waiting) => {
                    let Waiting { job, serial, constraint, waited, since, .. } = *waiting;
                    let id = job.id;
                    let entered = self.enter(job, Some(serial), constraint, waited.saturating_add(since.elapsed()));
                    self.adapters.let_go(serial, &mut self.model);
                    self.refuse(id, entered);
                }
                adapters::Ready::Overdue(job) => {
                    let usage = Usage { prompt: job.tokens.len() as u32, ..Usage::default() };
                    self.events.push((job.id, Event::Finished { reason: Finish::Deadline, usage }));
                }
                adapters::Ready::Failed(id, failure) => self.refuse(id, Err(failure)),
            }
        }
    }

    /// Sends the failure of a job that was not admitted.
    fn refuse(&mut self, id: u64, admitted: Result<(), Failure>) {
        if let Err(failure) = admitted {
            self.events.push((id, Event::Failed(failure)));
        }
    }

    /// Admits a job that has `waited` for its grammar.
    fn admit(&mut self, job: Job, constraint: Option<Constraint>, waited: Duration) -> Result<(), Failure> {
        let serial = job.adapter.as_ref().map(|wish| self.adapters.find(wish)).transpose()?;
        match serial.filter(|serial| !self.adapters.may_begin(*serial)) {
            Some(serial) => {
                let since = Instant::now();
                self.adapters.wait(Waiting { job, serial, constraint, waited, since, failure: None });
                Ok(())
            }
            None => self.enter(job, serial, constraint, waited),
        }
    }

    /// Hands a job to the scheduler. Its adapter, if any, is in the model.
    fn enter(
        &mut self,
        mut job: Job,
        serial: Option<u64>,
        constraint: Option<Constraint>,
        waited: Duration,
    ) -> Result<(), Failure> {
        let context = self.model.resident.context;
        let mut active = ActiveJob::new(&job, constraint, &self.text, context, &mut self.samplers)?.ending_in_loops_of(
            self.loop_tokens,
            job.thinking.as_deref(),
            self.thought_loop_tokens,
        );
        active.pool = self.pool_of(&job)?;
        let checked = items::check(&job, &self.model.media)?;
        let runs = items::runs(&checked, &self.model.media);
        let spans = checked.iter().map(|item| ItemSpan { tokens: item.range.clone(), identity: item.identity });
        let adapter = serial.zip(job.adapter.take());
        let absent = || Failure::new(FailureCode::Internal, "a job was admitted before its adapter");
        let under = adapter.as_ref().map(|(serial, wish)| self.adapters.salt(*serial, wish.scale).ok_or_else(absent));
        let under = under.transpose()?;
        let request = Request {
            sequence: job.id,
            client: job.client,
            salt: salt(&self.model.card.fingerprint, under.as_deref(), &job.salt),
            prompt: job.tokens,
            items: spans.collect(),
            runs,
            reading: active.pool.as_ref().map_or(Reading::Shared, Pool::reading),
            row: active.pool.is_some(),
            deadline: job.deadline.map(|patience| self.born.elapsed().saturating_add(patience.saturating_sub(waited))),
        };
        active.adapter = adapter.and_then(|(serial, wish)| self.adapters.lease(serial, wish.scale));
        let (id, field) = (job.id, job.media.first().map(|item| item.field.clone()));
        self.jobs.open(request, active).map_err(|(refused, mut job)| {
            self.return_lease(&mut job);
            let field = field.filter(|_| matches!(refused, Refused::RunTooLong { .. }));
            refusal(refused).at(field.unwrap_or_default())
        })?;
        self.register_items(id, &job.salt, checked);
        Ok(())
    }

    /// The pool of a job that asks for a row. Checks that the model can do what the job asks for.
    fn pool_of(&self, job: &Job) -> Result<Option<Pool>, Failure> {
        let unsupported = |message: String| Failure::new(FailureCode::Unsupported, message);
        match (&self.model.rows, job.row) {
            (Ok(Some(rows)), None) if !rows.generates => {
                Err(unsupported("this model writes no text: it has no output layer".into()))
            }
            (_, None) => Ok(None),
            (Ok(Some(rows)), Some(wish)) => Pool::new(wish, rows).map(Some),
            (Ok(None), Some(_)) => Err(unsupported("this model has no hidden rows to make vectors of".into())),
            (Err(why), Some(_)) => Err(unsupported(format!("this model's hidden rows cannot be used: {why}"))),
        }
    }
}

/// Builds the salt of a sequence's block keys: everything besides tokens that keys and values depend on, and what
/// isolates users. Each part is preceded by its length, so that different lists of parts never give the same bytes.
fn salt(fingerprint: &str, adapter: Option<&str>, key: &[u8]) -> Vec<u8> {
    let mut salt = Vec::new();
    for part in [fingerprint.as_bytes(), adapter.unwrap_or_default().as_bytes(), key] {
        salt.extend_from_slice(&(part.len() as u64).to_le_bytes());
        salt.extend_from_slice(part);
    }
    salt
}

fn refusal(refused: Refused) -> Failure {
    let code = match refused {
        Refused::Empty => FailureCode::Invalid,
        Refused::Duplicate => FailureCode::Internal,
        Refused::Busy { .. } => FailureCode::Busy,
        Refused::TooLong { .. } | Refused::RunTooLong { .. } => FailureCode::TooLong,
    };
    Failure::new(code, refused.to_string())
}
