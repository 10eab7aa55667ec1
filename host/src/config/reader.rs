//! Reads a TOML document key by key, and finds everything that is wrong with it at once.
//!
//! A derived deserializer (with `Spanned`, or `serde_ignored`) stops at the first mistake and knows neither ranges nor
//! neighbours. This reader learns the known keys by being asked for them, so that they are written down once, and every
//! other key is a mistake with a line and, as a rule, the known key that it resembles.

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
/// How alike two words must be for one to be offered in place of the other.
const LIKENESS_MIN: f64 = 0.7;

/// A document, and what was found in it.
pub(super) struct Document<'t> {
    text: &'t str,
    wrong: RefCell<Vec<(usize, String)>>,
    known: RefCell<BTreeSet<String>>,
}

impl<'t> Document<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, wrong: RefCell::default(), known: RefCell::default() }
    }

    /// What is wrong, by line, each once.
    pub(super) fn wrong(&self) -> Vec<String> {
        let mut wrong = self.wrong.take();
        wrong.sort();
        wrong.dedup();
        wrong.into_iter().map(|(_, text)| text).collect()
    }

    /// Every key that was asked for, as `section.key`.
    pub(super) fn known(&self) -> BTreeSet<String> {
        self.known.take()
    }

    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        self.text.as_bytes().iter().take(span.start).filter(|&&byte| byte == b'\n').count() + 1
    }

    /// Notes what is wrong at a place; `what` goes before the line, `help` behind it.
    pub(super) fn note(&self, span: &Range<usize>, what: impl Display, help: impl Display) {
        let line = self.line(span);
        self.wrong.borrow_mut().push((line, format!("{what}, line {line}; {help}")));
    }
}

/// An entry of a table whose keys are names.
pub(super) enum NamedValue<'d, 't> {
    Text(String),
    Table(Section<'d, 't>),
}

/// One table of a document, which may be absent.
pub(super) struct Section<'d, 't> {
    document: &'d Document<'t>,
    name: String,
    table: Option<&'d DeTable<'t>>,
    span: Range<usize>,
    asked: RefCell<Vec<&'static str>>,
}

impl<'d, 't> Section<'d, 't> {
    pub(super) fn root(document: &'d Document<'t>, table: &'d Spanned<DeTable<'t>>) -> Self {
        Self::of(document, String::new(), Some(table.get_ref()), table.span())
    }

    fn of(document: &'d Document<'t>, name: String, table: Option<&'d DeTable<'t>>, span: Range<usize>) -> Self {
        Self { document, name, table, span, asked: RefCell::default() }
    }

    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// `[name]`, or nothing.
    pub(super) fn section(&self, key: &'static str) -> Self {
        let value = self.take(key);
        let table = value.and_then(|value| self.table_of(key, value));
        Self::of(self.document, self.full(key), table, value.map_or(0..0, Spanned::span))
    }

    /// Every `[[name]]`.
    pub(super) fn sections(&self, key: &'static str) -> Vec<Self> {
        let Some(value) = self.take(key) else { return Vec::new() };
        let DeValue::Array(values) = value.get_ref() else {
            self.wrong(key, value, &format!("begin every one of them with [[{}]]", self.full(key)));
            return Vec::new();
        };
        let section = |value: &'d Spanned<DeValue<'t>>| {
            let table = self.table_of(key, value)?;
            Some(Self::of(self.document, self.full(key), Some(table), value.span()))
        };
        values.iter().take(LIST_LEN_MAX).filter_map(section).collect()
    }

    pub(super) fn text(&self, key: &'static str, target: &mut String) {
        self.read(key, "a text", target, |value| short(value.as_str()?));
    }

    /// Text that may be absent.
    pub(super) fn some_text(&self, key: &'static str, target: &mut Option<String>) {
        self.read(key, "a text", target, |value| short(value.as_str()?).map(Some));
    }

