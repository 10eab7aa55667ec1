//! The preparation of images, without the weights: its own proportions, in whole squares of patches.

use pensieve_sdk::{
    Error, Measured, MediaItem, MediaKind, MediaSize, Result,
    nn::vision::{
        Grid, ItemDescription, Processor,
        image::{Image, Resample},
        tiles,
    },
    weights::{Checkpoint, Config as Settings},
};

use super::{Config, SLOT};

/// Tokens at the end of a line of rows, and of the image.
const BREAK: &str = "[IMG_BREAK]";
const END: &str = "[IMG_END]";
/// The longest side of an image after resizing, far above any checkpoint's.
const SIDE_MAX: usize = 8192;

/// Describes and prepares images.
pub struct Eyes;

impl Processor for Eyes {
    fn describe(&self, checkpoint: &Checkpoint) -> Result<Vec<ItemDescription>> {
        let Some(config) = Config::read(checkpoint)? else { return Ok(Vec::new()) };
        let file = checkpoint.processor()?;
        let edge = file.value().pointer("/size/longest_edge");
        let longest = match edge.and_then(|edge| usize::try_from(edge.as_u64()?).ok()) {
            Some(longest) => longest,
            None => config.image_size.unwrap_or(1024),
        };
        let settings = Settings::of([
            ("patch_size", config.patch_size.into()),
            ("merge", config.spatial_merge_size.into()),
            ("longest_edge", longest.into()),
            ("resample", file.usize_or("resample", Resample::Bicubic as usize)?.into()),
        ]);
        let Sizes { square, longest, .. } = Sizes::read(&settings)?;
        let patches = (longest.div_ceil(square) * config.spatial_merge_size).pow(2);
        let values = 3 * config.patch_size * config.patch_size + 8 * config.hidden_size + 3 * config.intermediate_size;
        Ok(vec![ItemDescription {
            kind: MediaKind::Image,
            placeholder: SLOT.into(),
            text: None,
            slot: config.slot,
            whole: false,
            rows_max: longest.div_ceil(square).pow(2),
            row_values: checkpoint.config().usize("hidden_size")?,
            encoder_bytes: 4 * patches as u64 * values as u64,
            rate: None,
            settings,
        }])
    }

    fn measure(&self, settings: &Settings, size: MediaSize) -> Result<Measured> {
        let sizes = Sizes::read(settings)?;
        let [width, height] = sizes.squares(size);
        let line = SLOT.repeat(width);
        let text = vec![line.as_str(); height].join(BREAK) + END;
        let grid = Grid { height: height * sizes.merge, width: width * sizes.merge };
        Ok(Measured { text, rows: (width * height) as u32, layout: tiles::layout(&[grid]) })
    }

    fn prepare(&self, settings: &Settings, item: &MediaItem<'_>) -> Result<Vec<u8>> {
        let sizes = Sizes::read(settings)?;
        let [width, height] = sizes.squares(item.size).map(|squares| squares * sizes.square);
        let image = Image::of(item)?.resized(width, height, sizes.resample);
        Ok(tiles::patches(image.pixels(), width, sizes.square / sizes.merge).1)
    }
}

/// The settings of the processor.
struct Sizes {
    merge: usize,
    /// Pixels on a side of the squares that become a row.
    square: usize,
    longest: usize,
    resample: Resample,
}

impl Sizes {
    fn read(settings: &Settings) -> Result<Self> {
        let (patch_size, merge) = (settings.usize("patch_size")?, settings.usize("merge")?);
        let (longest, resample) = (settings.usize("longest_edge")?, Resample::of(settings.usize("resample")?)?);
        if !(1..=256).contains(&patch_size) || !(1..=16).contains(&merge) || !(1..=SIDE_MAX).contains(&longest) {
            let message =
                format!("images of {longest} pixels in patches of {patch_size}, merged in squares of {merge}");
            return Err(Error::invalid(message));
        }
        Ok(Self { merge, square: patch_size * merge, longest, resample })
    }

    /// The squares of an image across and down: it shrinks to the longest side, and grows to whole squares.
    fn squares(&self, size: MediaSize) -> [usize; 2] {
        let sides = [size.width, size.height].map(f64::from);
        let ratio = sides.into_iter().map(|side| side / self.longest as f64).fold(1.0, f64::max);
        sides.map(|side| ((side / ratio).floor() as usize).max(1).div_ceil(self.square))
    }
}
