//! The shortest way to the end of a JSON text, for an answer that nears its limit.
//!
//! A simple search by bytes: what closes something comes first, and of what is demanded the shortest comes next. It
//! need not find the very shortest text, but it always moves towards the end.

use llguidance::Matcher;

use crate::constraint_error::ConstraintError;

/// Longest completion.
pub(crate) const BYTES_MAX: usize = 8 << 10;
/// Longest completion with an item in each list.
const FILLED_BYTES_MAX: usize = 2 << 10;
/// Within a string, and elsewhere.
const IN_TEXT: &[u8] = b"\"-0";
const ELSEWHERE: &[u8] = b"}]\":,0ntf{[";
/// The same where lists get an item before they end.
const FILLED: &[u8] = b"}{\":0ntf],[";

/// Accepts a byte if it continues the text.
pub(crate) type Advance<'a> = dyn Fn(&mut Matcher, u8) -> Result<bool, ConstraintError> + 'a;

/// Returns the bytes that complete the text of a matcher; `None` if the search finds none.
pub(crate) fn complete(matcher: &mut Matcher, advance: &Advance<'_>) -> Option<Vec<u8>> {
    search(matcher, advance, ELSEWHERE, BYTES_MAX)
}

/// Returns a text with an item in each list that may have one; `None` if it is long.
pub(crate) fn fill(matcher: &mut Matcher, advance: &Advance<'_>) -> Option<Vec<u8>> {
    search(matcher, advance, FILLED, FILLED_BYTES_MAX)
}

fn search(matcher: &mut Matcher, advance: &Advance<'_>, order: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while !matcher.is_accepting().ok()? {
        if bytes.len() >= bytes_max {
            return None;
        }
        // Only within a string may both of these come next.
        let is_text = [b'}', b'x'].iter().all(|byte| continues(matcher, *byte, advance));
        let first = if is_text { IN_TEXT } else { order };
        let rest = (b'!'..=b'~').chain([b' ']).chain(0x80..0xff);
        let next = first.iter().copied().chain(rest).find(|byte| matches!(advance(matcher, *byte), Ok(true)))?;
        bytes.push(next);
    }
    Some(bytes)
}

fn continues(matcher: &Matcher, byte: u8, advance: &Advance<'_>) -> bool {
    matches!(advance(&mut matcher.clone(), byte), Ok(true))
}
