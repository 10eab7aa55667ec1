//! `keep_alive`: how long a model stays in memory after an answer, as seconds or as a duration in Go's notation.

use std::time::Duration;

use crate::{
    dialects::{
        ApiError,
        fields::{Field, Quote},
    },
    fleet::KeepAlive,
};

/// Units of Go's durations, in nanoseconds.
const UNITS: [(&str, f64); 7] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];
/// More is the same as forever.
const SECONDS_MAX: f64 = 1e9;

/// Reads the field; `None` if it is absent. Anything negative stands for as long as there is room.
pub(super) fn read(body: &Field<'_>) -> Result<Option<KeepAlive>, ApiError> {
    let field = body.get("keep_alive");
    let Some(field) = field.present() else { return Ok(None) };
    let seconds = if field.is_string() {
        let text = field.string()?;
        if text.is_empty() {
            return Ok(None);
        }
        seconds(text).ok_or_else(|| {
            let why = format_args!("should be seconds or a duration such as '5m' or '1h30m', not '{}'", Quote(text));
            field.invalid(why)
        })?
    } else {
        let number = field.json()?.as_f64();
        number.ok_or_else(|| field.should_be("a number of seconds or a duration such as '5m'"))?
    };
    Ok(Some(if !(0.0..=SECONDS_MAX).contains(&seconds) {
        KeepAlive::Always
    } else {
        KeepAlive::For(Duration::from_secs_f64(seconds))
    }))
}

/// The seconds of `90`, `5m`, `1h30m`, `1.5h` or `-1m`.
fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_number(rest) {
        return rest.parse::<f64>().ok().map(|seconds| sign * seconds);
    }
    let mut nanoseconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(after.len());
        let (name, after) = after.split_at(unit);
        let (_, size) = UNITS.iter().find(|(known, _)| *known == name)?;
        nanoseconds += number.parse::<f64>().ok()? * size;
        rest = after;
    }
    Some(sign * nanoseconds / 1e9)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn keep(value: Value) -> Result<Option<KeepAlive>, String> {
        read(&Field::root(&json!({ "keep_alive": value }))).map_err(|error| error.message)
    }

    #[test]
    fn times_are_seconds_or_durations() {
        let time = |seconds: f64| Ok(Some(KeepAlive::For(Duration::from_secs_f64(seconds))));
        for (value, expected) in [
            (Value::Null, Ok(None)),
            (json!(""), Ok(None)),
            (json!(0), time(0.0)),
            (json!("0"), time(0.0)),
            (json!(1.5), time(1.5)),
            (json!("5m"), time(300.0)),
            (json!("1h30m"), time(5400.0)),
            (json!("1.5h"), time(5400.0)),
            (json!("300ms"), time(0.3)),
            (json!(-1), Ok(Some(KeepAlive::Always))),
            (json!("-1m"), Ok(Some(KeepAlive::Always))),
            (json!(1e300), Ok(Some(KeepAlive::Always))),
        ] {
            assert_eq!(keep(value.clone()), expected, "{value}");
        }
        for wrong in ["5 m", "m", "5x", "1h30", "--1", "NaN", "1.2.3s"] {
            let message = keep(json!(wrong)).unwrap_err();
            let expected = "keep_alive: should be seconds or a duration such as '5m' or '1h30m', not";
            assert!(message.starts_with(expected), "{message}");
        }
        let expected = "keep_alive: should be a number of seconds or a duration such as '5m', not a list";
        assert_eq!(keep(json!([])).unwrap_err(), expected);
    }
}
