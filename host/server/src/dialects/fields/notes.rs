//! Warnings about a request that is served nevertheless.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;

use super::super::{ApiError, memory::RequestMemory};
use crate::chat::Image;
use pensieve_protocol::outside::Outside;

const NOTES_MAX: usize = 8;
pub(super) const NOTE_LEN_MAX: usize = 300;

/// Parts of a request that are ignored or changed.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    list: Mutex<Vec<String>>,
    /// Number of notes beyond `NOTES_MAX`.
    dropped: AtomicUsize,
    reject_attachments: bool,
    /// `None` for a model that reads text only.
    images: Option<ImageIntake>,
}

/// The images of a request, for a model that reads some.
#[derive(Debug)]
pub(crate) struct ImageIntake {
    memory: RequestMemory,
    count_max: usize,
    list: Mutex<Vec<Arc<Image>>>,
}

impl ImageIntake {
    pub(crate) fn new(memory: RequestMemory, count_max: usize) -> Self {
        Self { memory, count_max, list: Mutex::default() }
    }

    /// Adds an image by its content; returns its index.
    pub(crate) fn add(&self, field: &str, content: Vec<u8>) -> Result<u32, ApiError> {
        let content: Bytes = self.memory.bytes(content)?;
        self.push(Image::new(field, content))
    }

    /// Adds an image by its address; returns its index.
    pub(crate) fn add_url(&self, field: &str, url: &str) -> Result<u32, ApiError> {
        self.push(Image::at(field, url))
    }

    fn push(&self, image: Image) -> Result<u32, ApiError> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() >= self.count_max {
            let most = self.count_max;
            return Err(ApiError::field(
                &image.field,
                format_args!("this is image {}, more than the {most} allowed in a request", most + 1),
            ));
        }
        list.push(Arc::new(image));
        Ok(u32::try_from(list.len() - 1).unwrap_or(u32::MAX))
    }
}

impl Notes {
    /// `reject_attachments` turns images and documents that the model cannot read into errors.
    pub(crate) fn new(reject_attachments: bool) -> Self {
        Self { reject_attachments, ..Self::default() }
    }

    /// Takes images in from now on.
    pub(super) fn take_images(&mut self, intake: ImageIntake) {
        self.images = Some(intake);
    }

    pub(super) fn intake(&self) -> Option<&ImageIntake> {
        self.images.as_ref()
    }

    /// The images so far.
    pub(super) fn images(&self) -> Vec<Arc<Image>> {
        let list =
            self.images.as_ref().map(|images| images.list.lock().unwrap_or_else(PoisonError::into_inner).clone());
        list.unwrap_or_default()
    }

    pub(super) fn rejects_attachments(&self) -> bool {
        self.reject_attachments
    }

    /// Adds a note, cut to `NOTE_LEN_MAX` characters; notes beyond `NOTES_MAX` are only counted.
    pub(super) fn add(&self, note: String) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() < NOTES_MAX {
            list.push(Outside::new(note).at_most(NOTE_LEN_MAX).to_string());
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > 0 {
            list.push(format!("and {dropped} more"));
        }
        list
    }
}
