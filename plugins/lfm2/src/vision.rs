//! The eyes of LFM2-VL: SigLIP 2 over images in their own proportions, whose positions are interpolated for each size, and
//! a projector that puts squares of patches into one row each. Large images are cut into tiles, followed by a small view
//! of the whole.
//!
//! Reference: `modeling_lfm2_vl.py`, `image_processing_lfm2_vl.py` and `processing_lfm2_vl.py` in Hugging Face
//! transformers.

mod eyes;

use std::ops::Range;

use pensieve_sdk::{
    Error, MediaSize, Result,
    nn::{
        Activation, LayerNorm, Loader, Mlp, Step, Tensor, activation,
        vision::{Grid, PatchBatch, Patches, Siglip, SiglipConfig, Tower, VitBlock, tiles},
    },
    weights::{Checkpoint, GgufTower},
};

pub use eyes::Eyes;

/// The token that stands for a row.
const SLOT: &str = "<image>";
/// Epsilon of the projector's norm.
const NORM_EPS: f64 = 1e-5;

/// The towers of GGUF models.
pub static TOWER: GgufTower = GgufTower {
    projectors: &["lfm2"],
    names: GgufTower::SIGLIP,
    keys: &[],
    activation: "gelu_pytorch_tanh",
    complete: |_| Ok(()),
};

/// The sizes of the tower and of what follows it.
#[derive(Clone)]
pub struct Config {
    siglip: SiglipConfig,
    /// Patches on a side of the squares that become a row.
    downsample_factor: usize,
    projector_hidden_size: usize,
    projector_hidden_act: Activation,
    slot: u32,
}

impl Config {
    /// Reads the configuration; `None` if the checkpoint has no tower.
    pub fn read(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let config = checkpoint.config();
        let Some(vision) = config.vision()? else { return Ok(None) };
        let settings = checkpoint.processor()?;
        let weights = checkpoint.weights();
        // GGUF files do not state the projector's width.
        let stored =
            weights.find("multi_modal_projector.linear_1.weight").and_then(|tensor| tensor.shape.first().copied());
        let slot = match config.find_usize("image_token_id")?.or(config.find_usize("image_token_index")?) {
            Some(slot) => u32::try_from(slot).ok(),
            None => checkpoint.tokenizer()?.id(SLOT)?,
        };
        let slot = slot.ok_or_else(|| Error::corrupt(format!("the vocabulary has no token {SLOT}")))?;
        let factor = config.usize_or("downsample_factor", vision.usize_or("scale_factor", 2)?)?;
        if !(1..=16).contains(&factor) {
            return Err(Error::corrupt(format!("downsample_factor is {factor}")));
        }
        Ok(Some(Self {
            siglip: SiglipConfig::read(&vision, &settings)?,
            downsample_factor: factor,
            projector_hidden_size: config.usize_or("projector_hidden_size", stored.unwrap_or(2560))?,
            projector_hidden_act: activation(config.str_or("projector_hidden_act", "gelu")?)?,
            slot,
        }))
    }

    fn rows(&self, grid: Grid) -> usize {
        grid.patches() / (self.downsample_factor * self.downsample_factor)
    }
}

/// SigLIP 2, and the projection of its patches in squares.
pub struct Lfm2Vision {
    siglip: Siglip,
    /// Some checkpoints have none.
    layer_norm: Option<LayerNorm>,
    projector: Mlp,
    config: Config,
}

impl Lfm2Vision {
    pub fn load(loader: &Loader<'_>, config: &Config, text_width: usize) -> Result<Self> {
        let inputs = config.siglip.hidden_size * config.downsample_factor * config.downsample_factor;
        let paths = ["multi_modal_projector", "model.multi_modal_projector"].map(|path| loader.at(path));
        let projector = paths.iter().find(|path| path.has("linear_1.weight")).unwrap_or(&paths[0]);
        let is_normed = projector.has("layer_norm.weight");
        let sizes = [inputs, config.projector_hidden_size, text_width];
        Ok(Self {
            siglip: Siglip::load(loader, &config.siglip)?,
            layer_norm: is_normed.then(|| LayerNorm::load(projector, "layer_norm", inputs, NORM_EPS)).transpose()?,
            projector: Mlp::load_projector(projector, ["linear_1", "linear_2"], sizes, config.projector_hidden_act)?,
            config: config.clone(),
        })
    }
}

impl Tower for Lfm2Vision {
    fn slot(&self) -> u32 {
        self.config.slot
    }

    fn open(&self, _size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<Patches> {
        tiles::open(layout, prepared, self.config.siglip.patch_size, |grid| self.config.rows(grid))
    }

    fn embed(&self, batch: &PatchBatch, patches: Range<usize>, step: &Step<'_>) -> Result<Tensor> {
        self.siglip.embed(batch, patches, step)
    }

    fn blocks(&self) -> &[VitBlock] {
        &self.siglip.blocks
    }

    fn band(&self) -> Option<usize> {
        Some(self.config.downsample_factor)
    }

    fn project(&self, x: &Tensor, batch: &PatchBatch, step: &Step<'_>) -> Result<Tensor> {
        let x = self.siglip.post_layernorm.forward(x, step)?;
        let squares = tiles::squares(&x, batch, self.config.downsample_factor, step)?;
        let squares = match &self.layer_norm {
            Some(norm) => norm.forward(&squares, step)?,
            None => squares,
        };
        self.projector.forward(&squares, step)
    }
}
