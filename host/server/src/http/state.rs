//! What routes share, and what is known of a request before its body is read.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Limits, Settings, body::BodyBudget, metrics::Recorder, router::PathParams};
use crate::{
    chat::Client,
    dialects::{ApiError, ApiRequest, Dialect, ErrorCode, Shared, StreamLimit},
    prompt::Chats,
};

/// What routes share.
pub(super) struct AppState {
    pub(super) chats: Arc<Chats>,
    pub(super) recorder: Recorder,
    limits: Limits,
    requests: Arc<Semaphore>,
    shared: Arc<Shared>,
    pub(super) memory: BodyBudget,
}

/// What is known of a request before its body is read; an extension of the request.
#[derive(Clone, Debug)]
pub(super) struct RequestContext {
    pub(super) client: Option<Client>,
    pub(super) request_id: String,
    pub(super) dialect: Dialect,
    pub(super) params: PathParams,
}

impl RequestContext {
    /// The request as dialects see it.
    pub(super) fn into_request(self, body: Vec<u8>, app: &AppState) -> ApiRequest {
        let Self { client, request_id, dialect, params: PathParams { id, name } } = self;
        ApiRequest { id, name, dialect, body, client, request_id, shared: app.shared.clone() }
    }
}

impl AppState {
    pub(super) fn new(chats: Arc<Chats>, settings: &Settings) -> Arc<Self> {
        let limits = settings.limits;
        let shared = Shared::new(settings.dialects.clone(), StreamLimit::new(limits.streams_max));
        let requests = Arc::new(Semaphore::new(limits.requests_max));
        let (recorder, memory) = (Recorder::install(), BodyBudget::new(&limits));
        Arc::new(Self { chats, recorder, limits, requests, shared: Arc::new(shared), memory })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A permit among the requests at hand.
    pub(super) fn admit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.requests.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{} requests are at hand already; try again later", self.limits.requests_max);
            ApiError::new(ErrorCode::Overloaded, message)
        })
    }
}
