//! The fleet: which models there are, which worker process serves each, and the plugins that workers load.
//!
//! This is the server's half of the process boundary. It knows plugins by the manifests that children report and models by
//! their cards, and it never maps a plugin nor opens a model's file: a crash in foreign code ends another process.

mod adapter_registry;
mod awake;
mod backups;
pub mod child;
mod config;
mod control;
pub mod fence;
pub(crate) mod footprint;
mod log;
mod machine;
mod memory;
mod pace;
pub mod plugins;
mod probe;
pub(crate) mod program;
mod router;
mod sources;
mod stats;
mod stderr;
mod stream;
mod streams;
mod supervisor;
mod worker;
mod worker_runtime;

pub use adapter_registry::{Adapter, AdapterFailure, Culprit, check_adapter_name};
pub use config::{Config, Deadlines, ModelConfig, Restart, Variant};
pub use footprint::footprint;
pub use machine::{default_budget, installed_bytes};
pub use sources::Sources;
pub use stats::{AdapterState, FleetStats, ModelState, ModelStats, Progress};
pub use stream::EventStream;
pub use streams::Update;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{
        OnceCell,
        mpsc::{self, UnboundedSender, unbounded_channel},
        oneshot, watch,
    },
    task::JoinHandle,
};

use adapter_registry::AdapterRegistry;
use control::{Control, Message};
use pensieve_protocol::{
    card::Card,
    fence::{Fenced, Policy},
    job::{AdapterUse, Failure, FailureCode, Job, StageSpec},
    refusal::Refusal,
    wire,
};
use plugins::PluginFolder;
use probe::{KeyedCard, Probed, Prober};
use router::Route;
use supervisor::Supervisor;

/// Capacity of the channel of workers' signals to the control loop; a worker that sends more waits on its socket.
const SIGNALS_MAX: usize = 64;

/// The models of a server. Dropping it ends every worker.
#[derive(Debug)]
pub struct Fleet {
    config: Arc<Config>,
    plugins: PluginFolder,
    prober: Prober,
    registry: Arc<AdapterRegistry>,
    messages: UnboundedSender<Message>,
    next_job: AtomicU64,
    /// Bytes in the queues of all streams.
    queued_bytes: Arc<AtomicUsize>,
    fenced: OnceCell<Fenced>,
    closing: AtomicBool,
    /// The number of jobs that run or wait, for which the machine is kept awake.
    busy: watch::Sender<usize>,
    control: JoinHandle<()>,
}

/// The model that a request names, loaded or not, and what its card says. A request is resolved to it once.
#[derive(Clone, Debug)]
pub struct Target {
    index: usize,
    pub id: String,
    pub card: Arc<Card>,
    /// Equal for equal cards.
    pub card_key: Arc<str>,
    /// The longest sequence, in tokens: of its card, its configuration, and what its memory holds.
    pub context: u32,
    /// The sampler chain where a client's fields say nothing else; none for the host's default.
    pub samplers: Option<Vec<StageSpec>>,
    pub adapter: Option<AdapterUse>,
}

/// Enough for a child process to run a model on its own, beside the workers.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The plugin's library, which is there as long as the fleet.
    pub plugin: PathBuf,
    pub architecture: String,
    pub source: PathBuf,
    pub spec: wire::ModelSpec,
    pub policy: Policy,
    /// Bytes that all models may take together.
    pub memory_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    pub id: String,
    pub source: PathBuf,
}

impl Fleet {
    /// This program, which runs in children under other verbs.
    pub fn program(&self) -> &Path {
        &self.config.plugins.program
    }

    /// Opens the plugin folders and waits for requests; no model is loaded before it is asked for.
    pub async fn start(config: Config) -> Result<Self, Refusal> {
        // A worker in this process is there for a debugger, which may want to look into it.
        if config.in_process.is_none() {
            fence::hide_from_children();
        }
        let plugins = PluginFolder::open(config.plugins.clone()).await?;
        backups::exclude_caches(&config.plugins.cache);
        let program = config.plugins.program.clone();
        let prober = Prober::new(program, config.cards.clone(), config.deadlines.probe);
        let config = Arc::new(config);
        let adapters = config.models.iter().map(|model| model.adapters.clone()).collect();
        let registry = Arc::new(AdapterRegistry::new(adapters));
        let (messages, received) = unbounded_channel();
        let (signals, reported) = mpsc::channel(SIGNALS_MAX);
        let supervisor = Supervisor::new(config.clone(), registry.clone(), plugins.catalogue());
        let (catalogue, sender) = (plugins.subscribe(), messages.downgrade());
        let control = Control::new(config.clone(), supervisor, prober.clone(), catalogue, sender, signals);
        let control = tokio::spawn(control.run(received, reported));
        let (next_job, closing) = (AtomicU64::new(1), AtomicBool::new(false));
        let (queued_bytes, fenced) = (Arc::default(), OnceCell::new());
        let busy = awake::start();
        Ok(Self { config, plugins, prober, registry, messages, next_job, queued_bytes, fenced, closing, busy, control })
    }

