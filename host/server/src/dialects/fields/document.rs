//! A request's body as an object of fields.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::{
    super::{ApiError, ErrorCode, memory::RequestMemory},
    field::Field,
    members::Members,
    notes::{ImageIntake, Notes},
    value,
};
use crate::chat::Image;

/// A request body with the notes made while reading it. Fields are parsed on demand.
#[derive(Debug)]
pub(crate) struct Document {
    body: Members,
    notes: Notes,
}

impl Document {
    /// `body` must be a JSON object. Parsed fields are charged to `memory`.
    pub(crate) fn parse(body: Bytes, memory: RequestMemory, notes: Notes) -> Result<Self, ApiError> {
        let subject = |error: ApiError| ApiError { message: format!("the body {}", error.message), ..error };
        Ok(Self { body: Members::parse(body, memory).map_err(subject)?, notes })
    }

    /// Like `parse`, without a memory limit.
    #[cfg(test)]
    pub(crate) fn unlimited(body: &[u8], notes: Notes) -> Result<Self, ApiError> {
        Self::parse(Bytes::copy_from_slice(body), RequestMemory::default(), notes)
    }

    #[cfg(test)]
    #[allow(clippy::unwrap_used, reason = "only for tests")]
    pub(crate) fn of(value: &Value) -> Self {
        Self::unlimited(value.to_string().as_bytes(), Notes::default()).unwrap()
    }

    /// Takes images in, as the model reads them.
    pub(crate) fn take_images(&mut self, intake: ImageIntake) {
        self.notes.take_images(intake);
    }

    /// The images that have been read.
    pub(crate) fn images(&self) -> Vec<Arc<Image>> {
        self.notes.images()
    }

    pub(crate) fn root(&self) -> Field<'_> {
        Field::body(&self.body, &self.notes)
    }

    pub(crate) fn members(&self) -> &Members {
        &self.body
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.notes.warnings()
    }
}

/// Parses JSON that is not part of a body, charged to a request's memory.
pub(crate) fn value_of(text: &[u8], memory: &RequestMemory) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(text).map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))?;
    value::read(text, memory)
}
