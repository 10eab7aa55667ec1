//! Compiles grammars on helper threads, because only a thread can be given a deadline: it cannot be killed, but it can
//! be abandoned. There are few helpers; one that overruns keeps its slot until it finishes, and while all of them
//! overrun, new grammars are refused. So a hostile client can delay other clients' grammars, but never their streams.

use std::{
    collections::VecDeque,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use llguidance::{Matcher, ParserFactory, earley::SlicedBiasComputer, toktrie::InferenceCapabilities};

use crate::token_trie::TokenTrie;
use crate::{
    cache::{Cache, Slot, Template},
    constraint::Constraint,
    error::GrammarError,
    limits,
    rules::Rules,
    source::{self, Source},
};
use pensieve_protocol::grammar::Spec;
use pensieve_protocol::job::Failure;
use pensieve_protocol::vocabulary::{Alphabet, Vocabulary};

const HELPERS_MAX: usize = 2;
const QUEUE_MAX: usize = 256;
/// Extra time for the first grammar, whose compilation also prepares the vocabulary.
const PREPARATION: Duration = Duration::from_secs(20);

pub struct Compiler {
    shared: Arc<Shared>,
}

/// A pending compilation.
pub struct Compiling {
    shared: Arc<Shared>,
    spec: Spec,
    slots: Vec<Arc<Slot>>,
    deadline: Instant,
}

struct Shared {
    vocabulary: Arc<TokenTrie>,
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    limit: Duration,
    state: Mutex<CompilerState>,
}

#[derive(Default)]
struct CompilerState {
    cache: Cache,
    queue: VecDeque<Job>,
    /// Running helpers: id, and when each started on its current grammar.
    helpers: Vec<(u64, Instant)>,
    helpers_ever: u64,
}

struct Job {
    source: Source,
    slot: Arc<Slot>,
    deadline: Instant,
}

/// Compiles a grammar on this thread and discards the result: a sandboxed process finds out on the worker's behalf
/// whether it compiles at all. That does not depend on the worker's own tokens, so a small alphabet stands in for them.
/// Needs a stack of a few hundred megabytes.
pub fn try_compile(alphabet: Alphabet, spec: &Spec) -> Result<(), Failure> {
    let compile = || {
        limits::check(spec)?;
        let vocabulary =
            Vocabulary::try_from(alphabet).map_err(|error| GrammarError::Unsupported(error.to_string()))?;
        let vocabulary = Arc::new(TokenTrie::new(Arc::new(vocabulary)));
        let shared = Shared { vocabulary, factory: OnceLock::new(), limit: Duration::MAX, state: Mutex::default() };
        spec.rules.iter().try_for_each(|rule| {
            let compiled = shared.compile_or_relax(&Source::of(rule, &[]));
            compiled.map(drop).map_err(|error| error.at(&rule.field))
        })
    };
    compile().map_err(|error| error.failure())
}

impl Compiler {
    /// Returns a compiler that allows `limit` for compiling a request's grammars.
    pub fn new(vocabulary: Arc<Vocabulary>, limit: Duration) -> Self {
        let vocabulary = Arc::new(TokenTrie::new(vocabulary));
        let shared = Shared { vocabulary, factory: OnceLock::new(), limit, state: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Prepares the vocabulary, which takes up to a second; otherwise the first grammar pays for it.
    pub fn prepare(&self) -> Result<(), GrammarError> {
        self.shared.factory().map(drop)
    }

    /// Starts compiling the grammars that no request with this salt has sent before. Returns immediately.
    pub fn begin(&self, spec: &Spec, salt: &[u8]) -> Result<Compiling, GrammarError> {
        limits::check(spec)?;
        let preparation = if self.shared.factory.get().is_some() { Duration::ZERO } else { PREPARATION };
        let deadline = Instant::now() + self.shared.limit + preparation;
        let sources = spec.rules.iter().map(|rule| Source::of(rule, salt));
        let slots = sources.map(|source| self.shared.slot(source, deadline)).collect::<Result<_, _>>()?;
        Ok(Compiling { shared: self.shared.clone(), spec: spec.clone(), slots, deadline })
    }

    /// Compiles and waits for the result.
    pub fn compile(&self, spec: &Spec) -> Result<Constraint, GrammarError> {
        self.begin(spec, &[])?.finish()
    }

    #[cfg(test)]
    pub(crate) fn cached(&self) -> usize {
        self.shared.state().cache.len()
    }
}

impl Compiling {
    /// Returns the result once it is ready.
    pub fn poll(&mut self) -> Option<Result<Constraint, GrammarError>> {
        self.collect(Instant::now())
    }

    /// Waits for the constraint until the deadline.
    pub fn finish(mut self) -> Result<Constraint, GrammarError> {
        let deadline = self.deadline;
        self.collect(deadline).unwrap_or_else(|| Err(self.shared.overdue()))
    }

    fn collect(&mut self, until: Instant) -> Option<Result<Constraint, GrammarError>> {
        let mut templates = Vec::with_capacity(self.slots.len());
        for (slot, rule) in self.slots.iter().zip(&self.spec.rules) {
            match slot.wait(until) {
                Some(Ok(template)) => templates.push(template),
                Some(Err(error)) => return Some(Err(error.at(&rule.field))),
                None if Instant::now() >= self.deadline => return Some(Err(self.shared.overdue())),
                None => return None,
            }
        }
        Some(Rules::new(self.shared.vocabulary.clone(), &self.spec, templates).map(Constraint::new))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, CompilerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn overdue(&self) -> GrammarError {
        GrammarError::Deadline { limit_ms: u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Returns the grammar's slot: an existing one, or a new one queued for a helper.
    fn slot(self: &Arc<Self>, source: Source, deadline: Instant) -> Result<Arc<Slot>, GrammarError> {
        let mut state = self.state();
        if let Some(slot) = state.cache.find(&source) {
            return Ok(slot);
        }
        let overrunning = state.helpers.iter().filter(|(_, since)| since.elapsed() > self.limit).count();
        let preparing = self.factory.get().is_none();
        if state.queue.len() >= QUEUE_MAX || (overrunning >= HELPERS_MAX && !preparing) {
            return Err(GrammarError::Busy);
        }
        if state.helpers.len() < HELPERS_MAX {
            let id = state.helpers_ever;
            let shared = self.clone();
            // The stack is freed when the thread ends, however much of it was touched.
            thread::Builder::new()
                .name("grammar".to_owned())
                .stack_size(limits::STACK_BYTES)
                .spawn(move || shared.help(id))
                .map_err(|_| GrammarError::Busy)?;
            state.helpers_ever += 1;
            state.helpers.push((id, Instant::now()));
        }
        let slot = Arc::<Slot>::default();
        state.cache.insert(source.clone(), slot.clone());
        state.queue.push_back(Job { source, slot: slot.clone(), deadline });
        Ok(slot)
    }

    fn help(&self, id: u64) {
        while let Some(job) = self.next(id) {
            if Instant::now() >= job.deadline {
                // No request is waiting any more; the next one deserves a fresh attempt.
                self.state().cache.remove(&job.source);
                job.slot.fill(Err(GrammarError::Busy));
                continue;
            }
            job.slot.fill(self.compile_or_relax(&job.source));
        }
    }

    fn compile_or_relax(&self, source: &Source) -> Result<Template, GrammarError> {
        self.compile(source).or_else(|error| {
            let relaxed = source.relaxed(error, |part| self.compile(part).map(drop))?;
            self.compile(&relaxed)
        })
    }

    fn next(&self, id: u64) -> Option<Job> {
        let mut state = self.state();
        let job = state.queue.pop_front();
        match job {
            Some(_) => state
                .helpers
                .iter_mut()
                .filter(|(helper, _)| *helper == id)
                .for_each(|(_, since)| *since = Instant::now()),
            None => state.helpers.retain(|(helper, _)| *helper != id),
        }
        job
    }

    fn compile(&self, source: &Source) -> Result<Template, GrammarError> {
        panic::catch_unwind(AssertUnwindSafe(|| self.try_compile(source)))
            .unwrap_or_else(|_| Err(source::explain("panic")))
    }

    fn try_compile(&self, source: &Source) -> Result<Template, GrammarError> {
        let factory = self.factory()?;
        let grammar = source.render(&self.vocabulary)?;
        let parser = factory.create_parser(grammar).map_err(|error| source::explain(&error.to_string()))?;
        // Compute the first mask here, where it may be slow and where a grammar that matches nothing shows.
        let mut first = Matcher::new(Ok(parser.clone()));
        let lead: Vec<u32> = source.lead().iter().filter_map(|byte| self.vocabulary.byte_token(*byte)).collect();
        first
            .compute_mask()
            .and_then(|_| first.try_consume_tokens(&lead))
            .and_then(|_| first.compute_mask())
            .map_err(|error| source::explain(&error.to_string()))?;
        drop(first);
        Ok(Template::new(parser))
    }

    fn factory(&self) -> Result<&ParserFactory, GrammarError> {
        let made = self.factory.get_or_init(|| {
            let invalid =
                |error: String| GrammarError::Unsupported(format!("this model's vocabulary has no grammars: {error}"));
            let trie = self.vocabulary.env().map_err(|error| invalid(error.to_string()))?;
            let slices = SlicedBiasComputer::general_slices();
            let mut factory = ParserFactory::new(trie, InferenceCapabilities::default(), &slices)
                .map_err(|error| invalid(error.to_string()))?;
            factory.quiet();
            *factory.limits_mut() = limits::parser_limits();
            Ok(factory)
        });
        made.as_ref().map_err(Clone::clone)
    }
}
