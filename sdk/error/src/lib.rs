//! The SDK's error type: its kind, what happened to what, and what to do about it.
//!
//! Messages are lowercase without a full stop and name both sides of a mismatch, as they end up in front of a user who
//! wrote neither the plugin nor the checkpoint. Files and clients are never trusted, so everything that reads them
//! returns this type instead of panicking.

use std::fmt;

/// The kind of an error, by which a host decides how to react.
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

/// An error with a message for users, and help on what to do about it.
#[derive(Clone, Debug)]
pub struct Error {
    /// The kind, by which a host decides how to react.
    pub code: Code,
    /// States what happened, and to what; lowercase, without a full stop.
    pub message: String,
    /// How to fix it; may be empty.
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

/// An error of the SDK's that went through foreign code as one of the system's comes out as it went in.
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        if let Some(own) = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>()) {
            return own.clone();
        }
        let code = if error.kind() == std::io::ErrorKind::NotFound { Code::NotFound } else { Code::Io };
        Self::new(code, error.to_string())
    }
}

#[cfg(feature = "candle")]
impl From<candle_core::Error> for Error {
    /// candle's innermost error with its contexts, without backtraces.
    fn from(error: candle_core::Error) -> Self {
        use candle_core::Error as Candle;
        match error {
            Candle::WithBacktrace { inner, .. } => Self::from(*inner),
            Candle::WithPath { inner, path } => Self::from(*inner).context(path.display()),
            Candle::Context { inner, context } => Self::from(*inner).context(context),
            Candle::Io(error) => Self::from(error),
            other => Self::new(Code::Device, other.to_string()),
        }
    }
}

/// For code that candle calls. Candle has no error that holds another and gives it back, but the system's.
#[cfg(feature = "candle")]
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        Self::Io(std::io::Error::other(error))
    }
}

#[cfg(all(test, feature = "candle"))]
mod tests {
    use super::*;

    #[test]
    fn an_error_comes_back_from_candle_as_it_went_in() {
        let own = || Error::cancelled("the host cancelled the load").help("wait");
        let through = Error::from(candle_core::Error::from(own()));
        assert_eq!((through.code, &through.message, &through.help), (Code::Cancelled, &own().message, &own().help));
        let nested = candle_core::Error::from(own()).with_path("x.gguf").context("layer 3");
        let nested = Error::from(nested);
        assert_eq!((nested.code, nested.message), (Code::Cancelled, format!("layer 3: x.gguf: {}", own().message)));
        let foreign = Error::from(candle_core::Error::Msg("shape mismatch".into()));
        assert_eq!((foreign.code, foreign.message.as_str()), (Code::Device, "shape mismatch"));
        let absent = std::io::Error::from(std::io::ErrorKind::NotFound);
        assert_eq!(Error::from(candle_core::Error::from(absent)).code, Code::NotFound);
    }
}
