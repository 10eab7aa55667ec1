//! Images in nearly their own size, as the processors of Qwen and GLM have them: sides are rounded to whole squares of
//! patches, between limits on the pixels of an image, and each square becomes a row.

use super::{
    Grid,
    image::{Image, Resample},
    tiles,
};
use crate::{Error, Measured, MediaItem, MediaSize, Result, weights::Config};

/// The option that limits the pixels of an image after resizing, and with them its rows, as transformers' processors call it.
pub const MAX_PIXELS: &str = "max_pixels";

/// A larger image is a sign of a damaged file.
const PIXELS_MAX: usize = 1 << 26;
/// The largest ratio of an image's sides.
const RATIO_MAX: f64 = 200.0;

/// The settings of such a processor, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmartResize {
    patch_size: usize,
    merge_size: usize,
    min_pixels: usize,
    max_pixels: usize,
    resample: Resample,
    keeps_proportions: bool,
}

impl SmartResize {
    /// Squares of `merge` by `merge` patches of `side` by `side` pixels become rows. `limits` are the least and the most
    /// pixels of an image after resizing; `most` is the user's [`MAX_PIXELS`], which lowers them.
    pub fn new(side: usize, merge: usize, limits: [usize; 2], most: Option<usize>, resample: Resample) -> Result<Self> {
        let square = side.saturating_mul(merge);
        let area = square.saturating_mul(square);
        if let Some(most) = most.filter(|most| *most < area) {
            let message = format!("option {MAX_PIXELS} is {most}, less than a row's square of {square} by {square}");
            return Err(Error::invalid(message).help("an image of 1,024 by 1,024 pixels has 1,048,576"));
        }
        let [min, max] = limits.map(|limit| limit.min(most.unwrap_or(usize::MAX)));
        if !(1..=256).contains(&side) || !(1..=16).contains(&merge) || min > max || !(area..=PIXELS_MAX).contains(&max)
        {
            let message = format!("images of {min} to {max} pixels in patches of {side}, merged in squares of {merge}");
            return Err(Error::corrupt(message).help("the image processor's file is inconsistent"));
        }
        Ok(Self {
            patch_size: side,
            merge_size: merge,
            min_pixels: min,
            max_pixels: max,
            resample,
            keeps_proportions: false,
        })
    }

    /// An image with a side of less than a square grows as a whole until it is one, as for GLM's models; otherwise that side
    /// alone grows.
    #[must_use]
    pub fn keeping_proportions(self) -> Self {
        Self { keeps_proportions: true, ..self }
    }

    /// The limits in a processor's file: `min_pixels` and `max_pixels`, or the edges in `size`, which count the pixels of
    /// `frames` copies of an image, as `default` does.
    pub fn limits(file: &Config, frames: usize, default: [usize; 2]) -> Result<[usize; 2]> {
        let size = file.value().get("size");
        let limit = |key: &str, edge: &str, default: usize| match file.find_usize(key)? {
            Some(pixels) => Ok(pixels),
            None => match size.and_then(|size| size.get(edge)?.as_u64()) {
                Some(pixels) => usize::try_from(pixels).map_err(|_| Error::corrupt(format!("{edge} is {pixels}"))),
                None => Ok(default),
            }
            .map(|pixels| pixels / frames.max(1)),
        };
        Ok([limit("min_pixels", "shortest_edge", default[0])?, limit("max_pixels", "longest_edge", default[1])?])
    }

    /// Reads [`Self::settings`].
    pub fn read(settings: &Config) -> Result<Self> {
        let (side, merge) = (settings.usize("patch_size")?, settings.usize("merge_size")?);
        let limits = [settings.usize("min_pixels")?, settings.usize("max_pixels")?];
        let sizes = Self::new(side, merge, limits, None, Resample::of(settings.usize("resample")?)?)?;
        Ok(Self { keeps_proportions: settings.bool_or("keep_proportions", false)?, ..sizes })
    }

    /// The settings as part of an [`ItemDescription`](super::ItemDescription).
    pub fn settings(&self) -> Config {
        Config::of([
            ("patch_size", self.patch_size.into()),
            ("merge_size", self.merge_size.into()),
            ("min_pixels", self.min_pixels.into()),
            ("max_pixels", self.max_pixels.into()),
            ("resample", (self.resample as usize).into()),
            ("keep_proportions", self.keeps_proportions.into()),
        ])
    }

    /// The most rows of an image.
    pub fn rows_max(&self) -> usize {
        self.max_pixels / self.square().pow(2)
    }

    /// The most patches of an image.
    pub fn patches_max(&self) -> usize {
        self.max_pixels / self.patch_size.pow(2)
    }

    /// Measures an image of this size: its text has `slot` for each row.
    pub fn measure(&self, size: MediaSize, slot: &str) -> Result<Measured> {
        let [height, width] = self.squares(size)?;
        let grid = Grid { height: height * self.merge_size, width: width * self.merge_size };
        let rows = height * width;
        Ok(Measured { text: slot.repeat(rows), rows: rows as u32, layout: tiles::layout(&[grid]) })
    }

