//! Grammar processes: the only place in the server that interprets programs of clients (grammars and formats of custom
//! tools).
//!
//! A process serves a single request and then exits, so that no data of one client remains for the next. It knows no
//! model: grammars are compiled with single bytes and the names of special tokens only. This makes it cheap to start,
//! and cheap to kill when its client disconnects. The number of processes is limited in total and per client; requests
//! that wait for one are served in order.
//!
//! Results are cached by digest, separately for each client, so that response times do not reveal other clients'
//! requests.

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    sync::Mutex,
    time::{Duration, Instant},
};

use lru::LruCache;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;

use super::{
    lock,
    permits::{Permit, Permits},
    process::{Death, Process},
};
use crate::{chat::Client, fleet::fence};
use pensieve_protocol::{
    fence::Policy,
    grammar::Spec,
    job::{Failure, FailureCode},
    outside::Outside,
    prompt::{Answer, EXPRESSION_BYTES_MAX, Question, Syntax},
    vocabulary::Alphabet,
    wire,
};

/// Maximum number of processes in total, and per client.
const PROCESSES_MAX: usize = 3;
const CLIENT_PROCESSES_MAX: usize = 2;
/// Memory of a process, including its stacks.
const MEMORY_BYTES: u64 = 480 << 20;
const WAIT_TIME_MAX: Duration = Duration::from_secs(30);
/// Time limit for a grammar, and for all formats of a request together.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum size of a vocabulary's special tokens.
const ALPHABET_BYTES_MAX: usize = 4 << 20;
/// Maximum number of cached grammars that have compiled.
const COMPILED_MAX: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Maximum size of the cached formats.
const EXPRESSIONS_BYTES_MAX: usize = 4 << 20;
/// Time before a format that killed its process is tried again.
const REFUSED_TIME: Duration = Duration::from_secs(60);
/// Maximum number of processes that the formats of one request may kill.
const DEATHS_MAX: usize = 2;
/// Maximum length of an error about a format.
const COMPLAINT_CHARS_MAX: usize = 300;

/// A format's regular expression, or why it has none.
pub type Expressed = Result<String, String>;

/// Runs grammar processes and caches their results, per client.
#[derive(Debug)]
pub struct GrammarPool {
    program: PathBuf,
    permits: Permits,
    /// Digests of grammars that have compiled.
    compiled: Mutex<LruCache<[u8; 32], ()>>,
    expressions: Mutex<Expressions>,
}

/// The cached results of formats, by digest.
#[derive(Debug)]
struct Expressions {
    known: LruCache<[u8; 32], Known>,
    bytes: usize,
}

#[derive(Debug)]
struct Known {
    expressed: Expressed,
    /// When to try again; `None` if the result is final.
    until: Option<Instant>,
}

/// A request's permit, and its process. If the request is cancelled, the process is killed, and the permit is
/// released once it has exited.
struct Asking<'a> {
    pool: &'a GrammarPool,
    process: Option<Process>,
    permit: Option<Permit>,
}

