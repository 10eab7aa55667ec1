//! Pictures of a request.

use std::sync::OnceLock;

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// A picture as a client sent it, or its address.
#[derive(Debug)]
pub struct Image {
    /// The request field that holds it, for errors.
    pub field: String,
    /// Where it has to be fetched from; `None` if the request has its content.
    pub url: Option<String>,
    content: OnceLock<ImageFile>,
}

/// The content of a picture's file, which nothing has looked at yet.
#[derive(Clone, Debug)]
pub struct ImageFile {
    pub bytes: Bytes,
    /// SHA-256.
    pub digest: [u8; 32],
}

impl Image {
    pub fn new(field: &str, bytes: Bytes) -> Self {
        Self { field: field.to_owned(), url: None, content: OnceLock::from(ImageFile::new(bytes)) }
    }

    pub fn at(field: &str, url: &str) -> Self {
        Self { field: field.to_owned(), url: Some(url.to_owned()), content: OnceLock::new() }
    }

    /// `None` if it has not been fetched.
    pub fn file(&self) -> Option<&ImageFile> {
        self.content.get()
    }

    pub fn fetched(&self, bytes: Bytes) {
        // Both are the content of one address.
        let _ = self.content.set(ImageFile::new(bytes));
    }
}

impl ImageFile {
    fn new(bytes: Bytes) -> Self {
        let digest = Sha256::digest(&bytes).into();
        Self { bytes, digest }
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        let digest = |image: &Self| image.file().map(|file| file.digest);
        self.field == other.field && self.url == other.url && digest(self) == digest(other)
    }
}
