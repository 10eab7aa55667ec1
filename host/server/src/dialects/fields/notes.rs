//! Warnings about a request that is served nevertheless.

use std::sync::{Mutex, PoisonError};

use pensieve_protocol::outside::Outside;

const NOTES_MAX: usize = 8;
pub(super) const NOTE_LEN_MAX: usize = 300;

/// Parts of a request that are ignored or changed.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    list: Mutex<Vec<String>>,
    reject_attachments: bool,
}

impl Notes {
    /// `reject_attachments` turns images and documents into errors.
    pub(crate) fn new(reject_attachments: bool) -> Self {
        Self { list: Mutex::default(), reject_attachments }
    }

    pub(super) fn rejects_attachments(&self) -> bool {
        self.reject_attachments
    }

    /// Adds a note, cut to `NOTE_LEN_MAX` characters; notes beyond `NOTES_MAX` are dropped.
    pub(super) fn add(&self, note: String) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() < NOTES_MAX {
            list.push(Outside::new(note).at_most(NOTE_LEN_MAX).to_string());
        }
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
