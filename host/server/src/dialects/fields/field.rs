//! A field of a request, with its path for errors.

use std::{fmt, ops::RangeInclusive, sync::Arc};

use serde_json::{Map, Value};

use super::{
    super::{ApiError, ErrorCode},
    members::Members,
    notes::{ImageIntake, Notes},
};
use crate::chat::Image;
use pensieve_protocol::outside::Outside;

/// The note that stands in the prompt for a document that is not in the request.
const ELSEWHERE: &str = "its content is not here";
const UNKNOWN: &str = "this server does not know this field; it has no effect";
const QUOTE_LEN_MAX: usize = 60;

/// A field of a request, which may be absent.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    path: String,
    source: Source<'a>,
    notes: Option<&'a Notes>,
}

/// Source of a field's value.
#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Absent,
    /// The whole body.
    Body(&'a Members),
    Value(&'a Value),
    /// The value could not be parsed; reading it returns this error.
    Unreadable(&'a ApiError),
}

impl<'a> Source<'a> {
    /// Null counts as absent.
    fn of(value: &'a Value) -> Self {
        if value.is_null() { Self::Absent } else { Self::Value(value) }
    }

    fn value(self) -> Option<&'a Value> {
        if let Self::Value(value) = self { Some(value) } else { None }
    }
}

impl<'a> Field<'a> {
    /// The whole body.
    pub(super) fn body(members: &'a Members, notes: &'a Notes) -> Self {
        Self { path: String::new(), source: Source::Body(members), notes: Some(notes) }
    }

    #[cfg(test)]
    pub(crate) fn root(value: &'a Value) -> Self {
        Self { path: String::new(), source: Source::Value(value), notes: None }
    }

    /// A field of this name with another value than the client's.
    pub(crate) fn with_value<'b>(&self, name: &str, value: &'b Value) -> Field<'b>
    where
        'a: 'b,
    {
        Field { path: self.path_to(name), source: Source::of(value), notes: self.notes }
    }

    /// The JSON text of the member `name` without white space; `None` if it is absent or null.
    pub(crate) fn text_of(&self, name: &str) -> Option<String> {
        let text = match self.source {
            Source::Body(members) => members.json_of(name).map(compact),
            _ => self.get(name).source.value().map(Value::to_string),
        };
        text.filter(|text| text != "null")
    }

    /// The member `name` of an object. It is absent if this field is not an object, so check that first where required.
    pub(crate) fn get(&self, name: &str) -> Self {
        let source = match self.source {
            Source::Absent => Source::Absent,
            Source::Body(members) => match members.get(name) {
                None => Source::Absent,
                Some(Ok(value)) => Source::of(value),
                Some(Err(error)) => Source::Unreadable(error),
            },
            Source::Value(value) => value.get(name).map_or(Source::Absent, Source::of),
            Source::Unreadable(error) => Source::Unreadable(error),
        };
        Self { path: self.path_to(name), source, notes: self.notes }
    }

    /// The path in the request: `tools.0.name`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// True if absent or null.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self.source, Source::Absent)
    }

    pub(crate) fn present(&self) -> Option<&Self> {
        Some(self).filter(|field| !field.is_absent())
    }

    /// Applies `read` if the field is present.
    pub(crate) fn optional<T>(&self, read: impl FnOnce(&Self) -> Result<T, ApiError>) -> Result<Option<T>, ApiError> {
        self.present().map(read).transpose()
    }

    /// For fields that may be a string instead of a list.
    pub(crate) fn is_string(&self) -> bool {
        self.source.value().is_some_and(Value::is_string)
    }

    pub(crate) fn invalid(&self, why: impl fmt::Display) -> ApiError {
        if self.path.is_empty() {
            return ApiError::new(ErrorCode::InvalidRequest, format!("the body {why}"));
        }
        ApiError::field(&self.path, why)
    }

    /// Notes that something here is ignored or changed; the client gets it in a `warning` header.
    pub(crate) fn note(&self, what: impl fmt::Display) {
        let Some(notes) = self.notes else { return };
        notes.add(format!("{}: {what}", self.path));
    }

    /// Notes every member that nothing has read, except those in `ignored`, which have no use here. A value that says
    /// nothing, such as null or an empty list, needs no note. Call this when all others have been read.
    pub(crate) fn note_unknown(&self, ignored: &[&str]) {
        let Source::Body(members) = self.source else { return };
        for (name, text) in members.unknown() {
            if !ignored.contains(&name) && !matches!(compact(text).as_str(), "null" | "\"\"" | "[]" | "{}") {
                let Some(notes) = self.notes else { return };
                notes.add(format!("{}: {UNKNOWN}", Quote(name)));
            }
        }
    }

    /// The same for an object within the body, where `is_known` tells which members are read or have no use here.
    pub(crate) fn note_unknown_members(&self, is_known: impl Fn(&str) -> bool) -> Result<(), ApiError> {
        let Some(object) = self.present() else { return Ok(()) };
        for (_, member) in object.entries()?.filter(|(name, _)| !is_known(name)) {
            if member.source.value().is_some_and(|value| !matches!(value.to_string().as_str(), "\"\"" | "[]" | "{}")) {
                member.note(UNKNOWN);
            }
        }
        Ok(())
    }

    /// The members that nothing has read, except those in `ignored`, for a server that may know them. What is beyond `bytes_max`
    /// in all is left out.
    pub(crate) fn unknown(&self, ignored: &[&str], bytes_max: usize) -> Map<String, Value> {
        let Source::Body(members) = self.source else { return Map::new() };
        let mut bytes = 0;
        let unknown = members.unknown().filter(|(name, _)| !ignored.contains(name)).take_while(|(name, text)| {
            bytes += name.len() + text.len();
            bytes <= bytes_max
        });
        unknown.filter_map(|(name, text)| Some((name.to_owned(), serde_json::from_str(text).ok()?))).collect()
    }

    /// Replacement text for an attachment that the model cannot read. An error would end the session, since the attachment
    /// stays in its history.
    pub(crate) fn attachment(&self, kind: &str) -> Result<String, ApiError> {
        let reads = if self.intake().is_some() { "text and images only" } else { "text only" };
        if self.notes.is_some_and(Notes::rejects_attachments) {
            return Err(self.invalid(format_args!("this model reads {reads}, so it cannot take this {kind}")));
        }
        self.note(format_args!("this model reads {reads}; a note stands in the prompt for the {kind}"));
        let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        Ok(format!("[{article} {kind} was attached; this model reads {reads}]"))
    }

    /// Where images go, for a model that reads some.
    pub(crate) fn intake(&self) -> Option<&'a ImageIntake> {
        self.notes.and_then(Notes::intake)
    }

    /// The images that have been read so far, here and elsewhere.
    pub(crate) fn images(&self) -> Vec<Arc<Image>> {
        self.notes.map(Notes::images).unwrap_or_default()
    }

    /// Replacement text for a document that is not in the request but somewhere else, which `why` says.
    pub(crate) fn elsewhere(&self, why: &str) -> Result<String, ApiError> {
        if self.notes.is_some_and(Notes::rejects_attachments) {
            return Err(self.invalid(why));
        }
        self.note(format_args!("{why}; a note stands in the prompt for the document"));
        Ok(format!("[a document was attached, but {ELSEWHERE}]"))
    }

    pub(crate) fn json(&self) -> Result<&'a Value, ApiError> {
        match self.source {
            Source::Value(value) => Ok(value),
            Source::Absent => Err(self.invalid("this field is required")),
            Source::Unreadable(error) => Err(error.clone()),
            Source::Body(_) => Err(self.invalid("is read field by field")),
        }
    }

    pub(crate) fn string(&self) -> Result<&'a str, ApiError> {
        self.json()?.as_str().ok_or_else(|| self.should_be("a string"))
    }

    /// A non-empty string of at most `len_max` bytes.
    pub(crate) fn text(&self, len_max: usize) -> Result<&'a str, ApiError> {
        let text = self.string()?;
        if text.is_empty() {
            return Err(self.invalid("should not be empty"));
        }
        if text.len() > len_max {
            return Err(self.invalid(format_args!("has {} bytes, more than {len_max}", text.len())));
        }
        Ok(text)
    }

    /// The index of a string among `words`.
    pub(crate) fn choice(&self, words: &[&str]) -> Result<usize, ApiError> {
        let text = self.string()?;
        words.iter().position(|word| *word == text).ok_or_else(|| {
            // An empty word stands for none, and is no choice to offer.
            let words = words.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join("', '");
            self.invalid(format_args!("should be one of '{words}', not '{}'", Quote(text)))
        })
    }

    pub(crate) fn boolean(&self) -> Result<bool, ApiError> {
        self.json()?.as_bool().ok_or_else(|| self.should_be("true or false"))
    }

    /// A boolean, `default` if absent.
    pub(crate) fn flag(&self, default: bool) -> Result<bool, ApiError> {
        Ok(self.optional(Self::boolean)?.unwrap_or(default))
    }

    pub(crate) fn string_or_empty(&self) -> Result<&'a str, ApiError> {
        Ok(self.optional(Self::string)?.unwrap_or_default())
    }

    /// A string or a list of strings, each checked like [`Field::text`]; empty if absent.
    pub(crate) fn texts(&self, count_max: usize, len_max: usize) -> Result<Vec<String>, ApiError> {
        let text = |field: &Self| field.text(len_max).map(str::to_owned);
        match self.source {
            Source::Absent => Ok(Vec::new()),
            _ if self.is_string() => Ok(vec![text(self)?]),
            _ if self.json()?.is_array() => self.items(count_max)?.map(|item| text(&item)).collect(),
            _ => Err(self.should_be("a string or a list of strings")),
        }
    }

    /// An integer within a range; `5.0` is accepted.
    pub(crate) fn integer(&self, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
        let (min, max) = (*range.start(), *range.end());
        let value = self.json()?;
        // Integral floats below 9e15 convert to i64 exactly.
        let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() < 9e15;
        let whole = || value.as_f64().filter(is_whole).map(|number| number as i64);
        value
            .as_i64()
            .or_else(whole)
            .filter(|number| range.contains(number))
            .ok_or_else(|| self.should_be(format_args!("an integer from {min} to {max}")))
    }

    /// An integer of at least `min`, capped at `u32::MAX`.
    pub(crate) fn count(&self, min: u32) -> Result<u32, ApiError> {
        let number = self.json()?.as_f64().filter(|number| number.fract() == 0.0 && *number >= f64::from(min));
        // The cast saturates.
        number.map(|number| number as u32).ok_or_else(|| self.should_be(format_args!("an integer of at least {min}")))
    }

    pub(crate) fn number(&self, range: RangeInclusive<f32>) -> Result<f32, ApiError> {
        let (min, max) = (*range.start(), *range.end());
        // Values beyond f32 become infinite, which is outside of every range.
        let number = self.json()?.as_f64().map(|number| number as f32).filter(|number| range.contains(number));
        number.ok_or_else(|| self.should_be(format_args!("a number from {min} to {max}")))
    }

    /// An object, with members in the client's order.
    pub(crate) fn object(&self) -> Result<&'a Map<String, Value>, ApiError> {
        self.json()?.as_object().ok_or_else(|| self.should_be("an object"))
    }

    /// The members of an object, in the client's order.
    pub(crate) fn entries(&self) -> Result<Box<dyn Iterator<Item = (&'a str, Self)> + 'a>, ApiError> {
        let (path, notes) = (self.path.clone(), self.notes);
        if let Source::Body(members) = self.source {
            let body = self.clone();
            let entry = move |(name, _): (&'a str, &'a str)| {
                // Errors contain the path, and this name is arbitrary text of the client.
                let path = join(&path, &Quote(name).to_string());
                (name, Self { path, ..body.get(name) })
            };
            return Ok(Box::new(members.iter().map(entry)));
        }
        let entry = move |(name, value): (&'a String, &'a Value)| {
            // Errors contain the path, and this name is arbitrary text of the client.
            let path = join(&path, &Quote(name).to_string());
            (name.as_str(), Self { path, source: Source::of(value), notes })
        };
        Ok(Box::new(self.object()?.iter().map(entry)))
    }

    /// The items of a list that has at most `count_max` of them.
    pub(crate) fn items(&self, count_max: usize) -> Result<impl ExactSizeIterator<Item = Self> + use<'a>, ApiError> {
        let items = self.json()?.as_array().ok_or_else(|| self.should_be("a list"))?;
        if items.len() > count_max {
            return Err(self.invalid(format_args!("has {} items, more than {count_max}", items.len())));
        }
        let (path, notes) = (self.path.clone(), self.notes);
        let item = move |(index, value): (usize, &'a Value)| {
            let path = join(&path, &index.to_string());
            Self { path, source: Source::of(value), notes }
        };
        Ok(items.iter().enumerate().map(item))
    }

    /// Error for a value of the wrong type or out of range.
    pub(crate) fn should_be(&self, what: impl fmt::Display) -> ApiError {
        match self.json() {
            Ok(value) => self.invalid(format_args!("should be {what}, not {}", Kind(value))),
            Err(error) => error,
        }
    }

    fn path_to(&self, name: &str) -> String {
        join(&self.path, name)
    }
}

/// Removes the white space between JSON tokens.
fn compact(text: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let is_significant = |letter: &char| {
        match letter {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
        in_string || !matches!(letter, ' ' | '\t' | '\n' | '\r')
    };
    text.chars().filter(is_significant).collect()
}

fn join(path: &str, step: &str) -> String {
    if path.is_empty() { step.to_owned() } else { format!("{path}.{step}") }
}

/// Describes a value in an error: scalars by value, others by type.
struct Kind<'a>(&'a Value);

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::String(_) => f.write_str("a string"),
            Value::Array(_) => f.write_str("a list"),
            Value::Object(_) => f.write_str("an object"),
        }
    }
}

/// Quotes a client's text in an error, escaped and cut.
pub(crate) struct Quote<'a>(pub(crate) &'a str);

impl fmt::Display for Quote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Outside::new(self.0).at_most(QUOTE_LEN_MAX).fmt(f)
    }
}