    /// Resolves a name. Fails if there is no such model, or if it cannot be served.
    pub async fn target(&self, name: &str) -> Result<Target, Failure> {
        let Route { model: index, variant, adapter } = self.route(name)?;
        let model = &self.config.models[index];
        let KeyedCard { key, card } = self.prober.card(index, model, &self.plugins.catalogue()).await?;
        let context = memory::context(self.config.memory_bytes, model, self.registry.has_some(index), &card);
        let own = variant.and_then(|variant| self.config.variants[variant].samplers.as_ref());
        let samplers = own.or(model.samplers.as_ref()).cloned();
        Ok(Target { index, id: model.id.clone(), card, card_key: key, context, samplers, adapter })
    }

    /// The architecture that takes the model of this name, and the policy of a child that runs it and reads this text.
    pub async fn claimed(&self, name: &str, text: &Path) -> Result<Claimed, Failure> {
        let index = self.route(name)?.model;
        let model = &self.config.models[index];
        let Probed { plugin, architecture, .. } = self.prober.probe(index, model, &self.plugins.catalogue()).await?;
        let open = self.config.unfenced.contains(&plugin.manifest.id);
        let (source, spec, plugin) = (model.source.clone(), model.spec.clone(), plugin.copy.path().to_path_buf());
        let policy = fence::measurement(&plugin, &source, text, &spec.device, open)?;
        Ok(Claimed { plugin, architecture, source, spec, policy, memory_bytes: self.config.memory_bytes })
    }

    /// Runs a job on a model. Its id is given here; a job without an adapter gets the target's. What goes wrong later is the
    /// stream's last event.
    pub fn submit(&self, target: &Target, job: Job) -> Result<EventStream, Failure> {
        self.queue(target.index, target.adapter.clone(), job)
    }

    /// Runs a job on the model that this name stands for, of which nothing needs to be known.
    pub fn submit_to(&self, name: &str, job: Job) -> Result<EventStream, Failure> {
        let Route { model, adapter, .. } = self.route(name)?;
        self.queue(model, adapter, job)
    }

    fn queue(&self, model: usize, adapter: Option<AdapterUse>, mut job: Job) -> Result<EventStream, Failure> {
        job.id = self.next_job.fetch_add(1, Ordering::Relaxed);
        let field = if job.adapter.is_some() { "pensieve.adapter" } else { "model" };
        job.adapter = job.adapter.or(adapter);
        if let Some(wish) = &job.adapter {
            let names = &self.registry.all()[model];
            if names.get(&wish.name).is_none_or(|adapter| adapter.merged.is_some()) {
                return Err(adapter_registry::unknown(&self.config.models[model].id, names, &wish.name).at(field));
            }
        }
        let (updates, received) = streams::queue(self.queued_bytes.clone());
        let busy = awake::Busy::begin(&self.busy);
        let messages = self.messages.clone();
        let stream = EventStream { job: job.id, updates: received, messages, ended: false, _busy: busy };
        let message = Message::Submit { model, job, updates };
        if self.closing.load(Ordering::Relaxed) || self.messages.send(message).is_err() {
            return Err(ended());
        }
        Ok(stream)
    }

    /// Attaches an adapter from this source to a model, which is loaded if need be. Requests may name it from then on. `model`
    /// is an id, not an alias.
    pub async fn attach(&self, model: &str, name: &str, source: &str) -> Result<AdapterState, AdapterFailure> {
        let index = self.index(model).map_err(|failure| Culprit::Model.of(failure))?;
        let bytes_max = wire::adapter_file_bytes_max(self.config.models[index].spec.adapter_memory);
        let settled = self.config.sources.settle(source, bytes_max).await;
        let location = settled.map_err(|failure| Culprit::Source.of(failure))?;
        let adapter = Adapter { location, source: source.to_owned(), merged: None };
        let (reply, answer) = oneshot::channel();
        let message = Message::Attach { model: index, name: name.to_owned(), adapter, reply };
        let ended = || Culprit::Other.of(ended());
        self.messages.send(message).map_err(|_| ended())?;
        let attached = answer.await.unwrap_or_else(|_| Err(ended()))?.ok_or_else(ended)?;
        let known = wire::AdapterStats {
            name: name.to_owned(),
            format: attached.format,
            pairs: attached.pairs,
            bytes: attached.bytes,
            loaded: true,
            jobs: 0,
        };
        let (name, source) = (name.to_owned(), source.to_owned());
        Ok(AdapterState { name, source, known: Some(known), ..AdapterState::default() })
    }

