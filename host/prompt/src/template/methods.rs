//! The methods of Python's strings, lists and dicts, and the Jinja filters that minijinja lacks, implements
//! differently, or lets turn small values into large ones.

use minijinja::{
    Error, ErrorKind, State, Value,
    formatting::FormatStyle,
    value::{Kwargs, Tuple, ValueKind, from_args},
};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{
    meter::charge,
    python::{self, text},
};

/// Limit on the width for `indent`, `center` and the like.
const WIDTH_MAX: usize = 1000;

/// Calls a Python method of a value, for minijinja.
pub(super) fn call(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let made = match value.kind() {
        ValueKind::String => of_text(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq => of_list(value, method, args)?,
        ValueKind::Map => of_dict(value, method, args)?,
        _ => None,
    };
    match made {
        Some(made) => Ok(made),
        None => unknown_method_callback(state, value, method, args),
    }
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    charge(text.len())?;
    let value = match method {
        "strip" => Value::from(strip(text, set(args)?, true, true)),
        "lstrip" => Value::from(strip(text, set(args)?, true, false)),
        "rstrip" => Value::from(strip(text, set(args)?, false, true)),
        "split" | "rsplit" => split(text, method == "rsplit", args)?,
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            list(lines(text, keep.unwrap_or(false)))?
        }
        "partition" | "rpartition" => {
            let (by,): (&str,) = from_args(args)?;
            let found = if method == "partition" { text.split_once(by) } else { text.rsplit_once(by) };
            let parts = match found {
                Some((before, after)) => [before, by, after],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            replace(text, old, new, count)?
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            join(items, text)?
        }
        "format" => python::formatted(FormatStyle::StrFormat, text, args)?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" => {
            let (what,): (&str,) = from_args(args)?;
            let at = text.find(what).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "zfill" | "ljust" | "rjust" | "center" => padded(text, method, args)?,
        "casefold" => Value::from(text.to_lowercase()),
        "swapcase" => {
            let swap = |char: char| match char.is_uppercase() {
                true => char.to_lowercase().to_string(),
                false => char.to_uppercase().to_string(),
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "isspace" => Value::from(!text.is_empty() && text.chars().all(is_space)),
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn of_list(list: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            let place = list.try_iter()?.position(|item| item == *what);
            place
                .map(|place| Some(Value::from(place)))
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "value is not in list"))
        }
        "copy" => Ok(Some(list.clone())),
        _ => Ok(None),
    }
}

fn of_dict(dict: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => {
            let () = from_args(args)?;
            Ok(Some(dict.clone()))
        }
        _ => Ok(None),
    }
}

/// White space in Python: Unicode's, plus four ASCII separators.
fn is_space(char: char) -> bool {
    char.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&char)
}

/// Parses the optional character set of a strip method.
fn set(args: &[Value]) -> Result<Option<&str>, Error> {
    let (set,): (Option<&str>,) = from_args(args)?;
    Ok(set)
}

fn strip<'a>(text: &'a str, set: Option<&str>, left: bool, right: bool) -> &'a str {
    let goes = |char: char| set.map_or_else(|| is_space(char), |set| set.contains(char));
    let text = if left { text.trim_start_matches(goes) } else { text };
    if right { text.trim_end_matches(goes) } else { text }
}

fn list<'a>(items: impl Iterator<Item = &'a str>) -> Result<Value, Error> {
    let mut all = Vec::new();
    for item in items {
        charge(item.len() + size_of::<Value>())?;
        all.push(Value::from(item));
    }
    Ok(Value::from(all))
}

fn split(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (by, times, named): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let by = by.or(named.get::<Option<&str>>("sep")?);
    let times = times.or(named.get::<Option<i64>>("maxsplit")?).unwrap_or(-1);
    named.assert_all_used()?;
    let most = usize::try_from(times).ok().and_then(|times| times.checked_add(1)).unwrap_or(usize::MAX);
    match by {
        Some("") => Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(by) if from_right => {
            let mut parts: Vec<_> = text.rsplitn(most, by).collect();
            parts.reverse();
            list(parts.into_iter())
        }
        Some(by) => list(text.splitn(most, by)),
        None if from_right => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let at = if parts.len() + 1 < most { rest.rfind(is_space) } else { None };
                let after = at.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
                parts.push(&rest[after..]);
                rest = rest[..at.unwrap_or(0)].trim_end_matches(is_space);
            }
            parts.reverse();
            list(parts.into_iter())
        }
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let at = if parts.len() + 1 < most { rest.find(is_space) } else { None };
                let (part, after) = rest.split_at(at.unwrap_or(rest.len()));
                parts.push(part);
                rest = after.trim_start_matches(is_space);
            }
            list(parts.into_iter())
        }
    }
}

