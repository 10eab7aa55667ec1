//! The fleet: which models there are, which worker process serves each, and the plugins that workers load.
//!
//! This is the server's half of the process boundary. It knows plugins by the manifests that children report and models by
//! their cards, and it never maps a plugin nor opens a model's file: a crash in foreign code ends another process.

mod adapter_registry;
mod adapters;
mod awake;
mod backups;
pub mod child;
mod config;
mod control;
mod departures;
mod elsewhere;
pub mod fence;
pub(crate) mod footprint;
mod handover;
mod log;
mod machine;
mod memory;
mod needs;
mod pace;
pub(crate) mod patience;
mod pins;
pub mod plugins;
mod probe;
pub(crate) mod program;
mod reconfigure;
mod residency;
mod router;
mod sources;
mod space;
mod stats;
mod stderr;
mod stream;
mod streams;
mod supervisor;
mod worker;
mod worker_runtime;

pub use adapter_registry::{Adapter, AdapterFailure, Culprit, check_adapter_name};
pub use config::{AnswerSettings, Config, Deadlines, Efforts, KeepAlive, ModelConfig, Restart, Variant};
pub use departures::{Departure, DepartureReason};
pub use elsewhere::{Identity, Secret, Upstream, UpstreamKind, UpstreamUrl};
pub use footprint::footprint;
pub use handover::{Handover, HandoverReason, HandoverRules, Hours};
pub use machine::{default_budget, installed_bytes};
pub use sources::Sources;
pub use space::{free_bytes, is_full};
pub use stats::{AdapterState, FleetStats, ModelState, ModelStats, Progress};
pub use stream::EventStream;
pub use streams::Update;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
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
use departures::Departures;
use pensieve_protocol::{
    card::Card,
    fence::{Fenced, Policy},
    job::{AdapterUse, Failure, FailureCode, Job, StageSpec},
    media::{PREPARED_BYTES_MAX, prepared_bytes},
    refusal::Refusal,
    wire,
};
use plugins::{Plugin, PluginFolder};
use probe::{KeyedCard, Probed, Prober};
use router::Route;
use supervisor::Supervisor;

/// Capacity of the channel of workers' signals to the control loop; a worker that sends more waits on its socket.
const SIGNALS_MAX: usize = 64;

/// The models of a server. Dropping it ends every worker.
#[derive(Debug)]
pub struct Fleet {
    /// Replaced as a whole when the configuration changes.
    config: RwLock<Arc<Config>>,
    program: PathBuf,
    plugins: PluginFolder,
    prober: Prober,
    registry: Arc<AdapterRegistry>,
    messages: UnboundedSender<Message>,
    next_job: AtomicU64,
    /// Bytes in the queues of all streams.
    queued_bytes: Arc<AtomicUsize>,
    fenced: OnceCell<Fenced>,
    departures: Arc<Departures>,
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
    pub answers: AnswerSettings,
    pub adapter: Option<AdapterUse>,
    /// What its worker takes at a time.
    pub limits: wire::Limits,
}

impl Target {
    /// The longest text, in tokens, that one of its requests may have.
    pub fn longest(&self) -> u32 {
        let rows = self.card.rows().filter(|rows| !rows.generates);
        rows.and_then(|rows| rows.maximum).map_or(self.context, |maximum| maximum.min(self.context))
    }
}

/// A model that other servers compute, as a request's name resolves to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The model's id here.
    pub id: String,
    pub upstream: Arc<Upstream>,
}

