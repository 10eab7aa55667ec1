//! A named tensor, as a checkpoint stores it.

use super::{Packed, RawTensor, Stored};
use crate::Error;

/// A tensor with its name.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// Usable as stored.
    Plain(RawTensor),
    /// Assembled from several tensors.
    Packed(Box<Packed>),
    /// Present but unusable: its name, and the error that reading it returns.
    Refused(String, Error),
}

impl Entry {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Plain(tensor) => &tensor.name,
            Self::Packed(packed) => &packed.head.name,
            Self::Refused(name, _) => name,
        }
    }

    pub(crate) fn rename(self, rename: impl Fn(&str) -> String) -> Self {
        match self {
            Self::Plain(tensor) => Self::Plain(RawTensor { name: rename(&tensor.name), ..tensor }),
            Self::Packed(packed) => Self::Packed(packed),
            Self::Refused(name, error) => Self::Refused(rename(&name), error),
        }
    }

    pub(crate) fn described(&self) -> Option<&RawTensor> {
        match self {
            Self::Plain(tensor) => Some(tensor),
            Self::Packed(packed) => Some(&packed.head),
            Self::Refused(..) => None,
        }
    }
}

impl From<RawTensor> for Entry {
    fn from(tensor: RawTensor) -> Self {
        Self::Plain(tensor)
    }
}

impl From<Stored> for Entry {
    fn from(stored: Stored) -> Self {
        let name = stored.name.clone();
        stored.into_plain().map_or_else(|error| Self::Refused(name, error), Self::Plain)
    }
}
