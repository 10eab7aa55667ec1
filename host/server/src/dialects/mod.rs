//! The client APIs. A dialect converts a request body to a [`crate::chat::Request`] and the answer's deltas to its own
//! JSON and events. Only dialects know that JSON, and they know nothing about connections: `http` passes in the body,
//! sends what they return, and asks them to format an [`ApiError`].

pub(crate) mod anthropic;
pub(crate) mod gemini;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod responses;

pub(crate) mod adapters;
pub(crate) mod catalog;
pub(crate) mod embeddings;
pub(crate) mod execute;
pub(crate) mod residency;
pub(crate) mod token_stream;
pub(crate) mod usage;

mod choices;
mod compaction;
mod custom_tools;
mod documents;
mod error;
mod extensions;
mod fields;
mod frame;
#[cfg(test)]
mod fuzz;
mod gbnf;
mod guided;
mod images;
mod memory;
mod orphans;
mod shape;
mod simple;
mod stream;
mod validation;

pub(crate) use crate::ids::fresh_id;
pub use error::{ApiError, ErrorCode};
pub use frame::Frame;
pub(crate) use memory::{RequestMemory, counted, exhausted};

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::Semaphore;

use crate::{
    chat::Client,
    keys::{Keyring, Ledger, Running},
    requests::{Chats, ImageLimits, Prepared},
    shares::{Share, Shares},
};
use fields::{Document, Field, ImageIntake, Notes};
use pensieve_protocol::share::ONLY_CLIENT;
use responses::{Background, ResponseStore};
use usage::UsageBoard;

/// The API of a request, which decides the form of errors. It follows from the path and the headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    Anthropic,
    /// OpenAI's chat completions and completions, and all paths of no other API.
    #[default]
    OpenAi,
    /// OpenAI's Responses API: errors have the same form, but some codes differ.
    Responses,
    Ollama,
    Gemini,
}

/// Headers by which an API's clients are recognized where several APIs share a path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Signs {
    /// `x-api-key` or `anthropic-version`.
    pub(crate) anthropic: bool,
    /// `x-goog-api-key`.
    pub(crate) google: bool,
}

impl Dialect {
    /// The dialect of a path. For `/v1/models`, which several APIs have, and for unknown paths the headers decide.
    pub(crate) fn of(path: &str, signs: Signs) -> Self {
        let is_below =
            |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_below("/api") {
            Self::Ollama
        } else if is_below(gemini::ROOT) {
            Self::Gemini
        } else if is_below("/v1/responses") {
            Self::Responses
        } else if is_below("/v1/messages") || matches!(path, "/execute" | "/token_stream") {
            Self::Anthropic
        } else if is_below("/v1/chat") || is_below("/v1/completions") {
            Self::OpenAi
        } else if signs.google {
            Self::Gemini
        } else if signs.anthropic {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    /// Its name in the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::Responses => "responses",
            Self::Ollama => "ollama",
            Self::Gemini => "gemini",
        }
    }

    pub(crate) fn error(self, error: &ApiError, request_id: &str) -> (u16, Vec<u8>) {
        let error = &error.clipped();
        match self {
            Self::Anthropic => anthropic::envelope(error, request_id),
            Self::OpenAi => openai::envelope(error, request_id),
            Self::Responses => responses::envelope(error, request_id),
            Self::Ollama => ollama::envelope(error),
            Self::Gemini => gemini::envelope(error),
        }
    }
}

/// Limits the number of concurrent streams; the default is unlimited.
#[derive(Clone, Debug, Default)]
pub struct StreamLimit {
    permits: Option<(Shares, usize)>,
}

/// Permission to stream one answer, until it is dropped.
#[derive(Debug, Default)]
pub struct StreamPermit {
    _permit: Option<Share>,
}

impl StreamLimit {
    pub fn new(count: usize) -> Self {
        Self { permits: Some((Shares::new(count), count)) }
    }

    fn take(&self, client: u64) -> Result<StreamPermit, ApiError> {
        let Some((permits, count)) = &self.permits else { return Ok(StreamPermit::default()) };
        let taken = permits.take(client, 1).ok_or_else(|| {
            let message = format!(
                "this client's share of the {count} answers that are streamed at once is taken; try again later"
            );
            ApiError::new(ErrorCode::Overloaded, message)
        })?;
        Ok(StreamPermit { _permit: Some(taken) })
    }
}

