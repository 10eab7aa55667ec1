//! JSON read field by field, such that every complaint names its field by the path that the client wrote it under:
//! `messages.0.content.1.text: should be a string, not a number`. Derived readers would name lines and columns, which
//! a client that sent an object from a program does not have.
//!
//! Null counts as absent, since some clients send every optional field that way. Text that a client sent appears in no
//! complaint but where it is short.

mod members;
mod value;

use std::{
    fmt,
    ops::RangeInclusive,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use serde_json::{Map, Value};

use super::{ApiError, ErrorCode, memory::RequestMemory};
pub(crate) use members::Members;
use pensieve_protocol::outside::Outside;

const QUOTE_LEN_MAX: usize = 60;
const NOTES_MAX: usize = 8;
const NOTE_LEN_MAX: usize = 300;

/// What was left out or changed in a request that is served all the same.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    list: Mutex<Vec<String>>,
    reject_attachments: bool,
}

impl Notes {
    /// `reject_attachments` makes an image an error.
    pub(crate) fn new(reject_attachments: bool) -> Self {
        Self { list: Mutex::default(), reject_attachments }
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A body with the notes that reading it leaves. Its fields are parsed when they are read.
#[derive(Debug)]
pub(crate) struct Document {
    body: Members,
    notes: Notes,
}

impl Document {
    /// Takes a body, which must be a JSON object. What its fields become is taken from `memory`.
    pub(crate) fn parse(body: Bytes, memory: RequestMemory, notes: Notes) -> Result<Self, ApiError> {
        let subject = |error: ApiError| ApiError { message: format!("the body {}", error.message), ..error };
        Ok(Self { body: Members::parse(body, memory).map_err(subject)?, notes })
    }

    /// The same with as much memory as it needs.
    #[cfg(test)]
    pub(crate) fn unlimited(body: &[u8], notes: Notes) -> Result<Self, ApiError> {
        Self::parse(Bytes::copy_from_slice(body), RequestMemory::default(), notes)
    }

    #[cfg(test)]
    #[allow(clippy::unwrap_used, reason = "a test writes it down")]
    pub(crate) fn of(value: &Value) -> Self {
        Self::unlimited(value.to_string().as_bytes(), Notes::default()).unwrap()
    }

    pub(crate) fn root(&self) -> Field<'_> {
        Field { path: String::new(), source: Source::Body(&self.body), notes: Some(&self.notes) }
    }

    pub(crate) fn members(&self) -> &Members {
        &self.body
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.notes.warnings()
    }
}

/// A JSON text from elsewhere than a body, with memory of the request that asks for it.
pub(crate) fn value_of(text: &[u8], memory: &RequestMemory) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(text).map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))?;
    value::read(text, memory)
}

/// A field of a request, whether it is there or not.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    path: String,
    source: Source<'a>,
    notes: Option<&'a Notes>,
}

