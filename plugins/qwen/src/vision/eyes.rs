//! The image processor: what the template writes for an image, and what its settings are.

use pensieve_sdk::{
    Measured, MediaItem, MediaKind, MediaSize, Result,
    nn::{
        ModelOptions,
        vision::{ItemDescription, MAX_PIXELS, Processor, SmartResize, image::Resample},
    },
    weights::{Checkpoint, Config as Settings},
};

use super::{Config, Kind};

/// What the template writes for an image, and what stands around it.
pub(super) const SLOT: &str = "<|image_pad|>";
const WITHOUT_TEMPLATE: &str = "<|vision_start|><|image_pad|><|vision_end|>";
/// The pixels of an image after resizing where a processor's file has no limits.
const PIXELS: [usize; 2] = [56 * 56, 28 * 28 * 1280];

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

/// `most` is the user's limit on pixels.
fn describe(checkpoint: &Checkpoint, most: Option<usize>) -> Result<Vec<ItemDescription>> {
    let Some(config) = Config::read(checkpoint)? else { return Ok(Vec::new()) };
    let file = checkpoint.processor()?;
    let Config { patch_size: side, spatial_merge_size: merge, hidden_size: width, intermediate_size: inner, .. } =
        config;
    let resample = Resample::of(file.usize_or("resample", Resample::Bicubic as usize)?)?;
    let sizes = SmartResize::new(side, merge, SmartResize::limits(&file, 1, PIXELS)?, most, resample)?;
    let values = 3 * side * side + 8 * width + 2 * inner;
    let taps = if let Kind::Positioned { taps, .. } = &config.kind { taps.len() } else { 0 };
    Ok(vec![ItemDescription {
        kind: MediaKind::Image,
        placeholder: SLOT.into(),
        text: Some(WITHOUT_TEMPLATE.into()),
        slot: config.slot,
        whole: false,
        rows_max: sizes.rows_max(),
        row_values: checkpoint.config().usize("hidden_size")? * (1 + taps),
        encoder_bytes: 4 * sizes.patches_max() as u64 * values as u64,
        rate: None,
        settings: sizes.settings(),
    }])
}
