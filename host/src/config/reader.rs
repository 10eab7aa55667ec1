//! Reads a TOML document key by key and collects all of its errors.
//!
//! A derived deserializer (with `Spanned`, or `serde_ignored`) stops at the first error and knows neither ranges nor
//! similar keys. This reader learns the known keys from the calls that ask for them, so that they are written down
//! once, and reports every other key with its line and, where one is close, the known key that it resembles.

use serde_json::{Map, Number, Value};
use std::{
    cell::RefCell,
    collections::BTreeSet,
    fmt::Display,
    ops::{Range, RangeInclusive},
    path::PathBuf,
    time::Duration,
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::units::{self, Amount};
use pensieve_protocol::outside::Outside;

const LIST_LEN_MAX: usize = 4096;
const TEXT_LEN_MAX: usize = 4096;
/// Jaro-Winkler similarity from which a known key is suggested for an unknown one.
const SIMILARITY_MIN: f64 = 0.7;

/// A document with the errors and known keys collected so far.
pub(super) struct Document<'t> {
    text: &'t str,
    errors: RefCell<Vec<(usize, String)>>,
    known: RefCell<BTreeSet<String>>,
}

impl<'t> Document<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, errors: RefCell::default(), known: RefCell::default() }
    }

    /// All errors sorted by line, without duplicates.
    pub(super) fn errors(&self) -> Vec<String> {
        let mut errors = self.errors.take();
        errors.sort();
        errors.dedup();
        errors.into_iter().map(|(_, text)| text).collect()
    }

    /// Every key that was looked up, as `section.key`.
    pub(super) fn known(&self) -> BTreeSet<String> {
        self.known.take()
    }

    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        self.text.as_bytes().iter().take(span.start).filter(|&&byte| byte == b'\n').count() + 1
    }

    /// Records an error as "`what`, line N; `help`".
    pub(super) fn note(&self, span: &Range<usize>, what: impl Display, help: impl Display) {
        let line = self.line(span);
        self.errors.borrow_mut().push((line, format!("{what}, line {line}; {help}")));
    }
}

/// The value of an entry in a table whose keys are names.
pub(super) enum NamedValue<'d, 't> {
    Text(String),
    Table(Section<'d, 't>),
}

/// One table of a document, which may be absent.
pub(super) struct Section<'d, 't> {
    document: &'d Document<'t>,
    name: String,
    /// One of several `[[name]]`.
    is_listed: bool,
    table: Option<&'d DeTable<'t>>,
    span: Range<usize>,
    /// Keys that were looked up; all others are unknown.
    looked_up: RefCell<Vec<&'static str>>,
}

impl<'d, 't> Section<'d, 't> {
    pub(super) fn root(document: &'d Document<'t>, table: &'d Spanned<DeTable<'t>>) -> Self {
        Self::of(document, String::new(), Some(table.get_ref()), table.span())
    }

    fn of(document: &'d Document<'t>, name: String, table: Option<&'d DeTable<'t>>, span: Range<usize>) -> Self {
        Self { document, name, is_listed: false, table, span, looked_up: RefCell::default() }
    }

    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// `[name]`; empty if the document has none.
    pub(super) fn section(&self, key: &'static str) -> Self {
        let value = self.take(key);
        let table = value.and_then(|value| self.table_of(key, value));
        Self::of(self.document, self.full(key), table, value.map_or(0..0, Spanned::span))
    }

    /// Every `[[name]]`.
    pub(super) fn sections(&self, key: &'static str) -> Vec<Self> {
        let Some(value) = self.take(key) else { return Vec::new() };
        let DeValue::Array(values) = value.get_ref() else {
            self.reject(key, value, &format!("begin each of them with [[{}]]", self.full(key)));
            return Vec::new();
        };
        let section = |value: &'d Spanned<DeValue<'t>>| {
            let table = self.table_of(key, value)?;
            Some(Self { is_listed: true, ..Self::of(self.document, self.full(key), Some(table), value.span()) })
        };
        values.iter().take(LIST_LEN_MAX).filter_map(section).collect()
    }

    pub(super) fn text(&self, key: &'static str, target: &mut String) {
        self.read(key, "a text", target, |value| short(value.as_str()?));
    }

    /// A string that may be absent.
    pub(super) fn some_text(&self, key: &'static str, target: &mut Option<String>) {
        self.read(key, "a text", target, |value| short(value.as_str()?).map(Some));
    }

