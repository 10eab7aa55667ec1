//! The key-value part of a GGUF header.
//!
//! Values are checked for shape and size when the file is opened, and decoded on access: a vocabulary of a quarter of a
//! million strings stays in the map until someone reads it. A getter returns `None` for an absent key, and an error
//! that names the key for a value of another type, so that a caller never mistakes one for the other.

use std::collections::BTreeMap;

use super::cursor::Cursor;
use crate::{Bytes, Error, Result, quote};

const ENTRIES_MAX: u64 = 65_536;
const ARRAY_LEN_MAX: u64 = 16 << 20;
const KEY_BYTES_MAX: usize = 1024;

/// A GGUF file's key-value metadata: `general.architecture`, `llama.block_count`, `tokenizer.ggml.tokens`, …
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: BTreeMap<String, Value>,
}

/// One value, still encoded as in the file.
#[derive(Clone, Debug)]
pub struct Value {
    kind: Kind,
    /// `Some` for an array.
    len: Option<usize>,
    data: Bytes,
}

/// The type of a value, or of the items of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    U64,
    I64,
    F64,
}

impl Metadata {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    pub fn contains(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The error for an absent key that the caller requires.
    pub fn missing(&self, key: &str) -> Error {
        Error::not_found(format!("the metadata has no {}", quote(key)))
            .help("the file was written by a tool that left it out: convert or download the model again")
    }

    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        self.scalar(key, "a string", Value::text)
    }

    /// Any non-negative integer that fits.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.scalar(key, "an unsigned integer", |value| u64::try_from(value.integers()?.next()?).ok())
    }

    /// Any non-negative integer that fits.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.scalar(key, "an unsigned 32-bit integer", |value| u32::try_from(value.integers()?.next()?).ok())
    }

    /// Any number.
    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.scalar(key, "a number", |value| value.floats()?.next())
    }

    /// Any number, rounded to the nearest.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        Ok(self.f64(key)?.map(|value| value as f32))
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.scalar(key, "a boolean", |value| (value.kind == Kind::Bool).then(|| value.data.first() != Some(&0)))
    }

    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.array(key, "an array of booleans", |value| {
            (value.kind == Kind::Bool).then(|| value.data.iter().map(|byte| *byte != 0).collect())
        })
    }

    /// An array of strings, borrowed from the map.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.array(key, "an array of UTF-8 strings", Value::texts)
    }

    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.array(key, "an array of numbers", |value| Some(value.floats()?.map(|number| number as f32).collect()))
    }

    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.array(key, "an array of 32-bit integers", |value| {
            value.integers()?.map(|number| i32::try_from(number).ok()).collect()
        })
    }

    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>> {
        self.array(key, "an array of unsigned 32-bit integers", |value| {
            value.integers()?.map(|number| u32::try_from(number).ok()).collect()
        })
    }

    /// Reads `count` entries and leaves the cursor after the last.
    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self> {
        if count > ENTRIES_MAX {
            return Err(Error::corrupt(format!(
                "the header claims {count} metadata entries, more than the {ENTRIES_MAX} that are read"
            )));
        }
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let key = cursor.name("metadata key", KEY_BYTES_MAX)?;
            let value = Value::read(cursor).map_err(|error| error.context(format!("metadata {}", quote(&key))))?;
            if entries.contains_key(&key) {
                return Err(Error::corrupt(format!("metadata {} appears twice", quote(&key))));
            }
            entries.insert(key, value);
        }
        Ok(Self { entries })
    }

    fn scalar<'a, T>(&'a self, key: &str, what: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        if value.len.is_some() {
            return Err(value.is_not(key, what));
        }
        read(value).map(Some).ok_or_else(|| value.is_not(key, what))
    }

    fn array<'a, T>(&'a self, key: &str, what: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        if value.len.is_none() {
            return Err(value.is_not(key, what));
        }
        read(value).map(Some).ok_or_else(|| value.is_not(key, what))
    }
}

impl Value {
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The number of items of an array; `None` for a single value.
    #[allow(clippy::len_without_is_empty, reason = "most values are no arrays, and an empty one is nothing special")]
    pub fn len(&self) -> Option<usize> {
        self.len
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let id = cursor.u32()?;
        if id != ARRAY_ID {
            let kind = Kind::of(id)?;
            let data = if kind == Kind::Text { cursor.string()? } else { cursor.take(kind.bytes())? };
            return Ok(Self { kind, len: None, data });
        }
        let id = cursor.u32()?;
        if id == ARRAY_ID {
            return Err(Error::unsupported("is an array of arrays, which nothing here reads"));
        }
        let kind = Kind::of(id)?;
        let len = cursor.u64()?;
        if len > ARRAY_LEN_MAX {
            return Err(Error::corrupt(format!("claims {len} items, more than the {ARRAY_LEN_MAX} that are read")));
        }
        let len = len as usize;
        let bytes = match kind {
            Kind::Text => strings_len(cursor, len)?,
            _ => len.saturating_mul(kind.bytes()),
        };
        Ok(Self { kind, len: Some(len), data: cursor.take(bytes)? })
    }

