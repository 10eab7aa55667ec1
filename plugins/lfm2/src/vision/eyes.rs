//! The preparation of images, without the weights: its own proportions within limits, or tiles and a small view of
//! the whole.

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

/// Tokens around an image, and before the view of the whole.
const BEGIN: &str = "<|image_start|>";
const END: &str = "<|image_end|>";
const THUMBNAIL: &str = "<|img_thumbnail|>";
/// Limits far above any checkpoint's.
const SIDE_MAX: usize = 8192;
const TILES_MAX: usize = 64;
const ROWS_MAX: usize = 1 << 14;

/// Describes and prepares images.
pub struct Eyes;

impl Processor for Eyes {
    fn describe(&self, checkpoint: &Checkpoint) -> Result<Vec<ItemDescription>> {
        let Some(config) = Config::read(checkpoint)? else { return Ok(Vec::new()) };
        let file = checkpoint.processor()?;
        let splits = file.bool_or("do_image_splitting", true)?;
        let tile = file.usize_or("tile_size", 512)?;
        let settings = Settings::of([
            ("patch_size", config.siglip.patch_size.into()),
            ("factor", config.downsample_factor.into()),
            ("tile_size", tile.into()),
            ("min_tiles", if splits { file.usize_or("min_tiles", 2)? } else { 1 }.into()),
            ("max_tiles", if splits { file.usize_or("max_tiles", 10)? } else { 1 }.into()),
            ("use_thumbnail", file.bool_or("use_thumbnail", true)?.into()),
            ("min_image_tokens", file.usize_or("min_image_tokens", 64)?.into()),
            ("max_image_tokens", file.usize_or("max_image_tokens", 256)?.into()),
            ("max_pixels_tolerance", file.f64_or("max_pixels_tolerance", 2.0)?.into()),
            ("resample", file.usize_or("resample", Resample::Bilinear as usize)?.into()),
        ]);
        let limits = Limits::read(&settings)?;
        let tile_patches = (tile / limits.patch_size).pow(2);
        let patches = limits.max_tiles * tile_patches + limits.max_tokens * limits.factor * limits.factor;
        // An image that is not cut may be larger than one of its tiles, by the tolerance.
        let patches = (patches as f64 * limits.tolerance.max(1.0)) as usize;
        Ok(vec![ItemDescription {
            kind: MediaKind::Image,
            placeholder: SLOT.into(),
            text: None,
            slot: config.slot,
            whole: false,
            rows_max: patches / (limits.factor * limits.factor),
            row_values: checkpoint.config().usize("hidden_size")?,
            encoder_bytes: config.siglip.scratch_bytes(patches),
            rate: None,
            settings,
        }])
    }

    fn measure(&self, settings: &Settings, size: MediaSize) -> Result<Measured> {
        let plan = Plan::of(Limits::read(settings)?, size);
        let slots = |grid: &Grid| SLOT.repeat(plan.rows(*grid));
        let grids = plan.grids();
        let mut text = BEGIN.to_owned();
        match plan.tiles {
            None => text += &slots(&grids[0]),
            Some([across, down]) => {
                let places = (1..=down).flat_map(|row| (1..=across).map(move |column| (row, column)));
                for ((row, column), grid) in places.zip(&grids) {
                    text += &format!("<|img_row_{row}_col_{column}|>{}", slots(grid));
                }
                if let Some(whole) = grids.get(across * down) {
                    text += &format!("{THUMBNAIL}{}", slots(whole));
                }
            }
        }
        text += END;
        let rows = grids.iter().map(|grid| plan.rows(*grid)).sum::<usize>() as u32;
        Ok(Measured { text, rows, layout: tiles::layout(&grids) })
    }

    fn prepare(&self, settings: &Settings, item: &MediaItem<'_>) -> Result<Vec<u8>> {
        let plan = Plan::of(Limits::read(settings)?, item.size);
        let Limits { tile, patch_size, resample, use_thumbnail, .. } = plan.limits;
        let image = Image::of(item)?;
        let mut prepared = Vec::new();
        let mut add = |view: &Image| prepared.extend(tiles::patches(view.pixels(), view.width(), patch_size).1);
        if let Some([across, down]) = plan.tiles {
            let resized = image.resized(across * tile, down * tile, resample);
            for (row, column) in (0..down).flat_map(|row| (0..across).map(move |column| (row, column))) {
                add(&resized.crop(column * tile, row * tile, tile, tile));
            }
        }
        if plan.tiles.is_none() || use_thumbnail {
            let [width, height] = plan.whole;
            add(&image.resized(width, height, resample));
        }
        Ok(prepared)
    }
}

/// The settings of the processor.
struct Limits {
    patch_size: usize,
    factor: usize,
    tile: usize,
    min_tiles: usize,
    max_tiles: usize,
    use_thumbnail: bool,
    min_tokens: usize,
    max_tokens: usize,
    tolerance: f64,
    resample: Resample,
}

impl Limits {
    fn read(settings: &Settings) -> Result<Self> {
        let limits = Self {
            patch_size: settings.usize("patch_size")?,
            factor: settings.usize("factor")?,
            tile: settings.usize("tile_size")?,
            min_tiles: settings.usize("min_tiles")?,
            max_tiles: settings.usize("max_tiles")?,
            use_thumbnail: settings.bool_or("use_thumbnail", true)?,
            min_tokens: settings.usize("min_image_tokens")?,
            max_tokens: settings.usize("max_image_tokens")?,
            tolerance: settings.f64("max_pixels_tolerance")?,
            resample: Resample::of(settings.usize("resample")?)?,
        };
        let Self { patch_size, factor, tile, min_tiles, max_tiles, min_tokens, max_tokens, tolerance, .. } = limits;
        let step = patch_size * factor;
        let is_sound = (1..=256).contains(&patch_size)
            && (1..=16).contains(&factor)
            && (step..=SIDE_MAX).contains(&tile)
            && tile.is_multiple_of(step)
            && (1..=max_tiles).contains(&min_tiles)
            && max_tiles <= TILES_MAX
            && (1..=max_tokens).contains(&min_tokens)
            && max_tokens <= ROWS_MAX
            && (0.0..=64.0).contains(&tolerance);
        if is_sound {
            return Ok(limits);
        }
        let message =
            format!("{min_tiles} to {max_tiles} tiles of {tile} pixels, or {min_tokens} to {max_tokens} rows");
        Err(Error::invalid(format!("an image processor for {message} of {factor} patches of {patch_size} pixels")))
    }

