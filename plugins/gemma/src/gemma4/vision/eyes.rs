//! The preparation of images, without the weights: the largest size of their own proportions within a budget of tokens.

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

use super::{Config, SLOT};

/// Tokens around an image's rows.
const BEGIN: &str = "<|image>";
const END: &str = "<image|>";
/// The rows of an image where a processor's file has no budget.
const TOKENS: usize = 280;
/// A larger budget is a sign of a damaged file.
const TOKENS_MAX: usize = 1 << 14;

/// The option with the most rows of an image, as transformers' processor calls it.
pub const MAX_SOFT_TOKENS: &str = "max_soft_tokens";

/// Describes and prepares images.
pub struct Eyes;

impl Processor for Eyes {
    fn describe(&self, checkpoint: &Checkpoint) -> Result<Vec<ItemDescription>> {
        describe(checkpoint, None)
    }

    fn describe_with(&self, checkpoint: &Checkpoint, options: &ModelOptions) -> Result<Vec<ItemDescription>> {
        describe(checkpoint, options.get(MAX_SOFT_TOKENS)?)
    }

    fn measure(&self, settings: &Settings, size: MediaSize) -> Result<Measured> {
        let sizes = Sizes::read(settings)?;
        let [height, width] = sizes.squares(size);
        let grid = Grid { height: height * sizes.kernel, width: width * sizes.kernel };
        let rows = height * width;
        Ok(Measured {
            text: format!("{BEGIN}{}{END}", SLOT.repeat(rows)),
            rows: rows as u32,
            layout: tiles::layout(&[grid]),
        })
    }

    fn prepare(&self, settings: &Settings, item: &MediaItem<'_>) -> Result<Vec<u8>> {
        let sizes = Sizes::read(settings)?;
        let [height, width] = sizes.squares(item.size).map(|squares| squares * sizes.square());
        let image = Image::of(item)?.resized(width, height, sizes.resample);
        Ok(tiles::patches(image.pixels(), width, sizes.patch_size).1)
    }
}

/// `tokens` is the user's budget.
fn describe(checkpoint: &Checkpoint, tokens: Option<usize>) -> Result<Vec<ItemDescription>> {
    let Some(config) = Config::read(checkpoint)? else { return Ok(Vec::new()) };
    let file = checkpoint.processor()?;
    if file.bool_or("do_normalize", false)? {
        return Err(Error::unsupported("the image processor normalizes colors, which Gemma 4's tower does itself"));
    }
    let square = config.pooling_kernel_size * config.patch_size;
    let budget = match file.find_usize("max_pixels")? {
        // GGUF files have it in pixels.
        Some(pixels) => pixels / (square * square),
        None => file.usize_or(MAX_SOFT_TOKENS, TOKENS)?,
    };
    let tokens = match tokens {
        Some(0) => return Err(Error::invalid(format!("option {MAX_SOFT_TOKENS} is 0")).help("70 to 1120 are usual")),
        Some(tokens) => tokens,
        None => budget,
    };
    let settings = Settings::of([
        ("patch_size", config.patch_size.into()),
        ("kernel", config.pooling_kernel_size.into()),
        ("tokens", tokens.into()),
        ("resample", file.usize_or("resample", Resample::Bicubic as usize)?.into()),
    ]);
    Sizes::read(&settings)?;
    let patches = (tokens * config.pooling_kernel_size * config.pooling_kernel_size) as u64;
    let heads = config.num_attention_heads * config.head_dim;
    let values = 3 * config.patch_size * config.patch_size + 5 * config.hidden_size + 4 * heads;
    Ok(vec![ItemDescription {
        kind: MediaKind::Image,
        placeholder: SLOT.into(),
        text: None,
        slot: config.slot,
        whole: config.sees_whole,
        rows_max: tokens,
        row_values: checkpoint.config().usize("hidden_size")?,
        encoder_bytes: 4 * patches * (values + 3 * config.intermediate_size) as u64,
        rate: None,
        settings,
    }])
}

/// The settings of the processor.
struct Sizes {
    patch_size: usize,
    /// Patches on a side of the squares that become a row.
    kernel: usize,
    tokens: usize,
    resample: Resample,
}

impl Sizes {
    fn read(settings: &Settings) -> Result<Self> {
        let (patch_size, kernel) = (settings.usize("patch_size")?, settings.usize("kernel")?);
        let (tokens, resample) = (settings.usize("tokens")?, Resample::of(settings.usize("resample")?)?);
        if !(1..=256).contains(&patch_size) || !(1..=16).contains(&kernel) || !(1..=TOKENS_MAX).contains(&tokens) {
            let message = format!("images of {tokens} rows in patches of {patch_size} pixels");
            return Err(Error::corrupt(format!("{message}, averaged in squares of {kernel}")));
        }
        Ok(Self { patch_size, kernel, tokens, resample })
    }

    /// Pixels on a side of the squares that become a row.
    fn square(&self) -> usize {
        self.patch_size * self.kernel
    }

    /// The squares of an image down and across: as many as the budget allows in its proportions.
    fn squares(&self, size: MediaSize) -> [usize; 2] {
        let (sides, square) = ([size.height, size.width].map(f64::from), self.square() as f64);
        let pixels = self.tokens as f64 * square * square;
        let factor = (pixels / (sides[0] * sides[1])).sqrt();
        let [height, width] = sides.map(|side| (factor * side / square).floor() as usize);
        // A very long image is one square wide, and as long as its proportions say in whole numbers.
        let long = |sides: [f64; 2]| ((sides[0] / sides[1]).floor() as usize).clamp(1, self.tokens);
        match (height, width) {
            (0, 0) => [1, 1],
            (0, _) => [1, long([sides[1], sides[0]])],
            (_, 0) => [long(sides), 1],
            // Rounding may exceed the budget where both sides are whole squares.
            (height, width) => [height, width.min((self.tokens / height).max(1))],
        }
    }
}
