//! Pools of prompt processes, which render and tokenize: the only place in the server that runs a checkpoint's programs
//! (its chat template and its tokenizer). Grammars of clients have separate processes ([`GrammarPool`]).
//!
//! A process serves one model and answers one question at a time, under a memory limit and a deadline. A question that
//! kills its process does not affect others: those waiting go to the next process. The number of processes per model is
//! small, and idle processes of unused models are ended to make room for those of other models.

mod grammars;
mod media;
mod permits;
mod process;

#[cfg(test)]
mod tests;

pub use grammars::{Expressed, GrammarPool};
pub use media::ImageLimits;
pub(crate) use media::{Depth, ImageSource, MediaPool, ReadItem};

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, OnceCell, OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};

use self::process::{Death, Process};
use crate::fleet::fence;
use pensieve_protocol::{
    card::Card,
    conversation::Conversation,
    job::{Failure, FailureCode},
    prompt::{Answer, ImageWords, Piece, PromptTokens, Question, Tokenizer},
    vocabulary::Vocabulary,
};

/// Maximum number of processes for all models together.
const PROCESSES_MAX: usize = 8;
/// Maximum number of processes of one model. Additional ones are started only while the others are busy.
const MODEL_PROCESSES_MAX: usize = 4;
/// Those of them that may tokenize texts for rows. The others are left to chats.
const MODEL_TEXT_PROCESSES_MAX: usize = MODEL_PROCESSES_MAX - 1;
/// Memory of a process without its tokenizer.
const MEMORY_BYTES: u64 = 1 << 30;
/// Memory of a tokenizer per byte of its `tokenizer.json`, generously estimated.
const MEMORY_PER_TOKENIZER_BYTE: u64 = 24;
const WAIT_TIME_MAX: Duration = Duration::from_secs(30);
/// Time to wait for a process that has already loaded the model, before another one loads it.
const REUSE_TIME: Duration = Duration::from_millis(100);
const TOKENIZER_TIME_MAX: Duration = Duration::from_secs(60);
/// Time limit for analysing a template, which renders it some two dozen times.
const TEMPLATE_TIME_MAX: Duration = Duration::from_secs(10);
const PROMPT_TIME_MAX: Duration = Duration::from_secs(20);
/// Time after which an idle process of a model that has others is ended; each holds a tokenizer of its own.
const SURPLUS_TIME: Duration = Duration::from_secs(60);
/// Time before a checkpoint that could not be read is tried again.
const REFUSED_TIME: Duration = Duration::from_secs(60);
const WRITING: &str = "writing the prompt";

#[derive(Debug)]
pub struct RendererPool {
    program: PathBuf,
    surplus_time: Duration,
    permits: Arc<Semaphore>,
    /// Models that may have processes, the most recently used one last.
    models: Mutex<Vec<Weak<Renderer>>>,
}

/// Renders and tokenizes prompts of one model.
#[derive(Debug)]
pub struct Renderer {
    pool: Arc<RendererPool>,
    name: String,
    card: Arc<Card>,
    /// Known once a process has read the model.
    model: OnceCell<Model>,
    turns: Arc<Semaphore>,
    /// Turns of texts for rows, which come before those of everything.
    text_turns: Arc<Semaphore>,
    /// Counts this model's processes, each of which holds a clone.
    alive: Arc<()>,
    state: Mutex<RendererState>,
    freed: Notify,
}

/// The server's knowledge of a model's tokenizer and template.
#[derive(Clone, Debug)]
pub struct Model {
    pub vocabulary: Arc<Vocabulary>,
    pub takes_tools: bool,
}

#[derive(Debug, Default)]
struct RendererState {
    /// Idle processes, the one that has been idle for longest first, with the time since when.
    idle: Vec<(Instant, LoadedProcess)>,
    /// A task waits for surplus processes to be idle for long.
    is_watched: bool,
    refused: Option<(Instant, Failure)>,
}

