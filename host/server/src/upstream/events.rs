//! Takes server-sent events apart. Lines and events are bounded: what a server sends without an end is an error.

/// Limit of an event, so that a whole call with a file as its argument fits.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// The event is longer than any that a server should send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Oversized;

#[derive(Debug, Default)]
pub(super) struct EventReader {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
}

impl EventReader {
    /// Adds bytes, and appends the data of each event that they complete. Names of events are left out: data says it, too.
    pub(super) fn push(&mut self, mut bytes: &[u8], events: &mut Vec<Vec<u8>>) -> Result<(), Oversized> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend_line(&bytes[..end])?;
            bytes = &bytes[end + 1..];
            self.end_line(events)?;
        }
        self.extend_line(bytes)
    }

    /// The data of an event that ends with the stream instead of an empty line.
    pub(super) fn finish(&mut self, events: &mut Vec<Vec<u8>>) -> Result<(), Oversized> {
        self.end_line(events)?;
        self.dispatch(events);
        Ok(())
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), Oversized> {
        if self.line.len() + self.data.len() + bytes.len() > EVENT_BYTES_MAX {
            return Err(Oversized);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<Vec<u8>>) -> Result<(), Oversized> {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.is_empty() {
            self.dispatch(events);
        } else if let Some(error) = line.strip_prefix(b"error:") {
            // llama.cpp has them beside the format.
            self.has_data = true;
            self.data = [b"{\"error\":", error, b"}"].concat();
        } else if let Some(data) = line.strip_prefix(b"data:") {
            let data = data.strip_prefix(b" ").unwrap_or(data);
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(data);
        }
        if self.data.len() > EVENT_BYTES_MAX { Err(Oversized) } else { Ok(()) }
    }

    fn dispatch(&mut self, events: &mut Vec<Vec<u8>>) {
        if std::mem::take(&mut self.has_data) {
            events.push(std::mem::take(&mut self.data));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The events of a stream that comes in pieces of every size.
    fn check(stream: &str, expected: &[&str]) {
        for size in 1..=stream.len().max(1) {
            let (mut reader, mut events) = (EventReader::default(), Vec::new());
            stream.as_bytes().chunks(size).for_each(|piece| reader.push(piece, &mut events).unwrap());
            reader.finish(&mut events).unwrap();
            let texts: Vec<&str> = events.iter().map(|event| std::str::from_utf8(event).unwrap()).collect();
            assert_eq!(texts, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        check("data: {\"a\":1}\n\ndata: [DONE]\n\n", &["{\"a\":1}", "[DONE]"]);
        check("event: ping\r\ndata:x\r\n\r\n: a comment\r\n\r\n", &["x"]);
        check("error: {\"code\":500}\n\n", &["{\"error\": {\"code\":500}}"]);
        check("data: a\ndata: b\n\nid: 7\n\ndata: é", &["a\nb", "é"]);
        check("", &[]);
    }

    #[test]
    fn what_has_no_end_is_an_error() {
        let flood = |piece: &[u8]| {
            let (mut reader, mut events) = (EventReader::default(), Vec::new());
            let pushed = (0..2 * EVENT_BYTES_MAX / piece.len()).try_for_each(|_| reader.push(piece, &mut events));
            (pushed, reader.line.capacity() + reader.data.capacity())
        };
        for piece in [vec![b'x'; 1024], [b"data: ".to_vec(), vec![b'x'; 1000], b"\n".to_vec()].concat()] {
            let (pushed, held) = flood(&piece);
            assert_eq!(pushed, Err(Oversized));
            assert!(held <= 3 * EVENT_BYTES_MAX, "{held}");
        }
        // Comments and unknown fields are not kept.
        assert_eq!(flood(b": ping\n").0, Ok(()));
    }
}