    /// Resizes an image and cuts it into patches.
    pub fn prepare(&self, item: &MediaItem<'_>) -> Result<Vec<u8>> {
        let [height, width] = self.squares(item.size)?.map(|squares| squares * self.square());
        let image = Image::of(item)?.resized(width, height, self.resample);
        Ok(tiles::patches(image.pixels(), width, self.patch_size).1)
    }

    /// Pixels on a side of the squares that become a row.
    fn square(&self) -> usize {
        self.patch_size * self.merge_size
    }

    /// The squares of an image down and across: sides are rounded to whole squares, and the image grows or shrinks if it
    /// has too few pixels or too many.
    fn squares(&self, size: MediaSize) -> Result<[usize; 2]> {
        let (mut sides, square) = ([size.height, size.width].map(f64::from), self.square() as f64);
        let shorter = sides[0].min(sides[1]);
        if self.keeps_proportions && shorter < square {
            sides = sides.map(|side| (side * (square / shorter)).floor());
        }
        if sides[0].max(sides[1]) > RATIO_MAX * sides[0].min(sides[1]) {
            let MediaSize { width, height, .. } = size;
            let message =
                format!("a side of an image of {width} by {height} pixels is over {RATIO_MAX} times the other");
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
        // An image that shrinks to one square in one direction may still have too many in the other, and rounding up may
        // pass a limit close to the least. The references let both be; here memory is planned by the limit.
        let most = self.rows_max();
        let shorter = height.min(width).min(most.isqrt());
        let longer = height.max(width).min(most / shorter).min(usize::from(u16::MAX) / self.merge_size);
        Ok(if height <= width { [shorter, longer] } else { [longer, shorter] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(limits: [usize; 2], most: Option<usize>) -> SmartResize {
        SmartResize::new(16, 2, limits, most, Resample::Bicubic).unwrap()
    }

    #[test]
    fn a_users_limit_lowers_those_of_the_checkpoint() {
        let limits = |max, most| {
            let SmartResize { min_pixels, max_pixels, .. } = sizes([65_536, max], most);
            (min_pixels, max_pixels)
        };
        assert_eq!(limits(16_777_216, None), (65_536, 16_777_216));
        assert_eq!(limits(16_777_216, Some(1 << 20)), (65_536, 1 << 20));
        assert_eq!(limits(16_777_216, Some(4096)), (4096, 4096));
        assert_eq!(limits(100_000, Some(1 << 20)), (65_536, 100_000), "and never raises them");
        assert_eq!(limits(1 << 30, Some(1 << 20)), (65_536, 1 << 20), "whatever they are");
        SmartResize::new(16, 2, [65_536, 16_777_216], Some(1023), Resample::Bicubic).unwrap_err();
    }

    #[test]
    fn limits_of_a_file_are_for_one_image_or_for_its_frames() {
        let limits = |file: &str, frames| SmartResize::limits(&Config::from_json(file).unwrap(), frames, [64, 640]);
        assert_eq!(limits(r#"{"min_pixels": 10, "max_pixels": 20}"#, 2).unwrap(), [10, 20]);
        assert_eq!(limits(r#"{"size": {"shortest_edge": 10, "longest_edge": 20}}"#, 1).unwrap(), [10, 20]);
        assert_eq!(limits(r#"{"size": {"shortest_edge": 10}}"#, 2).unwrap(), [5, 320]);
        limits(r#"{"min_pixels": "many"}"#, 2).unwrap_err();
    }

    #[test]
    fn images_keep_their_proportions_in_whole_squares() {
        let usual = sizes([65_536, 16_777_216], None);
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
            assert_eq!(usual.squares(MediaSize::image(width, height)).unwrap(), expected, "{width} by {height}");
        }
        usual.squares(MediaSize::image(1, 201)).unwrap_err();
        let line = MediaSize::image(2000, 16);
        assert_eq!(usual.squares(line).unwrap(), [1, 90]);
        assert_eq!(usual.keeping_proportions().squares(line).unwrap(), [1, 125]);
        // None of them has more rows than its limit, from which memory is planned.
        for limits in [[0, 1024], [4096, 4096], [15_000, 15_360], [65_536, 65_536]] {
            for (width, height) in [(1, 1), (32, 32), (5, 1000), (65_000, 325), (63, 63), (100, 30), (700, 700)] {
                let [down, across] = sizes(limits, None).squares(MediaSize::image(width, height)).unwrap();
                let most = limits[1] / 1024;
                assert!((1..=most).contains(&(down * across)), "{width} by {height}: {down} by {across} of {most}");
            }
        }
    }

    #[test]
    fn settings_are_read_back_and_damaged_ones_refused() {
        let sizes = sizes([65_536, 1 << 20], None).keeping_proportions();
        assert_eq!(SmartResize::read(&sizes.settings()).unwrap(), sizes);
        assert_eq!((sizes.rows_max(), sizes.patches_max()), (1024, 4096));
        SmartResize::read(&Config::of([("patch_size", 0.into())])).unwrap_err();
        for (side, merge, limits) in [
            (0, 2, [0, 4096]),
            (16, 0, [0, 4096]),
            (16, 2, [2000, 1999]),
            (16, 2, [0, 1023]),
            (16, 2, [0, PIXELS_MAX + 1]),
            (usize::MAX, 2, [0, 4096]),
        ] {
            SmartResize::new(side, merge, limits, None, Resample::Bicubic).unwrap_err();
        }
    }
}
