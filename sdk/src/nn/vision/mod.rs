//! Eyes: image processors, towers that turn patches into rows, and the parts that they are made of.
//!
//! A family that reads images adds two things to its decoder: a [`Processor`], which knows what an image becomes and
//! prepares it without the weights, and a [`Tower`], its layers. The SDK keeps handles, cuts the work into pieces, and
//! places rows in sequences; the decoder's `hidden` puts them into its embeddings with
//! [`Step::with_items`](super::Step::with_items).

mod block;
pub mod image;
mod patch_embed;
mod pieces;
mod position_table;
mod processor;
mod queue;
mod siglip;
mod smart_resize;
pub mod tiles;
mod tower;

pub use block::{Sandwich, VitBlock, VitMlp, VitNorm};
pub use patch_embed::patch_embed;
pub use position_table::PositionTable;
pub(super) use processor::to_json;
pub use processor::{ItemDescription, Processor};
pub(super) use queue::Queue;
pub use siglip::{Siglip, SiglipConfig};
pub use smart_resize::{MAX_PIXELS, SmartResize};
pub use tiles::PixelRange;
pub use tower::{Grid, GridPart, PatchBatch, Patches, Tower};
