//! The servers of one model as they are now: who has how many streams, who is left out, and the task that asks after those.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet, time::Instant};

use super::{
    balancer::{Balancer, Limits, Outcome, Place, Unavailable},
    client::Client,
};
use crate::fleet::{Upstream, UpstreamKind, UpstreamUrl};

/// How often servers with streams, and those left out, are looked after.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Silence of a server with streams after which it is asked whether it is well. With the next two, one that has stopped is
/// left out within a second.
const SILENCE: Duration = Duration::from_millis(350);
/// Time that it has for the answer.
const WATCH_TIMEOUT: Duration = Duration::from_millis(500);
/// Time that a server which is left out has for the answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Replicas {
    /// The model's id here, for the log.
    id: String,
    settings: Arc<Upstream>,
    pub(super) client: Client,
    balancer: Mutex<Balancer>,
    began: Instant,
    /// When each server was last heard, in milliseconds since the start.
    heard: Vec<AtomicU64>,
    /// Changes whenever a server is left out, or well again.
    changes: watch::Sender<u64>,
    is_watched: AtomicBool,
}

/// One server of a model, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamState {
    pub model: String,
    pub url: String,
    pub streams: u32,
    /// It is not left out because it fails.
    pub is_well: bool,
}

/// A request's place at one server, which is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    replicas: Arc<Replicas>,
    place: Place,
    outcome: Outcome,
}

impl Replicas {
    /// Servers that `before` has, too, are as they were there. The error is a message for the user.
    pub(super) fn new(id: &str, settings: Arc<Upstream>, before: Option<&Self>) -> Result<Self, String> {
        let names = settings.urls.iter().map(|url| url.as_str().to_owned());
        let limits = Limits {
            streams: settings.streams_max,
            requests_per_minute: settings.requests_per_minute,
            tokens_per_minute: settings.tokens_per_minute,
        };
        let mut balancer = Balancer::new(names, limits);
        if let Some(before) = before {
            balancer.go_on_from(&before.balancer());
        }
        Ok(Self {
            id: id.to_owned(),
            client: Client::new(&settings)?,
            balancer: Mutex::new(balancer),
            began: before.map_or_else(Instant::now, |before| before.began),
            heard: settings.urls.iter().map(|_| AtomicU64::new(0)).collect(),
            changes: watch::Sender::new(0),
            is_watched: AtomicBool::new(false),
            settings,
        })
    }

    pub(super) fn settings(&self) -> &Arc<Upstream> {
        &self.settings
    }

    pub(super) fn url(&self, replica: usize) -> &UpstreamUrl {
        &self.settings.urls[replica]
    }

    /// Takes a seat for a request, at none of the servers that were `tried`.
    pub(super) fn take(
        self: &Arc<Self>,
        kind: UpstreamKind,
        conversation: u64,
        tokens: u64,
        tried: &[usize],
    ) -> Result<Seat, Unavailable> {
        let place = self.balancer().choose(conversation, tokens, tried, self.now());
        if let Ok(place) = &place {
            self.hear(place.replica);
        }
        // Also if none takes it: those that are left out have to be asked.
        if !self.is_watched.swap(true, Ordering::AcqRel) {
            tokio::spawn(watch_over(Arc::downgrade(self), kind));
        }
        Ok(Seat { replicas: self.clone(), place: place?, outcome: Outcome::Unknown })
    }

    /// A server would take a request with about this many tokens now.
    pub(super) fn can_take(&self, tokens: u64) -> bool {
        self.balancer().can_take(tokens, self.now())
    }

    pub(super) fn states(&self, model: &str) -> Vec<UpstreamState> {
        let balancer = self.balancer();
        let state = |(url, streams, is_well): (&str, u32, bool)| UpstreamState {
            model: model.to_owned(),
            url: url.to_owned(),
            streams,
            is_well,
        };
        balancer.states().map(state).collect()
    }

