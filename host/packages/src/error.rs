//! Errors: what happened, to what, and what to do.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackageErrorKind {
    /// The request itself is wrong.
    Usage,
    /// There is no such plugin, release, index or file.
    Absent,
    Network,
    /// No room on the disk.
    Space,
    /// A document or file is not what it should be.
    Damaged,
    /// A signature, key, serial number or expiry does not allow it.
    Untrusted,
    /// It is sound but not for this machine or host.
    Unfit,
    /// Something else is there already.
    Taken,
    System,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageError {
    pub kind: PackageErrorKind,
    pub message: String,
    /// May be empty.
    pub help: String,
}

pub(crate) type Result<T, E = PackageError> = std::result::Result<T, E>;

impl PackageError {
    pub fn new(kind: PackageErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), help: String::new() }
    }

    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// An I/O error; `what` names the file.
    pub fn system(what: impl fmt::Display, error: &std::io::Error) -> Self {
        use std::io::ErrorKind::{FileTooLarge, NotFound, QuotaExceeded, StorageFull};
        let kind = match error.kind() {
            NotFound => PackageErrorKind::Absent,
            StorageFull | QuotaExceeded | FileTooLarge => PackageErrorKind::Space,
            _ => PackageErrorKind::System,
        };
        Self::new(kind, format!("{what}: {error}"))
    }

    pub(crate) fn damaged(message: impl Into<String>) -> Self {
        Self::new(PackageErrorKind::Damaged, message)
    }

    pub(crate) fn untrusted(message: impl Into<String>) -> Self {
        Self::new(PackageErrorKind::Untrusted, message)
    }
}

impl fmt::Display for PackageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.help.is_empty() { Ok(()) } else { write!(f, "; {}", self.help) }
    }
}

impl std::error::Error for PackageError {}
