//! Grammars around the loop: jobs whose grammar is being compiled wait here, so that the model never waits for them, and
//! masks are made on threads of their own while the model computes. Both come into being with the first job that has a
//! grammar; most models never meet one.

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

/// A job whose grammar is decided upon.
pub struct Ready {
    pub job: Job,
    pub waited: Duration,
    /// Its grammar, or why there is none. Nothing if its deadline came first: the engine finds it overdue then.
    pub constraint: Result<Option<Constraint>, Failure>,
}

impl Grammars {
    /// Begins to compile a job's grammar; the job waits here meanwhile.
    pub fn begin(&mut self, job: Job, spec: &Spec, text: &Text) -> Result<(), Failure> {
        let compiling = self.compiler(text)?.begin(spec, &job.salt).map_err(|error| error.failure())?;
        self.waiting.push(Waiting { job, since: Instant::now(), compiling });
        Ok(())
    }

    /// Jobs whose grammar has been decided upon since it was last asked.
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

    /// How many jobs wait for their grammar.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Makes the masks of these constraints while `forward` runs.
    pub fn overlap<T>(&self, constraints: Vec<&mut Constraint>, forward: impl FnOnce() -> T) -> T {
        match &self.masks {
            Some(masks) if !constraints.is_empty() => masks.overlap(constraints, forward),
            // A mask that is not there is made when it is asked for.
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
