//! Reads numbers and strings in sequence, without ever leaving the file.
//!
//! Counts in a header are claims. Nothing here allocates or skips by a count before the bytes that it claims are known
//! to exist, so a hostile count costs an error, not memory.

use crate::{Bytes, Error, Result, quote};

/// Limit on the length of a string.
const STRING_BYTES_MAX: u64 = 16 << 20;

pub(super) struct Cursor<'a> {
    file: &'a Bytes,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a Bytes) -> Self {
        Self { file, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> usize {
        self.file.len().saturating_sub(self.at)
    }

    /// A second cursor at the same position, to look ahead.
    pub(super) fn fork(&self) -> Self {
        Self { file: self.file, at: self.at }
    }

    /// Takes the next `len` bytes; the error says how many are missing.
    pub(super) fn take(&mut self, len: usize) -> Result<Bytes> {
        let taken = self.at.checked_add(len).and_then(|end| self.file.slice(self.at..end));
        let Some(taken) = taken else {
            return Err(Error::corrupt(format!(
                "the file ends inside its header: {len} bytes are expected at byte {}, and {} are left",
                self.at,
                self.remaining()
            ))
            .help("it is truncated or damaged: download it again"));
        };
        self.at += len;
        Ok(taken)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Takes a length-prefixed byte string, which need not be UTF-8.
    pub(super) fn string(&mut self) -> Result<Bytes> {
        let len = self.u64()?;
        if len > STRING_BYTES_MAX {
            let at = self.at.saturating_sub(8);
            return Err(Error::corrupt(format!(
                "the string at byte {at} claims {len} bytes, more than the {STRING_BYTES_MAX} that are read"
            )));
        }
        self.take(len as usize)
    }

    /// Takes the name of a key or tensor: short, UTF-8 and printable.
    pub(super) fn name(&mut self, what: &str, bytes_max: usize) -> Result<String> {
        let at = self.at;
        let bytes = self.string()?;
        if bytes.is_empty() || bytes.len() > bytes_max {
            return Err(Error::corrupt(format!(
                "the name of the {what} at byte {at} is {} bytes long, not 1 to {bytes_max}",
                bytes.len()
            )));
        }
        match std::str::from_utf8(&bytes) {
            Ok(name) if !name.chars().any(char::is_control) => Ok(name.to_owned()),
            Ok(name) => Err(Error::corrupt(format!(
                "the name of the {what} at byte {at} has control characters: {}",
                quote(name)
            ))),
            Err(_) => Err(Error::corrupt(format!("the name of the {what} at byte {at} is not UTF-8 text"))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&bytes);
        Ok(array)
    }
}
