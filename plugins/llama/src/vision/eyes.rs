//! The preparation of images, without the weights: its tiles, the texts between them, and a view of the whole.

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

/// Tokens before a tile, and before the view of the whole.
const FAKE: &str = "<fake_token_around_image>";
const GLOBAL: &str = "<global-img>";
/// The longest side of any image after resizing.
const SIDE_MAX: usize = 4096;
/// Limit on the tiles of an image in each direction.
const TILES_MAX: usize = 16;

/// Describes and prepares images.
pub struct Eyes;

impl Processor for Eyes {
    fn describe(&self, checkpoint: &Checkpoint) -> Result<Vec<ItemDescription>> {
        let Some(config) = Config::read(checkpoint)? else { return Ok(Vec::new()) };
        let file = checkpoint.processor()?;
        let vision = checkpoint.config().vision()?;
        let edge = |key: &str| {
            let edge = file.value().get(key)?.get("longest_edge")?.as_u64();
            edge.and_then(|edge| usize::try_from(edge).ok())
        };
        let tile = config.siglip.side * config.siglip.patch_size;
        let stored = vision.as_ref().map(|vision| vision.find_usize("longest_edge")).transpose()?.flatten();
        if edge("max_image_size").is_some_and(|edge| edge != tile) {
            let edge = edge("max_image_size").unwrap_or_default();
            return Err(Error::unsupported(format!("tiles of {edge} pixels, and the tower's positions are of {tile}")));
        }
        let longest = edge("size").or(stored).unwrap_or(4 * tile).min(SIDE_MAX);
        let across = if file.bool_or("do_image_splitting", true)? { longest.div_ceil(tile) } else { 0 };
        if across > TILES_MAX {
            return Err(Error::unsupported(format!("{across} tiles of {tile} pixels in a row of an image")));
        }
        let tiles = across * across + 1;
        let settings = Settings::of([
            ("rows", config.rows().into()),
            ("patch_size", config.siglip.patch_size.into()),
            ("tile", tile.into()),
            ("longest_edge", longest.into()),
            ("splits", (across > 0).into()),
            ("resample", file.usize_or("resample", Resample::Lanczos as usize)?.into()),
        ]);
        Ok(vec![ItemDescription {
            kind: MediaKind::Image,
            placeholder: SLOT.into(),
            text: None,
            slot: config.slot,
            whole: false,
            rows_max: tiles * config.rows(),
            row_values: checkpoint.config().usize("hidden_size")?,
            encoder_bytes: config.siglip.scratch_bytes(tiles * config.siglip.side * config.siglip.side),
            rate: None,
            settings,
        }])
    }

    fn measure(&self, settings: &Settings, size: MediaSize) -> Result<Measured> {
        let plan = Plan::of(settings, size)?;
        let image = SLOT.repeat(plan.rows);
        let mut text = String::new();
        for row in 1..=plan.down {
            for column in 1..=plan.across {
                text += &format!("{FAKE}<row_{row}_col_{column}>{image}");
            }
            text += "\n";
        }
        if plan.down > 0 {
            text += "\n";
        }
        text += &format!("{FAKE}{GLOBAL}{image}{FAKE}");
        let side = plan.tile / plan.patch_size;
        let grids = vec![Grid { height: side, width: side }; plan.down * plan.across + 1];
        Ok(Measured { text, rows: (grids.len() * plan.rows) as u32, layout: tiles::layout(&grids) })
    }

    fn prepare(&self, settings: &Settings, item: &MediaItem<'_>) -> Result<Vec<u8>> {
        let Plan { tile, patch_size, resized: [width, height], down, across, resample, .. } =
            Plan::of(settings, item.size)?;
        let mut image = Image::of(item)?.resized(width, height, resample);
        let mut prepared = Vec::new();
        if down > 0 {
            image = image.resized(across * tile, down * tile, resample);
            for (row, column) in (0..down).flat_map(|row| (0..across).map(move |column| (row, column))) {
                let view = image.crop(column * tile, row * tile, tile, tile);
                prepared.extend(tiles::patches(view.pixels(), tile, patch_size).1);
            }
        }
        let whole = image.resized(tile, tile, resample);
        prepared.extend(tiles::patches(whole.pixels(), tile, patch_size).1);
        Ok(prepared)
    }
}

/// What becomes of an image.
struct Plan {
    /// Rows of a tile.
    rows: usize,
    tile: usize,
    patch_size: usize,
    /// Width and height before the image is cut.
    resized: [usize; 2],
    /// Tiles besides the view of the whole.
    down: usize,
    across: usize,
    resample: Resample,
}

impl Plan {
    fn of(settings: &Settings, size: MediaSize) -> Result<Self> {
        let (rows, tile, patch_size) =
            (settings.usize("rows")?, settings.usize("tile")?, settings.usize("patch_size")?);
        let (longest, splits) = (settings.usize("longest_edge")?, settings.bool_or("splits", true)?);
        let is_sound = (1..=256).contains(&patch_size) && (patch_size..=SIDE_MAX).contains(&tile);
        if !is_sound || !(1..=SIDE_MAX).contains(&longest) || longest.div_ceil(tile) > TILES_MAX {
            return Err(Error::invalid(format!(
                "images of {longest} pixels in tiles of {tile} and patches of {patch_size}"
            )));
        }
        let resized = longest_edge(size, longest);
        let [across, down] = if splits { tiles_of(resized, tile) } else { [0, 0] };
        let resample = Resample::of(settings.usize("resample")?)?;
        // An image of one tile is not cut.
        let (down, across) = if down * across > 1 { (down, across) } else { (0, 0) };
        Ok(Self { rows, tile, patch_size, resized, down, across, resample })
    }
}

/// Width and height of an image whose longest side becomes `longest`. The other side is even.
fn longest_edge(size: MediaSize, longest: usize) -> [usize; 2] {
    let ratio = f64::from(size.width) / f64::from(size.height);
    let even = |side: f64| (side as usize).next_multiple_of(2);
    if size.width >= size.height {
        [longest, even(longest as f64 / ratio)].map(|side| side.max(1))
    } else {
        [even(longest as f64 * ratio), longest].map(|side| side.max(1))
    }
}

/// The tiles of an image across and down: its longer side is extended to whole tiles, and the other in proportion.
fn tiles_of([width, height]: [usize; 2], tile: usize) -> [usize; 2] {
    let ratio = width as f64 / height as f64;
    if width >= height {
        let across = width.div_ceil(tile);
        [across, (((across * tile) as f64 / ratio) as usize).div_ceil(tile)]
    } else {
        let down = height.div_ceil(tile);
        [(((down * tile) as f64 * ratio) as usize).div_ceil(tile), down]
    }
}
