//! The preparation of images, without the weights: one size for all, and crops of long ones.

use pensieve_sdk::{
    Error, Measured, MediaItem, MediaKind, MediaSize, Result,
    nn::{
        ModelOptions,
        vision::{
            Grid, ItemDescription, Processor,
            image::{Image, Resample},
            tiles,
        },
    },
    weights::{Checkpoint, Config as Settings},
};

use super::{Config, PAN_AND_SCAN, SLOT};

/// Tokens around an image's rows.
const BEGIN: &str = "<start_of_image>";
const END: &str = "<end_of_image>";
/// Limit on crops and rows of an image, far above any checkpoint's.
const CROPS_MAX: usize = 64;
const ROWS_MAX: usize = 1 << 16;

/// Describes and prepares images.
pub struct Eyes;

impl Processor for Eyes {
    fn describe(&self, checkpoint: &Checkpoint) -> Result<Vec<ItemDescription>> {
        describe(checkpoint, false)
    }

    fn describe_with(&self, checkpoint: &Checkpoint, options: &ModelOptions) -> Result<Vec<ItemDescription>> {
        describe(checkpoint, options.get(PAN_AND_SCAN)?.unwrap_or(false))
    }

    fn measure(&self, settings: &Settings, size: MediaSize) -> Result<Measured> {
        let Sizes { tokens, side, .. } = Sizes::read(settings)?;
        let crops = crops(settings, size)?.len();
        let image = format!("\n\n{BEGIN}{}{END}\n\n", SLOT.repeat(tokens));
        let text = match crops {
            0 => image,
            _ => {
                let views = vec![image.as_str(); crops].join(" ");
                format!("Here is the original image {image} and here are some crops to help you see better {views}")
            }
        };
        let grids = vec![Grid { height: side, width: side }; 1 + crops];
        Ok(Measured { text, rows: (grids.len() * tokens) as u32, layout: tiles::layout(&grids) })
    }

    fn prepare(&self, settings: &Settings, item: &MediaItem<'_>) -> Result<Vec<u8>> {
        let Sizes { side, patch_size, resample, .. } = Sizes::read(settings)?;
        let image = Image::of(item)?;
        let crops = crops(settings, item.size)?;
        let crops = crops.into_iter().map(|[left, top, width, height]| image.crop(left, top, width, height));
        let mut prepared = Vec::new();
        for view in std::iter::once(image.clone()).chain(crops) {
            let view = view.resized(side * patch_size, side * patch_size, resample);
            prepared.extend(tiles::patches(view.pixels(), view.width(), patch_size).1);
        }
        Ok(prepared)
    }
}

fn describe(checkpoint: &Checkpoint, pan_and_scan: bool) -> Result<Vec<ItemDescription>> {
    let Some(Config { siglip, tokens, slot, .. }) = Config::read(checkpoint)? else { return Ok(Vec::new()) };
    let file = checkpoint.processor()?;
    let side = siglip.side * siglip.patch_size;
    let crops_max = if pan_and_scan { file.usize_or("pan_and_scan_max_num_crops", 4)? } else { 0 };
    let settings = Settings::of([
        ("tokens", tokens.into()),
        ("patch_size", siglip.patch_size.into()),
        ("side", side.into()),
        ("resample", file.usize_or("resample", Resample::Bilinear as usize)?.into()),
        ("crops_max", crops_max.into()),
        ("crop_side_min", file.usize_or("pan_and_scan_min_crop_size", 256)?.into()),
        ("crop_ratio_min", file.f64_or("pan_and_scan_min_ratio_to_activate", 1.2)?.into()),
    ]);
    let images = 1 + crops_max;
    Ok(vec![ItemDescription {
        kind: MediaKind::Image,
        placeholder: BEGIN.into(),
        text: None,
        slot,
        whole: true,
        rows_max: images * tokens,
        row_values: checkpoint.config().usize("hidden_size")?,
        encoder_bytes: images as u64 * siglip.scratch_bytes(siglip.side * siglip.side),
        rate: None,
        settings,
    }])
}

/// What the processor knows of the tower.
struct Sizes {
    tokens: usize,
    /// Patches on a side.
    side: usize,
    patch_size: usize,
    resample: Resample,
}

impl Sizes {
    fn read(settings: &Settings) -> Result<Self> {
        let (patch_size, side) = (settings.usize("patch_size")?, settings.usize("side")?);
        let (tokens, resample) = (settings.usize("tokens")?, Resample::of(settings.usize("resample")?)?);
        if !(1..=256).contains(&patch_size) || !(patch_size..=1 << 14).contains(&side) || tokens > ROWS_MAX {
            return Err(Error::invalid(format!("images of {side} pixels in patches of {patch_size}, {tokens} rows")));
        }
        Ok(Self { tokens, side: side / patch_size, patch_size, resample })
    }
}

/// The crops of an image besides itself, each with left, top, width and height: none unless it is long. They are counted
/// by its longer side, in whole multiples of the shorter one.
fn crops(settings: &Settings, size: MediaSize) -> Result<Vec<[usize; 4]>> {
    let crops_max = settings.usize("crops_max")?.min(CROPS_MAX);
    let (side_min, ratio_min) = (settings.usize("crop_side_min")?.max(1), settings.f64("crop_ratio_min")?);
    let (width, height) = (size.width as usize, size.height as usize);
    let (long, short) = (width.max(height), width.min(height).max(1));
    let ratio = long as f64 / short as f64;
    if crops_max == 0 || ratio < ratio_min {
        return Ok(Vec::new());
    }
    let count = ((ratio + 0.5).floor() as usize).min(long / side_min).max(2).min(crops_max);
    let length = long.div_ceil(count);
    if length.min(short) < side_min {
        return Ok(Vec::new());
    }
    let crop = |index: usize| {
        let start = index * length;
        let length = length.min(long.saturating_sub(start));
        if width >= height { [start, 0, length, height] } else { [0, start, width, length] }
    };
    Ok((0..count).map(crop).filter(|[_, _, width, height]| width * height > 0).collect())
}
