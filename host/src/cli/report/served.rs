//! A model behind a supervisor and a worker, as a server has it, for the sections that measure answers.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::super::{
    bench::figures::Stream,
    common_args::CommonArgs,
    error::CliError,
    log::{self, LogFormat},
};
use pensieve_protocol::{
    card::{Card, State},
    job::{Event, Failure, Job},
};
use pensieve_server::fleet::{Config, Fleet, Update};
use tracing_subscriber::fmt::MakeWriter;

/// Lines of the log that a report quotes.
const LINES_MAX: usize = 20;
/// The Objective-C runtime's words for an object that no pool will free.
const MISSING_POOL: &str = "MISSING POOLS";

pub(super) struct Served {
    pub(super) fleet: Fleet,
    pub(super) id: String,
    pub(super) card: Arc<Card>,
}

/// One answer.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) stream: Stream,
    /// Tokens of the prompt that were in the cache.
    pub(super) reused: u32,
    pub(super) failure: Option<String>,
}

/// The configuration of a fleet without a cache on disk.
pub(super) fn configure(common: &CommonArgs, model: Option<&str>) -> Result<(Config, String), CliError> {
    let (mut resolved, id) = common.resolve_one(model)?;
    resolved.config.cache.budget = 0;
    Ok((resolved.fleet()?, id))
}

impl Served {
    /// A fleet whose model has room for this many streams of this many tokens each.
    pub(super) async fn start((mut config, id): (Config, String), streams: u32, tokens: u32) -> Result<Self, CliError> {
        let card = Fleet::start(config.clone()).await?.target(&id).await?.card;
        let each = match card.state {
            State::Paged { tokens: block, bytes, beside } => {
                (u64::from(tokens.div_ceil(block)) + 1) * bytes + 2 * beside
            }
            State::PerSequence { bytes } => bytes,
        };
        for model in &mut config.models {
            let spec = &mut model.spec;
            let budget = each.saturating_mul(u64::from(streams) + 1);
            spec.kv_budget = Some(budget.max(1 << 20).max(spec.kv_budget.unwrap_or(0)));
            spec.limits.sequences_max = spec.limits.sequences_max.max(streams + 1);
            spec.limits.waiting_max = spec.limits.waiting_max.max(streams + 1);
        }
        Ok(Self { fleet: Fleet::start(config).await?, id, card })
    }

    pub(super) fn random(&self, tokens: u32) -> Vec<u32> {
        (0..tokens).map(|_| fastrand::u32(..self.card.vocabulary)).collect()
    }

    /// Runs a job to its end. `on_tokens` hears how many tokens came.
    pub(super) async fn answer(&self, tokens: Vec<u32>, generate: u32, mut on_tokens: impl FnMut(usize)) -> Answer {
        let job = Job { tokens, max_tokens: generate, ignore_end_of_turn: true, ..Job::default() };
        let mut answer = Answer::default();
        let mut events = match self.fleet.submit_to(&self.id, job) {
            Ok(events) => events,
            Err(failure) => return Answer { failure: Some(failure.to_string()), ..answer },
        };
        while let Some(update) = events.next().await {
            match update {
                Update::Event(Event::Started { reused_tokens, .. }) => answer.reused = reused_tokens,
                Update::Event(Event::Tokens(tokens)) => {
                    on_tokens(tokens.ids.len());
                    answer.stream.arrivals.push((Instant::now(), tokens.ids.len()));
                }
                Update::Event(Event::Failed(failure)) => answer.failure = Some(failure.to_string()),
                Update::Event(_) | Update::Loading { .. } => {}
            }
        }
        answer
    }

    /// Loads the model and has it generate two tokens.
    pub(super) async fn warm(&self) -> Result<(), Failure> {
        let answer = self.answer(self.random(16), 2, |_| ()).await;
        let failed = |message: String| Failure::new(pensieve_protocol::job::FailureCode::Internal, message);
        answer.failure.map_or(Ok(()), |message| Err(failed(message)))
    }

    /// The worker's process, and how many workers have died.
    pub(super) async fn worker(&self) -> (Option<u32>, u64) {
        let models = self.fleet.stats(false).await.models;
        models.into_iter().find(|model| model.id == self.id).map_or((None, 0), |model| (model.pid, model.deaths))
    }

    pub(super) async fn end(self) {
        self.fleet.shutdown(Duration::ZERO).await;
    }
}

/// The log of this process, in which the worker's own lines are.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Lines>>);

#[derive(Default)]
pub(super) struct Lines {
    /// The first ones.
    pub(super) kept: Vec<String>,
    pub(super) missing_pools: u64,
}

impl Log {
    pub(super) fn begin() -> Result<Self, CliError> {
        let log = Self::default();
        log::begin(LogFormat::Text, "info", log.clone())
            .map_err(|what| CliError::new(super::super::error::Exit::Failed, what))?;
        Ok(log)
    }

    pub(super) fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl io::Write for Log {
    /// The subscriber writes each line in one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let mut lines = self.lines();
        if text.contains(MISSING_POOL) {
            lines.missing_pools += 1;
        }
        if lines.kept.len() < LINES_MAX
            && (text.contains(" WARN ") || text.contains(" ERROR ") || text.contains("worker says"))
        {
            // The time in front of it.
            let line = text.trim_end().split_once(' ').map_or("", |(_, line)| line.trim_start()).to_owned();
            lines.kept.push(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
