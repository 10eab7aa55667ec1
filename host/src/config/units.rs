//! Byte sizes and durations with a unit: `4GiB`, `250ms`, `1.5h`. Parsed by hand, since humantime takes no decimals and
//! bytesize parses them as floats, which are not exact.

use std::{ops::RangeInclusive, time::Duration};

/// A value that is written with a unit.
pub(crate) trait Amount: Sized {
    fn parse(text: &str) -> Option<Self>;
}

impl Amount for u64 {
    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = split(text)?;
        let factor: u64 = match unit {
            "" | "B" => 1,
            "KB" | "kB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            _ => return None,
        };
        scaled(number, factor)
    }
}

impl Amount for Duration {
    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = split(text)?;
        let ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        scaled(number, ms).map(Self::from_millis)
    }
}

fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (!number.is_empty()).then_some((number, unit.trim_start()))
}

/// A decimal number times a factor in exact arithmetic, rounded down.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = u32::try_from(fraction.len()).ok().filter(|digits| (1..=9).contains(digits))?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let fraction = u128::from(fraction.parse::<u64>().ok()?) * u128::from(factor) / u128::from(10_u64.pow(digits));
    whole.checked_add(u64::try_from(fraction).ok()?)
}

/// Formats a byte count with one decimal at most, in the largest unit that it reaches.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let Some((factor, unit)) = UNITS.into_iter().find(|&(factor, _)| bytes >= factor) else {
        return format!("{bytes} B");
    };
    let tenths = bytes / (factor / 10).max(1);
    if bytes.is_multiple_of(factor) || tenths >= 1000 {
        format!("{} {unit}", bytes / factor)
    } else {
        format!("{}.{} {unit}", bytes / factor, bytes % factor * 10 / factor)
    }
}

pub(super) fn expected_bytes(range: &RangeInclusive<u64>) -> String {
    format!("bytes such as \"4GiB\", from {} to {}", bytes(*range.start()), bytes(*range.end()))
}

pub(super) fn expected_duration(range: &RangeInclusive<Duration>) -> String {
    let shown = |duration: &Duration| match duration.as_millis() {
        ms if ms % 3_600_000 == 0 && ms > 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    };
    format!("a duration such as \"10s\", from {} to {}", shown(range.start()), shown(range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_bytes_with_and_without_units() {
        for (text, expect) in [
            ("0", Some(0)),
            ("4GiB", Some(4 << 30)),
            ("1.5 GB", Some(1_500_000_000)),
            ("0.5KiB", Some(512)),
            ("17B", Some(17)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("17TiBs", None),
            ("99999999TiB", None),
            ("4G", None),
            ("GiB", None),
            ("-1GiB", None),
            ("1.GiB", None),
            ("1.2.3GiB", None),
            ("", None),
        ] {
            assert_eq!(u64::parse(text), expect, "{text:?}");
        }
    }

    #[test]
    fn reads_durations_with_units_only() {
        for (text, ms) in [
            ("10s", Some(10_000)),
            ("250ms", Some(250)),
            ("1.5h", Some(5_400_000)),
            ("2d", Some(172_800_000)),
            ("10", None),
            ("s", None),
        ] {
            assert_eq!(Duration::parse(text), ms.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn shows_bytes_in_short() {
        for (amount, expect) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (4 << 30, "4 GiB"),
            ((1 << 30) - 1, "1023 MiB"),
            (u64::MAX, "16777215 TiB"),
        ] {
            assert_eq!(bytes(amount), expect);
        }
    }
}
