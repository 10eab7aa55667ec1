//! The shortest way to the end of a JSON text, for an answer that nears its limit.
//!
//! A simple search by bytes: what closes something comes first, and of what is demanded the shortest comes next. It
//! need not find the very shortest text, but it always moves towards the end.

use llguidance::Matcher;

use crate::{constraint_error::ConstraintError, outline::Outline};

/// Longest completion.
const BYTES_MAX: usize = 8 << 10;
/// Longest completion with an item in each list.
const FILLED_BYTES_MAX: usize = 2 << 10;
/// Most bytes that a search tries, so that it takes some hundredths of a second at most.
const TRIES_MAX: usize = 4 << 10;
/// Within a string, within a number, and elsewhere.
const IN_TEXT: &[u8] = b"\"-0";
const IN_NUMBER: &[u8] = b"}],1234567890";
const ELSEWHERE: &[u8] = b"}]\":,0ntf{[";
/// The same where lists get an item before they end.
const FILLED: &[u8] = b"}{\":0ntf],[";

/// Accepts a byte if it continues the text.
pub(crate) type Advance<'a> = dyn Fn(&mut Matcher, u8) -> Result<bool, ConstraintError> + 'a;

/// Returns the bytes that complete the text of a matcher, of which this is the outline; `None` if the search finds none.
pub(crate) fn complete(matcher: &mut Matcher, outline: Outline, advance: &Advance<'_>) -> Option<Vec<u8>> {
    search(matcher, outline, advance, ELSEWHERE, BYTES_MAX)
}

/// Returns a text with an item in each list that may have one; `None` if it is long.
pub(crate) fn fill(matcher: &mut Matcher, outline: Outline, advance: &Advance<'_>) -> Option<Vec<u8>> {
    search(matcher, outline, advance, FILLED, FILLED_BYTES_MAX)
}

fn search(
    matcher: &mut Matcher,
    mut outline: Outline,
    advance: &Advance<'_>,
    order: &[u8],
    bytes_max: usize,
) -> Option<Vec<u8>> {
    let (mut text, mut tries) = (Vec::new(), 0);
    while outline.depth() > 0 || !matcher.is_accepting().ok()? {
        let begun = text.len();
        // Property names are mostly forced; trying each of their bytes would take thirty times as long.
        for byte in matcher.compute_ff_bytes() {
            if !matches!(advance(matcher, byte), Ok(true)) {
                break;
            }
            text.push(byte);
        }
        if text.len() == begun {
            let first = match (outline.in_text(), outline.in_number()) {
                (true, _) => IN_TEXT,
                (false, true) => IN_NUMBER,
                (false, false) => order,
            };
            let rest = (b'!'..=b'~').chain([b' ']).chain(0x80..0xff);
            let next = first.iter().copied().chain(rest).take(TRIES_MAX - tries).find(|byte| {
                tries += 1;
                matches!(advance(matcher, *byte), Ok(true))
            });
            text.push(next?);
        }
        if text.len() > bytes_max {
            return None;
        }
        for byte in &text[begun..] {
            outline.push(*byte);
        }
    }
    Some(text)
}
