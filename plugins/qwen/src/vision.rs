//! The eyes of Qwen2.5-VL (arXiv 2502.13923), Qwen3-VL (2511.21631) and Qwen3.5: images in nearly their own size, as patches
//! whose squares become a row each.
//!
//! Reference: `image_processing_qwen2_vl.py` and the `modeling_*.py` of the three in Hugging Face transformers.

mod eyes;
mod gguf;
mod layers;
mod tower;

use pensieve_sdk::{
    Error, Result,
    nn::{Activation, Rope, activation, vision::PixelRange},
    weights::{Checkpoint, Format},
};

pub use eyes::Eyes;
use eyes::SLOT;
pub use gguf::{QWEN2_5_VL, QWEN3_VL};
pub use tower::QwenVision;

/// The sizes of a tower, `vision_config`.
#[derive(Clone)]
pub struct Config {
    hidden_size: usize,
    intermediate_size: usize,
    depth: usize,
    num_heads: usize,
    patch_size: usize,
    /// Frames of a video that share a patch; an image stands in all of them.
    temporal_patch_size: usize,
    /// Patches on a side of the squares that become a row.
    spatial_merge_size: usize,
    hidden_act: Activation,
    kind: Kind,
    /// Sections of the text's RoPE by time, height and width, and whether they take turns.
    mrope: ([usize; 3], bool),
    range: PixelRange,
    slot: u32,
}

/// How the generations differ.
#[derive(Clone)]
enum Kind {
    /// Qwen2.5-VL attends within windows of so many pixels, except in some blocks.
    Windowed { window_size: usize, full: Vec<usize> },
    /// Qwen3-VL and Qwen3.5 have learned positions, so many to a side, and Qwen3-VL taps after some blocks.
    Positioned { side: usize, taps: Vec<usize> },
}

impl Config {
    /// Reads the configuration; `None` if the checkpoint has no tower that is known here.
    pub fn read(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let (config, class) = (checkpoint.config(), checkpoint.architecture());
        let Some(vision) = config.vision()? else { return Ok(None) };
        let is = |classes: &str, gguf: &str| class.starts_with(classes) || class.starts_with(gguf);
        let (is_windowed, has_taps) = (is("Qwen2_5_VL", "qwen2vl"), is("Qwen3VL", "qwen3vl"));
        if !is_windowed && !has_taps && !is("Qwen3_5", "qwen35") {
            return Ok(None);
        }
        let kind = match is_windowed {
            true => Kind::Windowed {
                window_size: vision.usize_or("window_size", 112)?,
                full: vision.usizes("fullatt_block_indexes")?,
            },
            false => Kind::Positioned {
                side: vision.usize_or("num_position_embeddings", 2304)?.isqrt(),
                taps: vision.usizes("deepstack_visual_indexes")?,
            },
        };
        let (sections, acts, patch) = match &kind {
            Kind::Windowed { .. } => ([16, 24, 24], "silu", 14),
            _ if has_taps => ([24, 20, 20], "gelu_pytorch_tanh", 16),
            Kind::Positioned { .. } => ([11, 11, 10], "gelu_pytorch_tanh", 16),
        };
        let slot = match checkpoint.format() {
            Format::Gguf => checkpoint.tokenizer()?.id(SLOT)?,
            Format::Safetensors => u32::try_from(config.usize("image_token_id")?).ok(),
        };
        let config = Self {
            hidden_size: vision.usize("hidden_size")?,
            intermediate_size: vision.usize("intermediate_size")?,
            depth: vision.usize("depth")?,
            num_heads: vision.usize("num_heads")?,
            patch_size: vision.usize_or("patch_size", patch)?,
            temporal_patch_size: vision.usize_or("temporal_patch_size", 2)?,
            spatial_merge_size: vision.usize_or("spatial_merge_size", 2)?,
            hidden_act: activation(vision.str_or("hidden_act", acts)?)?,
            kind,
            mrope: (config.mrope_section()?.unwrap_or(sections), !is_windowed),
            range: PixelRange::read_or(&checkpoint.processor()?, PixelRange::CLIP)?,
            slot: slot.ok_or_else(|| Error::corrupt(format!("the vocabulary has no token {SLOT}")))?,
        };
        config.check()?;
        Ok(Some(config))
    }

    fn check(&self) -> Result<()> {
        let Self { hidden_size, num_heads: heads, patch_size, temporal_patch_size, spatial_merge_size, .. } = *self;
        let has_heads = heads > 0 && hidden_size > 0 && hidden_size.is_multiple_of(heads.saturating_mul(4));
        let is_sound = self.depth > 0 && (1..=256).contains(&patch_size) && (1..=16).contains(&spatial_merge_size);
        let is_known = match &self.kind {
            Kind::Windowed { window_size, .. } => *window_size >= patch_size * spatial_merge_size,
            Kind::Positioned { side, .. } => (1..=4096).contains(side),
        };
        // The text model adds the first tap after its first layer, and so on.
        let has_taps = match &self.kind {
            Kind::Windowed { .. } => true,
            Kind::Positioned { taps, .. } => {
                taps.is_sorted_by(|one, next| one < next) && taps.last().is_none_or(|last| *last < self.depth)
            }
        };
        if !has_taps {
            let message = format!("deepstack_visual_indexes are no ascending blocks of {}", self.depth);
            return Err(Error::corrupt(message).help("the model's configuration is inconsistent"));
        }
        if has_heads && is_sound && is_known && (1..=16).contains(&temporal_patch_size) {
            return Ok(());
        }
        let message = format!("{heads} heads for {hidden_size} values, patches of {patch_size} pixels");
        Err(Error::corrupt(format!("a tower of {message}, merged in squares of {spatial_merge_size}"))
            .help("the model's configuration is inconsistent"))
    }

    /// The text's rotation, in which images have two dimensions.
    pub fn rope(&self, rope: Rope) -> Result<Rope> {
        let (sections, interleaved) = self.mrope;
        rope.in_sections(sections, interleaved)
    }
}
