//! Qwen3 as candle-transformers has it, for folders and for GGUF files: what the bridge does with a model that is both. Windows are
//! left out, and the context ends where they would begin to matter. Beside it a Mamba, whose state can be copied.

mod wrapped_mamba;

use pensieve_sdk::{
    Plugin, Result,
    bridge::{
        Bridge, Parts, Pristine, Shape, Tensor, Wrapped,
        candle::{self, quantized::gguf_file::Value},
        json,
        models::{quantized_qwen3, qwen3},
    },
    weights::{Checkpoint, Config, Format},
};

pensieve_sdk::export!(
    Plugin::new("wrapped", "a wrapped Qwen3 and a wrapped Mamba")
        .architecture(Bridge::<Qwen3>::architecture())
        .architecture(Bridge::<wrapped_mamba::Mamba>::architecture())
);

/// The quantized model's caches begin with room for so many tokens.
const CACHE_TOKENS: usize = 4096;

#[derive(Clone)]
pub enum Qwen3 {
    Dense(qwen3::ModelForCausalLM),
    /// candle keeps what was read in chunks and what was read token by token apart, so a chunk cannot follow a single token.
    Quantized {
        model: quantized_qwen3::ModelWeights,
        read_single: bool,
    },
}

impl Wrapped for Qwen3 {
    const NAME: &'static str = "qwen3";
    const GGUF: &'static [&'static str] = &["qwen3"];
    const CLASSES: &'static [&'static str] = &["Qwen3ForCausalLM"];

    fn shape(checkpoint: &Checkpoint) -> Result<Shape> {
        let config = checkpoint.config();
        let shape = Shape::transformer(config)?.within(window(config)?);
        if checkpoint.format() == Format::Safetensors {
            return Ok(shape);
        }
        // One cache for chunks, and one that doubles.
        Ok(Shape { token_bytes: 3 * shape.token_bytes, fixed_bytes: CACHE_TOKENS * shape.token_bytes, ..shape })
    }

    fn load(parts: &Parts<'_>) -> Result<Pristine<Self>> {
        if parts.checkpoint().format() == Format::Gguf {
            let (mut content, mut reader) = parts.gguf()?;
            // Rotations in f32: in f16, which is candle's default, positions blur.
            content.metadata.insert("general.dtype".into(), Value::U32(0));
            let model = quantized_qwen3::ModelWeights::from_gguf(content, &mut reader, parts.device())?;
            return Ok(Pristine::clones_of(Self::Quantized { model, read_single: false }));
        }
        let defaults = json!({
            "attention_bias": false, "tie_word_embeddings": false, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        });
        let unused = json!({ "use_sliding_window": false, "sliding_window": null, "max_window_layers": 0 });
        let config = parts.config(defaults, unused)?;
        Ok(Pristine::clones_of(Self::Dense(qwen3::ModelForCausalLM::new(&config, parts.tensors(&[]))?)))
    }

    fn together(&self, _: usize, left: usize) -> usize {
        if matches!(self, Self::Quantized { read_single: true, .. }) { 1 } else { left }
    }

    fn forward(&mut self, tokens: &Tensor, past: usize) -> candle::Result<Tensor> {
        match self {
            Self::Dense(model) => model.forward(tokens, past),
            Self::Quantized { model, read_single } => {
                *read_single |= tokens.elem_count() == 1;
                model.forward(tokens, past)
            }
        }
    }
}

/// The window of a Qwen, which names one also where it has none.
fn window(config: &Config) -> Result<Option<usize>> {
    if config.bool_or("use_sliding_window", false)? { config.sliding_window() } else { Ok(None) }
}
