//! Keeps panics from crossing the boundary: they become errors with the panic's message.

use pensieve_plugin_api::{
    Extension, PluginError,
    abi_stable::std_types::{ROption, RResult},
};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{convert::error_out, pool};
use crate::{Code, Error, Result};

/// Runs an author's code for the host.
pub(super) fn guard<T>(what: &str, code: impl FnOnce() -> Result<T>) -> RResult<T, PluginError> {
    caught(what, code).map_err(error_out).into()
}

/// Runs an author's code. Unwind safety: data that the code was changing may be inconsistent afterwards; it is the
/// author's own state, and the contract says which of it the host still uses.
pub(crate) fn caught<T>(what: &str, code: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(|| pool::within(code))).unwrap_or_else(|panic| {
        let message = format!("{what} panicked: {}", message_of(&*panic));
        discard(panic);
        Err(Error::new(Code::Panicked, message).help("this is a defect of the plugin; tell its author"))
    })
}

/// An author's own extension; none if the author's code panics.
pub(super) fn own(extension: impl FnOnce() -> Option<Extension>) -> ROption<Extension> {
    guard("extension", || Ok(extension())).unwrap_or(None).into()
}

/// Drops an author's value, ignoring panics.
pub(crate) fn discard<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| pool::within(|| drop(value)))) {
        // The panic's payload may itself panic when dropped.
        std::mem::forget(panic);
    }
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    if let Some(message) = panic.downcast_ref::<&str>() {
        message
    } else if let Some(message) = panic.downcast_ref::<String>() {
        message
    } else {
        "no message"
    }
}