impl GrammarPool {
    /// A pool of processes that run this program.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            permits: Permits::new(PROCESSES_MAX, CLIENT_PROCESSES_MAX),
            compiled: Mutex::new(LruCache::new(COMPILED_MAX)),
            expressions: Mutex::new(Expressions { known: LruCache::unbounded(), bytes: 0 }),
        }
    }

    /// Fails if a grammar cannot be compiled within the memory and time of a process. `alphabet` is the model's.
    pub async fn try_grammar(&self, client: &Client, alphabet: &Alphabet, spec: &Spec) -> Result<(), Failure> {
        if alphabet.bytes() > ALPHABET_BYTES_MAX {
            let message = "this model has too many special tokens to be held to a grammar";
            return Err(Failure::new(FailureCode::Unsupported, message));
        }
        let encoded = wire::encode(&(spec, alphabet));
        let encoded = encoded.map_err(|error| Failure::new(FailureCode::Invalid, error.to_string()))?;
        let digest = digest(client, &[&encoded]);
        drop(encoded);
        if lock(&self.compiled).get(&digest).is_some() {
            return Ok(());
        }
        let mut asking = self.begin(client).await?;
        let question = Question::Grammar { spec: Box::new(spec.clone()), alphabet: alphabet.clone() };
        match asking.ask(&question, TIME_MAX).await {
            Ok(Answer::Compiles) => {
                lock(&self.compiled).put(digest, ());
                Ok(())
            }
            Ok(Answer::Failed(failure)) => Err(failure),
            Ok(_) => Err(failed("was answered with something else", FailureCode::Internal)),
            Err(death @ Death::Spawn(_)) => Err(failed(&death.to_string(), FailureCode::Internal)),
            Err(death) => {
                let field = spec.rules.iter().map(|rule| rule.field.as_str()).find(|field| !field.is_empty());
                let failure = failed(&death.to_string(), FailureCode::Invalid);
                Err(failure.at(field.unwrap_or_default()).with_help("simplify it"))
            }
        }
    }

    /// Converts the formats of one request to regular expressions, in order. A format that kills its process or times
    /// out has none.
    pub async fn expressions(&self, client: &Client, formats: &[(Syntax, &str)]) -> Result<Vec<Expressed>, Failure> {
        let mut asking = None;
        let (mut deaths, mut began) = (0, None);
        let mut all = Vec::with_capacity(formats.len());
        for (syntax, definition) in formats {
            let digest = digest(client, &[&[u8::from(*syntax == Syntax::Regex)], definition.as_bytes()]);
            if let Some(expressed) = lock(&self.expressions).get(&digest) {
                all.push(expressed);
                continue;
            }
            let asking = match &mut asking {
                Some(asking) => asking,
                none => none.insert(self.begin(client).await?),
            };
            let left = TIME_MAX.saturating_sub(began.get_or_insert_with(Instant::now).elapsed());
            if deaths == DEATHS_MAX || left.is_zero() {
                all.push(Err("the formats before it have taken all the time that there is".to_owned()));
                continue;
            }
            let question = Question::Expression { syntax: *syntax, definition: (*definition).to_owned() };
            let expressed = match asking.ask(&question, left).await {
                Ok(Answer::Expression(expressed)) => checked(expressed),
                Ok(_) => Err("its process answered nonsense".to_owned()),
                Err(death @ Death::Spawn(_)) => return Err(failed(&death.to_string(), FailureCode::Internal)),
                Err(death) => {
                    deaths += 1;
                    let expressed = Err(format!("reading it {death}"));
                    // A format that got only the remaining time may have failed because of those before it.
                    let was_hurried = matches!(death, Death::Overdue(limit) if limit < TIME_MAX * 9 / 10);
                    if !was_hurried {
                        let until = Some(Instant::now() + REFUSED_TIME);
                        lock(&self.expressions).put(digest, Known { expressed: expressed.clone(), until });
                    }
                    all.push(expressed);
                    continue;
                }
            };
            lock(&self.expressions).put(digest, Known { expressed: expressed.clone(), until: None });
            all.push(expressed);
        }
        Ok(all)
    }

    /// Waits for a permit.
    async fn begin(&self, client: &Client) -> Result<Asking<'_>, Failure> {
        let permit = self.permits.take(client.share, WAIT_TIME_MAX).await.ok_or_else(|| {
            Failure::new(FailureCode::Busy, "other requests keep all processes for grammars busy")
                .with_help("try again later")
        })?;
        Ok(Asking { pool: self, process: None, permit: Some(permit) })
    }
}

impl Asking<'_> {
    /// Asks this request's process, or a new one if it has exited.
    async fn ask(&mut self, question: &Question, deadline: Duration) -> Result<Answer, Death> {
        let process = match &mut self.process {
            Some(process) => process,
            none => none.insert(Process::start(&self.pool.program, "prompt", &policy())?),
        };
        let answer = process.ask(question, deadline).await;
        if answer.is_err()
            && let Some(process) = self.process.take()
        {
            process.end().await;
        }
        answer
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let permit = self.permit.take();
        // The permit is held until the process has exited. Without a runtime there is no waiter.
        if let (Some(process), Ok(runtime)) = (self.process.take(), Handle::try_current()) {
            runtime.spawn(async move {
                process.end().await;
                drop(permit);
            });
        }
    }
}

impl Expressions {
    fn get(&mut self, digest: &[u8; 32]) -> Option<Expressed> {
        let known = self.known.get(digest)?;
        let holds = known.until.is_none_or(|until| Instant::now() < until);
        holds.then(|| known.expressed.clone())
    }

    fn put(&mut self, digest: [u8; 32], known: Known) {
        self.bytes += known.bytes();
        if let Some((_, old)) = self.known.push(digest, known) {
            self.bytes -= old.bytes();
        }
        while self.bytes > EXPRESSIONS_BYTES_MAX
            && let Some((_, oldest)) = self.known.pop_lru()
        {
            self.bytes -= oldest.bytes();
        }
    }
}

impl Known {
    fn bytes(&self) -> usize {
        let (Ok(text) | Err(text)) = &self.expressed;
        // Includes the table's overhead.
        2 * size_of::<Self>() + size_of::<[u8; 32]>() + text.len()
    }
}

/// The policy of a process that may use nothing but its memory.
fn policy() -> Policy {
    Policy { data_bytes: Some(MEMORY_BYTES), ..fence::prompt(0) }
}

/// A digest of the question and of the client's salt.
fn digest(client: &Client, parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [client.salt.as_slice()].iter().chain(parts) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Bounds and escapes a process's answer, which may contain untrusted text.
fn checked(expressed: Expressed) -> Expressed {
    match expressed {
        Ok(expression) if expression.len() > EXPRESSION_BYTES_MAX => Err("its expression is too long".to_owned()),
        Ok(expression) => Ok(expression),
        Err(complaint) => Err(Outside::new(&complaint).at_most(COMPLAINT_CHARS_MAX).to_string()),
    }
}

fn failed(what: &str, code: FailureCode) -> Failure {
    Failure::new(code, format!("compiling the grammar {what}"))
}
