//! How long a server asks to be left alone: `retry-after` in seconds or as a date, and the milliseconds that vendors add.

use std::time::Duration;

use hyper::{HeaderMap, header};
use jiff::Timestamp;

/// `None` if it does not say, or nothing that can be read.
pub(super) fn of(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    if let Some(duration) = text("retry-after-ms").and_then(|text| number(text, 1e-3)) {
        return Some(duration);
    }
    let text = text(header::RETRY_AFTER.as_str())?;
    number(text, 1.0).or_else(|| {
        let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
        // One that has passed asks for nothing more.
        Some(Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO))
    })
}

fn number(text: &str, unit_s: f64) -> Option<Duration> {
    let number: f64 = text.parse().ok()?;
    Duration::try_from_secs_f64(number * unit_s).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_retry_after_is_read() {
        let now: Timestamp = "2026-11-27T08:00:00Z".parse().unwrap();
        let check = |entries: &[(&'static str, &'static str)], millis: Option<u64>| {
            let mut headers = HeaderMap::new();
            for (name, value) in entries {
                headers.insert(*name, value.parse().unwrap());
            }
            assert_eq!(of(&headers, now), millis.map(Duration::from_millis), "{entries:?}");
        };
        check(&[("retry-after", "7")], Some(7000));
        check(&[("retry-after", " 0.25 ")], Some(250));
        check(&[("retry-after", "9"), ("retry-after-ms", "1500")], Some(1500));
        check(&[("retry-after", "9"), ("retry-after-ms", "soon")], Some(9000));
        check(&[("retry-after", "Fri, 27 Nov 2026 08:00:30 GMT")], Some(30_000));
        check(&[("retry-after", "Fri, 27 Nov 2026 07:00:00 GMT")], Some(0));
        for nothing in ["-1", "NaN", "inf", "1e300", "", "soon", "Fri, 99 Nov 2026 08:00:30 GMT"] {
            check(&[("retry-after", nothing)], None);
        }
        check(&[], None);
    }
}
