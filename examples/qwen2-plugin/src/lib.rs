//! Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115), Coder and Math included: Llama with biases on queries, keys and values.
//!
//! Reference: `modeling_qwen2.py` in Hugging Face transformers; layers carry the names that they have in its checkpoints.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Activation, Angles, Attention, Decoder, Embedding, GatedMlp, KvShape, Linear, Loader, Paged, RmsNorm, Rope,
        Shape, Step, Tensor, activation,
    },
    weights::{Checkpoint, RopeConfig},
};

export!(Plugin::new("qwen2", "Qwen2 and Qwen2.5").architecture(Paged::<Qwen2>::architecture()));

/// Hyperparameters from the checkpoint's configuration.
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    hidden_act: Activation,
    tie_word_embeddings: bool,
    /// Sliding window of each layer, in tokens.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
}

struct Qwen2 {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

impl Decoder for Qwen2 {
    const NAME: &'static str = "qwen2";
    const GGUF: &'static [&'static str] = &["qwen2"];
    const CLASSES: &'static [&'static str] = &["Qwen2ForCausalLM"];

    type Config = Config;

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let hidden_size = config.usize("hidden_size")?;
        let num_attention_heads = config.usize("num_attention_heads")?;
        let num_hidden_layers = config.usize("num_hidden_layers")?;
        // Configurations name a window that they do not use, and leaving the switch out turns it off.
        let is_windowed = config.bool_or("use_sliding_window", false)?;
        Ok(Config {
            vocab_size: config.usize("vocab_size")?,
            hidden_size,
            intermediate_size: config.usize("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: config.usize_or("num_key_value_heads", num_attention_heads)?,
            head_dim: config.usize_or("head_dim", hidden_size / num_attention_heads)?,
            max_position_embeddings: config.usize_or("max_position_embeddings", 32_768)?,
            rms_norm_eps: config.f64_or("rms_norm_eps", 1e-6)?,
            hidden_act: activation(config.str_or("hidden_act", "silu")?)?,
            tie_word_embeddings: config.bool_or("tie_word_embeddings", false)?,
            windows: if is_windowed { config.sliding_windows(num_hidden_layers)? } else { Vec::new() },
            rope: config.rope()?,
        })
    }

    fn shape(config: &Config) -> Shape {
        let kv = KvShape::uniform(config.num_hidden_layers, config.num_key_value_heads, config.head_dim);
        Shape {
            vocabulary: config.vocab_size,
            context: config.max_position_embeddings,
            widest: config.intermediate_size,
            kv: kv.windowed(|layer| config.windows.get(layer).copied().flatten()),
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let model = loader.at("model");
        let embed_tokens = model.embedding("embed_tokens", config.vocab_size, config.hidden_size)?;
        let layers =
            (0..config.num_hidden_layers).map(|index| Layer::load(&model.at("layers").at(index), config, index));
        let layers = layers.collect::<Result<_>>()?;
        let norm = RmsNorm::load(&model, "norm", config.hidden_size, config.rms_norm_eps)?;
        let lm_head = if config.tie_word_embeddings && !loader.has("lm_head.weight") {
            embed_tokens.tied(loader, "lm_head")
        } else {
            loader.linear("lm_head", config.hidden_size, config.vocab_size)?
        };
        let rope = Rope::new(&config.rope, config.head_dim, loader.context())?;
        Ok(Self { embed_tokens, layers, norm, lm_head, rope })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let mut x = self.embed_tokens.forward(step)?;
        for layer in &self.layers {
            x = layer.forward(&x, &angles, step)?;
        }
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(&self.norm.forward(hidden, step)?, step)
    }
}

/// One decoder layer.
struct Layer {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
}

impl Layer {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let (width, eps) = (config.hidden_size, config.rms_norm_eps);
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", width, eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", width, eps)?,
            mlp: GatedMlp::load(&loader.at("mlp"), width, config.intermediate_size, config.hidden_act)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let attended = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, angles, step)?;
        let x = (x + attended)?;
        let transformed = self.mlp.forward(&self.post_attention_layernorm.forward(&x, step)?, step)?;
        Ok((x + transformed)?)
    }
}

/// Grouped-query attention with rotated queries and keys.
struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let (heads, kv_heads, head_dim) = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let window = config.windows.get(layer).copied().flatten();
        Ok(Self {
            // The biases come with the layers.
            q_proj: loader.linear("q_proj", config.hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", config.hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", config.hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, config.hidden_size)?,
            attention: Attention { window, ..Attention::new(layer, heads, kv_heads, head_dim)? },
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let q = angles.rotate(&self.q_proj.forward(x, step)?, step)?;
        let k = angles.rotate(&self.k_proj.forward(x, step)?, step)?;
        let v = self.v_proj.forward(x, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, step)?, step)
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

    /// The tensors of a checkpoint of this configuration.
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
