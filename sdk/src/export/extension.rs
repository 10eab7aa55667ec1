//! Extensions of an author's own: tables of functions beside the contract, which a host asks for by id.
//!
//! A table is a `#[repr(C)]` struct of functions that derives [`abi_stable::StableAbi`]. The derive macro needs
//! `abi_stable` among the plugin's own dependencies, in the SDK's version. Both sides compile the same definition, and the
//! host compares layouts before it calls anything. The provider returns the table from its `extension` method, or a plugin
//! from [`Plugin::extension`](crate::Plugin::extension). A function's first argument is the object that offered the table;
//! [`model`], [`decoder`] and [`architecture`] turn it back into the author's own type, and turn errors and panics into
//! what the host expects.
//!
//! This is the only part of the SDK with types of the ABI. Ids look like `my-company-name/1`; the contract's own come
//! first.

use pensieve_plugin_api::abi_stable::{
    sabi_types::{RMut, RRef},
    std_types::RResult,
};
use std::any::Any;

use super::{guard::guard, model::ExportedModel, providers::ExportedArchitecture};
use crate::{Architecture, Error, Model, Result};

pub use crate::abi::{Extension, PluginError, abi_stable};

/// Calls an author's code with the model that offered the table.
///
/// # Safety
///
/// `object` is the first argument of a function in a table that [`Model::extension`] returned.
pub unsafe fn model<M: Model, T>(
    object: RMut<'_, ()>,
    call: impl FnOnce(&mut M) -> Result<T>,
) -> RResult<T, PluginError> {
    guard("extension", || {
        // SAFETY: the caller promises that a model offered the table, and models are exported as this type. The host
        // passes the object exclusively for the duration of the call.
        let exported = unsafe { &mut *object.into_raw().cast::<ExportedModel>() };
        let model: &mut dyn Any = exported.model()?;
        call(model.downcast_mut().ok_or_else(other::<M>)?)
    })
}

/// Calls an author's code with the decoder that offered the table.
///
/// # Safety
///
/// `object` is the first argument of a function in a table that [`Decoder::extension`](crate::nn::Decoder::extension)
/// returned.
#[cfg(feature = "nn")]
pub unsafe fn decoder<D: crate::nn::Decoder, T>(
    object: RMut<'_, ()>,
    call: impl FnOnce(&mut D) -> Result<T>,
) -> RResult<T, PluginError> {
    // SAFETY: a decoder's table is offered by its model.
    unsafe { model(object, |model: &mut crate::nn::PagedModel<D>| call(model.decoder())) }
}

/// Calls an author's code with the architecture that offered the table.
///
/// # Safety
///
/// `object` is the first argument of a function in a table that [`Architecture::extension`] returned.
pub unsafe fn architecture<A: Architecture, T>(
    object: RRef<'_, ()>,
    call: impl FnOnce(&A) -> Result<T>,
) -> RResult<T, PluginError> {
    guard("extension", || {
        // SAFETY: the caller promises that an architecture offered the table, and architectures are exported as this
        // type.
        let exported = unsafe { object.transmute_into_ref::<ExportedArchitecture>() };
        let architecture: &dyn Any = exported.0;
        call(architecture.downcast_ref().ok_or_else(other::<A>)?)
    })
}

fn other<T>() -> Error {
    let message = format!("the object that offered the extension is no {}", std::any::type_name::<T>());
    Error::invalid(message).help("offer a table only from the type that its functions take")
}
