//! The eyes of Idefics3 (arXiv 2408.12637) and SmolVLM (2504.05299): an image is cut into tiles, each of which goes through
//! SigLIP; pixel shuffle puts squares of patches into one row each. Texts between the tiles say where they are, and a small
//! view of the whole image comes last.
//!
//! Reference: `modeling_idefics3.py`, `image_processing_idefics3.py` and `processing_idefics3.py` in Hugging Face
//! transformers.

mod eyes;

use std::ops::Range;

use pensieve_sdk::{
    Error, MediaSize, Result,
    nn::{
        Linear, Loader, Step, Tensor,
        vision::{Grid, PatchBatch, Patches, Siglip, SiglipConfig, Tower, VitBlock, tiles},
    },
    weights::{Checkpoint, GgufTower},
};

pub use eyes::Eyes;

/// The token that stands for a row.
const SLOT: &str = "<image>";

/// The projector of a tower that belongs to a Mistral.
const PIXTRAL: &str = "pixtral";

/// The towers of GGUF models.
pub static TOWER: GgufTower = GgufTower {
    projectors: &["idefics3", PIXTRAL],
    names: GgufTower::SIGLIP,
    keys: &[("preproc_image_size", "longest_edge")],
    activation: "gelu_pytorch_tanh",
    complete: |_| Ok(()),
};

/// The sizes of the tower and of what follows it.
#[derive(Clone)]
pub struct Config {
    siglip: SiglipConfig,
    /// Patches on a side of the squares that become a row.
    scale_factor: usize,
    slot: u32,
}

impl Config {
    /// Reads the configuration; `None` if the checkpoint has no tower.
    pub fn read(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let config = checkpoint.config();
        let Some(vision) = config.vision()? else { return Ok(None) };
        if vision.find_str("projector_type")? == Some(PIXTRAL) {
            return Err(Error::declined("its vision tower is Pixtral's, which the plugin mistral has"));
        }
        let settings = checkpoint.processor()?;
        let siglip = SiglipConfig::read(&vision, &settings)?;
        let scale_factor = config.usize_or("scale_factor", vision.usize_or("scale_factor", 2)?)?;
        if scale_factor == 0 || !siglip.side.is_multiple_of(scale_factor) {
            let message = format!("tiles of {} by {} patches in squares of {scale_factor}", siglip.side, siglip.side);
            return Err(Error::corrupt(message));
        }
        let slot = match config.find_usize("image_token_id")? {
            Some(slot) => u32::try_from(slot).ok(),
            None => checkpoint.tokenizer()?.id(SLOT)?,
        };
        let slot = slot.ok_or_else(|| Error::corrupt(format!("the vocabulary has no token {SLOT}")))?;
        Ok(Some(Self { siglip, scale_factor, slot }))
    }

    /// Rows of a tile.
    fn rows(&self) -> usize {
        (self.siglip.side / self.scale_factor).pow(2)
    }
}

/// SigLIP, pixel shuffle and a projection.
pub struct Idefics3Vision {
    siglip: Siglip,
    modality_projection: Linear,
    config: Config,
}

impl Idefics3Vision {
    pub fn load(loader: &Loader<'_>, config: &Config, text_width: usize) -> Result<Self> {
        let inputs = config.siglip.hidden_size * config.scale_factor * config.scale_factor;
        let paths =
            ["model.connector.modality_projection", "connector.modality_projection"].map(|path| loader.at(path));
        let connector = paths.iter().find(|path| path.has("proj.weight")).unwrap_or(&paths[0]);
        Ok(Self {
            siglip: Siglip::load(loader, &config.siglip)?,
            modality_projection: connector.linear("proj", inputs, text_width)?,
            config: config.clone(),
        })
    }
}

impl Tower for Idefics3Vision {
    fn slot(&self) -> u32 {
        self.config.slot
    }

    fn open(&self, _size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<Patches> {
        let SiglipConfig { patch_size, side, .. } = self.config.siglip;
        let patches = tiles::open(layout, prepared, patch_size, |_| self.config.rows())?;
        match patches.grids.iter().find(|grid| **grid != Grid { height: side, width: side }) {
            None => Ok(patches),
            Some(Grid { height, width }) => {
                Err(Error::invalid(format!("a tile of {height} by {width} patches, not {side} by {side}")))
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
        Some(self.config.scale_factor)
    }

    fn project(&self, x: &Tensor, batch: &PatchBatch, step: &Step<'_>) -> Result<Tensor> {
        let x = self.siglip.post_layernorm.forward(x, step)?;
        self.modality_projection.forward(&tiles::squares(&x, batch, self.config.scale_factor, step)?, step)
    }
}