/// Splits text into lines like Python's `splitlines`.
fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let is_end = |char| matches!(char, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let at = rest.find(is_end);
        let end = at.map_or(0, |at| match rest[at..].starts_with("\r\n") {
            true => 2,
            false => rest[at..].chars().next().map_or(0, char::len_utf8),
        });
        let at = at.unwrap_or(rest.len());
        let line = &rest[..if keep_ends { at + end } else { at }];
        rest = &rest[at + end..];
        Some(line)
    })
}

fn replace(text: &str, old: &str, new: &str, count: Option<i64>) -> Result<Value, Error> {
    let most = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let found = text.matches(old).take(most).count();
    charge(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(Value::from(text.replacen(old, new, most)))
}

fn join(items: &Value, by: &str) -> Result<Value, Error> {
    let mut joined = String::new();
    for (place, item) in items.try_iter()?.enumerate() {
        let item = text(&item)?.into_owned();
        charge(item.len() + by.len())?;
        joined.push_str(if place == 0 { "" } else { by });
        joined.push_str(&item);
    }
    Ok(Value::from(joined))
}

fn padded(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<char>) = from_args(args)?;
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    if width > WIDTH_MAX {
        return Err(too_wide());
    }
    let missing = width.saturating_sub(text.chars().count());
    let fill = |count| fill.unwrap_or(' ').to_string().repeat(count);
    Ok(Value::from(match method {
        "zfill" => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
        "ljust" => text.to_owned() + &fill(missing),
        "rjust" => fill(missing) + text,
        _ => {
            let left = missing / 2 + (missing & width & 1);
            fill(left) + text + &fill(missing - left)
        }
    }))
}

fn too_wide() -> Error {
    Error::new(ErrorKind::OutOfFuel, format!("it pads text to more than {WIDTH_MAX} characters"))
}

/// The filter `length`; an undefined value has length 0.
pub(super) fn length_filter(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    let message = || format!("a value of kind {} has no length", value.kind());
    value.len().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, message()))
}

pub(super) fn trim_filter(value: &Value, set: Option<&str>) -> Result<Value, Error> {
    let text = text(value)?;
    charge(text.len())?;
    Ok(Value::from(strip(&text, set, true, true)))
}

pub(super) fn string_filter(value: &Value) -> Result<Value, Error> {
    Ok(Value::from(text(value)?))
}

pub(super) fn join_filter(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (by, attribute, named): (Option<&Value>, Option<&str>, Kwargs) = from_args(args)?;
    let by = by.cloned().or(named.get("d")?).unwrap_or_else(|| Value::from(""));
    let attribute = attribute.or(named.get("attribute")?);
    named.assert_all_used()?;
    if value.is_undefined() {
        return Ok(Value::from(""));
    }
    let by = text(&by)?;
    match attribute {
        Some(attribute) => {
            let picked: Vec<_> = value.try_iter()?.map(|item| item.get_attr(attribute)).collect::<Result<_, _>>()?;
            join(&Value::from(picked), &by)
        }
        None => join(value, &by),
    }
}

pub(super) fn replace_filter(value: &Value, old: &Value, new: &Value, count: Option<i64>) -> Result<Value, Error> {
    replace(&text(value)?, &text(old)?, &text(new)?, count)
}

pub(super) fn format_filter(pattern: &str, args: &[Value]) -> Result<Value, Error> {
    python::formatted(FormatStyle::Printf, pattern, args)
}

pub(super) fn indent_filter(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (width, first, blank, named): (Option<&Value>, Option<bool>, Option<bool>, Kwargs) = from_args(args)?;
    let width = width.cloned().or(named.get("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(named.get("first")?).unwrap_or(false);
    let blank = blank.or(named.get("blank")?).unwrap_or(false);
    named.assert_all_used()?;
    let by = match width.as_str() {
        Some(by) => by.to_owned(),
        None => " ".repeat(width.as_usize().unwrap_or(usize::MAX).min(WIDTH_MAX + 1)),
    };
    if by.len() > WIDTH_MAX {
        return Err(too_wide());
    }
    let mut indented = String::new();
    // A trailing line break starts another line.
    let whole = text(value)?.into_owned() + "\n";
    for (place, line) in lines(&whole, false).enumerate() {
        charge(by.len() + line.len())?;
        if place > 0 {
            indented.push('\n');
        }
        if if place == 0 { first } else { blank || !line.is_empty() } {
            indented.push_str(&by);
        }
        indented.push_str(line);
    }
    Ok(Value::from(indented))
}

/// Jinja's test `sequence`: whatever has a length and can be indexed.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
}

/// Jinja's test `iterable`.
pub(super) fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || matches!(value.kind(), ValueKind::Iterable | ValueKind::Undefined)
}
