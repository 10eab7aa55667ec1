//! The fleet's settings: its models, its memory and its deadlines. Plain data; the configuration file is read elsewhere.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use super::{
    adapter_registry::Adapter,
    machine, plugins,
    sources::Sources,
    worker_runtime::{Placement, WorkerMain},
};
use pensieve_protocol::{
    fence::Policy,
    job::{AdapterUse, StageSpec},
    wire::ModelSpec,
};

/// Longer than any debugging session stays in one step.
const FOR_EVER: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Clone, Debug)]
pub struct Config {
    pub plugins: plugins::Settings,
    /// This program, which workers run.
    pub program: PathBuf,
    /// Runs workers in threads of this process instead; see [`Config::run_in_process`].
    pub(super) in_process: Option<WorkerMain>,
    /// Where cards of checkpoints are kept.
    pub cards: PathBuf,
    /// Plugins, by id, whose workers may do everything that this user may.
    pub unfenced: Vec<String>,
    pub models: Vec<ModelConfig>,
    /// Other names for them.
    pub variants: Vec<Variant>,
    /// Where adapters may come from while the server runs.
    pub sources: Sources,
    /// The model that answers for unknown ids; none to refuse them.
    pub default_model: Option<String>,
    /// Bytes that all workers may take together.
    pub memory_bytes: u64,
    /// After how long without a stream a worker ends; none for never.
    pub idle_timeout: Option<Duration>,
    pub restart: Restart,
    pub deadlines: Deadlines,
}

#[derive(Clone, Debug, Default)]
pub struct ModelConfig {
    pub id: String,
    /// A `.gguf` file or a folder.
    pub source: PathBuf,
    /// Aliases; `*` stands for anything.
    pub aliases: Vec<String>,
    pub adapters: BTreeMap<String, Adapter>,
    /// The sampler chain where a client's fields say nothing else; none for the host's default.
    pub samplers: Option<Vec<StageSpec>>,
    pub spec: ModelSpec,
}

/// Another name for a model, with an adapter or samplers. It shares the model's worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variant {
    pub id: String,
    /// The model's id.
    pub base: String,
    /// Aliases; `*` stands for anything.
    pub aliases: Vec<String>,
    pub adapter: Option<AdapterUse>,
    /// The sampler chain where a client's fields say nothing else; none for the model's.
    pub samplers: Option<Vec<StageSpec>>,
}

/// The restart policy after a worker's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// The pause before the first restart; every death within the window doubles it.
    pub pause: Duration,
    pub pause_max: Duration,
    /// How many deaths within the window put the model into quarantine.
    pub deaths_max: usize,
    /// How long a death counts.
    pub window: Duration,
    /// How long the quarantine lasts, unless a plugin of the model is replaced.
    pub quarantine: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// A child that answers a question about a checkpoint.
    pub probe: Duration,
    /// A load without any progress.
    pub load: Duration,
    /// The silence of a worker.
    pub silence: Duration,
    /// A worker that was asked to end and has no streams.
    pub drain: Duration,
    /// A request that waits for memory that others use.
    pub memory: Duration,
}

impl Config {
    /// A fleet without models, for this home (`$PENSIEVE_HOME`) and with these plugin folders before the usual ones.
    pub fn new(folders: &[PathBuf], home: &std::path::Path) -> Self {
        let plugins = plugins::Settings::new(folders, home);
        Self {
            program: plugins.program.clone(),
            in_process: None,
            plugins,
            cards: home.join("cache/cards"),
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

    /// Runs workers as threads of this process, where a debugger sees them, and waits for ever for a step. For debugging
    /// a plugin: what would end a worker ends this process.
    pub fn run_in_process(&mut self, worker: WorkerMain) {
        self.in_process = Some(worker);
        (self.deadlines.silence, self.deadlines.load) = (FOR_EVER, FOR_EVER);
        self.models.iter_mut().for_each(|model| model.spec.limits.step_timeout = FOR_EVER);
    }

    pub(super) fn placement<'a>(&'a self, policy: &'a Policy) -> Placement<'a> {
        self.in_process.map_or(Placement::Process(&self.program, policy), Placement::Thread)
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
