//! Images in requests. For a model that reads them they become items of the request, by index; for others a note stands in
//! their place. The media type that a client gives does not matter: the decoder looks at the bytes.

use std::{
    future::ready,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::{sync::Semaphore, time::timeout_at};

use super::{
    ApiError, ApiRequest, documents,
    fields::{Field, Quote},
};
use crate::{
    chat::{Image, Part, PlacedImage},
    fetch,
};

/// Limit on an image that is fetched.
const FETCHED_BYTES_MAX: usize = 20 << 20;
/// Time for all images of a request.
const FETCH_TIME_MAX: Duration = Duration::from_secs(30);
/// Number of images that are fetched at the same time, of a request and of all.
const REQUEST_FETCHES_MAX: usize = 4;
static FETCHES: Semaphore = Semaphore::const_new(16);

/// The part of a request that says which image it is.
pub(super) enum Source<'a> {
    /// A data URL, an address, or base64 without either.
    Url(&'a str),
    Base64(&'a str),
}

/// A piece of a message or of a tool's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    /// An item of the request.
    Image(u32),
}

impl From<Piece> for Part {
    fn from(piece: Piece) -> Self {
        match piece {
            Piece::Text(text) => Self::Text(text),
            Piece::Image(item) => Self::Image(item),
        }
    }
}

/// Reads the image in `field`. `source` is not read for a model that reads text only.
pub(super) fn read<'a>(
    field: &Field<'a>,
    source: impl FnOnce() -> Result<Source<'a>, ApiError>,
) -> Result<Piece, ApiError> {
    let Some(intake) = field.intake() else { return field.attachment("image").map(Piece::Text) };
    let (_, encoded) = match source()? {
        Source::Url(url) if is_address(url) => return intake.add_url(field.path(), url).map(Piece::Image),
        Source::Url(url) if has_scheme(url) => {
            return Err(field.invalid("an image's address starts with https:, http: or data:"));
        }
        Source::Base64(data) if has_scheme(data) => {
            return Err(field.invalid("an image is sent as base64 here, not by its address"));
        }
        Source::Url(data) | Source::Base64(data) => documents::data_url(data),
    };
    let bytes = encoded.decode().map_err(|why| field.invalid(format_args!("the image's data {why}")))?;
    intake.add(field.path(), bytes).map(Piece::Image)
}

/// Replacement text for an image where none can be shown, such as a system prompt.
pub(super) fn out_of_place(field: &Field<'_>) -> Result<String, ApiError> {
    if field.intake().is_none() {
        return field.attachment("image");
    }
    field.note("an image is shown in messages of the user and results of tools only; a note stands in its place");
    Ok("[an image was attached, but cannot be shown here]".to_owned())
}

/// The object that says where an image is: `{"type": "base64" | "url", …}`, as Anthropic has it.
pub(super) fn source_object<'a>(source: &Field<'a>) -> Result<Source<'a>, ApiError> {
    source.object()?;
    match source.get("type").choice(&["base64", "url", "file"])? {
        0 => source.get("data").string().map(Source::Base64),
        1 => source.get("url").string().map(Source::Url),
        _ => Err(unknown_file(&source.get("file_id"))),
    }
}

/// Error for the id of a stored file.
pub(super) fn unknown_file(id: &Field<'_>) -> ApiError {
    match id.string() {
        Ok(name) => {
            id.invalid(format_args!("there is no file '{}': this server stores none; send its data", Quote(name)))
        }
        Err(error) => error,
    }
}

/// Joins pieces with a gap between texts, and none beside an image.
pub(super) fn joined(pieces: Vec<Piece>, gap: &str) -> (String, Vec<PlacedImage>) {
    let (mut text, mut images, mut is_after_text) = (String::new(), Vec::new(), false);
    for piece in pieces {
        match piece {
            Piece::Text(next) => {
                text += if is_after_text { gap } else { "" };
                text += &next;
                is_after_text = true;
            }
            Piece::Image(item) => {
                images.push(PlacedImage { at: u32::try_from(text.len()).unwrap_or(u32::MAX), item });
                is_after_text = false;
            }
        }
    }
    (text, images)
}

/// Fetches the images that a request names by their addresses.
pub(super) async fn fetch(call: &ApiRequest, images: &[Arc<Image>]) -> Result<(), ApiError> {
    let named = images.iter().filter(|image| image.file().is_none());
    let named = named.filter_map(|image| Some((image.clone(), image.url.clone()?))).collect::<Vec<_>>();
    let (call, until) = (call.clone(), Instant::now() + FETCH_TIME_MAX);
    let fetches = stream::iter(named).map(move |(image, url)| fetch_one(call.clone(), image, url, until));
    fetches.buffer_unordered(REQUEST_FETCHES_MAX).try_for_each(|()| ready(Ok(()))).await
}

async fn fetch_one(call: ApiRequest, image: Arc<Image>, url: String, until: Instant) -> Result<(), ApiError> {
    if !call.shared.settings.fetch_images {
        let why = "this server fetches no images; send the data, or set 'fetch_images' in [server] to \"allow\"";
        return Err(ApiError::field(&image.field, why));
    }
    let failed = |why: String| ApiError::field(&image.field, format_args!("the image cannot be fetched: {why}"));
    let late = || failed(format!("the images of this request take more than {} seconds", FETCH_TIME_MAX.as_secs()));
    let permit = timeout_at(until.into(), FETCHES.acquire()).await.map_err(|_| late())?;
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(late());
    }
    // Charged before it arrives, as its length is known afterwards only.
    let room = call.memory.hold(FETCHED_BYTES_MAX)?;
    let fetched = tokio::task::spawn_blocking(move || {
        // Until the thread is done, even if the client has gone.
        let _held = (permit, room);
        fetch::get(&url, FETCHED_BYTES_MAX, left)
    });
    let fetched = fetched.await;
    let bytes = fetched.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
    image.fetched(call.memory.bytes(bytes)?);
    Ok(())
}

/// True for `file://…` and its like. Base64 has no colon.
fn has_scheme(url: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    url.split_once("://").is_some_and(|(scheme, _)| !scheme.is_empty() && scheme.bytes().all(is_letter))
}

fn is_address(url: &str) -> bool {
    let starts = |scheme: &str| url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    starts("http://") || starts("https://")
}
