//! The eyes of GLM-4.1V and GLM-4.5V (arXiv 2507.01006): images in nearly their own size, learned positions that are
//! interpolated for each, and a convolution that makes a row of each square of patches. GLM-OCR has normalized queries and
//! keys in place of learned positions.
//!
//! Reference: `modeling_glm4v.py`, `image_processing_glm4v.py`, `processing_glm4v.py` and `modeling_glm_ocr.py` in Hugging Face
//! transformers.

mod eyes;
mod gguf;
mod layers;

use std::ops::Range;

use pensieve_sdk::{
    Error, MediaSize, Result,
    nn::{
        Activation, Angles, Linear, Loader, RmsNorm, Rope, Step, Tensor, activation,
        vision::{PatchBatch, Patches, PixelRange, PositionTable, Tower, VitBlock, patch_embed, tiles},
    },
    weights::{Checkpoint, Format, RawTensor},
};

pub use eyes::Eyes;
use eyes::SLOT;
pub use gguf::TOWER;
use layers::{PatchMerger, block, cubic};

/// `model_type` of GLM-OCR's `vision_config`.
const OCR: &str = "glm_ocr_vision";
/// Colors of a pixel, which GLM-OCR multiplies a width by.
const COLORS: usize = 3;
/// The base of the tower's 2-D RoPE.
const THETA: f64 = 10_000.0;

/// The sizes of the tower, `vision_config`.
#[derive(Clone)]
pub struct Config {
    hidden_size: usize,
    /// Inner widths of the blocks and of the merger.
    block_inner: usize,
    merger_inner: usize,
    depth: usize,
    num_heads: usize,
    patch_size: usize,
    /// Frames of a video that share a patch; an image stands in all of them.
    temporal_patch_size: usize,
    /// Patches on a side of the squares that become a row.
    spatial_merge_size: usize,
    /// Learned positions on a side; GLM-OCR has none.
    side: Option<usize>,
    hidden_act: Activation,
    rms_norm_eps: f64,
    /// Sections of the text's RoPE by time, height and width.
    mrope: [usize; 3],
    range: PixelRange,
    slot: u32,
}

impl Config {
    /// Reads the configuration; `None` if the checkpoint has no tower.
    pub fn read(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let config = checkpoint.config();
        let Some(vision) = config.vision()? else { return Ok(None) };
        let slot = match checkpoint.format() {
            Format::Gguf => checkpoint.tokenizer()?.id(SLOT)?,
            Format::Safetensors => u32::try_from(config.usize("image_token_id")?).ok(),
        };
        let patch_size = vision.usize_or("patch_size", 14)?;
        let (is_ocr, text_width) = (vision.str_or("model_type", "")? == OCR, config.usize("hidden_size")?);
        let [hidden_size, num_heads, inner] = if is_ocr { [1024, 16, 4096] } else { [1536, 12, 13_696] };
        let inner = vision.usize_or("intermediate_size", inner)?;
        let side = vision.usize_or("image_size", 336)?.checked_div(patch_size).unwrap_or_default();
        let config = Self {
            hidden_size: vision.usize_or("hidden_size", hidden_size)?,
            block_inner: if is_ocr { inner } else { text_width },
            merger_inner: if is_ocr { text_width.saturating_mul(COLORS) } else { inner },
            depth: vision.usize_or("depth", 24)?,
            num_heads: vision.usize_or("num_heads", num_heads)?,
            patch_size,
            temporal_patch_size: vision.usize_or("temporal_patch_size", 2)?,
            spatial_merge_size: vision.usize_or("spatial_merge_size", 2)?,
            side: Some(side).filter(|_| !is_ocr),
            hidden_act: activation(vision.str_or("hidden_act", "silu")?)?,
            rms_norm_eps: vision.f64_or("rms_norm_eps", 1e-5)?,
            mrope: config.mrope_section()?.unwrap_or([8, 12, 12]),
            range: PixelRange::read_or(&checkpoint.processor()?, PixelRange::CLIP)?,
            slot: slot.ok_or_else(|| Error::corrupt(format!("the vocabulary has no token {SLOT}")))?,
        };
        config.check()?;
        Ok(Some(config))
    }

    fn check(&self) -> Result<()> {
        let Self { hidden_size, num_heads: heads, patch_size, spatial_merge_size, temporal_patch_size, .. } = *self;
        let has_heads = heads > 0 && hidden_size > 0 && hidden_size.is_multiple_of(heads.saturating_mul(4));
        let is_sound = self.depth > 0 && (1..=256).contains(&patch_size) && (1..=16).contains(&spatial_merge_size);
        let has_positions = self.side.is_none_or(|side| (1..=4096).contains(&side));
        if has_heads && is_sound && has_positions && (1..=16).contains(&temporal_patch_size) {
            return Ok(());
        }
        let message = format!("{heads} heads for {hidden_size} values, patches of {patch_size} pixels");
        Err(Error::corrupt(format!("a tower of {message}, merged in squares of {spatial_merge_size}"))
            .help("the model's configuration is inconsistent"))
    }

