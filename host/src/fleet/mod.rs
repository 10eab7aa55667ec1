//! The fleet: which models there are, which worker process serves each, and the plugins that workers load.
//!
//! This is the server's half of the process boundary. It knows plugins by what children say of them and models by their
//! cards, and it never maps a plugin nor opens a model's file; whatever goes wrong in foreign code ends a process that is
//! not this one.

pub(crate) mod child;
mod config;
mod crew;
mod deaths;
mod hand;
mod life;
mod memory;
mod model;
mod names;
pub mod plugins;
mod probe;
mod refusal;
mod stats;
mod stream;
mod worker;

pub use config::{Config, Deadlines, ModelConfig, Restart, Variant};
pub use refusal::Refusal;
pub(crate) use refusal::clean;
pub use stats::{FleetStats, ModelState, ModelStats};
pub use stream::{EventStream, Update};

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{
        mpsc::{UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::JoinHandle,
};

use crate::{
    card::Card,
    job::{Failure, FailureCode, Job, StageSpec},
};
use crew::{Crew, Order};
use model::Model;
use plugins::PluginFolder;
use probe::Prober;

/// The models of a server. Dropping it ends every worker.
#[derive(Debug)]
pub struct Fleet {
    config: Arc<Config>,
    plugins: PluginFolder,
    prober: Prober,
    orders: UnboundedSender<Order>,
    next_job: AtomicU64,
    closing: AtomicBool,
    crew: JoinHandle<()>,
}

/// What is known of a model that may not be loaded.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its id.
    pub id: String,
    /// Its card.
    pub card: Arc<Card>,
    /// The longest sequence, in tokens: of its card, its configuration, and what its memory holds.
    pub context: u32,
    /// How tokens are picked, whatever a client's fields say; none to do as they say.
    pub samplers: Option<Vec<StageSpec>>,
}

impl Fleet {
    /// Opens the plugin folders and waits for requests; no model is loaded before it is asked for.
    pub async fn start(config: Config) -> Result<Self, Refusal> {
        let plugins = PluginFolder::open(config.plugins.clone()).await?;
        let prober = Prober {
            program: config.plugins.program.clone(),
            cache: config.cards.clone(),
            deadline: config.deadlines.probe,
            recent: Arc::default(),
        };
        let config = Arc::new(config);
        let (orders, received) = unbounded_channel();
        let crew = Crew {
            config: config.clone(),
            prober: prober.clone(),
            catalogue: plugins.subscribe(),
            orders: orders.downgrade(),
            models: config.models.iter().map(|_| Model::default()).collect(),
            hands: HashMap::new(),
            next_serial: 0,
            uses: 0,
            asked: None,
            closing: None,
        };
        let crew = tokio::spawn(crew.run(received));
        Ok(Self { config, plugins, prober, orders, next_job: AtomicU64::new(1), closing: AtomicBool::new(false), crew })
    }

    /// Runs a job on the model that this name stands for. Its id is given here; an adapter in the name is the job's
    /// adapter. What goes wrong later is the stream's last event.
    pub fn submit(&self, name: &str, mut job: Job) -> Result<EventStream, Failure> {
        let meant = self.resolve(name)?;
        job.id = self.next_job.fetch_add(1, Ordering::Relaxed);
        if meant.adapter.is_some() {
            job.adapter = meant.adapter;
        }
        let (updates, received) = unbounded_channel();
        let stream = EventStream { job: job.id, updates: received, orders: self.orders.clone(), ended: false };
        let order = Order::Submit { model: meant.model, job, updates };
        if self.closing.load(Ordering::Relaxed) || self.orders.send(order).is_err() {
            return Err(Failure::new(FailureCode::Draining, "the server is about to end"));
        }
        Ok(stream)
    }

    /// The card of the model that this name stands for, whether it is loaded or not.
    pub async fn card(&self, name: &str) -> Result<Arc<Card>, Failure> {
        let model = &self.config.models[self.resolve(name)?.model];
        let catalogue = self.plugins.catalogue();
        Ok(self.prober.probe(&model.source, &model.options, &catalogue).await?.card)
    }

    /// What is known of the model that this name stands for, whether it is loaded or not.
    pub async fn known(&self, name: &str) -> Result<Known, Failure> {
        let model = &self.config.models[self.resolve(name)?.model];
        let card = self.prober.probe(&model.source, &model.options, &self.plugins.catalogue()).await?.card;
        let context = memory::context(self.config.memory_bytes, model, &card);
        let samplers = self.samplers(name)?.map(<[StageSpec]>::to_vec);
        Ok(Known { id: model.id.clone(), card, context, samplers })
    }

    /// The models as they were configured.
    pub fn models(&self) -> &[ModelConfig] {
        &self.config.models
    }

    /// Other names for them, as they were configured.
    pub fn variants(&self) -> &[Variant] {
        &self.config.variants
    }

    /// How tokens are picked for this name, if that is settled, whatever a client's fields say.
    pub fn samplers(&self, name: &str) -> Result<Option<&[StageSpec]>, Failure> {
        let meant = self.resolve(name)?;
        let own = meant.variant.and_then(|variant| self.config.variants[variant].samplers.as_deref());
        Ok(own.or(self.config.models[meant.model].samplers.as_deref()))
    }

    /// The plugin folders.
    pub fn plugins(&self) -> &PluginFolder {
        &self.plugins
    }

    /// What every model does; `fresh` asks the workers, and waits a moment for their answers.
    pub async fn stats(&self, fresh: bool) -> FleetStats {
        let (reply, answer) = oneshot::channel();
        // A fleet that has ended has nothing to tell.
        let _ = self.orders.send(Order::Stats { fresh, reply });
        answer.await.unwrap_or_default()
    }

    /// Ends a model's quarantine.
    pub fn release(&self, name: &str) -> Result<(), Failure> {
        let model = self.resolve(name)?.model;
        let _ = self.orders.send(Order::Release { model });
        Ok(())
    }

    /// Takes no more jobs, lets those at hand finish for as long as `drain`, and ends all workers.
    pub async fn shutdown(&self, drain: Duration) {
        self.closing.store(true, Ordering::Relaxed);
        let (reply, over) = oneshot::channel();
        let _ = self.orders.send(Order::Shutdown { drain, reply });
        // No answer means that it is over already.
        let _ = over.await;
    }

    fn resolve(&self, name: &str) -> Result<names::Meant, Failure> {
        let Config { models, variants, default_model, .. } = &*self.config;
        names::Names { models, variants, default: default_model.as_deref() }.resolve(name)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.crew.abort();
    }
}
