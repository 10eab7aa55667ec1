//! Images as rectangles of patches, from the processor to the tower: whole images, or tiles of them with an overview.
//!
//! A patch lies in one piece: its rows of pixels, each with red, green and blue. The layout has the height and width of each
//! rectangle in patches, which is all that a tower needs to know beside the pixels.

use candle_core::Tensor;

use super::{Grid, PatchBatch, Patches};
use crate::{
    Error, Result,
    nn::{Step, backend::PixelPatches},
    weights::Config,
};

/// Tiles of one image; more are a sign of a damaged layout.
const TILES_MAX: usize = 1024;

/// Cuts an image of `width` pixels in a row into patches of `side` by `side`, row by row. What is left over on the right
/// and at the bottom is dropped.
pub fn patches(pixels: &[u8], width: usize, side: usize) -> (Grid, Vec<u8>) {
    let height = pixels.len() / (3 * width).max(1);
    let grid = Grid { height: height / side, width: width / side };
    let mut cut = Vec::with_capacity(grid.patches() * 3 * side * side);
    for (row, column) in (0..grid.height).flat_map(|row| (0..grid.width).map(move |column| (row, column))) {
        for y in row * side..(row + 1) * side {
            let start = 3 * (y * width + column * side);
            cut.extend_from_slice(&pixels[start..start + 3 * side]);
        }
    }
    (grid, cut)
}

/// The layout of these rectangles.
pub fn layout(grids: &[Grid]) -> Vec<u8> {
    let sides = grids.iter().flat_map(|grid| [grid.height, grid.width]);
    sides.flat_map(|side| u16::try_from(side).unwrap_or(u16::MAX).to_le_bytes()).collect()
}

/// Reads a [`layout`].
pub fn grids(layout: &[u8]) -> Result<Vec<Grid>> {
    let damaged = || Error::invalid(format!("a layout of {} bytes has no rectangles of patches", layout.len()));
    let (sides, rest) = layout.as_chunks::<4>();
    if sides.is_empty() || !rest.is_empty() || sides.len() > TILES_MAX {
        return Err(damaged());
    }
    let grid = |[a, b, c, d]: &[u8; 4]| {
        let [height, width] = [[*a, *b], [*c, *d]].map(|side| usize::from(u16::from_le_bytes(side)));
        if height == 0 || width == 0 { Err(damaged()) } else { Ok(Grid { height, width }) }
    };
    sides.iter().map(grid).collect()
}

/// Opens what was prepared of rectangles of patches of `side` by `side` pixels; each becomes `rows` of its grid.
pub fn open(layout: &[u8], prepared: &[u8], side: usize, rows: impl Fn(Grid) -> usize) -> Result<Patches> {
    let grids = grids(layout)?;
    let patches: usize = grids.iter().map(|grid| grid.patches()).sum();
    if prepared.len() != patches * 3 * side * side {
        let message = format!("{patches} patches of {side} by {side} pixels in {} bytes", prepared.len());
        return Err(Error::invalid(message));
    }
    let rows = grids.iter().map(|grid| rows(*grid)).sum();
    Ok(Patches { pixels: prepared.to_vec(), grids, rows })
}

/// [`open`] for an image in one piece, of which each square of `merge` by `merge` patches becomes a row.
pub fn open_whole(layout: &[u8], prepared: &[u8], side: usize, merge: usize) -> Result<Patches> {
    let patches = open(layout, prepared, side, |grid| grid.merged(merge).patches())?;
    let is_whole = |grid: &Grid| [grid.height, grid.width].iter().all(|side| side.is_multiple_of(merge));
    match patches.grids[..] {
        [grid] if is_whole(&grid) => Ok(patches),
        _ => Err(Error::invalid(format!("an image of {:?} is no grid of squares", patches.grids))),
    }
}

/// [`Tower::positions`](super::Tower::positions) of an image in one piece: its rows as a grid.
pub fn positions(layout: &[u8], merge: usize, tokens: usize) -> Result<Vec<[u32; 3]>> {
    let [grid] = grids(layout)?[..] else { return Err(Error::invalid("an image of several grids")) };
    let Grid { height, width } = grid.merged(merge);
    if height * width > tokens {
        return Err(Error::invalid(format!("an image of {height} by {width} rows in {tokens} tokens")));
    }
    let places = (0..height as u32).flat_map(|row| (0..width as u32).map(move |column| [0, row, column]));
    Ok(places.collect())
}

/// Puts the rows of each square of `side` by `side` patches behind one another, row by row: `[patches, width]` becomes
/// `[squares, side · side · width]`. Grids have whole squares.
pub fn squares(x: &Tensor, batch: &PatchBatch, side: usize, step: &Step<'_>) -> Result<Tensor> {
    let (patches, width) = x.dims2()?;
    let (mut order, mut start) = (Vec::with_capacity(patches), 0);
    for grid in batch.grids() {
        if !grid.height.is_multiple_of(side) || !grid.width.is_multiple_of(side) {
            let Grid { height, width } = grid;
            return Err(Error::invalid(format!("{height} by {width} patches are no squares of {side}")));
        }
        for (top, left) in
            (0..grid.height).step_by(side).flat_map(|top| (0..grid.width).step_by(side).map(move |left| (top, left)))
        {
            let rows = top..top + side;
            let of = |row: usize| (left..left + side).map(move |column| (start + row * grid.width + column) as u32);
            order.extend(rows.flat_map(of));
        }
        start += grid.patches();
    }
    Ok(step.ops().select_rows(x, &order)?.reshape((patches / (side * side), side * side * width))?)
}

