//! Describing, measuring and preparing images, before the weights are needed.

use serde_json::{Map, Value};

use crate::{
    Measured, MediaItem, MediaKind, MediaSize, Result,
    nn::ModelOptions,
    weights::{Checkpoint, Config},
};

/// Describes, measures and prepares the items of a family; pure functions, without state.
pub trait Processor: Sync {
    /// The kinds of items that the checkpoint reads, at most one of each.
    fn describe(&self, checkpoint: &Checkpoint) -> Result<Vec<ItemDescription>>;

    /// [`Self::describe`], together with the values that the user has set for
    /// [`Decoder::OPTIONS`](crate::nn::Decoder::OPTIONS).
    fn describe_with(&self, checkpoint: &Checkpoint, options: &ModelOptions) -> Result<Vec<ItemDescription>> {
        let _ = options;
        self.describe(checkpoint)
    }

    /// The text and the rows of an item of this size. `settings` are the description's.
    fn measure(&self, settings: &Config, size: MediaSize) -> Result<Measured>;

    /// Turns a decoded item into the bytes that [`Tower::open`](super::Tower::open) takes.
    fn prepare(&self, settings: &Config, item: &MediaItem<'_>) -> Result<Vec<u8>>;
}

/// The items of one kind that a checkpoint reads.
#[derive(Clone, Debug)]
pub struct ItemDescription {
    /// Images or sounds.
    pub kind: MediaKind,
    /// The text that the chat template writes for an item.
    pub placeholder: String,
    /// The text to write for an item where the template knows no items, if it is not `placeholder`.
    pub text: Option<String>,
    /// The token that stands for a row.
    pub slot: u32,
    /// The slots of a run see each other ([`Attention::whole_items`](crate::nn::Attention)).
    pub whole: bool,
    /// The most rows of one item.
    pub rows_max: usize,
    /// Values that a model keeps for a row: its width, times one more than the number of taps.
    pub row_values: usize,
    /// Scratch bytes of the largest item that is encoded alone.
    pub encoder_bytes: u64,
    /// Samples per second of audio.
    pub rate: Option<u32>,
    /// The settings of [`Processor::measure`] and [`Processor::prepare`].
    pub settings: Config,
}

/// The description as the contract has it; an empty text without items.
pub(in crate::nn) fn to_json(items: &[ItemDescription]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let kinds = items.iter().map(|item| {
        let mut members = Map::new();
        members.insert("placeholder".into(), item.placeholder.clone().into());
        if let Some(text) = &item.text {
            members.insert("text".into(), text.clone().into());
        }
        members.insert("slot".into(), item.slot.into());
        members.insert("whole".into(), item.whole.into());
        members.insert("rows_max".into(), item.rows_max.into());
        members.insert("row_bytes".into(), (4 * item.row_values).into());
        members.insert("encoder_bytes".into(), item.encoder_bytes.into());
        if let Some(rate) = item.rate {
            members.insert("rate".into(), rate.into());
        }
        members.insert("processor".into(), item.settings.value().clone());
        let kind = if item.kind == MediaKind::Image { "image" } else { "audio" };
        (kind.to_owned(), Value::Object(members))
    });
    Value::Object(kinds.collect()).to_string()
}
