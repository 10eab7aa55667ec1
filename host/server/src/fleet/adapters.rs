//! Adapters that come and go while the fleet runs.

use tokio::sync::oneshot;

use super::{Adapter, AdapterFailure, AdapterState, Culprit, Fleet, control::Message, ended};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    wire,
};

impl Fleet {
    /// Attaches an adapter from this source to a model, which is loaded if need be. Requests may name it from then on. `model`
    /// is an id, not an alias.
    pub async fn attach(&self, model: &str, name: &str, source: &str) -> Result<AdapterState, AdapterFailure> {
        let index = self.index(model).map_err(|failure| Culprit::Model.of(failure))?;
        let config = self.config();
        let bytes_max = wire::adapter_file_bytes_max(config.models[index].spec.adapter_memory);
        let settled = config.sources.settle(source, bytes_max).await;
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
        self.index(model)?;
        let stats = self.stats(true).await;
        let found = stats.models.into_iter().find(|stats| stats.id == model);
        Ok(found.map(|model| model.adapters).unwrap_or_default())
    }

    fn index(&self, id: &str) -> Result<usize, Failure> {
        let config = self.config();
        config.models.iter().position(|model| model.id == id && !model.removed).ok_or_else(|| {
            if let Some(variant) = config.variants.iter().find(|variant| variant.id == id) {
                let message =
                    format!("'{id}' is another name for model '{}', which its adapters belong to", variant.base);
                return Failure::new(FailureCode::NotFound, message)
                    .with_help(format!("name '{}' instead", variant.base));
            }
            let present = config.models.iter().filter(|model| !model.removed);
            let known: Vec<&str> = present.map(|model| model.id.as_str()).collect();
            let message = format!("there is no model '{id}' (there are: {})", known.join(", "));
            Failure::new(FailureCode::NotFound, message).with_help("adapters belong to models, so name one of them")
        })
    }
}
