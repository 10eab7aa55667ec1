//! Lists in another server's answers, of which only as much is kept as an answer may have: a few megabytes of empty objects
//! would be hundreds of megabytes of them here.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

/// Bytes of an error in a stream.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// An error in a stream; an empty one for what is too long to be one.
pub(super) fn error(error: Option<&RawValue>) -> Value {
    let error = error.filter(|error| error.get().len() <= ERROR_BYTES_MAX);
    error.and_then(|error| serde_json::from_str(error.get()).ok()).unwrap_or_default()
}

/// The first entries of a list.
#[derive(Debug)]
pub(super) struct Few<T, const MAX: usize> {
    pub(super) items: Vec<T>,
    /// There were more, which are not kept.
    pub(super) has_more: bool,
}

impl<T, const MAX: usize> Default for Few<T, MAX> {
    fn default() -> Self {
        Self { items: Vec::new(), has_more: false }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Few<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(List(PhantomData))
    }
}

struct List<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
    type Value = Few<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut few = Few::default();
        while few.items.len() < MAX {
            match list.next_element()? {
                Some(item) => few.items.push(item),
                None => return Ok(few),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {
            few.has_more = true;
        }
        Ok(few)
    }
}

/// The first entries of an object, in its order.
#[derive(Debug)]
pub(super) struct FewOf<T, const MAX: usize>(pub(super) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for FewOf<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Object(PhantomData))
    }
}

struct Object<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Object<T, MAX> {
    type Value = FewOf<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut few = Vec::new();
        while few.len() < MAX {
            match object.next_entry()? {
                Some(entry) => few.push(entry),
                None => return Ok(FewOf(few)),
            }
        }
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(FewOf(few))
    }
}
