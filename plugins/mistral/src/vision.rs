//! The eyes of Pixtral (arXiv 2410.07073) and Mistral 3: images in their own proportions, patches with rotary positions in
//! two dimensions, and in Mistral 3 a layer that merges squares of patches. Tokens between the rows of an image say where
//! one ends.
//!
//! Reference: `modeling_pixtral.py`, `modeling_mistral3.py` and `processing_pixtral.py` in Hugging Face transformers.

mod eyes;
mod gguf;

use std::ops::Range;

use pensieve_sdk::{
    Error, MediaSize, Result,
    nn::{
        Activation, Angles, GatedMlp, Linear, Loader, Mlp, Qkv, RmsNorm, Rope, Step, Tensor, TextAttention, activation,
        vision::{Grid, PatchBatch, Patches, PixelRange, Tower, VitBlock, VitMlp, VitNorm, tiles},
    },
    weights::{Checkpoint, Format, RawTensor, RopeStyle},
};

pub use eyes::Eyes;
pub use gguf::TOWER;

/// The token that stands for a row.
const SLOT: &str = "[IMG]";
/// Epsilon of the tower's norms.
const NORM_EPS: f64 = 1e-5;

/// The sizes of the tower and of what follows it.
#[derive(Clone)]
pub struct Config {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    head_dim: usize,
    patch_size: usize,
    hidden_act: Activation,
    rope_theta: f64,
    /// Patches on a side of the squares that become a row.
    spatial_merge_size: usize,
    projector_hidden_act: Activation,
    /// Epsilon of the projector's norm, which is the text model's.
    rms_norm_eps: f64,
    range: PixelRange,
    /// The longest side of an image, which GGUF files have here.
    image_size: Option<usize>,
    slot: u32,
}

impl Config {
    /// Reads the configuration; `None` if the checkpoint has no tower.
    pub fn read(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let config = checkpoint.config();
        let Some(vision) = config.vision()? else { return Ok(None) };
        vision.only("model_type", "pixtral")?;
        config.only("vision_feature_layer", -1)?;
        let settings = checkpoint.processor()?;
        let (hidden_size, heads) = (vision.usize_or("hidden_size", 1024)?, vision.usize_or("num_attention_heads", 16)?);
        let spatial_merge_size = match checkpoint.architecture() {
            _ if checkpoint.format() == Format::Gguf => vision.usize_or("spatial_merge_size", 1)?,
            "Mistral3ForConditionalGeneration" => config.usize_or("spatial_merge_size", 2)?,
            _ => 1,
        };
        // Older configurations have the base beside the sizes. The rotation's type is always the same.
        let theta = match vision.value().pointer("/rope_parameters/rope_theta") {
            Some(nested) => nested.as_f64(),
            None => vision.find_f64("rope_theta")?,
        };
        let theta = theta.unwrap_or(10_000.0);
        let slot = match config.find_usize("image_token_index")?.or(config.find_usize("image_token_id")?) {
            Some(slot) => u32::try_from(slot).ok(),
            None => checkpoint.tokenizer()?.id(SLOT)?,
        };
        let config = Self {
            hidden_size,
            intermediate_size: vision.usize_or("intermediate_size", 4096)?,
            num_hidden_layers: vision.usize_or("num_hidden_layers", 24)?,
            num_attention_heads: heads,
            head_dim: vision.usize_or("head_dim", hidden_size.checked_div(heads).unwrap_or_default())?,
            patch_size: vision.usize_or("patch_size", 16)?,
            hidden_act: activation(vision.str_or("hidden_act", "gelu")?)?,
            rope_theta: theta,
            spatial_merge_size,
            projector_hidden_act: activation(config.str_or("projector_hidden_act", "gelu")?)?,
            rms_norm_eps: config.f64_or("rms_norm_eps", 1e-5)?,
            range: PixelRange::read(&settings)?,
            image_size: vision.find_usize("image_size")?.filter(|_| checkpoint.format() == Format::Gguf),
            slot: slot.ok_or_else(|| Error::corrupt(format!("the vocabulary has no token {SLOT}")))?,
        };
        let Self { head_dim, patch_size, spatial_merge_size, .. } = config;
        let is_sound = head_dim > 0 && head_dim.is_multiple_of(4) && head_dim.checked_mul(heads) == Some(hidden_size);
        if !is_sound
            || !(1.0..=1e15).contains(&theta)
            || !(1..=256).contains(&patch_size)
            || !(1..=16).contains(&spatial_merge_size)
        {
            let message =
                format!("{heads} heads of {head_dim} for {hidden_size} values, patches of {patch_size} pixels");
            return Err(Error::corrupt(format!("a tower of {message}, merged in squares of {spatial_merge_size}")));
        }
        Ok(Some(config))
    }

    fn rows(&self, grid: Grid) -> usize {
        grid.patches() / (self.spatial_merge_size * self.spatial_merge_size)
    }
}

/// A tower without a last norm, and the projection of its patches.
pub struct PixtralVision {
    patch_conv: Linear,
    ln_pre: RmsNorm,
    rope: Rope,
    layers: Vec<VitBlock>,
    merger: Option<PatchMerger>,
    projector: Mlp,
    config: Config,
}

/// Puts squares of normalized patches into one row each.
struct PatchMerger {
    norm: RmsNorm,
    merging_layer: Linear,
}

