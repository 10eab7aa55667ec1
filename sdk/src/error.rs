//! The one error of the SDK: what kind it is, what happened to what, and what to do about it.
//!
//! Messages are lowercase without a full stop and name both sides of a mismatch, as they end up in front of a user who
//! wrote neither the plugin nor the checkpoint. Files and clients are never trusted, so everything that reads them
//! returns this type instead of panicking.

use std::fmt;

/// What a host may do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The caller passed something that breaks the contract.
    Invalid,
    /// A file's content is not what its format promises: truncated, out of range, inconsistent.
    Corrupt,
    /// Well formed, but this plugin cannot do it.
    Unsupported,
    /// An architecture does not want this checkpoint; the next claimant is asked.
    Declined,
    /// A file, tensor, key or sequence that is not there.
    NotFound,
    /// The operating system refused a read.
    Io,
    /// A device or memory budget is exhausted.
    OutOfMemory,
    /// The host asked to stop.
    Cancelled,
    /// The plugin panicked; the message is the panic's.
    Panicked,
    /// The device (CUDA, Metal) or candle failed.
    Device,
}

/// An error with a message for a person and help that says what to do.
#[derive(Clone, Debug)]
pub struct Error {
    /// What a host may do about it.
    pub code: Code,
    /// What happened, to what.
    pub message: String,
    /// What to do about it; empty where there is nothing to say.
    pub help: String,
}

/// The SDK's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error without help.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), help: String::new() }
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// Puts the thing that was being worked on before the message: `tensor 'x': …`.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $code:ident,)*) => {
        impl Error {
            $($(#[$doc])* pub fn $name(message: impl Into<String>) -> Self { Self::new(Code::$code, message) })*
        }
    };
}

constructors! {
    /// See [`Code::Invalid`].
    invalid => Invalid,
    /// See [`Code::Corrupt`].
    corrupt => Corrupt,
    /// See [`Code::Unsupported`].
    unsupported => Unsupported,
    /// See [`Code::Declined`].
    declined => Declined,
    /// See [`Code::NotFound`].
    not_found => NotFound,
    /// See [`Code::OutOfMemory`].
    out_of_memory => OutOfMemory,
    /// See [`Code::Cancelled`].
    cancelled => Cancelled,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.help.is_empty() {
            write!(f, "; {}", self.help)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        let code = if error.kind() == std::io::ErrorKind::NotFound { Code::NotFound } else { Code::Io };
        Self::new(code, error.to_string())
    }
}

#[cfg(feature = "nn")]
impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::new(Code::Device, said(&error))
    }
}

/// What candle says, without the backtraces that it may write below.
#[cfg(feature = "nn")]
fn said(error: &candle_core::Error) -> String {
    use candle_core::Error as Candle;
    match error {
        Candle::WithBacktrace { inner, .. } => said(inner),
        Candle::WithPath { inner, path } => format!("{}: {}", path.display(), said(inner)),
        Candle::Context { inner, context } => format!("{context}: {}", said(inner)),
        other => other.to_string(),
    }
}
