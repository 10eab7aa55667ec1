//! Values as Python prints them, and the behaviour of its operators.

use std::{borrow::Cow, fmt::Write};

use minijinja::{
    Error, ErrorKind, Output, State, Value,
    formatting::{FormatStyle, format},
    value::{Tuple, ValueKind},
};

use super::{
    marks,
    meter::{self, DEPTH_MAX, charge},
};

/// Limit on the digits in the width of a format field.
const WIDTH_DIGITS_MAX: usize = 4;

/// `str(value)`.
pub(super) fn text(value: &Value) -> Result<Cow<'_, str>, Error> {
    match value.as_str() {
        Some(text) => Ok(Cow::Borrowed(text)),
        None => {
            let mut text = String::new();
            write(value, &mut text, 0)?;
            Ok(Cow::Owned(text))
        }
    }
}

/// Prints a value into a template's output.
pub(super) fn print(out: &mut Output<'_>, _state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let text = text(value)?;
    charge(text.len())?;
    Ok(out.write_str(&text)?)
}

fn write(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    charge(1)?;
    if depth > DEPTH_MAX {
        return Err(meter::too_deep());
    }
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => match (value.is_integer(), f64::try_from(value.clone())) {
            (false, Ok(number)) => out.push_str(&float(number)),
            _ => write!(out, "{value}")?,
        },
        ValueKind::String if depth == 0 => out.push_str(value.as_str().unwrap_or_default()),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out)?,
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (place, item) in value.try_iter()?.enumerate() {
                out.push_str(if place == 0 { "" } else { ", " });
                write(&item, out, depth.max(1) + 1)?;
            }
            if value.is_tuple() && value.len() == Some(1) {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            let pairs = value.as_object().and_then(minijinja::value::DynObject::try_iter_pairs);
            for (place, (key, item)) in pairs.into_iter().flatten().enumerate() {
                out.push_str(if place == 0 { "" } else { ", " });
                write(&key, out, depth.max(1) + 1)?;
                out.push_str(": ");
                write(&item, out, depth.max(1) + 1)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

/// `repr(number)`: the shortest digits that parse back to the same number.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// `repr(text)`.
fn quote(text: &str, out: &mut String) -> Result<(), Error> {
    charge(text.len())?;
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if char == quote => out.extend(['\\', char]),
            _ if is_printable(char) || marks::is_mark(char) => out.push(char),
            _ => match u32::from(char) {
                code @ 0..=0xff => write!(out, "\\x{code:02x}")?,
                code @ 0x100..=0xffff => write!(out, "\\u{code:04x}")?,
                code => write!(out, "\\U{code:08x}")?,
            },
        }
    }
    out.push(quote);
    Ok(())
}

/// `str.isprintable`, except for characters not yet assigned in any Unicode version.
fn is_printable(char: char) -> bool {
    let is_space = char.is_whitespace() && char != ' ';
    !(char.is_control()
        || is_space
        || matches!(u32::from(char),
            0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e
            | 0x2060..=0x206f | 0xe000..=0xf8ff | 0xfdd0..=0xfdef | 0xfeff | 0xfff0..=0xfffb | 0xfffe..=0xffff
            | 0xe0000..=0x10_ffff))
}

/// `left + right`.
pub(super) fn add(left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        charge(left.len() + right.len())?;
        return Ok(Value::from([left, right].concat()));
    }
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if is_list(left) && is_list(right) && left.is_tuple() == right.is_tuple() {
        let items = left.try_iter()?.chain(right.try_iter()?);
        return collection(items, left.is_tuple());
    }
    arithmetic(left, right, "+", i128::checked_add, |left, right| left + right)
}

/// `left * right`.
pub(super) fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    let (many, times) = if left.is_integer() { (right, left) } else { (left, right) };
    if matches!(many.kind(), ValueKind::String | ValueKind::Seq) && times.is_integer() {
        let times = usize::try_from(times.as_i64().unwrap_or(i64::MAX).max(0)).unwrap_or(usize::MAX);
        if let Some(text) = many.as_str() {
            charge(text.len().saturating_mul(times))?;
            return Ok(Value::from(text.repeat(times)));
        }
        let items: Vec<_> = many.try_iter()?.collect();
        return collection((0..times).flat_map(|_| items.iter().cloned()), many.is_tuple());
    }
    arithmetic(left, right, "*", i128::checked_mul, |left, right| left * right)
}

/// `left % right`: formats text, otherwise takes the remainder.
pub(super) fn remainder(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(pattern) = left.as_str() {
        let arguments = if right.is_tuple() { right.try_iter()?.collect() } else { vec![right.clone()] };
        return formatted(FormatStyle::Printf, pattern, &arguments);
    }
    let floor = |left: i128, right: i128| {
        let remainder = left.checked_rem(right)?;
        Some(if remainder != 0 && (remainder < 0) != (right < 0) { remainder + right } else { remainder })
    };
    arithmetic(left, right, "%", floor, |left, right| left - right * (left / right).floor())
}

/// `left ~ right`.
pub(super) fn concatenate(left: &Value, right: &Value) -> Result<Value, Error> {
    let (left, right) = (text(left)?, text(right)?);
    charge(left.len() + right.len())?;
    Ok(Value::from([left, right].concat()))
}

/// Formats a string, unless its fields are wide enough to be an attack.
pub(super) fn formatted(style: FormatStyle, pattern: &str, arguments: &[Value]) -> Result<Value, Error> {
    let is_wide = |digits: &str| digits.len() > WIDTH_DIGITS_MAX;
    if pattern.split(|char: char| !char.is_ascii_digit()).any(is_wide) {
        return Err(Error::new(ErrorKind::OutOfFuel, "a format string has a field of 10000 characters or more"));
    }
    // A `*` takes the width from the arguments.
    if style == FormatStyle::Printf && pattern.contains('*') {
        return Err(Error::new(ErrorKind::InvalidOperation, "a format string takes a width from its arguments"));
    }
    charge(pattern.len())?;
    let arguments: Vec<_> = arguments.iter().map(readable).collect::<Result<_, _>>()?;
    format(style, pattern, &arguments).map(Value::from)
}

/// Converts collections and floats to the text that Python would print.
fn readable(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map if value.is_kwargs() => Ok(value.clone()),
        ValueKind::Seq | ValueKind::Map | ValueKind::None | ValueKind::Bool => Ok(Value::from(text(value)?)),
        _ => Ok(value.clone()),
    }
}

fn collection(items: impl Iterator<Item = Value>, is_tuple: bool) -> Result<Value, Error> {
    let mut all = Vec::new();
    for item in items {
        charge(size_of::<Value>())?;
        all.push(item);
    }
    let made = if is_tuple { Value::from(Tuple::new(all)) } else { Value::from(all) };
    meter::charge_for(&made)?;
    Ok(made)
}

fn arithmetic(
    left: &Value,
    right: &Value,
    sign: &str,
    whole: impl Fn(i128, i128) -> Option<i128>,
    real: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(left) || !is_number(right) {
        let (left, right) = (left.kind(), right.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, format!("there is no {left} {sign} {right}")));
    }
    let is_whole = |value: &Value| value.is_integer() || value.kind() == ValueKind::Bool;
    if is_whole(left) && is_whole(right) {
        let made = whole(i128::try_from(left.clone())?, i128::try_from(right.clone())?);
        let made = made.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("no number is this {sign}")))?;
        return Ok(i64::try_from(made).map_or_else(|_| Value::from(made), Value::from));
    }
    Ok(Value::from(real(f64::try_from(left.clone())?, f64::try_from(right.clone())?)))
}