    /// Pixels on a side of a row's square.
    fn step(&self) -> usize {
        self.patch_size * self.factor
    }

    fn pixels(&self, tokens: usize) -> f64 {
        (tokens * self.step() * self.step()) as f64
    }
}

/// What becomes of an image.
struct Plan {
    limits: Limits,
    /// Tiles across and down, if the image is cut.
    tiles: Option<[usize; 2]>,
    /// Width and height of the image as a whole.
    whole: [usize; 2],
}

impl Plan {
    fn of(limits: Limits, size: MediaSize) -> Self {
        let (width, height) = (size.width as usize, size.height as usize);
        let rounded = |side: usize| round(side, limits.step()).max(limits.patch_size);
        let is_large = (rounded(width) * rounded(height)) as f64 > limits.pixels(limits.max_tokens) * limits.tolerance;
        let tiles = (is_large && limits.max_tiles > 1).then(|| closest(&limits, width, height));
        Self { tiles, whole: whole(&limits, width, height), limits }
    }

    fn grids(&self) -> Vec<Grid> {
        let Limits { patch_size, tile, use_thumbnail, .. } = self.limits;
        let grid = |[width, height]: [usize; 2]| Grid { height: height / patch_size, width: width / patch_size };
        let mut grids = self.tiles.map_or_else(Vec::new, |[across, down]| vec![grid([tile; 2]); across * down]);
        if self.tiles.is_none() || use_thumbnail {
            grids.push(grid(self.whole));
        }
        grids
    }

    fn rows(&self, grid: Grid) -> usize {
        grid.patches() / (self.limits.factor * self.limits.factor)
    }
}

/// The multiple of `step` that is closest to `side`, of two the even one, as Python rounds.
fn round(side: usize, step: usize) -> usize {
    (side as f64 / step as f64).round_ties_even() as usize * step
}

/// Width and height of an image that is not cut: multiples of `step`, with as many rows as the limits allow.
fn whole(limits: &Limits, width: usize, height: usize) -> [usize; 2] {
    let (step, sides) = (limits.step(), [width, height]);
    let rounded = sides.map(|side| round(side, step).max(step));
    let (pixels, area) = ((rounded[0] * rounded[1]) as f64, (width * height) as f64);
    let (most, least) = (limits.pixels(limits.max_tokens), limits.pixels(limits.min_tokens));
    let squares = if pixels > most {
        let beta = (area / most).sqrt();
        sides.map(|side| ((side as f64 / beta / step as f64).floor() as usize).max(1))
    } else if pixels < least {
        let beta = (least / area).sqrt();
        sides.map(|side| (side as f64 * beta / step as f64).ceil() as usize)
    } else {
        rounded.map(|side| side / step)
    };
    // A long image that becomes one square high may still have too many in the other direction. The reference lets it be;
    // here memory is planned by the limit.
    let [across, down] = squares;
    let shorter = across.min(down).min(limits.max_tokens.isqrt());
    let longer = across.max(down).min(limits.max_tokens / shorter);
    if across <= down { [shorter * step, longer * step] } else { [longer * step, shorter * step] }
}

/// Tiles across and down whose proportions are closest to the image's; of two as close, the more unless the image is small.
fn closest(limits: &Limits, width: usize, height: usize) -> [usize; 2] {
    let (ratio, area) = (width as f64 / height as f64, (width * height) as f64);
    let mut candidates: Vec<[usize; 2]> = (1..=limits.max_tiles)
        .flat_map(|across| (1..=limits.max_tiles).map(move |down| [across, down]))
        .filter(|[across, down]| (limits.min_tiles..=limits.max_tiles).contains(&(across * down)))
        .collect();
    candidates.sort_by_key(|[across, down]| across * down);
    let (mut best, mut best_distance) = ([1, 1], f64::INFINITY);
    for [across, down] in candidates {
        let distance = (ratio - across as f64 / down as f64).abs();
        let is_filled = area > 0.5 * (limits.tile * limits.tile * across * down) as f64;
        if distance < best_distance || distance == best_distance && is_filled {
            (best, best_distance) = ([across, down], distance);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_images_have_no_more_rows_than_the_limits_allow() {
        for (min_tokens, max_tokens) in [(64, 256), (250, 256), (1, 1), (7, 10)] {
            let limits = || Limits {
                patch_size: 16,
                factor: 2,
                tile: 512,
                min_tiles: 2,
                max_tiles: 10,
                use_thumbnail: true,
                min_tokens,
                max_tokens,
                tolerance: 2.0,
                resample: Resample::Bilinear,
            };
            for (width, height) in [(65_535, 1), (1, 65_535), (2000, 1), (1, 1), (500, 501), (100, 90), (3000, 40)] {
                let plan = Plan::of(limits(), MediaSize::image(width, height));
                let [across, down] = plan.whole.map(|side| side / limits().step());
                assert!((1..=max_tokens).contains(&(across * down)), "{width} by {height}: {across} by {down}");
            }
        }
    }
}
