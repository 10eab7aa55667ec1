//! The image processor: what the template writes for an image, and what its settings are.

use pensieve_sdk::{
    Measured, MediaItem, MediaKind, MediaSize, Result,
    nn::{
        ModelOptions,
        vision::{ItemDescription, MAX_PIXELS, Processor, SmartResize, image::Resample},
    },
    weights::{Checkpoint, Config as Settings},
};

use super::Config;

/// What the template writes for an image, and what stands around it.
pub(super) const SLOT: &str = "<|image|>";
const WITHOUT_TEMPLATE: &str = "<|begin_of_image|><|image|><|end_of_image|>";
/// The pixels of an image's frames after resizing where a processor's file has no limits.
const PIXELS: [usize; 2] = [112 * 112, 28 * 28 * 15_000];

/// Describes and prepares images.
pub struct Eyes;

impl Processor for Eyes {
    fn describe(&self, checkpoint: &Checkpoint) -> Result<Vec<ItemDescription>> {
        describe(checkpoint, None)
    }

    fn describe_with(&self, checkpoint: &Checkpoint, options: &ModelOptions) -> Result<Vec<ItemDescription>> {
        describe(checkpoint, options.get(MAX_PIXELS)?)
    }

    fn measure(&self, settings: &Settings, size: MediaSize) -> Result<Measured> {
        SmartResize::read(settings)?.measure(size, SLOT)
    }

    fn prepare(&self, settings: &Settings, item: &MediaItem<'_>) -> Result<Vec<u8>> {
        SmartResize::read(settings)?.prepare(item)
    }
}

/// `most` is the user's limit on pixels. Edges in a processor's file count the pixels of all frames that share a patch.
fn describe(checkpoint: &Checkpoint, most: Option<usize>) -> Result<Vec<ItemDescription>> {
    let Some(config) = Config::read(checkpoint)? else { return Ok(Vec::new()) };
    let file = checkpoint.processor()?;
    let Config { patch_size: side, spatial_merge_size: merge, temporal_patch_size: frames, .. } = config;
    let resample = Resample::of(file.usize_or("resample", Resample::Bicubic as usize)?)?;
    let limits = SmartResize::limits(&file, frames, PIXELS)?;
    let sizes = SmartResize::new(side, merge, limits, most, resample)?.keeping_proportions();
    let text_width = checkpoint.config().usize("hidden_size")?;
    let values = 3 * side * side + 8 * config.hidden_size + 3 * config.block_inner;
    Ok(vec![ItemDescription {
        kind: MediaKind::Image,
        placeholder: SLOT.into(),
        text: Some(WITHOUT_TEMPLATE.into()),
        slot: config.slot,
        whole: false,
        rows_max: sizes.rows_max(),
        row_values: text_width,
        encoder_bytes: 4 * sizes.patches_max() as u64 * values as u64,
        rate: None,
        settings: sizes.settings(),
    }])
}
