//! Jobs waiting for their adapter to be reloaded.

use std::time::{Duration, Instant};

use super::{AdapterHost, Adapters, Residency};
use pensieve_grammar::Constraint;
use pensieve_protocol::job::{Failure, FailureCode, Job};

pub struct Waiting {
    pub job: Job,
    /// Number of its adapter.
    pub serial: u64,
    pub constraint: Option<Constraint>,
    /// Time that it has already waited for its grammar.
    pub waited: Duration,
    pub since: Instant,
    /// The error of reading its adapter.
    pub failure: Option<Failure>,
}

/// The result of waiting.
pub enum Ready {
    Begin(Box<Waiting>),
    /// Its deadline passed first.
    Overdue(Box<Job>),
    /// Its adapter could not be read.
    Failed(u64, Failure),
}

impl Waiting {
    fn is_overdue(&self) -> bool {
        self.job.deadline.is_some_and(|deadline| self.waited.saturating_add(self.since.elapsed()) >= deadline)
    }

    /// True if it can no longer start.
    fn is_settled(&self) -> bool {
        self.failure.is_some() || self.is_overdue()
    }
}

impl Adapters {
    /// True if a job under this adapter may start at once: the adapter is in the model, and no earlier job waits for
    /// room.
    pub fn may_begin(&self, serial: u64) -> bool {
        let holds =
            |serial: u64| self.known.get(&serial).is_some_and(|one| matches!(one.residency, Residency::Model(_)));
        let waits_for_room =
            |waiting: &Waiting| self.known.get(&waiting.serial).is_some_and(|one| one.residency == Residency::Disk);
        holds(serial) && !self.waiting.iter().any(waits_for_room)
    }

    pub fn wait(&mut self, waiting: Waiting) {
        if let Some(adapter) = self.known.get_mut(&waiting.serial) {
            adapter.claims += 1;
        }
        self.waiting.push_back(waiting);
    }

    pub fn cancel(&mut self, id: u64, holder: &mut impl AdapterHost) -> Option<Job> {
        let index = self.waiting.iter().position(|waiting| waiting.job.id == id)?;
        let waiting = self.waiting.remove(index)?;
        self.drop_claim(waiting.serial);
        self.leave(waiting.serial, holder);
        Some(waiting.job)
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the next job that need not wait any longer. Requests the adapters of other jobs as far as there is room.
    pub fn next_ready(&mut self, holder: &mut impl AdapterHost) -> Option<Ready> {
        self.give_up_hung(holder);
        // A job that cannot start is released at once, wherever it is in the queue.
        if let Some(index) = self.waiting.iter().position(Waiting::is_settled) {
            return self.release(index, holder);
        }
        let mut index = 0;
        while let Some(waiting) = self.waiting.get(index) {
            let serial = waiting.serial;
            let Some(adapter) = self.known.get(&serial) else { break };
            match adapter.residency {
                Residency::Disk => {
                    let (bytes, location) = (adapter.bytes, adapter.location.clone());
                    if !self.make_room(bytes, None, holder) {
                        return None;
                    }
                    self.set(serial, Residency::Reading(Instant::now()));
                    self.wanted.push((serial, location));
                }
                Residency::New | Residency::Reading(_) => index += 1,
                Residency::Hung => {
                    let failure = hung(&adapter.name);
                    self.fail_waiting(serial, &failure);
                    return self.release(index, holder);
                }
                Residency::Model(_) => return self.release(index, holder),
            }
        }
        None
    }

    /// Gives up on adapters whose format hangs.
    fn give_up_hung(&mut self, holder: &mut impl AdapterHost) {
        let hangs =
            |residency: Residency| matches!(residency, Residency::Reading(since) if since.elapsed() >= self.patience);
        let gone = self.known.iter().filter(|(_, adapter)| hangs(adapter.residency));
        let gone: Vec<(u64, String)> = gone.map(|(serial, adapter)| (*serial, adapter.name.clone())).collect();
        for (serial, name) in gone {
            self.fail_waiting(serial, &hung(&name));
            self.set(serial, Residency::Hung);
            self.leave(serial, holder);
        }
    }

    /// Fails all jobs that wait for an adapter.
    pub(super) fn fail_waiting(&mut self, serial: u64, failure: &Failure) {
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.serial == serial) {
            waiting.failure = Some(failure.clone());
        }
    }

    /// Takes a job out of the queue. A job that starts under a retired adapter is counted as its user right afterwards.
    fn release(&mut self, index: usize, holder: &mut impl AdapterHost) -> Option<Ready> {
        let mut waiting = self.waiting.remove(index)?;
        self.drop_claim(waiting.serial);
        let overdue = waiting.is_overdue();
        if let Some(failure) = waiting.failure.take() {
            self.leave(waiting.serial, holder);
            return Some(Ready::Failed(waiting.job.id, failure));
        }
        if overdue {
            self.leave(waiting.serial, holder);
            return Some(Ready::Overdue(Box::new(waiting.job)));
        }
        Some(Ready::Begin(Box::new(waiting)))
    }

    fn drop_claim(&mut self, serial: u64) {
        if let Some(adapter) = self.known.get_mut(&serial) {
            adapter.claims = adapter.claims.saturating_sub(1);
        }
    }
}

fn hung(name: &str) -> Failure {
    let message = format!("adapter '{name}': its format did not come back from reading it again");
    Failure::new(FailureCode::Stalled, message).with_help("replace its plugin")
}
