//! Grammars around the engine loop: jobs wait here while their grammar is being compiled, so that the model never waits
//! for them, and masks are computed on separate threads while the model runs. Both are created by the first job with a
//! grammar; most models never see one.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::active_job::Text;
use pensieve_grammar::{Compiler, Compiling, Constraint, Masks};
use pensieve_protocol::grammar::Spec;
use pensieve_protocol::job::{Failure, FailureCode, Job};

const COMPILE_TIME: Duration = Duration::from_secs(5);
const MASK_THREADS_MAX: usize = 4;

/// The grammars of one model's jobs.
#[derive(Default)]
pub struct Grammars {
    compiler: Option<Compiler>,
    masks: Option<Masks>,
    waiting: Vec<Waiting>,
}

struct Waiting {
    job: Job,
    since: Instant,
    compiling: Compiling,
}

/// A job whose grammar has been compiled or rejected.
pub struct Ready {
    pub job: Job,
    pub waited: Duration,
    /// Its constraint, or why there is none. `Ok(None)` if its deadline passed first: the engine then finds it overdue.
    pub constraint: Result<Option<Constraint>, Failure>,
}

impl Grammars {
    /// Starts compiling a job's grammar; the job waits here meanwhile.
    pub fn begin(&mut self, job: Job, spec: &Spec, text: &Text) -> Result<(), Failure> {
        let compiling = self.compiler(text)?.begin(spec, &job.salt).map_err(|error| error.failure())?;
        self.waiting.push(Waiting { job, since: Instant::now(), compiling });
        Ok(())
    }

    /// Returns the jobs whose grammar has been decided since the last call.
    pub fn take_ready(&mut self) -> Vec<Ready> {
        let mut ready = Vec::new();
        let mut index = 0;
        while let Some(waiting) = self.waiting.get_mut(index) {
            let waited = waiting.since.elapsed();
            let overdue = waiting.job.deadline.is_some_and(|deadline| waited >= deadline);
            match waiting.compiling.poll() {
                None if !overdue => index += 1,
                result => {
                    let constraint = result.transpose().map_err(|error| error.failure());
                    ready.push(Ready { job: self.waiting.remove(index).job, waited, constraint });
                }
            }
        }
        ready
    }

    pub fn cancel(&mut self, id: u64) -> Option<Job> {
        let index = self.waiting.iter().position(|waiting| waiting.job.id == id)?;
        Some(self.waiting.remove(index).job)
    }

    /// Number of jobs waiting for their grammar.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Computes the masks of these constraints while `forward` runs.
    pub fn overlap<T>(&self, constraints: Vec<&mut Constraint>, forward: impl FnOnce() -> T) -> T {
        match &self.masks {
            Some(masks) if !constraints.is_empty() => masks.overlap(constraints, forward),
            // A missing mask is computed on demand.
            _ => forward(),
        }
    }

    fn compiler(&mut self, text: &Text) -> Result<&Compiler, Failure> {
        let vocabulary = match &text.vocabulary {
            Ok(vocabulary) => vocabulary,
            Err(why) => {
                let message = format!("this model cannot keep to a grammar: {why}");
                return Err(Failure::new(FailureCode::Unsupported, message));
            }
        };
        if self.masks.is_none() {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            self.masks = Masks::new((cores / 2).clamp(1, MASK_THREADS_MAX)).ok();
        }
        Ok(self.compiler.get_or_insert_with(|| Compiler::new(Arc::clone(vocabulary), COMPILE_TIME)))
    }
}
