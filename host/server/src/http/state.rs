//! State shared by routes, and the context of a request before its body is read.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Keyring, Limits, Settings, auth::Identity, connections::ConnectionHandle, metrics::Recorder, readers::Readers,
    router::PathParams,
};
use crate::{
    chat::Client,
    dialects::{ApiError, ApiRequest, Dialect, ErrorCode, RequestMemory, Shared, StreamLimit},
    keys::{Account, Ledger, Running, until_midnight},
    requests::Chats,
    shares::{Share, Shares},
};
use pensieve_protocol::share::ONLY_CLIENT;

pub(super) struct AppState {
    pub(super) chats: Arc<Chats>,
    pub(super) recorder: Recorder,
    limits: Limits,
    requests: Shares,
    /// Memory for all requests: bodies, their parsed form, and answers that wait to be read. A body is charged as it
    /// arrives, so that a client cannot reserve memory by announcing a length.
    pub(super) memory: Shares,
    shared: Arc<Shared>,
    pub(super) readers: Readers,
}

/// Context of a request before its body is read, stored in its extensions.
#[derive(Clone, Debug)]
pub(super) struct RequestContext {
    pub(super) identity: Option<Identity>,
    pub(super) request_id: String,
    pub(super) dialect: Dialect,
    pub(super) params: PathParams,
    pub(super) query: String,
    pub(super) connection: ConnectionHandle,
    /// The `user-agent` of the client's program.
    pub(super) agent: Arc<str>,
}

/// A request's place among those at hand, all of them and its key's.
#[derive(Debug)]
pub(super) struct Admission {
    _share: Share,
    /// Shared with what goes on when the answer is written, such as a response in the background.
    pub(super) running: Option<Arc<Running>>,
}

/// Tells requests that cost tokens from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A model reads or writes tokens.
    Computes,
    Looks,
}

impl RequestContext {
    /// The client whose share of requests and memory it uses.
    pub(super) fn share(&self) -> u64 {
        self.client().map_or(ONLY_CLIENT, |client| client.share)
    }

    /// `None` without a key that is right.
    pub(super) fn client(&self) -> Option<&Client> {
        self.identity.as_ref().map(|identity| &identity.client)
    }

    /// The client, if it came with a named key.
    pub(super) fn account(&self) -> Option<&Arc<Account>> {
        self.client().and_then(|client| client.account.as_ref())
    }

    pub(super) fn into_request(
        self,
        body: Bytes,
        memory: RequestMemory,
        app: &AppState,
        running: Option<Arc<Running>>,
    ) -> ApiRequest {
        let Self { identity, request_id, dialect, params: PathParams { id, name }, query, agent, connection: _ } = self;
        let client = identity.map(|identity| identity.client);
        let shared = app.shared.clone();
        let handover = Arc::default();
        let local = None;
        ApiRequest {
            id,
            name,
            query,
            dialect,
            body,
            memory,
            client,
            request_id,
            agent,
            handover,
            local,
            running,
            shared,
        }
    }
}

impl AppState {
    pub(super) fn new(chats: Arc<Chats>, settings: &Settings, keyring: Arc<Keyring>) -> Arc<Self> {
        let limits = settings.limits;
        let ledger = Arc::new(Ledger::open(settings.ledger.as_deref()));
        let shared = Shared::new(settings.dialects.clone(), StreamLimit::new(limits.streams_max));
        let shared = Shared { keyring, ledger, ..shared };
        let (requests, memory) = (Shares::new(limits.requests_max), Shares::new(limits.bodies_bytes_max));
        let (recorder, shared, readers) = (Recorder::install(), Arc::new(shared), Readers::default());
        Arc::new(Self { chats, recorder, limits, requests, memory, shared, readers })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Tokens of the prompt of a request whose answer is being streamed, and those of them from the cache.
    pub(super) fn prompt_of(&self, request: &str) -> Option<(u32, u32)> {
        self.shared.usage.prompt_of(request)
    }

    pub(super) fn memory_of(&self, client: u64) -> RequestMemory {
        RequestMemory::new(&self.memory, client)
    }

    /// Admits a request into its client's share and within the limits of its key.
    pub(super) fn admit(&self, context: &RequestContext, work: Work) -> Result<Admission, ApiError> {
        let share = self.requests.take(context.share(), 1).ok_or_else(|| {
            let max = self.limits.requests_max;
            let message = format!("this client's share of the {max} requests at hand is taken; try again later");
            ApiError::new(ErrorCode::Overloaded, message)
        })?;
        let account = context.account().filter(|_| work == Work::Computes);
        let running = account.map(|account| self.begin(account)).transpose()?;
        Ok(Admission { _share: share, running: running.map(Arc::new) })
    }

    /// Counts a request among those of its key. One that begins while tokens are left is answered whole.
    fn begin(&self, account: &Account) -> Result<Running, ApiError> {
        let name = account.name();
        if let Some(max) = account.tokens_per_day() {
            let spent = self.shared.ledger.spent_today(name);
            if spent >= max {
                let message = format!("the key '{name}' has used {spent} tokens today, and may use {max} a day");
                return Err(ApiError {
                    help: "its next day begins at midnight in UTC; [[keys]] has its limit".to_owned(),
                    retry_after: Some(until_midnight()),
                    ..ApiError::new(ErrorCode::KeyLimit, message)
                });
            }
        }
        account.begin().map_err(|max| {
            let message = format!("the key '{name}' has {max} requests at hand, and may not have more at once");
            let help = "try again when one has ended; [[keys]] has its limit".to_owned();
            ApiError { help, ..ApiError::new(ErrorCode::KeyLimit, message) }
        })
    }
}
