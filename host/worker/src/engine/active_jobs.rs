//! The running jobs. The scheduler has a job's tokens and blocks, and its [`ActiveJob`] has everything else, including
//! the lease on its adapter. Both are opened and closed only here.

use std::{collections::HashMap, time::Duration};

use super::{
    active_job::{ActiveJob, Pick},
    chain::Samplers,
    logits::Row,
    scheduler::{Plan, Refused, Request, Scheduler},
};
use pensieve_protocol::job::{Failure, FailureCode};

pub struct ActiveJobs {
    scheduler: Scheduler,
    jobs: HashMap<u64, ActiveJob>,
}

/// How a job ends, as far as the prefix cache is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Its cached blocks may be reused.
    Intact,
    /// The model or a sampler failed, so its state must not be reused.
    Broken,
}

impl ActiveJobs {
    pub fn new(scheduler: Scheduler) -> Self {
        Self { scheduler, jobs: HashMap::new() }
    }

    /// Hands a job to the scheduler. A refused job is returned with everything it holds.
    pub fn open(&mut self, request: Request, job: ActiveJob) -> Result<(), (Refused, Box<ActiveJob>)> {
        let id = request.sequence;
        match self.scheduler.submit(request) {
            Ok(()) => drop(self.jobs.insert(id, job)),
            Err(refused) => return Err((refused, Box::new(job))),
        }
        Ok(())
    }

    /// Frees a job's blocks and returns the rest of its state.
    pub fn close(&mut self, id: u64, how: Close) -> Option<ActiveJob> {
        let job = self.jobs.remove(&id)?;
        match how {
            Close::Intact => self.scheduler.finish(id),
            Close::Broken => self.scheduler.discard(id),
        }
        Some(job)
    }

    /// Decides the next step; see [`Scheduler::plan`]. A sequence that the plan ended still has to be closed.
    pub fn plan(&mut self, now: Duration) -> Plan {
        self.scheduler.plan(now)
    }

    /// Reports that a plan's step is done; see [`Scheduler::done`].
    pub fn done(&mut self, plan: &Plan, elapsed: Duration) {
        self.scheduler.done(plan, elapsed);
    }

    /// Appends a sampled token to a job's sequence.
    pub fn push(&mut self, id: u64, token: u32) {
        self.scheduler.push(id, token);
    }

    /// Picks a token from each row of logits.
    pub fn pick(&mut self, rows: &[(u64, Row<'_>)], samplers: &mut Samplers) -> Vec<(u64, Result<Pick, Failure>)> {
        let mut begun = Vec::with_capacity(rows.len());
        for &(id, row) in rows {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            begun.push((id, row, job.begin_pick(id, row, self.scheduler.tokens(id), samplers)));
        }
        let mut sampled = samplers.wait();
        let mut picks = Vec::with_capacity(begun.len());
        for (id, row, token) in begun {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let missing = || Failure::new(FailureCode::Internal, "a sampler's token is missing");
            let token = token.and_then(|token| match token {
                Some(token) => Ok(token),
                None => sampled.remove(&id).ok_or_else(missing).and_then(|picked| job.take_back(picked)),
            });
            picks.push((id, token.map(|token| job.pick(token, row))));
        }
        picks
    }

    pub fn contains(&self, id: u64) -> bool {
        self.jobs.contains_key(&id)
    }

    pub fn get(&self, id: u64) -> Option<&ActiveJob> {
        self.jobs.get(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut ActiveJob> {
        self.jobs.get_mut(&id)
    }

    /// Splits the jobs, whose constraints are being prepared, from the scheduler, which the forward pass reads
    /// meanwhile.
    pub fn split(&mut self) -> (impl Iterator<Item = (u64, &mut ActiveJob)>, &Scheduler) {
        (self.jobs.iter_mut().map(|(id, job)| (*id, job)), &self.scheduler)
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The scheduler, for the disk tier and for states; neither opens or closes sequences.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }
}
