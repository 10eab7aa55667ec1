//! Frames between server and worker: the messages about a worker as a whole, and their encoding.
//!
//! A frame is a length (`u32`, little-endian) and that many bytes of postcard. Both ends are this program, but a worker runs
//! plugins, so its frames are untrusted: lengths are bounded, memory grows with the bytes received and not with the length
//! announced, and a frame with unknown, missing or trailing bytes is an error. After an error a reader cannot find the next
//! frame and closes the connection.

mod items;
mod messages;

pub use items::{ItemAssembly, command_frames};
pub use messages::{
    AdapterStats, AttachedAdapter, Attachment, Command, DiskTier, Level, Limits, Load, Loaded, Location, MergedAdapter,
    ModelSpec, PROTOCOL, Provider, Report, Stats, adapter_file_bytes_max,
};

use std::{
    fmt,
    io::{self, Read, Write},
};

use serde::{Serialize, de::DeserializeOwned};

/// The longest frame, without its length.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

/// The longest frame from a worker, without its length. A decoded report can take about twenty times as much memory.
pub const REPORT_BYTES_MAX: usize = 2 << 20;

/// The length before each frame.
pub const HEADER_BYTES: usize = 4;

/// Room for a frame before any of it has arrived. What is not written takes no memory.
pub const RESERVED_BYTES_MAX: usize = 4 << 20;

#[derive(Debug)]
pub enum WireError {
    /// The connection failed or ended in the middle of a frame.
    Io(io::Error),
    TooLong {
        bytes: usize,
        bytes_max: usize,
    },
    /// The bytes are not exactly one message.
    Malformed(postcard::Error),
    /// A piece of an item that belongs to no job.
    StrayItem,
    Inexpressible(postcard::Error),
}

/// Encodes a message as a frame, including its length.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let mut frame = Vec::new();
    encode_into(message, &mut frame)?;
    Ok(frame)
}

/// Appends a message as a frame; after an error the buffer is unchanged.
pub fn encode_into<T: Serialize>(message: &T, frames: &mut Vec<u8>) -> Result<(), WireError> {
    let start = frames.len();
    let encoded = append(message, frames);
    if encoded.is_err() {
        frames.truncate(start);
    }
    encoded
}

/// Lends the end of a buffer to postcard, which wants to own what it extends.
struct End<'a>(&'a mut Vec<u8>);

impl Extend<u8> for End<'_> {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.0.extend(bytes);
    }
}

/// [`encode_into`] that leaves what it has written where it fails.
fn append<T: Serialize>(message: &T, frames: &mut Vec<u8>) -> Result<(), WireError> {
    let header = frames.len();
    frames.extend_from_slice(&[0; HEADER_BYTES]);
    let body = frames.len();
    postcard::to_extend(message, End(frames)).map_err(WireError::Inexpressible)?;
    let bytes = frames.len() - body;
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= FRAME_BYTES_MAX);
    let length = length.ok_or(WireError::TooLong { bytes, bytes_max: FRAME_BYTES_MAX })?;
    frames[header..body].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// Appends a report, splitting events into several frames if one would be too long. After an error the buffer is unchanged.
pub fn encode_report_into(report: &Report, frames: &mut Vec<u8>) -> Result<(), WireError> {
    let start = frames.len();
    encode_into(report, frames)?;
    let bytes = frames.len() - start - HEADER_BYTES;
    if bytes <= REPORT_BYTES_MAX {
        return Ok(());
    }
    frames.truncate(start);
    match report {
        Report::Events(events) if events.len() > 1 => {
            let (first, rest) = events.split_at(events.len() / 2);
            let encoded = [first, rest].into_iter().try_for_each(|events| {
                // Such long reports are rare, so the copy does not matter.
                encode_report_into(&Report::Events(events.to_vec()), frames)
            });
            encoded.inspect_err(|_| frames.truncate(start))
        }
        _ => Err(WireError::TooLong { bytes, bytes_max: REPORT_BYTES_MAX }),
    }
}

pub fn frame_len(header: [u8; HEADER_BYTES]) -> Result<usize, WireError> {
    bounded_len(header, FRAME_BYTES_MAX)
}

/// Length of the body after the header of a worker's report.
pub fn report_len(header: [u8; HEADER_BYTES]) -> Result<usize, WireError> {
    bounded_len(header, REPORT_BYTES_MAX)
}

fn bounded_len(header: [u8; HEADER_BYTES], bytes_max: usize) -> Result<usize, WireError> {
    let bytes = u32::from_le_bytes(header) as usize;
    if bytes > bytes_max { Err(WireError::TooLong { bytes, bytes_max }) } else { Ok(bytes) }
}

/// Decodes the body of a frame.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    match postcard::take_from_bytes(body).map_err(WireError::Malformed)? {
        (message, []) => Ok(message),
        _ => Err(WireError::Malformed(postcard::Error::DeserializeBadEncoding)),
    }
}

/// Reads one message; `None` if the connection has ended.
pub fn read<T: DeserializeOwned>(reader: &mut impl Read) -> Result<Option<T>, WireError> {
    let mut header = [0; HEADER_BYTES];
    if !fill_or_end(reader, &mut header)? {
        return Ok(None);
    }
    let length = frame_len(header)?;
    let mut body = Vec::with_capacity(length.min(RESERVED_BYTES_MAX));
    reader.take(length as u64).read_to_end(&mut body).map_err(WireError::Io)?;
    if body.len() < length {
        return Err(WireError::Io(io::ErrorKind::UnexpectedEof.into()));
    }
    decode(&body).map(Some)
}

pub fn write<T: Serialize>(writer: &mut impl Write, message: &T) -> Result<(), WireError> {
    writer.write_all(&encode(message)?).map_err(WireError::Io)
}

/// Fills the buffer; false if the reader is at its end.
fn fill_or_end(reader: &mut impl Read, buffer: &mut [u8]) -> Result<bool, WireError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(WireError::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(WireError::Io(error)),
        }
    }
    Ok(true)
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the connection between server and worker broke: {error}"),
            Self::TooLong { bytes, bytes_max } => {
                write!(f, "a frame of {bytes} bytes exceeds the limit of {bytes_max}")
            }
            Self::Malformed(error) => write!(f, "a frame cannot be decoded: {error}"),
            Self::StrayItem => f.write_str("a piece of an item in a prompt came without its job"),
            Self::Inexpressible(error) => write!(f, "a message cannot be encoded: {error}"),
        }
    }
}

impl std::error::Error for WireError {}

#[cfg(test)]
mod tests;