/// Where a field's value is.
#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Absent,
    /// The whole body.
    Body(&'a Members),
    Value(&'a Value),
    /// It cannot be read, which is an error for whoever wants to.
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
    #[cfg(test)]
    pub(crate) fn root(value: &'a Value) -> Self {
        Self { path: String::new(), source: Source::Value(value), notes: None }
    }

    /// A value of this name in place of the field's own.
    pub(crate) fn beside<'b>(&self, name: &str, value: &'b Value) -> Field<'b>
    where
        'a: 'b,
    {
        Field { path: self.path_to(name), source: Source::of(value), notes: self.notes }
    }

    /// The text of the field of this name, without what may stand between the parts of JSON; none where it is null.
    pub(crate) fn text_of(&self, name: &str) -> Option<String> {
        let text = match self.source {
            Source::Body(members) => members.iter().find(|(known, _)| *known == name).map(|(_, text)| compact(text)),
            _ => self.get(name).source.value().map(Value::to_string),
        };
        text.filter(|text| text != "null")
    }

    /// The field of this name in an object. It is absent if this field is no object, so check that first where it must be.
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

    /// Where it is: `tools.0.name`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Whether it is absent or null.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self.source, Source::Absent)
    }

    pub(crate) fn present(&self) -> Option<&Self> {
        Some(self).filter(|field| !field.is_absent())
    }

    /// What `read` makes of the field, if it is there.
    pub(crate) fn optional<T>(&self, read: impl FnOnce(&Self) -> Result<T, ApiError>) -> Result<Option<T>, ApiError> {
        self.present().map(read).transpose()
    }

    /// Whether it is a string, which some fields may be instead of a list.
    pub(crate) fn is_string(&self) -> bool {
        self.source.value().is_some_and(Value::is_string)
    }

    pub(crate) fn invalid(&self, why: impl fmt::Display) -> ApiError {
        if self.path.is_empty() {
            return ApiError::new(ErrorCode::InvalidRequest, format!("the body {why}"));
        }
        ApiError::field(&self.path, why)
    }

    /// Notes that something here is left out or changed; the client reads it in a `warning` header.
    pub(crate) fn note(&self, what: impl fmt::Display) {
        let Some(notes) = self.notes else { return };
        let mut list = notes.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() < NOTES_MAX {
            let note = format!("{}: {what}", self.path);
            list.push(Outside::new(note).at_most(NOTE_LEN_MAX).to_string());
        }
    }

    /// The text that stands in the prompt for an attachment which a text-only model cannot read. An error would end the
    /// session, since the attachment stays in its history.
    pub(crate) fn attachment(&self, kind: &str) -> Result<String, ApiError> {
        if self.notes.is_some_and(|notes| notes.reject_attachments) {
            return Err(self.invalid(format_args!("this model reads text only, so it cannot take this {kind}")));
        }
        self.note(format_args!("this model reads text only; a note stands in the prompt for the {kind}"));
        let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        Ok(format!("[{article} {kind} was attached; this model reads text only]"))
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

    /// A string that is not empty and has at most `len_max` bytes.
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

    /// One of these words, by its place among them.
    pub(crate) fn choice(&self, words: &[&str]) -> Result<usize, ApiError> {
        let text = self.string()?;
        words.iter().position(|word| *word == text).ok_or_else(|| {
            let words = words.join("', '");
            self.invalid(format_args!("should be one of '{words}', not '{}'", Quote(text)))
        })
    }

    pub(crate) fn boolean(&self) -> Result<bool, ApiError> {
        self.json()?.as_bool().ok_or_else(|| self.should_be("true or false"))
    }

    /// A boolean that is `default` where it is absent.
    pub(crate) fn flag(&self, default: bool) -> Result<bool, ApiError> {
        Ok(self.optional(Self::boolean)?.unwrap_or(default))
    }

    pub(crate) fn string_or_empty(&self) -> Result<&'a str, ApiError> {
        Ok(self.optional(Self::string)?.unwrap_or_default())
    }

    /// One text or a list of them, each as [`Field::text`] has it; none where the field is absent.
    pub(crate) fn texts(&self, count_max: usize, len_max: usize) -> Result<Vec<String>, ApiError> {
        let text = |field: &Self| field.text(len_max).map(str::to_owned);
        match self.source {
            Source::Absent => Ok(Vec::new()),
            _ if self.is_string() => Ok(vec![text(self)?]),
            _ => self.items(count_max)?.map(|item| text(&item)).collect(),
        }
    }

    /// A whole number within a range. `5.0` is one.
    pub(crate) fn integer(&self, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
        let (min, max) = (*range.start(), *range.end());
        let value = self.json()?;
        // Floats of this size without a fraction are exact, so the cast is.
        let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() < 9e15;
        let whole = || value.as_f64().filter(is_whole).map(|number| number as i64);
        value
            .as_i64()
            .or_else(whole)
            .filter(|number| range.contains(number))
            .ok_or_else(|| self.should_be(format_args!("an integer from {min} to {max}")))
    }

    /// A count of at least `min`. One beyond `u32` becomes the largest `u32`: nothing here has that many.
    pub(crate) fn count(&self, min: u32) -> Result<u32, ApiError> {
        let number = self.json()?.as_f64().filter(|number| number.fract() == 0.0 && *number >= f64::from(min));
        // The cast saturates.
        number.map(|number| number as u32).ok_or_else(|| self.should_be(format_args!("an integer of at least {min}")))
    }

    pub(crate) fn number(&self, range: RangeInclusive<f32>) -> Result<f32, ApiError> {
        let (min, max) = (*range.start(), *range.end());
        // A number so large that f32 knows no such is infinite then, and in no range.
        let number = self.json()?.as_f64().map(|number| number as f32).filter(|number| range.contains(number));
        number.ok_or_else(|| self.should_be(format_args!("a number from {min} to {max}")))
    }

    /// An object, fields in the client's order.
    pub(crate) fn object(&self) -> Result<&'a Map<String, Value>, ApiError> {
        self.json()?.as_object().ok_or_else(|| self.should_be("an object"))
    }

    /// The fields of an object, in the client's order.
    pub(crate) fn entries(&self) -> Result<Box<dyn Iterator<Item = (&'a str, Self)> + 'a>, ApiError> {
        let (path, notes) = (self.path.clone(), self.notes);
        if let Source::Body(members) = self.source {
            let body = self.clone();
            let entry = move |(name, _): (&'a str, &'a str)| {
                // An error repeats the path, and the client has made up the name.
                let path = join(&path, &Quote(name).to_string());
                (name, Self { path, ..body.get(name) })
            };
            return Ok(Box::new(members.iter().map(entry)));
        }
        let entry = move |(name, value): (&'a String, &'a Value)| {
            // An error repeats the path, and the client has made up the name.
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
        let item = move |(place, value): (usize, &'a Value)| {
            let path = join(&path, &place.to_string());
            Self { path, source: Source::of(value), notes }
        };
        Ok(items.iter().enumerate().map(item))
    }

    /// That it is of the wrong kind or out of range.
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

/// A JSON text without the white space between its parts.
fn compact(text: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let is_kept = |letter: &char| {
        match letter {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
        in_string || !matches!(letter, ' ' | '\t' | '\n' | '\r')
    };
    text.chars().filter(is_kept).collect()
}

fn join(path: &str, step: &str) -> String {
    if path.is_empty() { step.to_owned() } else { format!("{path}.{step}") }
}

/// What a value is, for a complaint.
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

/// A client's text, cut to what a complaint has room for.
pub(crate) struct Quote<'a>(pub(crate) &'a str);

impl fmt::Display for Quote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Outside::new(self.0).at_most(QUOTE_LEN_MAX).fmt(f)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn complaint<T>(result: Result<T, ApiError>) -> String {
        result.err().unwrap().message
    }

    #[test]
    fn a_complaint_names_the_path() {
        let value = json!({"messages": [{"content": [1, {"text": 5}]}]});
        let root = Field::root(&value);
        let message = root.get("messages").items(9).unwrap().next().unwrap();
        let block = message.get("content").items(9).unwrap().nth(1).unwrap();
        let problem = block.get("text").string().unwrap_err();
        assert_eq!(problem.message, "messages.0.content.1.text: should be a string, not 5");
        assert_eq!(problem.field.as_deref(), Some("messages.0.content.1.text"));
        assert_eq!(complaint(block.get("name").string()), "messages.0.content.1.name: this field is required");
        assert_eq!(complaint(root.get("messages").items(0).map(drop)), "messages: has 1 items, more than 0");
        assert_eq!(complaint(root.get("messages").get("x").string()), "messages.x: this field is required");
        assert_eq!(complaint(root.get("messages").object()), "messages: should be an object, not a list");
    }

    #[test]
    fn a_name_that_the_client_made_up_is_repeated_in_short() {
        let value = json!({ "a".repeat(100_000): 1 });
        let (_, entry) = Field::root(&value).entries().unwrap().next().unwrap();
        assert!(entry.invalid("no").to_string().len() < 200);
        let document = Document::of(&value);
        let (_, entry) = document.root().entries().unwrap().next().unwrap();
        assert!(entry.invalid("no").to_string().len() < 200);
    }

    #[test]
    fn a_note_is_short_and_steers_nothing_whatever_the_client_wrote() {
        let notes = Notes::default();
        let value = json!({ "type": "x" });
        let field = Field { notes: Some(&notes), ..Field::root(&value) };
        field.get("type").note(format_args!("unlike '{}\u{1b}[2J'", "ü".repeat(500_000)));
        field.get("type").note("\u{1b}]0;x\u{202e}");
        let list = notes.list.lock().unwrap();
        assert!(list[0].starts_with("type: unlike 'üü") && list[0].chars().count() == NOTE_LEN_MAX + 1, "{list:?}");
        assert_eq!(list[1], "type: \\u{1b}]0;x\\u{202e}");
    }

    #[test]
    fn null_is_absent() {
        let value = json!({"a": null, "b": [null]});
        let root = Field::root(&value);
        assert!(root.get("a").is_absent());
        assert!(root.get("a").present().is_none());
        assert!(root.get("b").items(1).unwrap().next().unwrap().is_absent());
        assert_eq!(complaint(root.get("a").boolean()), "a: this field is required");
    }

    #[test]
    fn numbers_keep_to_their_range() {
        let value = json!({
            "ten": 10, "minus": -1, "half": 0.5, "float": 4.0, "large": 1e300, "word": "1", "most": u64::MAX, "tiny": 1e-300,
        });
        let root = Field::root(&value);
        assert_eq!(root.get("ten").integer(0..=10), Ok(10));
        assert_eq!(root.get("float").integer(0..=10), Ok(4));
        for (name, shown) in [
            ("minus", "-1"),
            ("half", "0.5"),
            ("large", "1e+300"),
            ("word", "a string"),
            ("most", "18446744073709551615"),
        ] {
            let expected = format!("{name}: should be an integer from 0 to 9, not {shown}");
            assert_eq!(complaint(root.get(name).integer(0..=9)), expected);
        }
        assert_eq!(complaint(root.get("ten").integer(0..=9)), "ten: should be an integer from 0 to 9, not 10");
        assert_eq!(root.get("most").count(1), Ok(u32::MAX));
        assert_eq!(root.get("large").count(1), Ok(u32::MAX));
        assert_eq!(complaint(root.get("minus").count(1)), "minus: should be an integer of at least 1, not -1");
        assert_eq!(complaint(root.get("half").count(0)), "half: should be an integer of at least 0, not 0.5");
        assert_eq!(root.get("half").number(0.0..=1.0), Ok(0.5));
        assert_eq!(root.get("tiny").number(0.0..=1.0), Ok(0.0));
        assert_eq!(complaint(root.get("large").number(0.0..=1.0)), "large: should be a number from 0 to 1, not 1e+300");
        assert_eq!(
            complaint(root.get("word").number(-2.0..=2.0)),
            "word: should be a number from -2 to 2, not a string"
        );
    }

    #[test]
    fn texts_and_words_are_checked() {
        let value = json!({"empty": "", "long": "xxxx", "word": "no\nway", "odd": "é".repeat(100)});
        let root = Field::root(&value);
        assert_eq!(complaint(root.get("empty").text(3)), "empty: should not be empty");
        assert_eq!(complaint(root.get("long").text(3)), "long: has 4 bytes, more than 3");
        assert_eq!(complaint(root.get("word").choice(&["a", "b"])), "word: should be one of 'a', 'b', not 'no\\nway'");
        assert_eq!(root.get("long").choice(&["x", "xxxx"]), Ok(1));
        let cut = format!("odd: should be one of 'a', not '{}…'", "é".repeat(60));
        assert_eq!(complaint(root.get("odd").choice(&["a"])), cut);
    }

    #[test]
    fn a_body_is_one_object() {
        let document = |body: &[u8]| Document::unlimited(body, Notes::default());
        let check = |body: &[u8], expected: &str| {
            let message = complaint(document(body));
            assert!(message.starts_with(expected), "{message}");
        };
        check(b"", "the body is not JSON: EOF");
        check(b"[]", "the body should be a JSON object, not a list");
        check(b"{\"a\":\"\xff\"}", "the body is not UTF-8: byte 6 belongs to no character");
        check(b"{\"a\":NaN}", "the body is not JSON: ");
        let body = format!("{{\"a\":1e999,\"b\":{}{},\"c\":[1]}}", "[".repeat(200), "]".repeat(200));
        let document = document(body.as_bytes()).unwrap();
        let root = document.root();
        assert!(complaint(root.get("a").string()).starts_with("a: is not JSON: number out of range"));
        for read in [root.get("b").items(9).map(drop), root.get("b").get("x").string().map(drop)] {
            assert!(complaint(read).starts_with("b: is not JSON: recursion limit exceeded"));
        }
        assert!(complaint(root.get("a").texts(1, 1)).starts_with("a: is not JSON"));
        assert!(!root.get("a").is_absent() && complaint(root.get("a").flag(true)).starts_with("a: is not JSON"));
        assert_eq!(root.get("c").items(1).unwrap().len(), 1);
        assert_eq!(root.entries().unwrap().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}
