//! SHA-256 digests in hexadecimal.

use std::{
    fmt,
    io::{self, Read, Write},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// 64 lowercase hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Sha256Hex(String);

impl Sha256Hex {
    pub fn of(bytes: &[u8]) -> Self {
        Self(format!("{:x}", Sha256::digest(bytes)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Sha256Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_hex = text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_hex { Ok(Self(text)) } else { Err("a digest is 64 of the characters 0-9 and a-f".to_owned()) }
    }
}

impl fmt::Display for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Copies everything and returns its digest and its length.
pub(crate) fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<(Sha256Hex, u64)> {
    let (mut digest, mut length, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok((Sha256Hex(format!("{:x}", digest.finalize())), length)),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        digest.update(&buffer[..read]);
        to.write_all(&buffer[..read])?;
        length += read as u64;
    }
}

/// The digest and the length of a file.
pub fn of_file(path: &std::path::Path) -> io::Result<(Sha256Hex, u64)> {
    copy(&mut std::fs::File::open(path)?, &mut io::sink())
}
