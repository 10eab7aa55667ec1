//! Shared by the two small dialects: common fields, and the start of a generation.

use tokio::time::Instant;

use super::{
    ApiError, ApiRequest, extensions,
    fields::Field,
    stream::{FIRST_EVENT, Generations},
    validation,
};
use crate::{
    chat::{Input, Request, SamplingParams},
    requests::Chats,
};

/// Default of `max_tokens`.
const TOKENS_USUAL: u32 = 512;
const MODEL_BYTES_MAX: usize = 256;
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = pensieve_protocol::job::STOP_BYTES_MAX;

pub(super) struct Running {
    pub(super) model: String,
    pub(super) input_tokens: u32,
    pub(super) stops: Vec<String>,
    pub(super) generations: Generations,
}

/// Reads a body, with `input` extracting the prompt, and queues the generation.
pub(super) async fn start(
    chats: &Chats,
    call: &ApiRequest,
    input: impl FnOnce(&Field<'_>) -> Result<Input, ApiError> + Send + 'static,
) -> Result<Running, ApiError> {
    let read = call.read(move |call, body| {
        let mut request = Request { client: call.client(), input: input(body)?, ..options(body)? };
        extensions::read(body, &mut request)?;
        Ok(request)
    });
    let (mut request, _) = read.await?;
    if request.model.is_empty() {
        request.model = chats.fleet().models().first().map(|model| model.id.clone()).unwrap_or_default();
    }
    validation::check(chats, &request)?;
    let (model, stops) = (request.model.clone(), request.stops.clone());
    let prepared = chats.prepare(request).await?;
    let input_tokens = prepared.input_tokens();
    let generations = Generations::start(call, vec![prepared], Instant::now() + FIRST_EVENT).await?;
    Ok(Running { model, input_tokens, stops, generations })
}

fn options(body: &Field<'_>) -> Result<Request, ApiError> {
    let model = body.get("model").optional(|field| field.text(MODEL_BYTES_MAX))?;
    let max_tokens = body.get("max_tokens").optional(|field| field.count(1))?;
    let number = |name: &str, range| body.get(name).optional(|field| field.number(range));
    let sampling = SamplingParams {
        temperature: number("temperature", 0.0..=2.0)?,
        top_p: number("top_p", 0.0..=1.0)?,
        top_k: body.get("top_k").optional(|field| field.count(0))?,
        repetition_penalty: number("repetition_penalty", 0.01..=100.0)?,
        seed: body.get("seed").optional(extensions::seed)?,
        ..SamplingParams::default()
    };
    Ok(Request {
        model: model.unwrap_or_default().to_owned(),
        max_tokens: Some(max_tokens.unwrap_or(TOKENS_USUAL)),
        sampling,
        stops: body.get("stop").texts(STOPS_MAX, STOP_BYTES_MAX)?,
        ..Request::default()
    })
}