/// A process that has loaded the model, or is about to load it.
#[derive(Debug)]
struct LoadedProcess {
    process: Process,
    _permit: OwnedSemaphorePermit,
    _alive: Arc<()>,
}

impl RendererPool {
    /// A pool of processes that run this program.
    pub fn new(program: PathBuf) -> Arc<Self> {
        Self::ending_surplus_after(SURPLUS_TIME, program)
    }

    fn ending_surplus_after(surplus_time: Duration, program: PathBuf) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(PROCESSES_MAX));
        Arc::new(Self { program, surplus_time, permits, models: Mutex::default() })
    }

    pub fn renderer(self: &Arc<Self>, name: &str, card: &Arc<Card>) -> Arc<Renderer> {
        let renderer = Arc::new(Renderer {
            pool: self.clone(),
            name: name.to_owned(),
            card: card.clone(),
            model: OnceCell::new(),
            turns: Arc::new(Semaphore::new(MODEL_PROCESSES_MAX)),
            text_turns: Arc::new(Semaphore::new(MODEL_TEXT_PROCESSES_MAX)),
            alive: Arc::new(()),
            state: Mutex::default(),
            freed: Notify::new(),
        });
        lock(&self.models).push(Arc::downgrade(&renderer));
        renderer
    }

    /// Acquires a permit for another process, ending an idle process of the least recently used model if necessary.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Some(permit);
        }
        let models: Vec<_> = {
            let mut models = lock(&self.models);
            models.retain(|model| model.strong_count() > 0);
            models.iter().filter_map(Weak::upgrade).collect()
        };
        drop(models.iter().find_map(|model| lock(&model.state).idle.pop()));
        self.permits.clone().acquire_owned().await.ok()
    }

    fn used(&self, renderer: &Arc<Renderer>) {
        let mut models = lock(&self.models);
        let is_it = |model: &Weak<Renderer>| std::ptr::eq(model.as_ptr(), Arc::as_ptr(renderer));
        if let Some(index) = models.iter().position(is_it) {
            let model = models.remove(index);
            models.push(model);
        }
    }
}

impl Renderer {
    /// Returns the model, which a process loads first if necessary.
    pub async fn model(self: &Arc<Self>) -> Result<&Model, Failure> {
        if self.model.get().is_none() {
            // The process stays alive for the next question.
            let turn = self.turn(&self.turns).await?;
            let loaded = self.process().await?;
            self.give_back(loaded);
            drop(turn);
        }
        self.model
            .get()
            .ok_or_else(|| self.failure(FailureCode::Internal, "reading the model", "has told nothing of it"))
    }

    pub async fn conversation(
        self: &Arc<Self>,
        conversation: Conversation,
        tools_in_words: Option<String>,
        items: Vec<String>,
        salt: Vec<u8>,
    ) -> Result<PromptTokens, Failure> {
        let conversation = Box::new(conversation);
        let question = Question::Conversation { conversation, tools_in_words, items, salt };
        match self.ask(question, PROMPT_TIME_MAX).await? {
            Ok(Answer::Prompt(prompt)) => Ok(prompt),
            Ok(Answer::Failed(failure)) => Err(failure),
            Ok(_) => Err(self.failure(FailureCode::Internal, WRITING, "was answered with something else")),
            Err(death) => Err(self.died(WRITING, &death)),
        }
    }

    pub async fn text(self: &Arc<Self>, text: String, salt: Vec<u8>) -> Result<Vec<u32>, Failure> {
        self.tokens(Question::Text { text, salt }).await
    }

