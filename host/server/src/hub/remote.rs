//! A file on the hub with its expected digest.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) digest: Digest,
}

/// The expected digest of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Digest {
    /// SHA-256 of an LFS file.
    Sha256(String),
    /// Git blob id (SHA-1) of a small file.
    Git(String),
}

impl Digest {
    /// Hexadecimal digits, which name the file in the cache.
    pub(super) fn as_str(&self) -> &str {
        let (Self::Sha256(text) | Self::Git(text)) = self;
        text
    }
}

pub(super) fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