    fn balancer(&self) -> MutexGuard<'_, Balancer> {
        self.balancer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn hear(&self, replica: usize) {
        let now = u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX);
        self.heard[replica].store(now, Ordering::Relaxed);
    }

    fn is_silent(&self, replica: usize) -> bool {
        let heard = Duration::from_millis(self.heard[replica].load(Ordering::Relaxed));
        self.now().saturating_sub(heard) >= SILENCE
    }

    fn lost(&self, replica: usize) {
        tracing::warn!(model = self.id, "upstream {} is left out until it answers again", self.url(replica));
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Notes the answer to a probe.
    pub(super) fn probed(&self, replica: usize, is_well: bool) {
        if is_well {
            self.hear(replica);
        }
        let changed = self.balancer().probed(replica, is_well, self.now());
        match (changed, is_well) {
            (false, _) => {}
            (true, true) => {
                tracing::info!(model = self.id, "upstream {} answers again", self.url(replica));
                self.changes.send_modify(|changes| *changes += 1);
            }
            (true, false) => self.lost(replica),
        }
    }

    /// Asks a server whether it is well. Returns its place.
    async fn probe(self: Arc<Self>, kind: UpstreamKind, replica: usize, time: Duration) -> usize {
        let url = self.url(replica);
        let url = match kind {
            UpstreamKind::Ollama => format!("{}/api/version", url.root()),
            UpstreamKind::OpenAi | UpstreamKind::Anthropic => format!("{url}/models"),
            _ => format!("{}/health", url.root()),
        };
        let answer = self.client.get(kind, &url, time).await;
        let is_well = answer.is_ok_and(|answer| !answer.status.is_server_error());
        self.probed(replica, is_well);
        replica
    }
}

/// Probes servers that are left out, and those that have streams and are silent, until there is nothing to watch.
async fn watch_over(replicas: Weak<Replicas>, kind: UpstreamKind) {
    // A vendor counts requests, and has its own ways to stay up.
    let is_watched = !matches!(kind, UpstreamKind::OpenAi | UpstreamKind::Anthropic);
    // One that is slow to answer does not keep the others from being asked.
    let (mut probes, mut asked) = (JoinSet::new(), HashSet::new());
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        while let Some(done) = probes.try_join_next() {
            match done {
                Ok(replica) => {
                    asked.remove(&replica);
                }
                Err(_) => asked.clear(),
            }
        }
        let Some(replicas) = replicas.upgrade() else { return };
        let due = {
            let mut balancer = replicas.balancer();
            if balancer.is_idle() {
                // Under the lock, so that a request that comes now starts the next one.
                replicas.is_watched.store(false, Ordering::Release);
                return;
            }
            balancer.due(replicas.now())
        };
        let mut due: Vec<(usize, Duration)> = due.into_iter().map(|replica| (replica, PROBE_TIMEOUT)).collect();
        // No other can take over from the only server, and it may just be busy.
        if is_watched && replicas.settings.urls.len() > 1 {
            let balancer = replicas.balancer();
            let silent = balancer.working().filter(|replica| replicas.is_silent(*replica));
            due.extend(silent.map(|replica| (replica, WATCH_TIMEOUT)));
        }
        for (replica, time) in due {
            if asked.insert(replica) {
                probes.spawn(replicas.clone().probe(kind, replica, time));
            }
        }
    }
}

impl Seat {
    pub(super) fn url(&self) -> &UpstreamUrl {
        self.replicas.url(self.place.replica)
    }

    pub(super) fn replica(&self) -> usize {
        self.place.replica
    }

    pub(super) fn client(&self) -> &Client {
        &self.replicas.client
    }

    /// Notes that the server has sent something.
    pub(super) fn hear(&self) {
        self.replicas.hear(self.place.replica);
    }

    /// Notes how the request went.
    pub(super) fn note(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Resolves when the server is left out.
    pub(super) async fn lost(&self) {
        self.until(true).await;
    }

    /// Resolves when it is not left out any more.
    pub(super) async fn found(&self) {
        self.until(false).await;
    }

    async fn until(&self, is_open: bool) {
        let mut changes = self.replicas.changes.subscribe();
        while self.replicas.balancer().is_open(self.place.replica) != is_open {
            // The sender lives as long as this.
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let now = self.replicas.now();
        let is_lost = self.replicas.balancer().ended(self.place, self.outcome, now);
        if is_lost {
            self.replicas.lost(self.place.replica);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
impl Replicas {
    /// A seat at this server, which nothing watches.
    pub(super) fn seat_of(self: &Arc<Self>, replica: usize) -> Seat {
        let others: Vec<usize> = (0..self.settings.urls.len()).filter(|place| *place != replica).collect();
        let place = self.balancer().choose(0, 0, &others, self.now()).unwrap();
        Seat { replicas: self.clone(), place, outcome: Outcome::Unknown }
    }

    /// Fails until this server is left out.
    pub(super) fn leave_out(self: &Arc<Self>, replica: usize) {
        while !self.balancer().is_open(replica) {
            self.seat_of(replica).note(Outcome::Failed);
        }
    }
}