    /// The text's rotation, in which images have two dimensions.
    pub fn rope(&self, rope: Rope) -> Result<Rope> {
        rope.in_sections(self.mrope, false)
    }
}

/// The tower, the convolution that merges its patches, and a gated block.
pub struct GlmVision {
    patch_embed: Linear,
    /// A norm, and learned positions.
    embeddings: Option<(RmsNorm, PositionTable)>,
    rope: Rope,
    blocks: Vec<VitBlock>,
    post_layernorm: RmsNorm,
    downsample: Linear,
    merger: PatchMerger,
    config: Config,
}

impl GlmVision {
    pub fn load(loader: &Loader<'_>, config: &Config, text_width: usize) -> Result<Self> {
        let Config { hidden_size: width, rms_norm_eps: eps, spatial_merge_size: merge, side, .. } = *config;
        let nested = loader.at("model").at("visual");
        let visual = if nested.has("patch_embed.proj.weight") { nested } else { loader.at("visual") };
        let kernel = visual.raw("downsample.weight", &[text_width, width, merge, merge])?;
        let kernel = RawTensor { shape: vec![text_width, width * merge * merge], ..kernel };
        let bias = visual.vector("downsample.bias", text_width)?;
        let embeddings = |side: usize| {
            let norm = RmsNorm::load(&visual, "post_conv_layernorm", width, eps)?;
            let table = PositionTable::load(&visual, "embeddings.position_embedding.weight", side, width)?;
            Ok::<_, Error>((norm, table))
        };
        Ok(Self {
            patch_embed: patch_embed(&visual.at("patch_embed"), width, config.patch_size, config.temporal_patch_size)?,
            embeddings: side.map(embeddings).transpose()?,
            rope: Rope::axial(THETA, width / config.num_heads)?,
            blocks: (0..config.depth)
                .map(|index| block(&visual.at("blocks").at(index), config))
                .collect::<Result<_>>()?,
            post_layernorm: RmsNorm::load(&visual, "post_layernorm", width, eps)?,
            downsample: visual.linear_of("downsample", &kernel)?.with_bias(Some(bias)),
            merger: PatchMerger::load(&visual.at("merger"), config, text_width)?,
            config: config.clone(),
        })
    }
}

impl Tower for GlmVision {
    fn slot(&self) -> u32 {
        self.config.slot
    }

    fn open(&self, _size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<Patches> {
        tiles::open_whole(layout, prepared, self.config.patch_size, self.config.spatial_merge_size)
    }

    fn positions(&self, layout: &[u8], tokens: usize) -> Result<Vec<[u32; 3]>> {
        tiles::positions(layout, self.config.spatial_merge_size, tokens)
    }

    fn embed(&self, batch: &PatchBatch, patches: Range<usize>, step: &Step<'_>) -> Result<Tensor> {
        let values = self.config.range.values(&batch.pixels(&patches), self.config.patch_size, true, step)?;
        let x = self.patch_embed.forward(&values, step)?;
        let Some((norm, positions)) = &self.embeddings else { return Ok(x) };
        positions.add_to(&norm.forward(&x, step)?, &batch.places(&patches), cubic, step)
    }

    fn angles(&self, batch: &PatchBatch, step: &Step<'_>) -> Result<Option<Angles>> {
        let of = |(_, [row, column]): (_, [usize; 2])| [0, row as u32, column as u32];
        let places: Vec<_> = batch.places(&(0..batch.patches())).into_iter().map(of).collect();
        self.rope.angles_at(&places, step).map(Some)
    }

    fn blocks(&self) -> &[VitBlock] {
        &self.blocks
    }

    fn band(&self) -> Option<usize> {
        Some(self.config.spatial_merge_size)
    }

    fn project(&self, x: &Tensor, batch: &PatchBatch, step: &Step<'_>) -> Result<Tensor> {
        let Config { spatial_merge_size: side, hidden_size: width, .. } = self.config;
        let squares = tiles::squares(&self.post_layernorm.forward(x, step)?, batch, side, step)?;
        // The layer has the patches of a square innermost, as a convolution does.
        let rows = squares.dim(0)?;
        let squares = squares.reshape((rows, side * side, width))?.transpose(1, 2)?.contiguous()?;
        let merged = self.downsample.forward(&squares.reshape((rows, side * side * width))?, step)?;
        self.merger.forward(&merged, step)
    }
}
