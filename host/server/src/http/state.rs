//! State shared by routes, and the context of a request before its body is read.

use std::sync::Arc;

use bytes::Bytes;

use super::{Limits, Settings, connections::ConnectionHandle, metrics::Recorder, readers::Readers, router::PathParams};
use crate::{
    chat::Client,
    dialects::{ApiError, ApiRequest, Dialect, ErrorCode, RequestMemory, Shared, StreamLimit},
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
    pub(super) client: Option<Client>,
    pub(super) request_id: String,
    pub(super) dialect: Dialect,
    pub(super) params: PathParams,
    pub(super) query: String,
    pub(super) connection: ConnectionHandle,
    /// The `user-agent` of the client's program.
    pub(super) agent: Arc<str>,
}

impl RequestContext {
    /// The client whose share of requests and memory it uses.
    pub(super) fn share(&self) -> u64 {
        self.client.as_ref().map_or(ONLY_CLIENT, |client| client.share)
    }

    pub(super) fn into_request(self, body: Bytes, memory: RequestMemory, app: &AppState) -> ApiRequest {
        let Self { client, request_id, dialect, params: PathParams { id, name }, query, agent, connection: _ } = self;
        let shared = app.shared.clone();
        let handover = Arc::default();
        let local = None;
        ApiRequest { id, name, query, dialect, body, memory, client, request_id, agent, handover, local, shared }
    }
}

impl AppState {
    pub(super) fn new(chats: Arc<Chats>, settings: &Settings) -> Arc<Self> {
        let limits = settings.limits;
        let shared = Shared::new(settings.dialects.clone(), StreamLimit::new(limits.streams_max));
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

    pub(super) fn admit(&self, client: u64) -> Result<Share, ApiError> {
        self.requests.take(client, 1).ok_or_else(|| {
            let max = self.limits.requests_max;
            let message = format!("this client's share of the {max} requests at hand is taken; try again later");
            ApiError::new(ErrorCode::Overloaded, message)
        })
    }
}