/// Default limit of an answer's tokens: more than any client was seen to need in one turn, and an end for a model that
/// does not stop by itself.
const MAX_TOKENS_USUAL: u32 = 32_768;

/// Settings for all dialects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialectSettings {
    /// Rejects images and documents. Otherwise they are replaced by a note in the prompt.
    pub reject_attachments: bool,
    /// Default limit of an answer's tokens; `None` for as many as fit the context.
    pub max_tokens: Option<u32>,
    /// Prefix for model ids that Claude Code's discovery would hide; empty for none.
    pub claude_prefix: String,
    pub model_downloads: bool,
    /// Limits on images of requests.
    pub images: ImageLimits,
    /// Fetches images that are named by their addresses.
    pub fetch_images: bool,
    /// Size limit of the store for `previous_response_id`; 0 turns it off.
    pub response_store_bytes: usize,
}

impl Default for DialectSettings {
    fn default() -> Self {
        Self {
            reject_attachments: false,
            max_tokens: Some(MAX_TOKENS_USUAL),
            claude_prefix: "pensieve/claude-".to_owned(),
            model_downloads: true,
            images: ImageLimits::default(),
            fetch_images: false,
            response_store_bytes: 64 << 20,
        }
    }
}

#[derive(Debug)]
pub struct Shared {
    pub(crate) settings: DialectSettings,
    pub(crate) streams: StreamLimit,
    pub(crate) responses: ResponseStore,
    pub(crate) background: Background,
    pub(crate) usage: UsageBoard,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) ledger: Arc<Ledger>,
    /// One permit, held while a model is being downloaded.
    pub(crate) download: Arc<Semaphore>,
}

impl Default for Shared {
    fn default() -> Self {
        Self::new(DialectSettings::default(), StreamLimit::default())
    }
}

impl Shared {
    pub fn new(settings: DialectSettings, streams: StreamLimit) -> Self {
        let responses = ResponseStore::new(settings.response_store_bytes);
        Self {
            settings,
            streams,
            responses,
            background: Background::default(),
            usage: UsageBoard::default(),
            keyring: Arc::default(),
            ledger: Arc::default(),
            download: Arc::new(Semaphore::new(1)),
        }
    }
}

