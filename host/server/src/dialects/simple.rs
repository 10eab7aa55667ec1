//! What the two small dialects share: the fields that they read alike, and an answer's way from its request to its end.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{
    ApiError, ApiRequest, ApiResponse, Dialect, extensions,
    fields::{Field, document},
    validation,
};
use crate::{
    chat::{Delta, Input, Request, SamplingParams},
    prompt::{Chats, Generation},
};

/// How many tokens are generated unless the client says so.
const TOKENS_USUAL: u32 = 512;
const MODEL_BYTES_MAX: usize = 256;
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = pensieve_protocol::job::STOP_BYTES_MAX;
/// How long an answer waits for its first word, before its status is sent.
const FIRST_WORD: Duration = Duration::from_millis(100);
/// After so much silence a stream may want to say that it is alive.
const SILENCE: Duration = Duration::from_secs(5);

/// A generation at work.
pub(super) struct Running {
    pub(super) model: String,
    pub(super) input_tokens: u32,
    pub(super) stops: Vec<String>,
    generation: Generation,
}

/// What is heard of a generation.
pub(super) enum News {
    /// More of it.
    Delta(Delta),
    /// Nothing for a while.
    Silence,
}

impl Running {
    /// Reads a body, in which `input` finds what the model continues, and queues what it asks for.
    pub(super) async fn start(
        chats: &Chats,
        call: &ApiRequest,
        input: impl FnOnce(&Field<'_>) -> Result<Input, ApiError>,
    ) -> Result<Self, ApiError> {
        let body = document(&call.body)?;
        let body = Field::root(&body);
        let mut request = Request { client: call.client.clone(), input: input(&body)?, ..options(&body)? };
        if request.model.is_empty() {
            request.model = chats.fleet().models().first().map(|model| model.id.clone()).unwrap_or_default();
        }
        extensions::read(&body, &mut request)?;
        validation::check(chats, &request).await?;
        let (model, stops) = (request.model.clone(), request.stops.clone());
        let prepared = chats.prepare(request).await?;
        let input_tokens = prepared.input_tokens();
        let mut generation = prepared.start()?;
        generation.listen(Instant::now() + FIRST_WORD).await?;
        Ok(Self { model, input_tokens, stops, generation })
    }

    /// The next news; none after the end.
    pub(super) async fn next(&mut self) -> Option<News> {
        match timeout(SILENCE, self.generation.next()).await {
            Ok(delta) => delta.map(News::Delta),
            Err(_) => Some(News::Silence),
        }
    }
}

/// Says what is wrong in an envelope of its own.
pub(super) fn refused(problem: &ApiError, request_id: &str) -> ApiResponse {
    let (status, body) = Dialect::Anthropic.envelope(problem, request_id);
    ApiResponse::Full { status, media_type: "application/json", body }
}

fn options(body: &Field<'_>) -> Result<Request, ApiError> {
    let model = body.get("model").present().map(|field| field.text(MODEL_BYTES_MAX)).transpose()?;
    let max_tokens = body.get("max_tokens").present().map(|field| field.count(1)).transpose()?;
    let number = |name: &str, range| body.get(name).present().map(|field| field.number(range)).transpose();
    let sampling = SamplingParams {
        temperature: number("temperature", 0.0..=2.0)?,
        top_p: number("top_p", 0.0..=1.0)?,
        top_k: body.get("top_k").present().map(|field| field.count(0)).transpose()?,
        repetition_penalty: number("repetition_penalty", 0.01..=100.0)?,
        seed: body.get("seed").present().map(extensions::seed).transpose()?,
        ..SamplingParams::default()
    };
    Ok(Request {
        model: model.unwrap_or_default().to_owned(),
        max_tokens: Some(max_tokens.unwrap_or(TOKENS_USUAL)),
        sampling,
        stops: stops(&body.get("stop"))?,
        ..Request::default()
    })
}

/// A text, or a list of texts.
fn stops(field: &Field<'_>) -> Result<Vec<String>, ApiError> {
    if field.is_absent() {
        return Ok(Vec::new());
    }
    let text = |field: Field<'_>| field.text(STOP_BYTES_MAX).map(str::to_owned);
    if field.is_string() { Ok(vec![text(field.clone())?]) } else { field.items(STOPS_MAX)?.map(text).collect() }
}
