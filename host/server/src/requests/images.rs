//! The images of a request on their way into a job.

use std::sync::Arc;

use crate::{
    chat::{Client, Image, Input},
    fleet::Target,
    rendering::{Depth, ImageSource, MediaPool, ReadItem},
};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    media::PromptItem,
    prompt::ItemSpan,
};

use super::Chats;

/// The images that a conversation shows, by their indices in the request.
#[derive(Clone, Debug, Default)]
pub(super) struct ShownImages {
    images: Vec<Arc<Image>>,
    /// `None` for one that the conversation does not show, or no longer.
    items: Vec<Option<Arc<ReadItem>>>,
}

impl Chats {
    /// True if this model reads images. A name that cannot be resolved reads none; the request fails for it later.
    pub(crate) async fn reads_images(&self, model: &str) -> bool {
        if let Ok(Some(elsewhere)) = self.fleet.elsewhere(model) {
            return self.upstreams.reads_images(&elsewhere).await;
        }
        let target = self.fleet.target(model).await;
        target.is_ok_and(|target| target.card.media().is_some_and(|media| media.image.is_some()))
    }

    /// Reads the images that an input shows.
    pub(super) async fn shown(
        &self,
        target: &Target,
        client: &Client,
        images: &[Arc<Image>],
        input: &Input,
        depth: Depth,
    ) -> Result<ShownImages, Failure> {
        let Input::Chat(conversation) = input else { return Ok(ShownImages::default()) };
        let mut shown: Vec<usize> = conversation.items().map(|item| item as usize).collect();
        if shown.is_empty() {
            return Ok(ShownImages::default());
        }
        shown.sort_unstable();
        shown.dedup();
        let mut sources = Vec::with_capacity(shown.len());
        for index in &shown {
            let image = images.get(*index).ok_or_else(|| lost("is not part of the request"))?;
            let file = image.file().ok_or_else(|| lost("has not been fetched"))?;
            sources.push(ImageSource { field: &image.field, bytes: &file.bytes, digest: file.digest });
        }
        let read = self.media.read(&self.fleet, target, client, &sources, depth).await?;
        let mut items = vec![None; images.len()];
        for (index, item) in shown.into_iter().zip(read) {
            items[index] = Some(item);
        }
        Ok(ShownImages { images: images.to_vec(), items })
    }
}

impl ShownImages {
    /// The texts that stand for the images in a prompt, by index.
    pub(super) fn texts(&self) -> Vec<String> {
        let text = |item: &Option<Arc<ReadItem>>| item.as_ref().map_or_else(String::new, |item| item.text.clone());
        self.items.iter().map(text).collect()
    }

    /// Number of tokens for the rows of an image; 0 for one that is not shown.
    pub(super) fn rows(&self, item: u32) -> u32 {
        self.items.get(item as usize).and_then(Option::as_ref).map_or(0, |item| item.rows)
    }

    /// The job's items, at these places of the prompt.
    pub(super) fn media(
        &self,
        pool: &MediaPool,
        client: u64,
        spans: &[ItemSpan],
        target: &Target,
    ) -> Result<Vec<PromptItem>, Failure> {
        let wrong = |field: &str, what: String| {
            let message = format!("the image does not fit the prompt of model '{}': {what}", target.id);
            Failure::new(FailureCode::Plugin, message).at(field).with_help("report this to the plugin's author")
        };
        let expected = self.items.iter().flatten().count();
        if spans.len() < expected {
            return Err(wrong("", format!("{} of {expected} images have tokens", spans.len())));
        }
        let mut end = 0;
        let mut made = Vec::with_capacity(spans.len());
        for span in spans {
            let index = span.item as usize;
            let item =
                self.items.get(index).and_then(Option::as_ref).ok_or_else(|| lost("is not part of the request"))?;
            let field = &self.images[index].field;
            if span.slots != item.rows {
                return Err(wrong(field, format!("its text has {} slots for {} rows", span.slots, item.rows)));
            }
            if span.start < end || span.len < span.slots {
                return Err(wrong(field, "its tokens are not where they should be".to_owned()));
            }
            end = span.start.saturating_add(span.len);
            let prepared = item.prepared.as_ref().ok_or_else(|| lost("has not been prepared"))?;
            made.push(PromptItem {
                start: span.start,
                len: span.len,
                size: item.size,
                layout: item.layout.clone(),
                digest: prepared.digest,
                field: field.clone(),
                prepared: pool.hold(client, &prepared.bytes)?,
            });
        }
        Ok(made)
    }
}

fn lost(what: &str) -> Failure {
    Failure::new(FailureCode::Internal, format!("an image of the conversation {what}"))
}
