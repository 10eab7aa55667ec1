//! The image processor: sizes in whole squares of patches, and patches row by row.

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

use super::{Config, processor};

/// What the template writes for an image, and what stands around it.
const SLOT: &str = "<|image|>";
const WITHOUT_TEMPLATE: &str = "<|begin_of_image|><|image|><|end_of_image|>";
/// The pixels of an image's frames after resizing where a processor's file has no limits.
const PIXELS: [usize; 2] = [112 * 112, 28 * 28 * 15_000];
/// A larger image is a sign of a damaged file.
const PIXELS_MAX: usize = 1 << 26;
/// The largest ratio of an image's sides.
const RATIO_MAX: f64 = 200.0;

/// The option that limits the pixels of an image after resizing, and with them its rows, as transformers' processor calls it.
pub const MAX_PIXELS: &str = "max_pixels";

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
        let sizes = Sizes::read(settings)?;
        let [height, width] = sizes.squares(size)?;
        let grid = Grid { height: height * sizes.merge, width: width * sizes.merge };
        let rows = height * width;
        Ok(Measured { text: SLOT.repeat(rows), rows: rows as u32, layout: tiles::layout(&[grid]) })
    }

    fn prepare(&self, settings: &Settings, item: &MediaItem<'_>) -> Result<Vec<u8>> {
        let sizes = Sizes::read(settings)?;
        let [height, width] = sizes.squares(item.size)?.map(|squares| squares * sizes.square);
        let image = Image::of(item)?.resized(width, height, sizes.resample);
        Ok(tiles::patches(image.pixels(), width, sizes.square / sizes.merge).1)
    }
}

/// `most` is the user's limit on pixels. Limits of the file count the pixels of all frames that share a patch.
fn describe(checkpoint: &Checkpoint, most: Option<usize>) -> Result<Vec<ItemDescription>> {
    let Some(config) = Config::read(checkpoint)? else { return Ok(Vec::new()) };
    let file = processor(checkpoint)?;
    let edge = |key: &str, default: usize| {
        let edge = file.value().pointer(&format!("/size/{key}")).and_then(|edge| usize::try_from(edge.as_u64()?).ok());
        edge.unwrap_or(default) / config.temporal_patch_size
    };
    let square = config.patch_size * config.spatial_merge_size;
    let (min, max) = (edge("shortest_edge", PIXELS[0]), edge("longest_edge", PIXELS[1]));
    if let Some(most) = most.filter(|most| *most < square * square) {
        let message = format!("option {MAX_PIXELS} is {most}, less than a row's square of {square} by {square}");
        return Err(Error::invalid(message).help("an image of 1,024 by 1,024 pixels has 1,048,576"));
    }
    let most = most.unwrap_or(max);
    let (min, max) = (min.min(most), max.min(most));
    let settings = Settings::of([
        ("patch_size", config.patch_size.into()),
        ("merge_size", config.spatial_merge_size.into()),
        ("min_pixels", min.into()),
        ("max_pixels", max.into()),
        ("resample", file.usize_or("resample", Resample::Bicubic as usize)?.into()),
    ]);
    Sizes::read(&settings)?;
    let text_width = checkpoint.config().usize("hidden_size")?;
    let patches = (max / (config.patch_size * config.patch_size)) as u64;
    let values = 3 * config.patch_size * config.patch_size + 8 * config.hidden_size + 3 * text_width;
    Ok(vec![ItemDescription {
        kind: MediaKind::Image,
        placeholder: SLOT.into(),
        text: Some(WITHOUT_TEMPLATE.into()),
        slot: config.slot,
        whole: false,
        rows_max: max / (square * square),
        row_values: text_width,
        encoder_bytes: 4 * patches * values as u64,
        rate: None,
        settings,
    }])
}

/// The settings of the processor.
struct Sizes {
    merge: usize,
    /// Pixels on a side of the squares that become a row.
    square: usize,
    min_pixels: usize,
    max_pixels: usize,
    resample: Resample,
}

impl Sizes {
    fn read(settings: &Settings) -> Result<Self> {
        let (patch_size, merge) = (settings.usize("patch_size")?, settings.usize("merge_size")?);
        let (min_pixels, max_pixels) = (settings.usize("min_pixels")?, settings.usize("max_pixels")?);
        let square = patch_size.saturating_mul(merge);
        let is_range = min_pixels <= max_pixels && max_pixels <= PIXELS_MAX;
        if !(1..=256).contains(&patch_size) || !(1..=16).contains(&merge) || !is_range || max_pixels < square * square {
            let message = format!("images of {min_pixels} to {max_pixels} pixels in patches of {patch_size}");
            return Err(Error::corrupt(format!("{message}, merged in squares of {merge}")));
        }
        Ok(Self { merge, square, min_pixels, max_pixels, resample: Resample::of(settings.usize("resample")?)? })
    }

    /// The squares of an image down and across: a side of less than a square grows to it, sides are rounded to whole
    /// squares, and the image grows or shrinks if it has too few pixels or too many.
    fn squares(&self, size: MediaSize) -> Result<[usize; 2]> {
        let (mut sides, square) = ([size.height, size.width].map(f64::from), self.square as f64);
        let shorter = sides[0].min(sides[1]);
        if shorter < square {
            sides = sides.map(|side| (side * (square / shorter)).floor());
        }
        if sides[0].max(sides[1]) > RATIO_MAX * sides[0].min(sides[1]) {
            let MediaSize { width, height, .. } = size;
            let message = format!("an image of {width} by {height} pixels is longer than {RATIO_MAX} times its width");
            return Err(Error::invalid(message).help("cut it into parts"));
        }
        let squares = sides.map(|side| (side / square).round_ties_even());
        let pixels = squares[0] * squares[1] * square * square;
        let (min, max) = (self.min_pixels as f64, self.max_pixels as f64);
        let squares = if pixels > max {
            let shrink = (sides[0] * sides[1] / max).sqrt();
            sides.map(|side| (side / shrink / square).floor().max(1.0))
        } else if pixels < min {
            let grow = (min / (sides[0] * sides[1])).sqrt();
            sides.map(|side| (side * grow / square).ceil())
        } else {
            squares
        };
        let [height, width] = squares.map(|squares| (squares as usize).max(1));
        // The reference lets long images, and those that grow close to the limit, pass it; here memory is planned by it.
        let most = self.max_pixels / (self.square * self.square);
        let shorter = height.min(width).min(most.isqrt());
        let longer = height.max(width).min(most / shorter).min(usize::from(u16::MAX) / self.merge);
        Ok(if height <= width { [shorter, longer] } else { [longer, shorter] })
    }
}
