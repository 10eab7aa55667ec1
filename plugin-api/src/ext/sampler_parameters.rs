//! `draft/sampler-parameters/1`, of a plugin as a whole: what its samplers do and which parameters they read, so that an
//! interface can offer them and a person need not look for documentation.
//!
//! A description is a JSON object of at most [`DESCRIPTION_BYTES_MAX`] bytes. All members may be left out and unknown ones are
//! ignored; a plugin with one of another type is refused:
//!
//! | member | value |
//! |---|---|
//! | `text` | a line about what the sampler does |
//! | `picks` | `true` if it picks a token, which ends a chain. Default `false` |
//! | `parameters` | a list of objects, in the order in which to show them |
//!
//! A parameter has a `name`, a `type`, and perhaps a `text`. A `number` or an `integer` has `default`, `minimum` and
//! `maximum`; `tokens` is a list of token ids, `biases` an object of numbers by token id, and `text` a text.

use abi_stable::{
    StableAbi,
    std_types::{RResult, RString},
};

use crate::PluginError;

/// The extension's id.
pub const ID: &str = "draft/sampler-parameters/1";
/// Limit on the length of a description.
pub const DESCRIPTION_BYTES_MAX: usize = 8 << 10;

/// The table of `draft/sampler-parameters/1`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct SamplerParameters {
    /// `[any thread]` Describes the sampler with this index in the manifest; an empty text if it has no description. Like
    /// the manifest it must be cheap, and must not touch files or devices.
    pub describe: extern "C" fn(index: u32) -> RResult<RString, PluginError>,
}