    fn text(&self) -> Option<&str> {
        (self.kind == Kind::Text).then(|| std::str::from_utf8(&self.data).ok())?
    }

    fn texts(&self) -> Option<Vec<&str>> {
        if self.kind != Kind::Text {
            return None;
        }
        let mut texts = Vec::with_capacity(self.len.unwrap_or(0).min(self.data.len() / 8));
        let mut rest: &[u8] = &self.data;
        while let Some((len, tail)) = rest.split_first_chunk::<8>() {
            let (text, tail) = tail.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
            texts.push(std::str::from_utf8(text).ok()?);
            rest = tail;
        }
        Some(texts)
    }

    fn integers(&self) -> Option<impl Iterator<Item = i128> + '_> {
        let kind = self.kind;
        let is_integer = !matches!(kind, Kind::F32 | Kind::F64 | Kind::Bool | Kind::Text);
        is_integer.then(|| self.data.chunks_exact(kind.bytes()).map(move |bytes| kind.integer(bytes)))
    }

    fn floats(&self) -> Option<impl Iterator<Item = f64> + '_> {
        let kind = self.kind;
        let is_number = !matches!(kind, Kind::Bool | Kind::Text);
        is_number.then(|| self.data.chunks_exact(kind.bytes()).map(move |bytes| kind.float(bytes)))
    }

    fn is_not(&self, key: &str, what: &str) -> Error {
        let kind = self.kind.name();
        let found = match self.len {
            Some(len) => format!("an array of {len} {kind}"),
            None => match (self.integers().and_then(|mut items| items.next()), self.text()) {
                (Some(number), _) => format!("the {kind} {number}"),
                (None, Some(text)) => format!("the {kind} {}", quote(text)),
                (None, None) if self.kind == Kind::Text => "bytes that are not UTF-8".to_owned(),
                (None, None) => format!("of type {kind}"),
            },
        };
        Error::corrupt(format!("metadata {} is {found}, not {what}", quote(key)))
    }
}

/// Walks over `len` strings without moving the cursor; returns their size in bytes.
fn strings_len(cursor: &mut Cursor<'_>, len: usize) -> Result<usize> {
    let mut ahead = cursor.fork();
    for _ in 0..len {
        ahead.string()?;
    }
    Ok(ahead.position().saturating_sub(cursor.position()))
}

const ARRAY_ID: u32 = 9;

impl Kind {
    fn of(id: u32) -> Result<Self> {
        Ok(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::Text,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return Err(Error::corrupt(format!("has the unknown type {id}"))),
        })
    }

    /// Name and size of one value; strings carry their own length.
    fn layout(self) -> (&'static str, usize) {
        match self {
            Self::U8 => ("u8", 1),
            Self::I8 => ("i8", 1),
            Self::U16 => ("u16", 2),
            Self::I16 => ("i16", 2),
            Self::U32 => ("u32", 4),
            Self::I32 => ("i32", 4),
            Self::F32 => ("f32", 4),
            Self::Bool => ("bool", 1),
            Self::Text => ("string", 1),
            Self::U64 => ("u64", 8),
            Self::I64 => ("i64", 8),
            Self::F64 => ("f64", 8),
        }
    }

    fn name(self) -> &'static str {
        self.layout().0
    }

    fn bytes(self) -> usize {
        self.layout().1
    }

    fn integer(self, bytes: &[u8]) -> i128 {
        let mut wide = [0; 8];
        for (to, from) in wide.iter_mut().zip(bytes) {
            *to = *from;
        }
        let unsigned = u64::from_le_bytes(wide);
        match self {
            Self::I8 => i128::from(unsigned as i8),
            Self::I16 => i128::from(unsigned as i16),
            Self::I32 => i128::from(unsigned as i32),
            Self::I64 => i128::from(unsigned as i64),
            _ => i128::from(unsigned),
        }
    }

    fn float(self, bytes: &[u8]) -> f64 {
        let bits = self.integer(bytes);
        match self {
            Self::F32 => f64::from(f32::from_bits(bits as u32)),
            Self::F64 => f64::from_bits(bits as u64),
            _ => bits as f64,
        }
    }
}