    /// Tokenizes texts by themselves, in order. They leave a process to chats.
    pub async fn texts(self: &Arc<Self>, texts: Vec<Piece>, salt: Vec<u8>) -> Result<Vec<Vec<u32>>, Failure> {
        const WORK: &str = "tokenizing texts";
        let count = texts.len();
        let text_turn = self.turn(&self.text_turns).await?;
        match self.ask_in_turn(Question::Texts { texts, salt }, PROMPT_TIME_MAX, Some(text_turn)).await? {
            Ok(Answer::TokensOfEach(tokens)) if tokens.len() == count => Ok(tokens),
            Ok(Answer::Failed(failure)) => Err(failure),
            Ok(_) => Err(self.failure(FailureCode::Internal, WORK, "was answered with something else")),
            Err(death) => Err(self.died(WORK, &death)),
        }
    }

    async fn tokens(self: &Arc<Self>, question: Question) -> Result<Vec<u32>, Failure> {
        match self.ask(question, PROMPT_TIME_MAX).await? {
            Ok(Answer::Tokens(tokens)) => Ok(tokens),
            Ok(Answer::Failed(failure)) => Err(failure),
            Ok(_) => Err(self.failure(FailureCode::Internal, WRITING, "was answered with something else")),
            Err(death) => Err(self.died(WRITING, &death)),
        }
    }

    async fn ask(self: &Arc<Self>, question: Question, deadline: Duration) -> Result<Result<Answer, Death>, Failure> {
        self.ask_in_turn(question, deadline, None).await
    }

    /// Asks a process of this model. The exchange is completed even if the caller stops waiting, so that a client that
    /// disconnects does not cost the process; `text_turn` is held for as long.
    async fn ask_in_turn(
        self: &Arc<Self>,
        question: Question,
        deadline: Duration,
        text_turn: Option<OwnedSemaphorePermit>,
    ) -> Result<Result<Answer, Death>, Failure> {
        let turn = self.turn(&self.turns).await?;
        let mut loaded = self.process().await?;
        let renderer = self.clone();
        let asked = tokio::spawn(async move {
            let mut answer = loaded.process.ask(&question, deadline).await;
            if answer.as_ref().is_err_and(Death::is_from_outside) {
                // Dropped first, as it counts as one of the model's processes.
                drop(loaded);
                loaded = renderer.process().await?;
                answer = loaded.process.ask(&question, deadline).await;
            }
            if answer.is_ok() {
                renderer.give_back(loaded);
            }
            drop((turn, text_turn));
            Ok(answer)
        });
        asked.await.map_err(|_| self.failure(FailureCode::Internal, "asking a prompt process", "was broken off"))?
    }

