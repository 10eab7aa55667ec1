//! The calls of `media/1`: a model encodes items, and is told where their rows stand.

use std::time::Duration;

use pensieve_plugin_api::ext::{
    Offered,
    media::{Encode, MediaKind, MediaSize, Placement},
};

use super::{Model, micros};
use crate::engine::{
    failures::of_plugin,
    items::{Opening, PlacedItem},
};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    media::{ItemKind, ItemSize, MediaUse},
};

impl Model {
    /// Checks that a model whose card describes items offers to encode them.
    pub(super) fn check_media(&mut self) {
        if matches!(self.media, Ok(Some(_)))
            && let Err(failure) = self.encoder().map(drop)
        {
            self.media = Err(failure.to_string());
        }
    }

    /// The items that it reads, if it reads any.
    pub fn media_use(&self) -> Option<&MediaUse> {
        self.media.as_ref().ok()?.as_ref()
    }

    pub fn open_item(&mut self, item: &Opening) -> Result<(), Failure> {
        let opened = self.encoder()?.open(item.handle, size(item.size), &item.layout, &item.prepared);
        opened.map_err(of_plugin)
    }

    /// Encodes for about this long. Returns the number of pieces left.
    pub fn encode_items(&mut self, handles: &[u64], time: Duration) -> Result<u32, Failure> {
        let budget = u32::try_from(micros(time)).unwrap_or(u32::MAX);
        self.encoder()?.encode(handles, budget).map_err(of_plugin)
    }

    /// Tells the model the items of a sequence; of an opaque model by its state's id.
    pub fn place_items(&mut self, sequence: u64, items: &[PlacedItem<'_>]) -> Result<(), Failure> {
        let placements: Vec<Placement<'_>> = items.iter().map(placement).collect();
        self.encoder()?.place(sequence, &placements).map_err(of_plugin)
    }

    pub fn close_item(&mut self, handle: u64) {
        if let Ok(mut encoder) = self.encoder() {
            encoder.close(handle);
        }
    }

    fn encoder(&mut self) -> Result<Offered<'_, Encode>, Failure> {
        let none = || {
            let message = "the model does not encode the items that its description has";
            Failure::new(FailureCode::Plugin, message).with_help("this is a defect of the plugin; tell its author")
        };
        Encode::of(&mut self.model).ok_or_else(none)?.map_err(of_plugin)
    }
}

fn placement<'a>(item: &PlacedItem<'a>) -> Placement<'a> {
    Placement {
        // Prompts are shorter than the context, which is a u32.
        start: item.start as u32,
        tokens: item.tokens.into(),
        size: size(item.size),
        layout: item.layout.into(),
        handle: item.handle,
    }
}

fn size(size: ItemSize) -> MediaSize {
    let kind = match size.kind {
        ItemKind::Image => MediaKind::IMAGE,
        ItemKind::Audio => MediaKind::AUDIO,
    };
    MediaSize { kind, width: size.width, height: size.height }
}
