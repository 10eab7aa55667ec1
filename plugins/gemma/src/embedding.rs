//! EmbeddingGemma (arXiv 2509.20354): Gemma 3 with attention in both directions, and dense layers after pooling, which the
//! SDK computes.
//!
//! Reference: `modeling_gemma3.py` in Hugging Face transformers, with `use_bidirectional_attention`.

use pensieve_sdk::{
    Error, Result,
    nn::{Embedding, Encoder, EncoderShape, Loader, RmsNorm, Rope, Sizes, Step, Tensor},
    weights::{Checkpoint, Format, GgufFamily},
};

use crate::{
    gemma::{Block, Config, norm, read},
    gguf,
};

pub struct EmbeddingGemma {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    rope: Rope,
    rope_local: Rope,
    embed_scale: f64,
}

impl Encoder for EmbeddingGemma {
    const NAME: &'static str = "embedding-gemma";
    const GGUF: &'static [&'static str] = &["gemma-embedding"];
    const CLASSES: &'static [&'static str] = &["Gemma3TextModel", "Gemma3Model"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::gemma()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let is_said = checkpoint.config().bool_or("use_bidirectional_attention", false)?;
        if checkpoint.format() == Format::Safetensors && !is_said {
            let message = "a Gemma 3 without output layer that attends in one direction";
            return Err(Error::declined(message));
        }
        let mut config = read(checkpoint)?;
        // The window is centred on its token, half of it to either side.
        config.reach = Some(config.windows.iter().map(|window| window.map(|window| window / 2)).collect());
        Ok(config)
    }

    fn shape(config: &Config) -> EncoderShape {
        let Sizes { vocab_size, hidden_size, intermediate_size, max_position_embeddings, .. } = config.sizes;
        let heads = config.sizes.num_attention_heads * config.sizes.head_dim;
        EncoderShape {
            vocabulary: vocab_size,
            context: max_position_embeddings,
            widest: intermediate_size.max(heads),
            width: hidden_size,
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { vocab_size, hidden_size, num_hidden_layers, head_dim, rms_norm_eps, .. } = config.sizes;
        let model = loader.text_model();
        Ok(Self {
            embed_tokens: model.embedding("embed_tokens", vocab_size, hidden_size)?,
            layers: model.layers(num_hidden_layers, |loader, layer| Block::load(loader, config, layer))?,
            norm: norm(&model, "norm", hidden_size, rms_norm_eps)?,
            rope: Rope::new(&config.rope, head_dim, loader.context())?,
            rope_local: Rope::new(&config.rope_local, head_dim, loader.context())?,
            embed_scale: (hidden_size as f64).sqrt(),
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let (angles, angles_local) = (self.rope.angles(step)?, self.rope_local.angles(step)?);
        let x = (self.embed_tokens.forward(step)? * self.embed_scale)?;
        let x = self.layers.iter().try_fold(x, |x, layer| {
            let angles = if layer.is_local() { &angles_local } else { &angles };
            layer.forward(&x, angles, step)
        })?;
        self.norm.forward(&x, step)
    }
}
