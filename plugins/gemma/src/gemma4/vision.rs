//! The eyes of Gemma 4: images in their own proportions, resized to a budget of tokens; blocks with norms before and after,
//! without a scale of the scores; and the mean of each square of patches as a row. In large models these see each other in
//! the text's layers with windows.
//!
//! Reference: `modeling_gemma4.py`, `image_processing_gemma4.py` and `processing_gemma4.py` in Hugging Face transformers.

mod eyes;
mod gguf;
mod layers;

use std::ops::Range;

use pensieve_sdk::{
    Error, MediaSize, Result,
    nn::{
        Activation, Angles, Linear, Loader, RmsNorm, Rope, Step, Tensor, activation,
        vision::{Grid, GridPart, PatchBatch, Patches, PixelRange, Tower, VitBlock, tiles},
    },
    weights::{Checkpoint, Format, RawTensor},
};

pub use eyes::{Eyes, MAX_SOFT_TOKENS};
pub use gguf::TOWER;
use layers::{block, rope};

/// The token that stands for a row.
const SLOT: &str = "<|image|>";
/// The base of the tower's 2-D RoPE.
const THETA: f64 = 100.0;

/// The sizes of the tower, `vision_config`.
#[derive(Clone)]
pub struct Config {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    hidden_act: Activation,
    rms_norm_eps: f64,
    rope_theta: f64,
    patch_size: usize,
    /// Patches on a side of the squares that become a row.
    pooling_kernel_size: usize,
    /// Learned positions in each direction.
    position_embedding_size: usize,
    /// Layers keep their values within ranges.
    use_clipped_linears: bool,
    /// Rows are shifted and scaled after pooling.
    standardize: bool,
    /// The rows of an image see each other in the text's layers with windows.
    pub sees_whole: bool,
    pub slot: u32,
    /// The token whose vectors of the layers slots have.
    pub pad: u32,
}

impl Config {
    /// Reads the configuration; `None` if the checkpoint has no tower that is known here.
    pub fn read(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let config = checkpoint.config();
        let Some(vision) = config.vision()? else { return Ok(None) };
        if vision.str_or("model_type", "gemma4_vision")? != "gemma4_vision" {
            return Ok(None);
        }
        // GGUF files do not say which models see whole images. Of the published ones it is those without vectors of a
        // token's own in the layers.
        let is_small = checkpoint.weights().names().any(|name| name.ends_with("embed_tokens_per_layer.weight"));
        let pad = match checkpoint.metadata() {
            Some(metadata) => metadata.u64("tokenizer.ggml.padding_token_id")?.and_then(|pad| u32::try_from(pad).ok()),
            None => config.find_usize("pad_token_id")?.and_then(|pad| u32::try_from(pad).ok()),
        };
        let slot = match config.find_usize("image_token_id")? {
            Some(slot) => u32::try_from(slot).ok(),
            None => checkpoint.tokenizer()?.id(SLOT)?,
        };
        let theta = vision.value()["rope_parameters"]["rope_theta"].as_f64();
        let config = Self {
            hidden_size: vision.usize_or("hidden_size", 768)?,
            intermediate_size: vision.usize_or("intermediate_size", 3072)?,
            num_hidden_layers: vision.usize_or("num_hidden_layers", 16)?,
            num_attention_heads: vision.usize_or("num_attention_heads", 12)?,
            num_key_value_heads: vision.usize_or("num_key_value_heads", vision.usize_or("num_attention_heads", 12)?)?,
            head_dim: vision.usize_or("head_dim", 64)?,
            hidden_act: activation(vision.str_or("hidden_activation", "gelu_pytorch_tanh")?)?,
            rms_norm_eps: vision.f64_or("rms_norm_eps", 1e-6)?,
            rope_theta: theta.unwrap_or(THETA),
            patch_size: vision.usize_or("patch_size", 16)?,
            pooling_kernel_size: vision.usize_or("pooling_kernel_size", 3)?,
            position_embedding_size: vision.usize_or("position_embedding_size", 10_240)?,
            use_clipped_linears: vision.bool_or("use_clipped_linears", false)?,
            standardize: vision.bool_or("standardize", false)?,
            sees_whole: match checkpoint.format() {
                Format::Gguf => !is_small,
                Format::Safetensors => config.find_str("use_bidirectional_attention")? == Some("vision"),
            },
            slot: slot.ok_or_else(|| Error::corrupt(format!("the vocabulary has no token {SLOT}")))?,
            pad: pad.unwrap_or_default(),
        };
        config.check()?;
        Ok(Some(config))
    }

    fn check(&self) -> Result<()> {
        let Self { head_dim, patch_size, pooling_kernel_size, hidden_size, rope_theta, .. } = *self;
        let is_sound = head_dim > 0 && head_dim.is_multiple_of(4) && hidden_size > 0 && self.num_hidden_layers > 0;
        if is_sound
            && (1..=256).contains(&patch_size)
            && (1..=16).contains(&pooling_kernel_size)
            && (1..=1 << 20).contains(&self.position_embedding_size)
            && (1.0..=1e15).contains(&rope_theta)
        {
            return Ok(());
        }
        let message = format!("heads of {head_dim} for {hidden_size} values, patches of {patch_size} pixels");
        Err(Error::corrupt(format!("a tower of {message}, averaged in squares of {pooling_kernel_size}")))
    }

