//! The fleet's settings: models, memory and deadlines. Plain data; the configuration file is read elsewhere.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use super::{
    adapter_registry::Adapter,
    elsewhere::Upstream,
    handover::Handover,
    machine, plugins,
    sources::Sources,
    worker_runtime::{Placement, WorkerMain},
};
use pensieve_protocol::{
    fence::Policy,
    job::{AdapterUse, Failure, FailureCode, StageSpec},
    wire::ModelSpec,
};

/// Longer than any debugging session stays in one step.
const FOR_EVER: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Clone, Debug)]
pub struct Config {
    pub plugins: plugins::Settings,
    /// The program that workers run: this one.
    pub program: PathBuf,
    /// Runs workers in threads of this process instead of child processes; see [`Config::run_in_process`].
    pub(super) in_process: Option<WorkerMain>,
    /// Cache folder for checkpoint cards.
    pub cards: PathBuf,
    /// Folder for the measured memory of models.
    pub needs: PathBuf,
    /// The file with the pinned models.
    pub pins: PathBuf,
    /// Ids of plugins whose workers run without a fence, with all of this user's rights.
    pub unfenced: Vec<String>,
    pub models: Vec<ModelConfig>,
    /// Additional names for the models.
    pub variants: Vec<Variant>,
    /// Allowed sources of adapters that are attached at run time.
    pub sources: Sources,
    /// The model that answers for unknown ids; `None` to refuse them.
    pub default_model: Option<String>,
    /// Memory for all workers together, in bytes.
    pub memory_bytes: u64,
    /// Time without a stream after which a worker exits; `None` for never.
    pub idle_timeout: Option<Duration>,
    pub restart: Restart,
    pub deadlines: Deadlines,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelConfig {
    pub id: String,
    /// True for the place of a model that a new configuration has removed.
    pub removed: bool,
    /// A `.gguf` file or a folder; empty for a model with an upstream.
    pub source: PathBuf,
    /// The servers that compute it instead of a worker.
    pub upstream: Option<Arc<Upstream>>,
    /// When requests are handed over to another model; `None` for never.
    pub handover: Option<Handover>,
    /// Aliases, in which `*` matches any text.
    pub aliases: Vec<String>,
    pub adapters: BTreeMap<String, Adapter>,
    /// The sampler chain unless a request overrides it; `None` for the host's default.
    pub samplers: Option<Vec<StageSpec>>,
    pub answers: AnswerSettings,
    pub spec: ModelSpec,
}

/// Settings of a model's answers, unless a request overrides them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AnswerSettings {
    /// Objects may have properties that their schemas do not list.
    pub open_schemas: bool,
    /// The share of an answer's room that reasoning may take, by effort.
    pub efforts: Efforts,
}

/// A share of the room for each [`Effort`](crate::chat::Effort), in its order.
pub type Efforts = [f64; 6];

/// Another name for a model, with its own adapter or samplers. It shares the model's worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variant {
    pub id: String,
    /// The model's id.
    pub base: String,
    /// Aliases, in which `*` matches any text.
    pub aliases: Vec<String>,
    pub adapter: Option<AdapterUse>,
    /// The sampler chain unless a request overrides it; `None` for the model's.
    pub samplers: Option<Vec<StageSpec>>,
}

/// How long a model stays loaded after its last answer, instead of the configured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    For(Duration),
    /// Until another model needs the memory.
    Always,
}

/// The restart policy after a worker's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Pause before the first restart; every further death within the window doubles it.
    pub pause: Duration,
    pub pause_max: Duration,
    /// Number of deaths within the window that puts the model into quarantine.
    pub deaths_max: usize,
    /// Time for which a death counts.
    pub window: Duration,
    /// Duration of the quarantine, which also ends when a plugin of the model is replaced.
    pub quarantine: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// For a child that answers a question about a checkpoint.
    pub probe: Duration,
    /// For a load without any progress.
    pub load: Duration,
    /// For a worker that sends nothing.
    pub silence: Duration,
    /// For a worker that was asked to exit and has no streams.
    pub drain: Duration,
    /// For a request that waits for memory held by other models.
    pub memory: Duration,
}

impl Config {
    /// Creates the configuration of a fleet without models. `home` is `$PENSIEVE_HOME`; `folders` are plugin folders
    /// that take precedence over the default ones.
    pub fn new(folders: &[PathBuf], home: &std::path::Path) -> Self {
        let plugins = plugins::Settings::new(folders, home);
        Self {
            program: plugins.program.clone(),
            in_process: None,
            plugins,
            cards: home.join("cache/cards"),
            needs: home.join("cache/needs"),
            pins: home.join("pins"),
            unfenced: Vec::new(),
            models: Vec::new(),
            variants: Vec::new(),
            sources: Sources::default(),
            default_model: None,
            memory_bytes: machine::default_budget(),
            idle_timeout: None,
            restart: Restart::default(),
            deadlines: Deadlines::default(),
        }
    }

    /// Runs workers as threads of this process, where a debugger sees them, and never times out a step. For debugging a
    /// plugin: anything that would kill a worker kills this process.
    pub fn run_in_process(&mut self, worker: WorkerMain) {
        self.in_process = Some(worker);
        (self.deadlines.silence, self.deadlines.load) = (FOR_EVER, FOR_EVER);
        self.models.iter_mut().for_each(|model| model.spec.limits.step_timeout = FOR_EVER);
    }

    pub(super) fn placement<'a>(&'a self, policy: &'a Policy) -> Placement<'a> {
        self.in_process.map_or(Placement::Process(&self.program, policy), Placement::Thread)
    }
}

impl ModelConfig {
    /// Fails for a model that no worker computes.
    pub(super) fn check_is_here(&self) -> Result<(), Failure> {
        if self.upstream.is_none() {
            return Ok(());
        }
        let message = format!("'{}' is computed by an upstream, which this cannot be asked of", self.id);
        Err(Failure::new(FailureCode::Unsupported, message).at("model").with_help("name a model with a source"))
    }
}

impl Default for AnswerSettings {
    fn default() -> Self {
        Self { open_schemas: false, efforts: [1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0, 1.0 / 2.0, 3.0 / 4.0, 7.0 / 8.0] }
    }
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            pause: Duration::from_millis(100),
            pause_max: Duration::from_secs(10),
            deaths_max: 3,
            window: Duration::from_secs(60),
            quarantine: Duration::from_secs(300),
        }
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            probe: Duration::from_secs(60),
            load: Duration::from_secs(300),
            silence: Duration::from_secs(10),
            drain: Duration::from_secs(10),
            memory: Duration::from_secs(120),
        }
    }
}
