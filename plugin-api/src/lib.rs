//! The contract between the Pensieve host and its plugins: this crate is the specification, and its types are the only
//! thing that both sides share. It knows `abi_stable` and nothing else; no tensor and no candle type crosses, only plain
//! data: token ids, positions, ids of blocks and slots, rows of numbers, JSON text.
//!
//! # The rules
//!
//! **Shape.** A plugin is a native library that exports one [`PluginModule`]. Its [`Manifest`] says, as data, who it is and
//! which checkpoints it claims; its providers are small objects: [`Architecture`] makes a [`Model`], [`Sampler`] makes a
//! [`Stage`], [`AdapterFormat`] opens an adapter's [`AdapterData`].
//!
//! **Threads.** Every function's documentation opens with where and when it may be called:
//! - `[any thread]`: at any time, concurrently with anything.
//! - `[control thread]`: one call at a time for this object, no model of it need exist.
//! - `[engine thread, loaded]`: on the one thread that drives this model, between its `load` and its drop.
//! - `[one thread at a time, loaded]`: the same, but not always on the same thread.
//!
//! A [`Model`] and a [`Stage`] may move between threads but are never called from two at once (`Send`); the host's
//! [`Services`] may be called from anywhere (`Send + Sync`).
//!
//! **Ownership.** What is passed by reference or slice belongs to the caller and is valid until the call returns; the callee
//! copies what it keeps. What is returned belongs to the caller, which drops it through the vtable of its maker.
//!
//! **Errors.** Fallible functions return [`PluginError`]; none may unwind. A panic that reaches the boundary ends the
//! process, so both sides catch their own. After an error from [`Model::forward`] the model must still be usable; the
//! sequences of that batch are in an undefined state and the host releases them.
//!
//! **Versions.** Contract 1.x is frozen: no method, field or variant is ever added to what is here, as a host may be older or
//! newer than a plugin. What comes later is an extension: [`Extension`]s are asked for by an id such as `kv-transfer/1` on
//! the object that has them and arrive with their layout, which the asker checks before use. The modules in [`ext`] are
//! those known so far; an unknown id is answered by "none". Codes are `u32` newtypes, not enums, so that an unknown
//! value is a number to be handled instead of undefined behaviour.

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

/// The contract that this crate states.
pub const CONTRACT: Version = Version { major: 1, minor: 0 };