    fn rows(&self, grid: Grid) -> usize {
        grid.patches() / (self.pooling_kernel_size * self.pooling_kernel_size)
    }
}

/// The tower, and the projection of its averaged patches.
pub struct Gemma4Vision {
    input_proj: Linear,
    /// The colors of a pixel lie apart in the layer's input, as in GGUF files.
    is_planar: bool,
    /// Positions across, then positions down; read for each image, as only few are used of many.
    positions: RawTensor,
    rope: Rope,
    blocks: Vec<VitBlock>,
    /// What is subtracted from averaged patches, and what they are multiplied by then.
    standard: Option<[Tensor; 2]>,
    pre_projection_norm: RmsNorm,
    embedding_projection: Linear,
    config: Config,
}

impl Gemma4Vision {
    pub fn load(loader: &Loader<'_>, config: &Config, text_width: usize) -> Result<Self> {
        let Config { hidden_size: width, patch_size, position_embedding_size, head_dim, rms_norm_eps, .. } = *config;
        let at = |name: &str, probe: &str| {
            let nested = loader.at("model").at(name);
            if nested.has(probe) { nested } else { loader.at(name) }
        };
        let tower = at("vision_tower", "patch_embedder.input_proj.weight");
        let embedder = tower.at("patch_embedder");
        let inputs = 3 * patch_size * patch_size;
        let is_planar = loader.format() == Format::Gguf;
        let input_proj = match is_planar {
            true => {
                let kernel = embedder.raw("input_proj.weight", &[width, 3, patch_size, patch_size])?;
                embedder.linear_of("input_proj", &RawTensor { shape: vec![width, inputs], ..kernel })?
            }
            false => embedder.linear("input_proj", inputs, width)?,
        };
        let table = embedder.raw("position_embedding_table", &[2, position_embedding_size, width])?;
        // Averages are multiplied by the root of their width, then normalized. Left out, it changes only the epsilon, and
        // nothing grows beyond what half precision holds.
        let root = (width as f64).sqrt();
        let standard = || -> Result<[Tensor; 2]> {
            Ok([(tower.vector("std_bias", width)? / root)?, tower.vector("std_scale", width)?])
        };
        Ok(Self {
            input_proj,
            is_planar,
            positions: RawTensor { shape: vec![2 * position_embedding_size, width], ..table },
            rope: rope(config.rope_theta, head_dim)?,
            blocks: tower.at("encoder").layers(config.num_hidden_layers, |loader, _| block(loader, config))?,
            standard: if config.standardize { Some(standard()?) } else { None },
            pre_projection_norm: RmsNorm::without_weight(loader, width, rms_norm_eps / width as f64)?,
            embedding_projection: at("embed_vision", "embedding_projection.weight").linear(
                "embedding_projection",
                width,
                text_width,
            )?,
            config: config.clone(),
        })
    }
}

impl Tower for Gemma4Vision {
    fn slot(&self) -> u32 {
        self.config.slot
    }

    fn open(&self, _size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<Patches> {
        let Config { patch_size, pooling_kernel_size: side, position_embedding_size, .. } = self.config;
        let patches = tiles::open(layout, prepared, patch_size, |grid| self.config.rows(grid))?;
        let fits = |side_len: usize| side_len.is_multiple_of(side) && side_len <= position_embedding_size;
        match patches.grids[..] {
            [Grid { height, width }] if fits(height) && fits(width) => Ok(patches),
            _ => Err(Error::invalid(format!("an image of {:?} is no grid of squares", patches.grids))),
        }
    }

    fn embed(&self, batch: &PatchBatch, patches: Range<usize>, step: &Step<'_>) -> Result<Tensor> {
        let Config { patch_size, hidden_size: width, position_embedding_size: count, .. } = self.config;
        let pixels = batch.pixels(&patches);
        let x = PixelRange::default().values(&pixels, patch_size, self.is_planar, step)?;
        let x = self.input_proj.forward(&x, step)?;
        // A position is the sum of one across and one down, of which few are used.
        let (mut table, mut indices) = (Vec::new(), Vec::new());
        for GridPart { grid, patches, .. } in batch.parts(&patches) {
            let first = table.len() / width;
            for (start, len) in [(0, grid.width), (count, grid.height)] {
                table.extend(self.positions.rows(start..start + len)?.to_f32()?);
            }
            let of = |patch: usize| [first + patch % grid.width, first + grid.width + patch / grid.width];
            indices.extend(patches.flat_map(of).map(|row| row as u32));
        }
        let rows = table.len() / width;
        let table = step.ops().activation_of(table, (rows, width))?;
        step.ops().add(&x, &step.ops().combine(&table, &indices, &vec![1.0; indices.len()], 2)?)
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
        Some(self.config.pooling_kernel_size)
    }

    fn project(&self, x: &Tensor, batch: &PatchBatch, step: &Step<'_>) -> Result<Tensor> {
        let mut rows = tiles::averages(x, batch, self.config.pooling_kernel_size, step)?;
        if let Some([bias, scale]) = &self.standard {
            rows = rows.broadcast_sub(bias)?.broadcast_mul(scale)?;
        }
        self.embedding_projection.forward(&self.pre_projection_norm.forward(&rows, step)?, step)
    }
}