/// The mean of each square of `side` by `side` patches: `[patches, width]` becomes `[squares, width]`.
pub fn averages(x: &Tensor, batch: &PatchBatch, side: usize, step: &Step<'_>) -> Result<Tensor> {
    let width = x.dim(1)?;
    let squares = squares(x, batch, side, step)?;
    let sums = squares.reshape((squares.dim(0)?, side * side, width))?.sum(1)?;
    Ok((sums * (1.0 / (side * side) as f64))?)
}

/// How pixels become numbers: `(value / 255 - mean) / std`, by color.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PixelRange {
    mean: [f32; 3],
    std: [f32; 3],
}

/// From -1 to 1.
impl Default for PixelRange {
    fn default() -> Self {
        Self { mean: [0.5; 3], std: [0.5; 3] }
    }
}

impl PixelRange {
    /// Mean and standard deviation of the pictures that CLIP was trained with.
    pub const CLIP: Self =
        Self { mean: [0.481_454_66, 0.457_827_5, 0.408_210_73], std: [0.268_629_54, 0.261_302_6, 0.275_777_1] };

    /// Reads `image_mean` and `image_std`, each with a half as default.
    pub fn read(settings: &Config) -> Result<Self> {
        Self::read_or(settings, Self::default())
    }

    /// Reads `image_mean` and `image_std`.
    pub fn read_or(settings: &Config, default: Self) -> Result<Self> {
        let of = |key: &str, default: [f32; 3]| {
            let values = settings.f64s(key)?;
            match values.len() {
                0 => Ok(default),
                3 => Ok([values[0] as f32, values[1] as f32, values[2] as f32]),
                count => Err(Error::corrupt(format!("{key} of the image processor has {count} values, not 3"))),
            }
        };
        let range = Self { mean: of("image_mean", default.mean)?, std: of("image_std", default.std)? };
        match range.std.iter().all(|std| *std > 0.0) {
            true => Ok(range),
            false => Err(Error::corrupt("image_std of the image processor is not above 0")),
        }
    }

    /// The values of patches of `side` by `side` pixels, a row for each; its colors lie apart if `is_planar`, as in a
    /// convolution's weight.
    pub fn values(&self, pixels: &[u8], side: usize, is_planar: bool, step: &Step<'_>) -> Result<Tensor> {
        let values = self.of_bytes();
        step.ops().pixels(&PixelPatches { bytes: pixels, area: side * side, values: &values, is_planar })
    }

    /// The value of each byte in red, in green and in blue.
    fn of_bytes(&self) -> Vec<f32> {
        let colors = self.mean.iter().zip(&self.std);
        colors.flat_map(|(mean, std)| (0..256_u16).map(move |byte| (f32::from(byte) / 255.0 - mean) / std)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_lie_in_one_piece_each() {
        // Two rows of four pixels, of which each has its index as its red, and nothing else.
        let pixels: Vec<u8> = (0..8).flat_map(|index| [index, 0, 0]).collect();
        let (grid, cut) = patches(&pixels, 4, 2);
        assert_eq!(grid, Grid { height: 1, width: 2 });
        let reds: Vec<u8> = cut.iter().step_by(3).copied().collect();
        assert_eq!(reds, [0, 1, 4, 5, 2, 3, 6, 7]);
        assert_eq!(patches(&pixels, 4, 3).0, Grid { height: 0, width: 1 }, "what is left over is dropped");
    }

    #[test]
    fn a_layout_is_read_back_and_damage_is_an_error() {
        let tiles = [Grid { height: 2, width: 3 }, Grid { height: 1, width: 500 }];
        assert_eq!(grids(&layout(&tiles)).unwrap(), tiles);
        for damaged in [&[][..], &[1, 0, 1], &[0, 0, 1, 0], &[1, 0, 0, 0]] {
            assert!(grids(damaged).is_err(), "{damaged:?}");
        }
        let layout = layout(&tiles[..1]);
        let opened = open(&layout, &[7; 6 * 3 * 4], 2, |grid| grid.patches() / 2).unwrap();
        assert_eq!((opened.rows, opened.patches()), (3, 6));
        assert!(open(&layout, &[7; 71], 2, |_| 1).is_err());
    }

    #[test]
    fn bytes_become_numbers_by_color() {
        let values = [("image_mean", vec![0.0, 0.5, 1.0]), ("image_std", vec![1.0, 0.5, 2.0])];
        let range = PixelRange::read(&Config::of(values.map(|(key, list)| (key, list.into())))).unwrap();
        let values = range.of_bytes();
        let ends: Vec<_> = values.chunks_exact(256).map(|color| [color[0], color[255]]).collect();
        assert_eq!(ends, [[0.0, 1.0], [-1.0, 1.0], [-0.5, 0.0]]);
        assert!(PixelRange::read(&Config::of([("image_std", vec![0.0, 1.0, 1.0].into())])).is_err());
        assert!(PixelRange::read(&Config::of([("image_mean", vec![0.0].into())])).is_err());
    }
}
