//! The eyes of Gemma 3 (arXiv 2503.19786): an image of one size through SigLIP, whose patches are averaged in squares, so
//! that each image becomes the same number of rows. These see each other in the text model, too. With pan and scan, long
//! images are also cut into crops, each of which is an image of its own.
//!
//! Reference: `modeling_gemma3.py`, `image_processing_gemma3.py` and `processing_gemma3.py` in Hugging Face transformers.

mod eyes;

use std::ops::Range;

use pensieve_sdk::{
    Error, MediaSize, Result,
    nn::{
        Linear, Loader, RmsNorm, Step, Tensor,
        vision::{Grid, PatchBatch, Patches, Siglip, SiglipConfig, Tower, VitBlock, tiles},
    },
    weights::Checkpoint,
};

use crate::gemma::norm;
pub use eyes::Eyes;

/// The token that stands for a row.
const SLOT: &str = "<image_soft_token>";
/// The option that turns crops on, as transformers' processor calls it.
pub const PAN_AND_SCAN: &str = "do_pan_and_scan";

/// The sizes of the tower and of what follows it.
#[derive(Clone)]
pub struct Config {
    siglip: SiglipConfig,
    /// Rows of an image.
    tokens: usize,
    /// Patches on a side of the squares that are averaged.
    kernel_size: usize,
    slot: u32,
}

impl Config {
    /// Reads the configuration; `None` if the checkpoint has no tower.
    pub fn read(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let config = checkpoint.config();
        let Some(vision) = config.vision()? else { return Ok(None) };
        let settings = checkpoint.processor()?;
        let siglip = SiglipConfig::read(&vision, &settings)?;
        let tokens = config.usize_or("mm_tokens_per_image", vision.usize_or("mm_tokens_per_image", 256)?)?;
        let side = tokens.isqrt();
        if side == 0 || side * side != tokens || side > siglip.side {
            let message = format!("{tokens} rows of an image of {} by {} patches", siglip.side, siglip.side);
            return Err(Error::corrupt(message));
        }
        let slot = match config.find_usize("image_token_index")?.or(config.find_usize("image_token_id")?) {
            Some(slot) => u32::try_from(slot).ok(),
            None => checkpoint.tokenizer()?.id(SLOT)?,
        };
        let slot = slot.ok_or_else(|| Error::corrupt(format!("the vocabulary has no token {SLOT}")))?;
        Ok(Some(Self { kernel_size: siglip.side / side, siglip, tokens, slot }))
    }
}

/// SigLIP, and the projection of its averaged patches.
pub struct Gemma3Vision {
    siglip: Siglip,
    mm_soft_emb_norm: RmsNorm,
    mm_input_projection: Linear,
    config: Config,
}

impl Gemma3Vision {
    pub fn load(loader: &Loader<'_>, config: &Config, text_width: usize) -> Result<Self> {
        let SiglipConfig { hidden_size, layer_norm_eps, .. } = config.siglip;
        let paths = ["multi_modal_projector", "model.multi_modal_projector"].map(|path| loader.at(path));
        let projector = paths.iter().find(|path| path.has("mm_soft_emb_norm.weight")).unwrap_or(&paths[0]);
        // The only layer of the family that is stored by inputs.
        let weight = projector.raw("mm_input_projection_weight", &[hidden_size, text_width])?.transposed()?;
        Ok(Self {
            siglip: Siglip::load(loader, &config.siglip)?,
            mm_soft_emb_norm: norm(projector, "mm_soft_emb_norm", hidden_size, layer_norm_eps)?,
            mm_input_projection: projector.linear_of("mm_input_projection", &weight)?,
            config: config.clone(),
        })
    }
}

impl Tower for Gemma3Vision {
    fn slot(&self) -> u32 {
        self.config.slot
    }

    fn open(&self, _size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<Patches> {
        let Config { siglip: SiglipConfig { patch_size, side, .. }, tokens, .. } = self.config;
        let patches = tiles::open(layout, prepared, patch_size, |_| tokens)?;
        match patches.grids.iter().find(|grid| **grid != Grid { height: side, width: side }) {
            None => Ok(patches),
            Some(Grid { height, width }) => {
                Err(Error::invalid(format!("an image of {height} by {width} patches, not {side} by {side}")))
            }
        }
    }

    fn embed(&self, batch: &PatchBatch, patches: Range<usize>, step: &Step<'_>) -> Result<Tensor> {
        self.siglip.embed(batch, patches, step)
    }

    fn blocks(&self) -> &[VitBlock] {
        &self.siglip.blocks
    }

    fn band(&self) -> Option<usize> {
        Some(self.config.kernel_size)
    }

    fn project(&self, x: &Tensor, batch: &PatchBatch, step: &Step<'_>) -> Result<Tensor> {
        let x = self.siglip.post_layernorm.forward(x, step)?;
        let pooled = tiles::averages(&x, batch, self.config.kernel_size, step)?;
        self.mm_input_projection.forward(&self.mm_soft_emb_norm.forward(&pooled, step)?, step)
    }
}
