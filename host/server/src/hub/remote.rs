//! A file on the hub, and the digest that its bytes must come to.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) digest: Digest,
}

/// What a file's bytes must come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Digest {
    /// The digest of a large file.
    Sha256(String),
    /// The digest of a small file, which the hub keeps in git itself.
    Git(String),
}

impl Digest {
    /// Hexadecimal; the file's name in the cache.
    pub(super) fn as_str(&self) -> &str {
        let (Self::Sha256(text) | Self::Git(text)) = self;
        text
    }
}

pub(super) fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
