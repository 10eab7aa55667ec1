//! Which models a client's key may use. It is asked wherever a name becomes a model, so that no API can forget it.

use super::Chats;
use crate::chat::Client;
use pensieve_protocol::job::{Failure, FailureCode};

impl Chats {
    /// Checks that a client's key may use the model of this name. One that it may not use looks like one that does not exist.
    pub(crate) fn permit(&self, client: &Client, name: &str) -> Result<(), Failure> {
        let Some(account) = client.account.as_ref().filter(|account| !account.may_use_all()) else { return Ok(()) };
        let ids = self.fleet.ids_of(name).unwrap_or_default();
        if ids.iter().any(|id| account.may_use(id)) {
            return Ok(());
        }
        let message = format!("the key '{}' may not use a model '{name}'", account.name());
        let help = "GET /v1/models lists those that it may use";
        Err(Failure::new(FailureCode::Forbidden, message).at("model").with_help(help))
    }
}
