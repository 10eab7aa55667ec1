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

use super::{Config, Kind, processor};

/// What the template writes for an image, and what stands around it.
pub(super) const SLOT: &str = "<|image_pad|>";
const WITHOUT_TEMPLATE: &str = "<|vision_start|><|image_pad|><|vision_end|>";
/// The pixels of an image after resizing where a processor's file has no limits.
const PIXELS: [usize; 2] = [56 * 56, 28 * 28 * 1280];
/// A larger image is a sign of a damaged file.
const PIXELS_MAX: usize = 1 << 26;
/// The largest ratio of an image's sides.
const RATIO_MAX: u32 = 200;

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

/// `most` is the user's limit on pixels.
fn describe(checkpoint: &Checkpoint, most: Option<usize>) -> Result<Vec<ItemDescription>> {
    let Some(config) = Config::read(checkpoint)? else { return Ok(Vec::new()) };
    let file = processor(checkpoint)?;
    let size = file.value().get("size");
    let edge = |key: &str| size.and_then(|size| size.get(key)?.as_u64());
    let limit = |old: &str, key: &str, default: usize| match (file.find_usize(old)?, edge(key)) {
        (Some(pixels), _) => Ok(pixels),
        (None, Some(pixels)) => usize::try_from(pixels).map_err(|_| Error::corrupt(format!("{key} is {pixels}"))),
        (None, None) => Ok::<_, Error>(default),
    };
    let square = config.patch_size * config.spatial_merge_size;
    let (min, max) =
        (limit("min_pixels", "shortest_edge", PIXELS[0])?, limit("max_pixels", "longest_edge", PIXELS[1])?);
    let (min, max) = within(min, max, most, square)?;
    let settings = Settings::of([
        ("patch_size", config.patch_size.into()),
        ("merge_size", config.spatial_merge_size.into()),
        ("min_pixels", min.into()),
        ("max_pixels", max.into()),
        ("resample", file.usize_or("resample", Resample::Bicubic as usize)?.into()),
    ]);
    Sizes::read(&settings)?;
    let patches = max as u64 / (config.patch_size * config.patch_size) as u64;
    let values = 3 * config.patch_size * config.patch_size + 8 * config.hidden_size + 2 * config.intermediate_size;
    let taps = if let Kind::Positioned { taps, .. } = &config.kind { taps.len() } else { 0 };
    Ok(vec![ItemDescription {
        kind: MediaKind::Image,
        placeholder: SLOT.into(),
        text: Some(WITHOUT_TEMPLATE.into()),
        slot: config.slot,
        whole: false,
        rows_max: max / (square * square),
        row_values: checkpoint.config().usize("hidden_size")? * (1 + taps),
        encoder_bytes: 4 * patches * values as u64,
        rate: None,
        settings,
    }])
}

/// The limits of a processor with the user's.
fn within(min: usize, max: usize, most: Option<usize>, square: usize) -> Result<(usize, usize)> {
    match most {
        None => Ok((min, max)),
        Some(most) if most < square * square => {
            let message = format!("option {MAX_PIXELS} is {most}, less than a row's square of {square} by {square}");
            Err(Error::invalid(message).help("an image of 1,024 by 1,024 pixels has 1,048,576"))
        }
        Some(most) => Ok((min.min(most), max.min(most))),
    }
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

    /// The squares of an image down and across: sides are rounded to whole squares, and the image grows or shrinks if it
    /// has too few pixels or too many.
    fn squares(&self, size: MediaSize) -> Result<[usize; 2]> {
        let MediaSize { width, height, .. } = size;
        if width.max(height) > RATIO_MAX.saturating_mul(width.min(height)) {
            let message = format!("an image of {width} by {height} pixels is longer than {RATIO_MAX} times its width");
            return Err(Error::invalid(message).help("cut it into parts"));
        }
        let (sides, square) = ([height, width].map(f64::from), self.square as f64);
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
        // An image that shrinks to one square in one direction may still have too many in the other, and rounding up may
        // pass a limit close to the least. The reference lets both be; here memory is planned by the limit.
        let most = self.max_pixels / (self.square * self.square);
        let shorter = height.min(width).min(most.isqrt());
        let longer = height.max(width).min(most / shorter).min(usize::from(u16::MAX) / self.merge);
        Ok(if height <= width { [shorter, longer] } else { [longer, shorter] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_limit_lowers_those_of_the_checkpoint() {
        assert_eq!(within(65_536, 16_777_216, None, 32).unwrap(), (65_536, 16_777_216));
        assert_eq!(within(65_536, 16_777_216, Some(1 << 20), 32).unwrap(), (65_536, 1 << 20));
        assert_eq!(within(65_536, 16_777_216, Some(4096), 32).unwrap(), (4096, 4096));
        assert_eq!(within(65_536, 100_000, Some(1 << 20), 32).unwrap(), (65_536, 100_000), "and never raises them");
        within(65_536, 16_777_216, Some(1023), 32).unwrap_err();
    }

    #[test]
    fn images_keep_their_proportions_in_whole_squares() {
        let settings = [("patch_size", 16), ("merge_size", 2), ("min_pixels", 65_536), ("max_pixels", 16_777_216)];
        let settings = settings.map(|(key, value)| (key, value.into())).into_iter().chain([("resample", 3.into())]);
        let sizes = Sizes::read(&Settings::of(settings)).unwrap();
        // Down and across, as the reference's `smart_resize` rounds them.
        for ([width, height], expected) in [
            ([1024, 1024], [32, 32]),
            ([1920, 1080], [34, 60]),
            ([16, 16], [8, 8]),
            ([100, 1], [1, 80]),
            ([48, 5000], [156, 2]),
            ([9000, 7000], [112, 145]),
            ([1, 200], [114, 1]),
        ] {
            assert_eq!(sizes.squares(MediaSize::image(width, height)).unwrap(), expected, "{width} by {height}");
        }
        sizes.squares(MediaSize::image(1, 201)).unwrap_err();
        // None of them has more rows than its limit, from which memory is planned.
        for (min_pixels, max_pixels) in [(0, 1024), (4096, 4096), (15_000, 15_360), (65_536, 65_536)] {
            let sizes = Sizes { min_pixels, max_pixels, ..sizes };
            for (width, height) in [(1, 1), (32, 32), (5, 1000), (65_000, 325), (63, 63), (100, 30), (700, 700)] {
                let [down, across] = sizes.squares(MediaSize::image(width, height)).unwrap();
                let most = max_pixels / 1024;
                assert!((1..=most).contains(&(down * across)), "{width} by {height}: {down} by {across} of {most}");
            }
        }
        assert!(Sizes::read(&Settings::of([("patch_size", 0.into())])).is_err());
    }
}