    pub(super) fn word(&self, key: &'static str, words: &[&'static str], target: &mut &'static str) {
        let wanted = format!("one of '{}'", words.join("', '"));
        self.read(key, &wanted, target, |value| words.iter().copied().find(|&word| value.as_str() == Some(word)));
    }

    /// One of two words, with what each means.
    pub(super) fn choice(&self, key: &'static str, words: [(&str, bool); 2], target: &mut bool) {
        let wanted = format!("one of '{}'", words.map(|(word, _)| word).join("', '"));
        let meant = |text: &str| words.into_iter().find(|(word, _)| *word == text).map(|(_, meaning)| meaning);
        self.read(key, &wanted, target, |value| meant(value.as_str()?));
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
        let wanted = format!("an integer from {} to {}", range.start(), range.end());
        self.read(key, &wanted, target, |value| {
            integer(value).filter(|number| range.contains(number)).and_then(|number| T::try_from(number).ok())
        });
    }

    pub(super) fn flag(&self, key: &'static str, target: &mut bool) {
        self.read(key, "true or false", target, DeValue::as_bool);
    }

    pub(super) fn number(&self, key: &'static str, range: RangeInclusive<f64>, target: &mut f64) {
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        self.read(key, &wanted, target, |value| number(value).filter(|number| range.contains(number)));
    }

    /// Bytes, as `"4GiB"` or an integer.
    pub(super) fn bytes<T: TryFrom<u64>>(&self, key: &'static str, range: RangeInclusive<u64>, target: &mut T) {
        let wanted = units::wanted_bytes(&range);
        self.read(key, &wanted, target, |value| {
            bytes(value).filter(|amount| range.contains(amount)).and_then(|amount| T::try_from(amount).ok())
        });
    }

    pub(super) fn some_bytes(&self, key: &'static str, range: RangeInclusive<u64>, target: &mut Option<u64>) {
        let wanted = units::wanted_bytes(&range);
        self.read(key, &wanted, target, |value| bytes(value).filter(|amount| range.contains(amount)).map(Some));
    }

    /// A duration, as `"10s"`.
    pub(super) fn duration(&self, key: &'static str, range: RangeInclusive<Duration>, target: &mut Duration) {
        let wanted = units::wanted_duration(&range);
        self.read(key, &wanted, target, |value| {
            Duration::parse(value.as_str()?).filter(|duration| range.contains(duration))
        });
    }

    /// A duration, or `"never"`.
    pub(super) fn limit(&self, key: &'static str, range: RangeInclusive<Duration>, target: &mut Option<Duration>) {
        let wanted = format!("{}, or \"never\"", units::wanted_duration(&range));
        self.read(key, &wanted, target, |value| match value.as_str()? {
            "never" => Some(None),
            text => Duration::parse(text).filter(|duration| range.contains(duration)).map(Some),
        });
    }

    /// A table as JSON, for a consumer that knows its keys.
    pub(super) fn json(&self, key: &'static str) -> Option<Map<String, Value>> {
        let mut found = Value::Null;
        self.read(key, "a table of numbers, texts, flags and lists", &mut found, |value| {
            json(value, 0).filter(Value::is_object)
        });
        if let Value::Object(object) = found { Some(object) } else { None }
    }

    /// A list whose entries are words or tables, as JSON, with the place of each.
    pub(super) fn entries(&self, key: &'static str) -> Option<Vec<(Value, Range<usize>)>> {
        let mut found = None;
        self.read(key, "a list of names and tables", &mut found, |value| {
            let list = value.as_array().filter(|list| list.len() <= LIST_LEN_MAX)?;
            let entry = |value: &Spanned<DeValue<'_>>| Some((json(value.get_ref(), 0)?, value.span()));
            list.iter().map(entry).collect::<Option<Vec<_>>>().map(Some)
        });
        found
    }

    /// A table whose entries are texts or tables, with the place of each.
    pub(super) fn named(&self, key: &'static str) -> Vec<(String, NamedValue<'d, 't>, Range<usize>)> {
        let Some(table) = self.take(key).and_then(|value| self.table_of(key, value)) else { return Vec::new() };
        let mut found = Vec::new();
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
                Some(entry) => found.push((name.get_ref().to_string(), entry, value.span())),
                None => self.document.note(
                    &value.span(),
                    format!("'{}' in [{}] is {}", name.get_ref(), self.full(key), kind(value.get_ref())),
                    "it takes a text or a table",
                ),
            }
        }
        found
    }

    /// Where a key's value stands, for what is wrong with it beyond its form.
    pub(super) fn place(&self, key: &str) -> Range<usize> {
        self.table.and_then(|table| table.get(key)).map_or(self.span(), Spanned::span)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    pub(super) fn note_at(&self, place: &Range<usize>, what: impl Display, help: impl Display) {
        self.document.note(place, what, help);
    }

    /// Notes what is wrong with a key's value beyond its form.
    pub(super) fn note(&self, key: &str, what: impl Display, help: impl Display) {
        self.document.note(&self.place(key), what, help);
    }

    /// Notes the unknown keys: those that were never asked for.
    pub(super) fn finish(self) {
        let asked = self.asked.into_inner();
        for (key, _) in self.table.into_iter().flatten() {
            let word = key.get_ref().as_ref();
            if asked.contains(&word) {
                continue;
            }
            let place = if self.name.is_empty() { String::new() } else { format!(" in [{}]", self.name) };
            let likeness = |known: &&str| strsim::jaro_winkler(known, word);
            let nearest = asked.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            let help = match nearest.filter(|nearest| likeness(nearest) >= LIKENESS_MIN) {
                Some(nearest) => format!("did you mean '{nearest}'?"),
                None => format!("known are: {}", asked.join(", ")),
            };
            self.document.note(&key.span(), format!("unknown key '{}'{place}", shown(word)), help);
        }
    }

    fn full(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn take(&self, key: &'static str) -> Option<&'d Spanned<DeValue<'t>>> {
        self.asked.borrow_mut().push(key);
        self.document.known.borrow_mut().insert(self.full(key));
        self.table?.get(key)
    }

    fn read<T>(&self, key: &'static str, wanted: &str, target: &mut T, read: impl FnOnce(&DeValue<'t>) -> Option<T>) {
        let Some(value) = self.take(key) else { return };
        match read(value.get_ref()) {
            Some(found) => *target = found,
            None => self.wrong(key, value, &format!("it takes {wanted}")),
        }
    }

    fn table_of(&self, key: &str, value: &'d Spanned<DeValue<'t>>) -> Option<&'d DeTable<'t>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong(key, value, "it takes a table");
        }
        table
    }

    fn wrong(&self, key: &str, value: &Spanned<DeValue<'t>>, help: &str) {
        let place = if self.name.is_empty() { String::new() } else { format!(" in [{}]", self.name) };
        self.document.note(&value.span(), format!("'{key}'{place} is {}", kind(value.get_ref())), help);
    }
}

/// A path as it is meant in a file that lies in `folder`.
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

/// A value as a mistake repeats it.
fn kind(value: &DeValue<'_>) -> String {
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
        #[allow(
            clippy::cast_precision_loss,
            reason = "such large integers in a number's place need no exact last digit"
        )]
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