    pub(super) fn word(&self, key: &'static str, words: &[&'static str], target: &mut &'static str) {
        let expected = format!("one of '{}'", words.join("', '"));
        self.read(key, &expected, target, |value| words.iter().copied().find(|&word| value.as_str() == Some(word)));
    }

    /// One of two words, each standing for a flag's value.
    pub(super) fn choice(&self, key: &'static str, words: [(&str, bool); 2], target: &mut bool) {
        let expected = format!("one of '{}'", words.map(|(word, _)| word).join("', '"));
        let parse = |text: &str| words.into_iter().find(|(word, _)| *word == text).map(|(_, meaning)| meaning);
        self.read(key, &expected, target, |value| parse(value.as_str()?));
    }

    pub(super) fn texts(&self, key: &'static str, target: &mut Vec<String>) {
        self.read(key, "a list of texts", target, |value| {
            let list = value.as_array().filter(|list| list.len() <= LIST_LEN_MAX)?;
            list.iter().map(|value| short(value.get_ref().as_str()?)).collect()
        });
    }

    pub(super) fn text_or_texts(&self, key: &'static str, target: &mut Vec<String>) {
        self.read(key, "a text or a list of texts", target, |value| match value.as_array() {
            Some(list) if list.len() <= LIST_LEN_MAX => {
                list.iter().map(|value| short(value.get_ref().as_str()?)).collect()
            }
            _ => Some(vec![short(value.as_str()?)?]),
        });
    }

    pub(super) fn integer<T: TryFrom<i64> + Copy>(
        &self,
        key: &'static str,
        range: RangeInclusive<i64>,
        target: &mut T,
    ) {
        let expected = format!("an integer from {} to {}", range.start(), range.end());
        self.read(key, &expected, target, |value| {
            integer(value).filter(|number| range.contains(number)).and_then(|number| T::try_from(number).ok())
        });
    }

    pub(super) fn flag(&self, key: &'static str, target: &mut bool) {
        self.read(key, "true or false", target, DeValue::as_bool);
    }

    pub(super) fn number(&self, key: &'static str, range: RangeInclusive<f64>, target: &mut f64) {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.read(key, &expected, target, |value| number(value).filter(|number| range.contains(number)));
    }

    /// Bytes, as `"4GiB"` or an integer.
    pub(super) fn bytes<T: TryFrom<u64>>(&self, key: &'static str, range: RangeInclusive<u64>, target: &mut T) {
        let expected = units::expected_bytes(&range);
        self.read(key, &expected, target, |value| {
            bytes(value).filter(|amount| range.contains(amount)).and_then(|amount| T::try_from(amount).ok())
        });
    }

    pub(super) fn some_bytes(&self, key: &'static str, range: RangeInclusive<u64>, target: &mut Option<u64>) {
        let expected = units::expected_bytes(&range);
        self.read(key, &expected, target, |value| bytes(value).filter(|amount| range.contains(amount)).map(Some));
    }

    /// A duration, as `"10s"`.
    pub(super) fn duration(&self, key: &'static str, range: RangeInclusive<Duration>, target: &mut Duration) {
        let expected = units::expected_duration(&range);
        self.read(key, &expected, target, |value| {
            Duration::parse(value.as_str()?).filter(|duration| range.contains(duration))
        });
    }

    /// A duration, or `"never"`.
    pub(super) fn limit(&self, key: &'static str, range: RangeInclusive<Duration>, target: &mut Option<Duration>) {
        let expected = format!("{}, or \"never\"", units::expected_duration(&range));
        self.read(key, &expected, target, |value| match value.as_str()? {
            "never" => Some(None),
            text => Duration::parse(text).filter(|duration| range.contains(duration)).map(Some),
        });
    }

    /// A table as JSON, whose keys the consumer checks.
    pub(super) fn json(&self, key: &'static str) -> Option<Map<String, Value>> {
        let mut table = Value::Null;
        self.read(key, "a table of numbers, texts, flags and lists", &mut table, |value| {
            json(value, 0).filter(Value::is_object)
        });
        if let Value::Object(object) = table { Some(object) } else { None }
    }

    /// A list of strings and tables as JSON, with the span of each.
    pub(super) fn entries(&self, key: &'static str) -> Option<Vec<(Value, Range<usize>)>> {
        let mut entries = None;
        self.read(key, "a list of names and tables", &mut entries, |value| {
            let list = value.as_array().filter(|list| list.len() <= LIST_LEN_MAX)?;
            let entry = |value: &Spanned<DeValue<'_>>| Some((json(value.get_ref(), 0)?, value.span()));
            list.iter().map(entry).collect::<Option<Vec<_>>>().map(Some)
        });
        entries
    }

    /// A table whose entries are strings or tables, with the span of each.
    pub(super) fn named(&self, key: &'static str) -> Vec<(String, NamedValue<'d, 't>, Range<usize>)> {
        let Some(table) = self.take(key).and_then(|value| self.table_of(key, value)) else { return Vec::new() };
        let mut entries = Vec::new();
        for (name, value) in table.iter().take(LIST_LEN_MAX) {
            let title = format!("{}.{}", self.full(key), shown(name.get_ref()));
            let entry = match value.get_ref() {
                DeValue::String(text) => short(text).map(NamedValue::Text),
                DeValue::Table(table) => {
                    Some(NamedValue::Table(Self::of(self.document, title, Some(table), value.span())))
                }
                _ => None,
            };
            match entry {
                Some(entry) => entries.push((name.get_ref().to_string(), entry, value.span())),
                None => self.document.note(
                    &value.span(),
                    format!("'{}' in [{}] is {}", name.get_ref(), self.full(key), quoted(value.get_ref())),
                    "it takes a text or a table",
                ),
            }
        }
        entries
    }

    /// The span of a key's value, or of the section if the key is absent.
    pub(super) fn value_span(&self, key: &str) -> Range<usize> {
        self.table.and_then(|table| table.get(key)).map_or(self.span(), Spanned::span)
    }

    pub(super) fn has(&self, key: &'static str) -> bool {
        self.take(key).is_some()
    }

    pub(super) fn note_at(&self, span: &Range<usize>, what: impl Display, help: impl Display) {
        self.document.note(span, what, help);
    }

    /// Records an error about a value whose type and range are right.
    pub(super) fn note(&self, key: &str, what: impl Display, help: impl Display) {
        self.document.note(&self.value_span(key), what, help);
    }

    /// Records the unknown keys: those that were never looked up.
    pub(super) fn finish(self) {
        let known = self.looked_up.borrow();
        for (key, _) in self.table.into_iter().flatten() {
            let word = key.get_ref().as_ref();
            if known.contains(&word) {
                continue;
            }
            let similarity = |key: &&str| strsim::jaro_winkler(key, word);
            let nearest = known.iter().copied().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
            let help = match nearest.filter(|nearest| similarity(nearest) >= SIMILARITY_MIN) {
                Some(nearest) => format!("did you mean '{nearest}'?"),
                None => format!("known keys are: {}", known.join(", ")),
            };
            self.document.note(&key.span(), format!("unknown key '{}'{}", shown(word), self.place()), help);
        }
    }

    /// ` in [name]`, as it stands in the file.
    fn place(&self) -> String {
        match (self.name.as_str(), self.is_listed) {
            ("", _) => String::new(),
            (name, true) => format!(" in [[{name}]]"),
            (name, false) => format!(" in [{name}]"),
        }
    }

    fn full(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn take(&self, key: &'static str) -> Option<&'d Spanned<DeValue<'t>>> {
        let mut looked_up = self.looked_up.borrow_mut();
        if !looked_up.contains(&key) {
            looked_up.push(key);
        }
        self.document.known.borrow_mut().insert(self.full(key));
        self.table?.get(key)
    }

    fn read<T>(&self, key: &'static str, expected: &str, target: &mut T, read: impl FnOnce(&DeValue<'t>) -> Option<T>) {
        let Some(value) = self.take(key) else { return };
        match read(value.get_ref()) {
            Some(parsed) => *target = parsed,
            None => self.reject(key, value, &format!("it takes {expected}")),
        }
    }

    fn table_of(&self, key: &str, value: &'d Spanned<DeValue<'t>>) -> Option<&'d DeTable<'t>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.reject(key, value, "it takes a table");
        }
        table
    }

    fn reject(&self, key: &str, value: &Spanned<DeValue<'t>>, help: &str) {
        let place = self.place();
        self.document.note(&value.span(), format!("'{key}'{place} is {}", quoted(value.get_ref())), help);
    }
}

