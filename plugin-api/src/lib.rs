//! The contract between the Pensieve host and its plugins. This crate is the specification, and its types are all that
//! both sides share. It depends on `abi_stable` alone; no tensor and no candle type crosses the boundary, only plain
//! data: token ids, positions, block and slot ids, rows of numbers, JSON text.
//!
//! # The rules
//!
//! **Shape.** A plugin is a native library that exports one [`PluginModule`]. Its [`Manifest`] identifies it and lists the
//! checkpoints it claims, as plain data; its providers are small objects: [`Architecture`] makes a [`Model`], [`Sampler`] makes a
//! [`Stage`], [`AdapterFormat`] opens an adapter's [`AdapterData`].
//!
//! **Threads.** Every function's documentation opens with where and when it may be called. *Loaded* means between a model's
//! `load` and its drop.
//! - `[any thread]`: at any time, concurrently with anything.
//! - `[control thread]`: one call at a time for this object; a model need not be loaded.
//! - `[engine thread, loaded]`: on the one thread that drives this model.
//! - `[one thread at a time, loaded]`: the same, but the thread may change between calls.
//!
//! A [`Model`] and a [`Stage`] may move between threads but are never called from two at once (`Send`); the host's
//! [`Services`] may be called from anywhere (`Send + Sync`).
//!
//! **Ownership.** Arguments passed by reference or slice belong to the caller and are valid until the call returns; the
//! callee copies what it keeps. Return values belong to the caller, which drops them through their maker's vtable.
//!
//! **Errors.** Fallible functions return [`PluginError`]; none may unwind. A panic that reaches the boundary aborts the
//! process, so each side catches its own. After an error from [`Model::forward`] the model must still be usable; the
//! sequences of that batch are in an undefined state, and the host releases them.
//!
//! **Versions.** Contract 1.x is frozen: no method, field or variant is ever added, as a host may be older or newer
//! than a plugin. Additions are [`Extension`]s: requested by an id such as `kv-transfer/1` from the object that offers
//! them, and delivered with their layout, which the caller checks before use. [`ext`] has those known so far; for an
//! unknown id the result is none. Codes are `u32` newtypes, not enums, so that an unknown value can be handled instead
//! of being undefined behaviour.

#![allow(
    non_camel_case_types,
    non_local_definitions,
    reason = "abi_stable's macros make names such as Model_TO, and impls inside of constants"
)]

mod adapter;
mod architecture;
mod batch;
mod cache;
mod entry;
mod error;
pub mod ext;
mod host;
mod sampler;

pub use abi_stable;

pub use adapter::{AdapterBox, AdapterData, AdapterFormat, AdapterFormat_TO, LowRankPair};
pub use architecture::{
    Architecture, Architecture_TO, ArchitectureBox, Card, LoadRequest, Model, Model_TO, ModelBox, Resident, Source,
};
pub use batch::{Batch, NO_ADAPTER, Output, Outputs, Span, Want};
pub use cache::{CacheGroup, CacheKind, CacheTable, Checkpoint, VACANT};
pub use entry::{Claim, Manifest, PluginModule, PluginModule_Ref, Version, header};
pub use error::{ErrorCode, PluginError};
pub use ext::Extension;
pub use host::{LogLevel, Services, Services_TO, ServicesArc};
pub use sampler::{Candidates, History, Sampler, Sampler_TO, SamplerBox, Stage, Stage_TO, StageBox};

/// The version of this contract.
pub const CONTRACT: Version = Version { major: 1, minor: 0 };