    /// Detaches an adapter: no further request may name it, and running ones go on to their end.
    pub async fn detach(&self, model: &str, name: &str) -> Result<(), AdapterFailure> {
        let index = self.index(model).map_err(|failure| Culprit::Model.of(failure))?;
        let (reply, answer) = oneshot::channel();
        let message = Message::Detach { model: index, name: name.to_owned(), reply };
        let ended = || Culprit::Other.of(ended());
        self.messages.send(message).map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended())).map(drop)
    }

    /// The current adapters of a model. `model` is an id, not an alias.
    pub async fn adapters(&self, model: &str) -> Result<Vec<AdapterState>, Failure> {
        let index = self.index(model)?;
        let stats = self.stats(true).await;
        Ok(stats.models.into_iter().nth(index).map(|model| model.adapters).unwrap_or_default())
    }

    /// Every name of a model, except those that only match a wildcard.
    pub fn listed(&self) -> Vec<Listed> {
        self.names(|names| names.all().map(|(id, model)| Listed { id, source: model.source.clone() }).collect())
    }

    /// The model of this name, unless only the default model answers for it.
    pub fn find_listed(&self, name: &str) -> Option<Listed> {
        let route = self.names(|names| router::Names { default: None, ..names }.resolve(name)).ok()?;
        Some(Listed { id: name.to_owned(), source: self.config.models[route.model].source.clone() })
    }

    fn index(&self, id: &str) -> Result<usize, Failure> {
        self.config.models.iter().position(|model| model.id == id).ok_or_else(|| {
            if let Some(variant) = self.config.variants.iter().find(|variant| variant.id == id) {
                let message =
                    format!("'{id}' is another name for model '{}', which its adapters belong to", variant.base);
                return Failure::new(FailureCode::NotFound, message)
                    .with_help(format!("name '{}' instead", variant.base));
            }
            let known: Vec<&str> = self.config.models.iter().map(|model| model.id.as_str()).collect();
            let message = format!("there is no model '{id}' (there are: {})", known.join(", "));
            Failure::new(FailureCode::NotFound, message).with_help("adapters belong to models, so name one of them")
        })
    }

    pub fn models(&self) -> &[ModelConfig] {
        &self.config.models
    }

    pub fn variants(&self) -> &[Variant] {
        &self.config.variants
    }

    /// How much of the fence around children holds on this machine, as a child finds when it is asked for the first time.
    pub async fn fenced(&self) -> &Fenced {
        let ask = || async {
            let arguments = ["probe".into(), "fence".into()];
            let policy = fence::inspection(&self.config.program);
            let asked = child::ask(&self.config.program, &arguments, &policy, self.config.deadlines.probe).await;
            asked.unwrap_or_else(|error| Fenced { missing: vec![format!("a child {error}")], ..Fenced::default() })
        };
        self.fenced.get_or_init(ask).await
    }

    pub fn plugins(&self) -> &PluginFolder {
        &self.plugins
    }

    /// Statistics of all models; with `fresh` the workers are asked, and have a moment to answer.
    pub async fn stats(&self, fresh: bool) -> FleetStats {
        let (reply, answer) = oneshot::channel();
        // After shutdown there is no control loop, and the answer is empty.
        let _ = self.messages.send(Message::Stats { fresh, reply });
        answer.await.unwrap_or_default()
    }

    pub fn release(&self, name: &str) -> Result<(), Failure> {
        let model = self.route(name)?.model;
        let _ = self.messages.send(Message::Release { model });
        Ok(())
    }

    /// Accepts no more jobs, lets running ones finish for as long as `drain`, and ends all workers.
    pub async fn shutdown(&self, drain: Duration) {
        self.closing.store(true, Ordering::Relaxed);
        let (reply, over) = oneshot::channel();
        let _ = self.messages.send(Message::Shutdown { drain, reply });
        // No answer means that it is over already.
        let _ = over.await;
    }

    fn route(&self, name: &str) -> Result<Route, Failure> {
        self.names(|names| names.resolve(name))
    }

    fn names<T>(&self, of: impl FnOnce(router::Names<'_>) -> T) -> T {
        let Config { models, variants, default_model, .. } = &*self.config;
        let registry = self.registry.all();
        of(router::Names { models, variants, adapters: &registry, default: default_model.as_deref() })
    }
}

fn ended() -> Failure {
    Failure::new(FailureCode::Draining, "the server is about to end")
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.control.abort();
    }
}