/// Resolves a path from a file in `folder`; `~/` is the user's home.
pub(super) fn path(folder: &std::path::Path, home: Option<&std::path::Path>, text: &str) -> PathBuf {
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => folder.join(text),
    }
}

fn short(text: &str) -> Option<String> {
    (text.len() <= TEXT_LEN_MAX && !text.contains('\0')).then(|| text.to_owned())
}

fn shown(text: &str) -> String {
    Outside::new(text).at_most(60).to_string()
}

/// A value as error messages quote it.
fn quoted(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{}\"", shown(text)),
        DeValue::Integer(number) => shown(number.as_str()),
        DeValue::Float(number) => shown(number.as_str()),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".into(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(number) => number.as_str().parse().ok().filter(|number: &f64| number.is_finite()),
        #[allow(clippy::cast_precision_loss, reason = "no float setting needs the last digits of integers above 2^53")]
        value => integer(value).map(|number| number as f64),
    }
}

fn bytes(value: &DeValue<'_>) -> Option<u64> {
    match value {
        DeValue::String(text) => u64::parse(text),
        value => integer(value).and_then(|number| u64::try_from(number).ok()),
    }
}

fn json(value: &DeValue<'_>, depth: u32) -> Option<Value> {
    const DEPTH_MAX: u32 = 8;
    if depth > DEPTH_MAX {
        return None;
    }
    match value {
        DeValue::String(text) => short(text).map(Value::String),
        DeValue::Integer(_) => integer(value).map(Value::from),
        DeValue::Float(_) => number(value).and_then(Number::from_f64).map(Value::Number),
        DeValue::Boolean(flag) => Some(Value::Bool(*flag)),
        DeValue::Datetime(_) => None,
        DeValue::Array(list) => list.iter().map(|value| json(value.get_ref(), depth + 1)).collect(),
        DeValue::Table(table) => {
            let entries =
                table.iter().map(|(key, value)| Some((key.get_ref().to_string(), json(value.get_ref(), depth + 1)?)));
            entries.collect::<Option<Map<_, _>>>().map(Value::Object)
        }
    }
}
