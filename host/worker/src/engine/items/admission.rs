//! Checks the items of a job. They come from a client by way of a process that decoded them, so nothing about them is
//! taken for granted.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::CheckedItem;
use pensieve_protocol::{
    job::{Failure, FailureCode, Job},
    media::{ITEMS_MAX, ItemKind, KindUse, LAYOUT_BYTES_MAX, MediaUse, PromptItem},
};

/// Checks a job's items against what the model reads.
pub fn check(job: &Job, media: &Result<Option<MediaUse>, String>) -> Result<Vec<CheckedItem>, Failure> {
    if job.media.is_empty() {
        return Ok(Vec::new());
    }
    let unsupported = |message: String| Failure::new(FailureCode::Unsupported, message);
    let media = match media {
        Ok(Some(media)) => media,
        Ok(None) => return Err(unsupported("this model reads text alone".into())),
        Err(why) => return Err(unsupported(format!("this model's images cannot be used: {why}"))),
    };
    if job.media.len() > ITEMS_MAX {
        let message = format!("the prompt has {} images and sounds, more than {ITEMS_MAX}", job.media.len());
        return Err(Failure::new(FailureCode::Invalid, message));
    }
    let mut before = 0;
    let checked = job.media.iter().map(|item| {
        let checked = one(item, &job.tokens, before, media)?;
        before = checked.range.end;
        Ok(checked)
    });
    checked.collect()
}

/// The ranges of a prompt that are computed in one step each.
pub fn runs(items: &[CheckedItem], media: &Result<Option<MediaUse>, String>) -> Vec<Range<usize>> {
    let media = media.as_ref().ok().and_then(Option::as_ref);
    let is_whole = |kind: ItemKind| media.and_then(|media| media.of(kind)).is_some_and(|kind| kind.whole);
    items.iter().filter(|item| is_whole(item.size.kind)).flat_map(|item| item.slots.iter().cloned()).collect()
}

fn one(item: &PromptItem, tokens: &[u32], before: usize, media: &MediaUse) -> Result<CheckedItem, Failure> {
    let word = item.size.kind.word();
    let invalid = |what: String| Err(Failure::new(FailureCode::Invalid, what).at(&item.field));
    let Some(kind) = media.of(item.size.kind) else {
        let message = format!("this model reads no {word}");
        return Err(Failure::new(FailureCode::Unsupported, message).at(&item.field));
    };
    let range = item.start as usize..(item.start as usize).saturating_add(item.len as usize);
    if range.is_empty() || range.start < before || range.end > tokens.len() {
        let (start, end, all) = (range.start, range.end, tokens.len());
        return invalid(format!("the {word}'s tokens {start} to {end} are not in order among {all}"));
    }
    if item.size.width == 0 || item.size.height == 0 {
        return invalid(format!("the {word} is empty"));
    }
    if item.layout.len() > LAYOUT_BYTES_MAX {
        return invalid(format!("the {word}'s layout has {} bytes, more than {LAYOUT_BYTES_MAX}", item.layout.len()));
    }
    if item.prepared.is_empty() {
        let message = format!("this model has no memory left for the {word}, as images of running requests take it");
        let help = "try again later, or send smaller ones";
        return Err(Failure::new(FailureCode::Busy, message).with_help(help).at(&item.field));
    }
    let slots = slots_of(kind, tokens, range.clone());
    let rows: usize = slots.iter().map(Range::len).sum();
    let Some(rows) = u32::try_from(rows).ok().filter(|rows| (1..=kind.rows_max).contains(rows)) else {
        return invalid(format!("the {word} takes {rows} tokens, this model reads 1 to {}", kind.rows_max));
    };
    Ok(CheckedItem {
        tokens: tokens[range.clone()].to_vec(),
        range,
        slots,
        size: item.size,
        layout: item.layout.clone(),
        identity: identity(item),
        rows,
        bytes: kind.row_bytes.saturating_mul(u64::from(rows)),
        field: item.field.clone(),
        prepared: item.prepared.clone(),
    })
}

/// Ranges of consecutive slots.
fn slots_of(kind: &KindUse, tokens: &[u32], range: Range<usize>) -> Vec<Range<usize>> {
    let mut slots: Vec<Range<usize>> = Vec::new();
    for at in range.filter(|at| tokens[*at] == kind.slot) {
        match slots.last_mut().filter(|last| last.end == at) {
            Some(last) => last.end = at + 1,
            None => slots.push(at..at + 1),
        }
    }
    slots
}

/// A hash of everything besides the model that an item's rows and the positions after it depend on.
fn identity(item: &PromptItem) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update([u8::from(item.size.kind == ItemKind::Audio)]);
    hasher.update(item.size.width.to_le_bytes());
    hasher.update(item.size.height.to_le_bytes());
    hasher.update(item.digest);
    hasher.update(&item.layout);
    hasher.finalize().into()
}