    /// Waits for the right to use one process of this model.
    async fn turn(self: &Arc<Self>, turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Failure> {
        self.pool.used(self);
        let turn = timeout(WAIT_TIME_MAX, turns.clone().acquire_owned()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| self.busy())
    }

    /// Returns a process that has loaded the model. The caller must have a turn.
    async fn process(self: &Arc<Self>) -> Result<LoadedProcess, Failure> {
        let reuse = Instant::now() + REUSE_TIME;
        loop {
            let idle = lock(&self.state).idle.pop();
            if let Some((_, mut loaded)) = idle {
                if loaded.process.is_alive() {
                    return Ok(loaded);
                }
                // The process exited while it was idle, which is not the request's fault.
                continue;
            }
            let others = Arc::strong_count(&self.alive) > 1;
            let left = reuse.saturating_duration_since(Instant::now());
            if !others || left.is_zero() || timeout(left, self.freed.notified()).await.is_err() {
                break;
            }
        }
        if let Some((since, failure)) = &lock(&self.state).refused
            && since.elapsed() < REFUSED_TIME
        {
            return Err(failure.clone());
        }
        let permit = timeout(WAIT_TIME_MAX, self.pool.permit()).await.ok().flatten().ok_or_else(|| self.busy())?;
        let (renderer, alive) = (self.clone(), self.alive.clone());
        let read = tokio::spawn(async move { renderer.read(permit, alive).await });
        let read = read.await;
        read.map_err(|_| self.failure(FailureCode::Internal, "reading the model", "was broken off"))?
    }

    async fn read(&self, permit: OwnedSemaphorePermit, alive: Arc<()>) -> Result<LoadedProcess, Failure> {
        let memory = MEMORY_BYTES + self.card.tokenizer.len() as u64 * MEMORY_PER_TOKENIZER_BYTE;
        let started = Process::start(&self.pool.program, "prompt", &fence::prompt(memory));
        let process = started.map_err(|death| self.died("reading the model", &death))?;
        let mut loaded = LoadedProcess { process, _permit: permit, _alive: alive };
        let model = self.introduce(&mut loaded.process).await;
        let refused = model.as_ref().err().filter(|failure| failure.code != FailureCode::Internal);
        lock(&self.state).refused = refused.map(|failure| (Instant::now(), failure.clone()));
        let model = model?;
        let _known = self.model.set(model);
        Ok(loaded)
    }

    async fn introduce(&self, process: &mut Process) -> Result<Model, Failure> {
        let work = "reading the tokenizer";
        let question = Question::Tokenizer(Tokenizer::of(&self.card));
        let vocabulary = match process.ask(&question, TOKENIZER_TIME_MAX).await {
            Ok(Answer::Vocabulary(vocabulary)) if vocabulary.size() == self.card.vocabulary => vocabulary,
            Ok(Answer::Failed(failure)) => return Err(failure),
            Ok(_) => return Err(self.failure(FailureCode::Internal, work, "was answered with something else")),
            Err(death) => return Err(self.died(work, &death)),
        };
        let work = "reading the chat template";
        let images = self.card.media().and_then(|media| media.image.as_ref()).map(ImageWords::of);
        let question = Question::Template { source: self.card.chat_template.clone(), images };
        match process.ask(&question, TEMPLATE_TIME_MAX).await {
            Ok(Answer::Template { takes_tools }) => Ok(Model { vocabulary: Arc::new(*vocabulary), takes_tools }),
            Ok(Answer::Failed(failure)) => Err(failure),
            Ok(_) => Err(self.failure(FailureCode::Internal, work, "was answered with something else")),
            Err(death) => Err(self.died(work, &death)),
        }
    }

    fn give_back(self: &Arc<Self>, loaded: LoadedProcess) {
        let mut state = lock(&self.state);
        state.idle.push((Instant::now(), loaded));
        if state.idle.len() > 1 && !std::mem::replace(&mut state.is_watched, true) {
            let renderer = Arc::downgrade(self);
            tokio::spawn(async move {
                while let Some(wait) = renderer.upgrade().and_then(|renderer| renderer.end_surplus()) {
                    sleep(wait).await;
                }
            });
        }
        drop(state);
        self.freed.notify_one();
    }

    /// Ends all processes but one that have been idle for long. Returns when to ask again; `None` if there is no reason to.
    fn end_surplus(&self) -> Option<Duration> {
        let mut state = lock(&self.state);
        while state.idle.len() > 1 {
            let left = self.pool.surplus_time.saturating_sub(state.idle[0].0.elapsed());
            if !left.is_zero() {
                return Some(left);
            }
            drop(state.idle.remove(0));
        }
        state.is_watched = false;
        None
    }

    fn busy(&self) -> Failure {
        let name = &self.name;
        let message = format!("other requests keep all prompt processes of model '{name}' busy");
        Failure::new(FailureCode::Busy, message).with_help("try again later")
    }

    fn died(&self, work: &str, death: &Death) -> Failure {
        let code = if death.is_of_the_question() { FailureCode::Unsupported } else { FailureCode::Internal };
        let failure = self.failure(code, work, &death.to_string());
        failure.with_help("its chat template or its tokenizer may be damaged, or the request is too large for them")
    }

    fn failure(&self, code: FailureCode, work: &str, what: &str) -> Failure {
        Failure::new(code, format!("{work} of model '{}' {what}", self.name))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
