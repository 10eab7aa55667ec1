//! Helpers of the answer parsers: searching for markers in a stream of bytes, and emitting deltas.

use crate::chat::Delta;

/// The result of one step of a parser's state machine.
#[derive(PartialEq, Eq)]
pub(super) enum Advance {
    /// The step consumed bytes or changed the state.
    Done,
    NeedsBytes,
}

/// Finds a marker in a text; an empty marker is never found.
pub(super) fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    if wanted.is_empty() { None } else { text.windows(wanted.len()).position(|window| window == wanted) }
}

/// Length of the prefix whose bytes all satisfy the predicate.
pub(super) fn leading(bytes: &[u8], such: impl Fn(&u8) -> bool) -> usize {
    bytes.iter().take_while(|byte| such(byte)).count()
}

/// Length of the longest suffix that may be the beginning of a marker.
pub(super) fn overlap(bytes: &[u8], marker: &[u8]) -> usize {
    let longest = bytes.len().min(marker.len().saturating_sub(1));
    (1..=longest).rev().find(|length| bytes.ends_with(&marker[..*length])).unwrap_or(0)
}

/// Length without an incomplete character at the end.
pub(super) fn whole(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    let lead = bytes[tail..].iter().rposition(|byte| *byte >= 0xc0);
    match lead.map(|lead| tail + lead) {
        Some(lead) => match std::str::from_utf8(&bytes[lead..]) {
            Err(error) if error.error_len().is_none() && error.valid_up_to() == 0 => lead,
            _ => bytes.len(),
        },
        None => bytes.len(),
    }
}

pub(super) fn show(out: &mut Vec<Delta>, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.push(Delta::Text { text: String::from_utf8_lossy(bytes).into_owned(), logprobs: Vec::new() });
    }
}

pub(super) fn think(out: &mut Vec<Delta>, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.push(Delta::Thinking(String::from_utf8_lossy(bytes).into_owned()));
    }
}

/// Appends bytes to the inside of a JSON string.
pub(super) fn escape(bytes: &[u8], json: &mut Vec<u8>) {
    for byte in bytes {
        match byte {
            b'"' => json.extend(br#"\""#),
            b'\\' => json.extend(br"\\"),
            b'\n' => json.extend(br"\n"),
            b'\r' => json.extend(br"\r"),
            b'\t' => json.extend(br"\t"),
            0..0x20 => json.extend(format!("\\u{byte:04x}").bytes()),
            _ => json.push(*byte),
        }
    }
}
