//! `draft/rows/1`: what a checkpoint's hidden rows are for. An [`crate::Architecture`] describes it, and a
//! [`crate::Model`] computes what follows pooling.
//!
//! The host asks for [`crate::Output::HIDDEN`] rows, pools them over each text in `f32`, passes the pooled rows through
//! [`Finish`] if the description has `finish`, cuts them to the dimensions that a client asks for, and normalizes. The
//! description is a JSON object of at most [`DESCRIPTION_BYTES_MAX`] bytes; unknown members are ignored:
//!
//! | member | value |
//! |---|---|
//! | `kind` | `embed`, `rank` (one score for a query and a document) or `classify` (a score for each label) |
//! | `made_for` | `false` if the checkpoint does not say so itself: the rows of a chat model. Default `true` |
//! | `generates` | `false` for a model without an output layer: a span that wants logits is refused. Default `true` |
//! | `pooling` | `last`, `first` or `mean`, over all tokens of a text, `open` and `close` included |
//! | `finish` | the width of a row after [`Finish`]; absent if nothing follows pooling |
//! | `normalize` | whether a row is divided by its length. Default `false` |
//! | `dimensions` | the width of a result: `finish`, or else the card's `hidden` |
//! | `matryoshka` | smaller widths that a row may be cut to: a list, or `true` for any. Wider ones are ignored |
//! | `activation` | of scores: `sigmoid`, `softmax` or `none`. Default: `sigmoid` for `rank`, `softmax` for `classify` |
//! | `open`, `between`, `close` | token ids before a text, between the two of a pair, and after. Default: none |
//! | `whole` | a token's row depends on later tokens: a text is one span with `past` 0, and nothing of it is reused |
//! | `prompts` | an object of texts to put before a text, by name; `query` and `document` have their meaning |
//! | `prompt` | the name of the prompt for texts that name none |
//! | `labels` | the names of the classes of `classify`, `finish` many |
//! | `pair_template` | for `rank` by a decoder: the text around `{instruction}`, `{query}` and `{document}`, of which only the document is cut |
//! | `instruction` | the instruction for pairs that bring none |
//! | `maximum` | the longest text in tokens, all of the above included. Default: the context |

use abi_stable::{
    StableAbi,
    sabi_types::{RMut, RRef},
    std_types::{RResult, RSlice, RSliceMut, RString},
};

use super::Offered;
use crate::{ArchitectureBox, ModelBox, PluginError, Source};

/// The extension's id, for both tables.
pub const ID: &str = "draft/rows/1";
/// Limit on the length of a description.
pub const DESCRIPTION_BYTES_MAX: usize = 256 << 10;

/// The table of an architecture. Its function is unsafe to call directly, as it trusts that `architecture` is the object
/// that offered the table; [`Describe::of`] ensures that.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Describe {
    /// `[any thread]` Returns the description of a checkpoint whose card has hidden rows; an empty text if there is
    /// none. Reads headers and configuration files, never the weights.
    pub describe:
        unsafe extern "C" fn(architecture: RRef<'_, ()>, source: &Source<'_>) -> RResult<RString, PluginError>,
}

/// The table of a model whose description has `finish`. Its function is unsafe to call directly, as it trusts that
/// `model` is the object that offered the table; [`Finish::of`] ensures that.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Finish {
    /// `[engine thread, loaded]` Applies what follows pooling, such as dense layers, a classifier, or the difference of
    /// two logits. `rows` has any number of pooled rows of the card's `hidden` values, and `out` as many of `finish`
    /// values.
    pub finish: unsafe extern "C" fn(
        model: RMut<'_, ()>,
        rows: RSlice<'_, f32>,
        out: RSliceMut<'_, f32>,
    ) -> RResult<(), PluginError>,
}

/// A checked table together with the architecture that offered it.
pub struct Describing<'a> {
    table: &'static Describe,
    object: RRef<'a, ()>,
}

impl Describe {
    /// The architecture's table, if it offers one.
    pub fn of(architecture: &ArchitectureBox) -> Option<Result<Describing<'_>, PluginError>> {
        let extension = architecture.extension(ID.into()).into_option()?;
        Some(extension.table(ID).map(|table| Describing { table, object: architecture.obj.sabi_as_rref() }))
    }
}

impl Describing<'_> {
    /// Returns the description of a checkpoint.
    pub fn describe(&self, source: &Source<'_>) -> Result<RString, PluginError> {
        // SAFETY: `object` is the architecture whose extension `table` is.
        unsafe { (self.table.describe)(self.object, source) }.into_result()
    }
}

impl Finish {
    /// The model's table, if it offers one.
    pub fn of(model: &mut ModelBox) -> Option<Result<Offered<'_, Self>, PluginError>> {
        let extension = model.extension(ID.into()).into_option()?;
        Some(extension.table(ID).map(|table| Offered { table, object: model.obj.sabi_as_rmut() }))
    }
}

impl Offered<'_, Finish> {
    /// Computes rows of `finish` values from as many pooled rows.
    pub fn finish(&mut self, rows: &[f32], out: &mut [f32]) -> Result<(), PluginError> {
        // SAFETY: `object` is the model whose extension `table` is.
        unsafe { (self.table.finish)(self.object.reborrow(), rows.into(), out.into()) }.into_result()
    }
}
