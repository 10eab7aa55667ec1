//! Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115), including Coder and Math: Llama with biases on queries, keys and
//! values.
//!
//! Reference: `modeling_qwen2.py` in Hugging Face transformers; layers are named as in its checkpoints.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Angles, Attention, CausalLm, Decoder, GatedMlp, Linear, Loader, Paged, Qkv, RmsNorm, Rope, Shape, Sizes, Step,
        Tensor,
    },
    weights::{Checkpoint, RopeConfig},
};

export!(Plugin::new("qwen2", "Qwen2 and Qwen2.5").architecture(Paged::<Qwen2>::architecture()));

struct Config {
    sizes: Sizes,
    /// Sliding window of each layer, in tokens.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
}

/// Grouped-query attention with rotated queries and keys.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let attention =
            Attention { window: config.windows[layer], ..Attention::new(layer, heads, kv_heads, head_dim)? };
        Ok(Self {
            // Includes the biases.
            qkv_proj: Qkv::load(loader, hidden_size, &attention)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

/// One layer: attention, then a gated MLP, `down(act(gate(x)) · up(x))`.
struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        let norm = |name| RmsNorm::load(loader, name, hidden_size, rms_norm_eps);
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, layer)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: GatedMlp::load(&loader.at("mlp"), hidden_size, intermediate_size, hidden_act)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

/// Embedding, layers, last norm and output layer.
struct Qwen2 {
    model: CausalLm<Block>,
    rope: Rope,
}

impl Decoder for Qwen2 {
    const NAME: &'static str = "qwen2";
    const GGUF: &'static [&'static str] = &["qwen2"];
    const CLASSES: &'static [&'static str] = &["Qwen2ForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let defaults = [("max_position_embeddings", 32_768.into()), ("tie_word_embeddings", false.into())];
        let config = checkpoint.config().with_defaults(defaults)?;
        let sizes = Sizes::read(&config)?;
        // Configurations have a window even if it is unused, and the switch is off if absent.
        let is_windowed = config.bool_or("use_sliding_window", false)?;
        let layers = sizes.num_hidden_layers;
        let windows = if is_windowed { config.sliding_windows(layers)? } else { vec![None; layers] };
        Ok(Config { sizes, windows, rope: config.rope()? })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|layer| config.windows[layer])
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        self.model.hidden(step, |layer, x, step| layer.forward(x, &angles, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pensieve_sdk::{Architecture, LoadRequest, Services, Source, testing};

    const CONFIG: &str = r#"{
        "architectures": ["Qwen2ForCausalLM"], "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "tie_word_embeddings": true, "rope_theta": 1000000.0
    }"#;

    /// The tensors of a checkpoint with this configuration.
    fn tensors() -> Vec<(String, Vec<usize>)> {
        let mut tensors = vec![("embed_tokens.weight".to_owned(), vec![96, 32]), ("norm.weight".to_owned(), vec![32])];
        for layer in 0..2 {
            let mut add =
                |name: &str, shape: &[usize]| tensors.push((format!("layers.{layer}.{name}"), shape.to_vec()));
            add("input_layernorm.weight", &[32]);
            add("post_attention_layernorm.weight", &[32]);
            for (name, rows) in [("q", 32), ("k", 16), ("v", 16)] {
                add(&format!("self_attn.{name}_proj.weight"), &[rows, 32]);
                add(&format!("self_attn.{name}_proj.bias"), &[rows]);
            }
            add("self_attn.o_proj.weight", &[32, 32]);
            add("mlp.gate_proj.weight", &[48, 32]);
            add("mlp.up_proj.weight", &[48, 32]);
            add("mlp.down_proj.weight", &[32, 48]);
        }
        tensors.into_iter().map(|(name, shape)| (format!("model.{name}"), shape)).collect()
    }

    #[test]
    fn obeys_the_laws() -> Result<()> {
        for kernels in ["auto", "generic"] {
            let folder = tempfile::tempdir()?;
            testing::random_checkpoint(folder.path(), CONFIG, &tensors())?;
            let options = format!(r#"{{"kernels": "{kernels}"}}"#);
            let source = Source { options, ..Source::new(folder.path()) };
            let request = LoadRequest { source, device: "cpu".into(), context: 0, state_bytes: 4 << 20, threads: 0 };
            let model = Paged::<Qwen2>::architecture().load(&request, &Services::silent())?;
            let report = testing::conformance(model);
            assert!(report.passed(), "{kernels}: {report}");
        }
        Ok(())
    }
}