/// Enough for a child process to measure and prepare a model's images.
#[derive(Clone, Debug)]
pub struct MediaPlugin {
    /// The plugin's library, which is there as long as this.
    pub path: PathBuf,
    pub architecture: String,
    pub policy: Policy,
    _plugin: Arc<Plugin>,
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
        &self.program
    }

    fn config(&self) -> Arc<Config> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Applies a new configuration while the fleet runs. Models that are no longer in it finish their answers, and those
    /// that load differently do so at the next request. Returns what has changed, a line each.
    pub fn reconfigure(&self, new: Config) -> Vec<String> {
        let mut config = self.config.write().unwrap_or_else(PoisonError::into_inner);
        let (next, lines) = config.followed_by(new);
        let next = Arc::new(next);
        self.registry.grow(next.models.iter().map(|model| model.adapters.clone()));
        // Before any request can be resolved with it, so that the control loop knows every model that a job names.
        let _ = self.messages.send(Message::Reconfigure { config: next.clone() });
        *config = next;
        lines
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
        let prober = Prober::new(&config);
        let config = Arc::new(config);
        let adapters = config.models.iter().map(|model| model.adapters.clone()).collect();
        let registry = Arc::new(AdapterRegistry::new(adapters));
        let (messages, received) = unbounded_channel();
        let (signals, reported) = mpsc::channel(SIGNALS_MAX);
        let supervisor = Supervisor::new(config.clone(), registry.clone(), plugins.catalogue());
        let (catalogue, sender) = (plugins.subscribe(), messages.downgrade());
        let departures = Arc::<Departures>::default();
        let control =
            Control::new(config.clone(), supervisor, prober.clone(), catalogue, sender, signals, departures.clone());
        let control = tokio::spawn(control.run(received, reported));
        let (next_job, closing) = (AtomicU64::new(1), AtomicBool::new(false));
        let (queued_bytes, fenced) = (Arc::default(), OnceCell::new());
        let busy = awake::start();
        let config = RwLock::new(config);
        let fleet = Self {
            config,
            program,
            plugins,
            prober,
            registry,
            messages,
            next_job,
            queued_bytes,
            fenced,
            departures,
            closing,
            busy,
            control,
        };
        fleet.pin_again();
        Ok(fleet)
    }

    /// The upstream of the model of this name; `None` if its workers compute it. Fails if there is no such model.
    pub fn elsewhere(&self, name: &str) -> Result<Option<Elsewhere>, Failure> {
        let config = self.config();
        let model = &config.models[self.names(&config, |names| names.resolve(name))?.model];
        let elsewhere = |upstream: &Arc<Upstream>| Elsewhere { id: model.id.clone(), upstream: upstream.clone() };
        Ok(model.upstream.as_ref().map(elsewhere))
    }

    /// The ids that a name stands for: its model's, and a variant's if it is one.
    pub fn ids_of(&self, name: &str) -> Result<Vec<String>, Failure> {
        let config = self.config();
        let route = self.names(&config, |names| names.resolve(name))?;
        let variant = route.variant.map(|variant| config.variants[variant].id.clone());
        Ok([config.models[route.model].id.clone()].into_iter().chain(variant).collect())
    }

    /// Resolves a name. Fails if there is no such model, or if it cannot be served by a worker.
    pub async fn target(&self, name: &str) -> Result<Target, Failure> {
        let config = self.config();
        let Route { model: index, variant, adapter } = self.names(&config, |names| names.resolve(name))?;
        let model = &config.models[index];
        model.check_is_here()?;
        let KeyedCard { key, card } = self.prober.card(index, model, &self.plugins.catalogue()).await?;
        let context = memory::context(config.memory_bytes, model, self.registry.has_some(index), &card);
        let own = variant.and_then(|variant| config.variants[variant].samplers.as_ref());
        let samplers = own.or(model.samplers.as_ref()).cloned();
        Ok(Target {
            index,
            id: model.id.clone(),
            card,
            card_key: key,
            context,
            samplers,
            answers: model.answers,
            adapter,
            limits: model.spec.limits.clone(),
        })
    }

    /// The architecture that takes the model of this name, and the policy of a child that runs it and reads this text.
    pub async fn claimed(&self, name: &str, text: &Path) -> Result<Claimed, Failure> {
        let config = self.config();
        let index = self.names(&config, |names| names.resolve(name))?.model;
        let model = &config.models[index];
        let Probed { plugin, architecture, options, .. } =
            self.prober.probe(index, model, &self.plugins.catalogue()).await?;
        let open = config.unfenced.contains(&plugin.manifest.id);
        let (source, plugin) = (model.source.clone(), plugin.copy.path().to_path_buf());
        let spec = wire::ModelSpec { options, ..model.spec.clone() };
        let policy = fence::measurement(&plugin, (&source, &spec), text, open)?;
        Ok(Claimed { plugin, architecture, source, spec, policy, memory_bytes: config.memory_bytes })
    }

    /// The plugin that reads the images of a model, for a child that may take this much memory.
    pub async fn media_plugin(&self, target: &Target, memory_bytes: u64) -> Result<MediaPlugin, Failure> {
        let config = self.config();
        let model =
            config.models.get(target.index).filter(|model| model.id == target.id).ok_or_else(|| {
                Failure::new(FailureCode::NotFound, format!("model '{}' is no longer served", target.id))
            })?;
        let probed = self.prober.probe(target.index, model, &self.plugins.catalogue()).await?;
        let open = config.unfenced.contains(&probed.plugin.manifest.id);
        let policy = fence::media(probed.plugin.copy.path(), memory_bytes, open);
        let path = probed.plugin.copy.path().to_path_buf();
        Ok(MediaPlugin { path, architecture: probed.architecture, policy, _plugin: probed.plugin })
    }

    /// The largest memory that a worker of this model has had, in any server with this home; `None` if there was none.
    pub async fn measured(&self, name: &str) -> Result<Option<u64>, Failure> {
        let config = self.config();
        let index = self.names(&config, |names| names.resolve(name))?.model;
        let model = &config.models[index];
        let card = self.prober.card(index, model, &self.plugins.catalogue()).await?;
        Ok(self.prober.need(model, &card).measured)
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
        let prepared = prepared_bytes(&job.media);
        if prepared > PREPARED_BYTES_MAX {
            let message =
                format!("the prompt's images take {prepared} bytes when prepared, more than {PREPARED_BYTES_MAX}");
            return Err(Failure::new(FailureCode::TooLong, message).with_help("send fewer or smaller ones"));
        }
        self.config().models[model].check_is_here()?;
        job.id = self.next_job.fetch_add(1, Ordering::Relaxed);
        let field = if job.adapter.is_some() { "pensieve.adapter" } else { "model" };
        job.adapter = job.adapter.or(adapter);
        if let Some(wish) = &job.adapter {
            let names = &self.registry.all()[model];
            if names.get(&wish.name).is_none_or(|adapter| adapter.merged.is_some()) {
                return Err(adapter_registry::unknown(&self.config().models[model].id, names, &wish.name).at(field));
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

    /// When the model's last worker went, and why.
    pub fn departure(&self, target: &Target) -> Option<Departure> {
        self.departures.of(target.index)
    }

    /// The same for all models, by their ids.
    pub fn departures(&self) -> Vec<(String, Departure)> {
        let config = self.config();
        let known = config.models.iter().enumerate();
        known.filter_map(|(index, model)| Some((model.id.clone(), self.departures.of(index)?))).collect()
    }

    /// Every name of a model, except those that only match a wildcard.
    pub fn listed(&self) -> Vec<Listed> {
        let listed = |(id, model): (String, &ModelConfig)| Listed { id, source: model.source.clone() };
        self.names(&self.config(), |names| names.all().map(listed).collect())
    }

    /// The model of this name, unless only the default model answers for it.
    pub fn find_listed(&self, name: &str) -> Option<Listed> {
        let config = self.config();
        let route = self.names(&config, |names| router::Names { default: None, ..names }.resolve(name)).ok()?;
        Some(Listed { id: name.to_owned(), source: config.models[route.model].source.clone() })
    }

    /// Whether a name is a model's, without the default for unknown names. An unknown adapter of a model is an error.
    pub fn is_named(&self, name: &str) -> Result<bool, Failure> {
        let config = self.config();
        Ok(self.names(&config, |names| names.named(name))?.is_some())
    }

    pub fn models(&self) -> Vec<ModelConfig> {
        self.config().models.iter().filter(|model| !model.removed).cloned().collect()
    }

    pub fn variants(&self) -> Vec<Variant> {
        self.config().variants.clone()
    }

    /// How much of the fence around children holds on this machine, as a child finds when it is asked for the first time.
    pub async fn fenced(&self) -> &Fenced {
        let ask = || async {
            let arguments = ["probe".into(), "fence".into()];
            let config = self.config();
            let policy = fence::inspection(&config.program);
            let asked = child::ask(&config.program, &arguments, &policy, config.deadlines.probe).await;
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

    /// Accepts no more jobs, lets running ones finish for as long as `drain`, and ends all workers.
    pub async fn shutdown(&self, drain: Duration) {
        self.closing.store(true, Ordering::Relaxed);
        let (reply, over) = oneshot::channel();
        let _ = self.messages.send(Message::Shutdown { drain, reply });
        // No answer means that it is over already.
        let _ = over.await;
    }

    /// The model of this name, for which the default model does not answer.
    fn named(&self, name: &str) -> Result<usize, Failure> {
        let resolve = |names: router::Names<'_>| router::Names { default: None, ..names }.resolve(name);
        self.names(&self.config(), resolve).map(|route| route.model)
    }

    fn route(&self, name: &str) -> Result<Route, Failure> {
        self.names(&self.config(), |names| names.resolve(name))
    }

    fn names<T>(&self, config: &Config, of: impl FnOnce(router::Names<'_>) -> T) -> T {
        let Config { models, variants, default_model, .. } = config;
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
