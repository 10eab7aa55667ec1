//! Requests about which models are in memory.

use pensieve_protocol::{
    card::Card,
    job::{Event, Failure, Job, RowWish},
};

use super::{Fleet, KeepAlive, ModelState, Target, Update, control::Message, pins, stream::EventStream};

impl Fleet {
    pub fn release(&self, name: &str) -> Result<(), Failure> {
        let model = self.route(name)?.model;
        let _ = self.messages.send(Message::Release { model });
        Ok(())
    }

    /// Sets how long a model stays loaded after its answers; `None` for the configured time. For a request that sets it,
    /// after the request was submitted: a model that shall not stay goes at once if it is idle.
    pub fn keep_alive(&self, name: &str, keep: Option<KeepAlive>) -> Result<(), Failure> {
        let model = self.route(name)?.model;
        let _ = self.messages.send(Message::KeepAlive { model, keep });
        Ok(())
    }

    /// Waits until a model is loaded, and returns why if it cannot be.
    pub async fn load(&self, target: &Target) -> Result<(), Failure> {
        let stats = self.stats(false).await;
        if stats.models.iter().any(|model| model.id == target.id && model.state == ModelState::Ready) {
            return Ok(());
        }
        // A job loads its model and says what fails. This one is over as soon as it could begin.
        let mut stream: EventStream = self.submit(target, shortest(&target.card))?;
        while let Some(update) = stream.next().await {
            match update {
                Update::Loading { .. } => {}
                Update::Event(Event::Failed(failure)) => return Err(failure),
                Update::Event(_) => break,
            }
        }
        Ok(())
    }

    /// True for a model that stays in memory until it is unpinned.
    pub async fn is_pinned(&self, id: &str) -> Result<bool, Failure> {
        let model = self.named(id)?;
        let id = self.config().models[model].id.clone();
        Ok(self.stats(false).await.models.iter().any(|model| model.id == id && model.pinned))
    }

    /// Loads a model and keeps it: it is neither evicted nor unloaded because it is idle, until it is unpinned or unloaded.
    /// That stays so after a restart.
    pub fn pin(&self, id: &str, pin: bool) -> Result<(), Failure> {
        let model = self.named(id)?;
        if pin {
            self.config().models[model].check_is_here()?;
        }
        let _ = self.messages.send(Message::Pin { model, pin });
        self.remember_pin(model, pin);
        Ok(())
    }

    /// Unloads a model as soon as its running answers have ended. Waiting requests, and later ones, load it again.
    pub fn unload(&self, id: &str) -> Result<(), Failure> {
        let model = self.named(id)?;
        let _ = self.messages.send(Message::Unload { model });
        self.remember_pin(model, false);
        Ok(())
    }

    /// Pins the models that an earlier server had pinned.
    pub(super) fn pin_again(&self) {
        let config = self.config();
        let pinned = pins::read(&config.pins).unwrap_or_else(|error| {
            tracing::warn!("the models that were pinned before are not known: {error}");
            Vec::new()
        });
        for id in pinned {
            if let Some(model) = config.models.iter().position(|model| model.id == id && model.upstream.is_none()) {
                let _ = self.messages.send(Message::Pin { model, pin: true });
            }
        }
    }

    fn remember_pin(&self, model: usize, pin: bool) {
        let config = self.config();
        let id = &config.models[model].id;
        if let Err(error) = pins::remember(&config.pins, id, pin) {
            tracing::warn!(model = id, "whether it is pinned is not known after a restart: {error}");
        }
    }
}

/// The shortest job that a model accepts: of one token, or for a row if it writes no text.
fn shortest(card: &Card) -> Job {
    let Some(rows) = card.rows().filter(|rows| !rows.generates) else {
        return Job { tokens: vec![card.bos.unwrap_or_default()], max_tokens: 1, ..Job::default() };
    };
    let mut tokens = [&rows.open[..], &rows.between, &rows.close].concat();
    if tokens.is_empty() {
        tokens.push(card.bos.unwrap_or_default());
    }
    Job { tokens, row: Some(RowWish { width: rows.dimensions }), ..Job::default() }
}