/// An authenticated request.
#[derive(Clone, Debug, Default)]
pub struct ApiRequest {
    /// The `{id}` of the path; empty if the route has none.
    pub id: String,
    /// The `{name}` of the path; empty if the route has none.
    pub name: String,
    /// The raw query string; empty if there is none.
    pub query: String,
    /// Decides the form of the answer where several APIs share a path.
    pub(crate) dialect: Dialect,
    /// The unparsed body; may be empty.
    pub body: Bytes,
    /// Its account in the memory shared by all requests.
    pub(crate) memory: RequestMemory,
    /// `None` if the path needs no key and a wrong one was sent.
    pub client: Option<Client>,
    /// The id in headers, errors and the log.
    pub request_id: String,
    /// The `user-agent` of the client's program, short and safe to show.
    pub(crate) agent: Arc<str>,
    /// The model that answers instead of the one that was asked for, and why.
    pub(crate) handover: Arc<OnceLock<(String, &'static str)>>,
    /// Owns the responses that live no longer than the request's connection, which is a WebSocket.
    pub(crate) local: Option<u64>,
    /// Its place among the requests of its key.
    pub(crate) running: Option<Arc<Running>>,
    pub shared: Arc<Shared>,
}

impl ApiRequest {
    /// Reads the body with `reader` on a blocking thread, as a large one takes a while. Returns the warnings, too. The
    /// parsed body is charged until the last clone of this request is dropped.
    async fn read<T, R>(&self, reader: R) -> Result<(T, Vec<String>), ApiError>
    where
        T: Send + 'static,
        R: FnOnce(&Self, &Field<'_>) -> Result<T, ApiError> + Send + 'static,
    {
        let read = self.blocking(move |call| {
            let document = call.document()?;
            Ok((reader(call, &document.root())?, document.warnings()))
        });
        read.await
    }

    /// Like `read`, for a conversation. If its model reads images, they become items of the request, and those that are
    /// named by an address are fetched.
    async fn read_conversation<T, R>(&self, chats: &Chats, reader: R) -> Result<(T, Vec<String>), ApiError>
    where
        T: Send + 'static,
        R: FnOnce(&Self, &Field<'_>) -> Result<T, ApiError> + Send + 'static,
    {
        let parse = |call: &Self| {
            let document = call.document()?;
            let name = call.model_name_in(&document.root());
            Ok((document, name))
        };
        let (mut document, name) = self.blocking(parse).await?;
        if chats.reads_images(&name).await {
            document.take_images(ImageIntake::new(self.memory.clone(), self.shared.settings.images.count));
        }
        let read = self.blocking(move |call| {
            let read = reader(call, &document.root())?;
            Ok((read, document.warnings(), document.images()))
        });
        let (read, warnings, images) = read.await?;
        images::fetch(self, &images).await?;
        Ok((read, warnings))
    }

    async fn blocking<T, W>(&self, work: W) -> Result<T, ApiError>
    where
        T: Send + 'static,
        W: FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    {
        let (call, span) = (self.clone(), tracing::Span::current());
        let done = tokio::task::spawn_blocking(move || {
            let _entered = span.enter();
            work(&call)
        });
        done.await.unwrap_or_else(|_| Err(ApiError::new(ErrorCode::Internal, "this server failed to read the body")))
    }

    /// The model that a body names, as well as it can be told before the body is read.
    fn model_name_in(&self, body: &Field<'_>) -> String {
        let name = match self.dialect {
            Dialect::Gemini => return validation::model_name(self, &self.id).to_owned(),
            Dialect::Ollama if body.get("model").is_absent() => body.get("name"),
            _ => body.get("model"),
        };
        let name = name.string().unwrap_or_default();
        let name = if self.dialect == Dialect::Ollama { ollama::model_name(name) } else { name };
        validation::model_name(self, name).to_owned()
    }

    fn document(&self) -> Result<Document, ApiError> {
        let notes = Notes::new(self.shared.settings.reject_attachments);
        let document = Document::parse(self.body.clone(), self.memory.clone(), notes)?;
        tracing::debug!("the body has {}", shape::Shape(document.members()));
        Ok(document)
    }

    /// Keeps the model that takes over from the one that was asked for, for a header.
    fn note_handover(&self, prepared: Option<&Prepared>) {
        if let Some((prepared, reason)) = prepared.and_then(|prepared| Some((prepared, prepared.handover()?))) {
            // The first of several answers speaks for all.
            let _ = self.handover.set((prepared.model().to_owned(), reason.word()));
        }
    }

    fn client(&self) -> Client {
        self.client.clone().unwrap_or_default()
    }

    /// Takes a permit to stream the answer; called before any work starts.
    fn stream_permit(&self) -> Result<StreamPermit, ApiError> {
        self.shared.streams.take(self.client.as_ref().map_or(ONLY_CLIENT, |client| client.share))
    }
}

pub struct ApiResponse {
    pub status: u16,
    pub media_type: &'static str,
    /// Ignored or changed parts of the request; each becomes a `warning` header.
    pub warnings: Vec<String>,
    pub body: ApiBody,
}

pub enum ApiBody {
    Full(Frame),
    /// Frames, each written as it arrives. Dropping the stream cancels the generation.
    Stream(FrameStream, StreamPermit),
}

pub type FrameStream = Pin<Box<dyn Stream<Item = Frame> + Send>>;

impl ApiResponse {
    pub(crate) fn json(body: &serde_json::Value) -> Self {
        Self::text("application/json", body.to_string())
    }

    pub(crate) fn text(media_type: &'static str, body: impl Into<Frame>) -> Self {
        Self { status: 200, media_type, warnings: Vec::new(), body: ApiBody::Full(body.into()) }
    }

    pub(crate) fn events(frames: FrameStream, permit: StreamPermit) -> Self {
        Self::stream("text/event-stream", frames, permit)
    }

    pub(crate) fn stream(media_type: &'static str, frames: FrameStream, permit: StreamPermit) -> Self {
        Self { status: 200, media_type, warnings: Vec::new(), body: ApiBody::Stream(frames, permit) }
    }

    pub(crate) fn with_warnings(self, warnings: Vec<String>) -> Self {
        Self { warnings, ..self }
    }
}
