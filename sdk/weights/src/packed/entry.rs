//! What a checkpoint has under a name.

use super::{Packed, RawTensor, Stored};
use crate::Error;

/// A tensor under a name.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// Can be used as it lies.
    Plain(RawTensor),
    /// Has to be put together first.
    Packed(Box<Packed>),
    /// Is there, and cannot be used: its name, and what to say to the reader who asks for it.
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