impl PixtralVision {
    pub fn load(loader: &Loader<'_>, config: &Config, text_width: usize) -> Result<Self> {
        let Config { hidden_size, patch_size, spatial_merge_size, head_dim, .. } = *config;
        let at = |name: &str, probe: &str| {
            let nested = loader.at("model").at(name);
            if nested.has(probe) { nested } else { loader.at(name) }
        };
        let (tower, projector) = (at("vision_tower", "ln_pre.weight"), at("multi_modal_projector", "linear_1.weight"));
        let kernel = tower.raw("patch_conv.weight", &[hidden_size, 3, patch_size, patch_size])?;
        let kernel = RawTensor { shape: vec![hidden_size, 3 * patch_size * patch_size], ..kernel };
        let merger = (spatial_merge_size > 1 || projector.has("norm.weight")).then(|| {
            let inputs = hidden_size * spatial_merge_size * spatial_merge_size;
            Ok::<_, Error>(PatchMerger {
                norm: RmsNorm::load(&projector, "norm", hidden_size, config.rms_norm_eps)?,
                merging_layer: projector.at("patch_merger").linear("merging_layer", inputs, hidden_size)?,
            })
        });
        let sizes = [hidden_size, text_width, text_width];
        Ok(Self {
            patch_conv: tower.linear_of("patch_conv", &kernel)?,
            ln_pre: RmsNorm::load(&tower, "ln_pre", hidden_size, NORM_EPS)?,
            rope: rope(config.rope_theta, head_dim)?.in_style(match loader.format() {
                Format::Gguf => RopeStyle::Interleaved,
                Format::Safetensors => RopeStyle::NeoX,
            }),
            layers: tower.at("transformer").layers(config.num_hidden_layers, |loader, _| block(loader, config))?,
            merger: merger.transpose()?,
            projector: Mlp::load_projector(&projector, ["linear_1", "linear_2"], sizes, config.projector_hidden_act)?,
            config: config.clone(),
        })
    }
}

/// Frequencies take turns between height and width, and those of one direction lie together.
fn rope(theta: f64, head_dim: usize) -> Result<Rope> {
    let of = |direction: usize| {
        let exponent = move |index: usize| -((4 * index + 2 * direction) as f64) / head_dim as f64;
        (0..head_dim / 4).map(move |index| theta.powf(exponent(index)) as f32)
    };
    let axes = [1, 2].into_iter().flat_map(|axis| std::iter::repeat_n(axis, head_dim / 4)).collect();
    Rope::of_axes(of(0).chain(of(1)).collect(), axes, head_dim)
}

fn block(loader: &Loader<'_>, config: &Config) -> Result<VitBlock> {
    let Config { hidden_size, intermediate_size, num_attention_heads: heads, head_dim, hidden_act, .. } = *config;
    let attention = loader.at("attention");
    let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|name| attention.linear(name, hidden_size, hidden_size));
    let mlp = GatedMlp::load(&loader.at("feed_forward"), hidden_size, intermediate_size, hidden_act)?;
    Ok(VitBlock {
        norm1: VitNorm::Rms(RmsNorm::load(loader, "attention_norm", hidden_size, NORM_EPS)?),
        qkv: Qkv::of([q?, k?, v?]),
        attention: TextAttention::new(heads, heads, head_dim)?,
        proj: attention.linear("o_proj", hidden_size, hidden_size)?,
        norm2: VitNorm::Rms(RmsNorm::load(loader, "ffn_norm", hidden_size, NORM_EPS)?),
        mlp: VitMlp::Gated(mlp),
        windowed: false,
        sandwich: None,
    })
}

impl Tower for PixtralVision {
    fn slot(&self) -> u32 {
        self.config.slot
    }

    fn open(&self, _size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<Patches> {
        tiles::open(layout, prepared, self.config.patch_size, |grid| self.config.rows(grid))
    }

    fn embed(&self, batch: &PatchBatch, patches: Range<usize>, step: &Step<'_>) -> Result<Tensor> {
        let x = self.config.range.values(&batch.pixels(&patches), self.config.patch_size, true, step)?;
        self.ln_pre.forward(&self.patch_conv.forward(&x, step)?, step)
    }

    fn angles(&self, batch: &PatchBatch, step: &Step<'_>) -> Result<Option<Angles>> {
        let of = |(_, [row, column]): (_, [usize; 2])| [0, row as u32, column as u32];
        let places: Vec<_> = batch.places(&(0..batch.patches())).into_iter().map(of).collect();
        self.rope.angles_at(&places, step).map(Some)
    }

    fn blocks(&self) -> &[VitBlock] {
        &self.layers
    }

    fn band(&self) -> Option<usize> {
        Some(self.config.spatial_merge_size)
    }

    fn project(&self, x: &Tensor, batch: &PatchBatch, step: &Step<'_>) -> Result<Tensor> {
        let Some(PatchMerger { norm, merging_layer }) = &self.merger else { return self.projector.forward(x, step) };
        let (side, width) = (self.config.spatial_merge_size, self.config.hidden_size);
        let squares = tiles::squares(&norm.forward(x, step)?, batch, side, step)?;
        // The layer has the patches of a square innermost, as a convolution does.
        let rows = squares.dim(0)?;
        let squares = squares.reshape((rows, side * side, width))?.transpose(1, 2)?.contiguous()?;
        let merged = merging_layer.forward(&squares.reshape((rows, side * side * width))?, step)?;
        self.projector.forward(&merged, step)
    }
}
