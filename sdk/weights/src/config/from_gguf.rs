//! GGUF metadata in Hugging Face's terms.
//!
//! Most of it is renaming, done by a table. The rest is what GGUF leaves to the reader's knowledge of an architecture
//! (the activation, which values RoPE pairs) or stores as a tensor (RoPE's divisors) or not at all (whether embeddings
//! are tied, which layers have biases), told here from what the file has.

mod families;

use serde_json::{Map, Value, json};

use super::rope::magnitude;
use crate::{
    Error, Result, Weights,
    gguf::{self, Metadata},
    quote,
};

const LIST_LEN_MAX: usize = 4096;

const INTEGERS: &[(&str, &str)] = &[
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("vocab_size", "vocab_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.sliding_window", "sliding_window"),
    ("expert_count", "num_local_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("shortconv.l_cache", "conv_L_cache"),
    ("full_attention_interval", "full_attention_interval"),
    ("attention.shared_kv_layers", "num_kv_shared_layers"),
    ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("attention.clamp_kqv", "clip_qkv"),
    ("attention.scale", "attention_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logits_scaling"),
    ("expert_weights_scale", "routed_scaling_factor"),
];

/// Architectures whose activation is not SiLU.
const ACTIVATIONS: &[(&str, &str)] = &[
    ("phi2", "gelu_new"),
    ("gemma", "gelu_pytorch_tanh"),
    ("gemma2", "gelu_pytorch_tanh"),
    ("gemma3", "gelu_pytorch_tanh"),
    ("gemma4", "gelu_pytorch_tanh"),
];

/// Architectures whose files pair neighbouring values of a head.
const INTERLEAVED: &[&str] = &[
    "llama",
    "llama4",
    "mistral3",
    "mistral4",
    "smollm3",
    "granite",
    "granitemoe",
    "granitehybrid",
    "deci",
    "arcee",
    "baichuan",
    "internlm2",
    "minicpm",
    "xverse",
    "orion",
    "olmo",
    "command-r",
    "cohere2",
    "deepseek",
    "deepseek2",
    "chatglm",
    "bailingmoe",
    "ernie4_5",
    "ernie4_5-moe",
];

/// Writes what a file says as `config.json` would.
pub(super) fn translate(architecture: &str, metadata: &Metadata, weights: &Weights) -> Result<Map<String, Value>> {
    let source = Source { architecture, metadata, weights };
    let mut config = Map::new();
    config.insert("architectures".to_owned(), json!([architecture]));
    config.insert("model_type".to_owned(), json!(architecture));
    for (key, name) in INTEGERS {
        if let Some(value) = source.integers(key)? {
            config.insert((*name).to_owned(), value);
        }
    }
    for (key, name) in NUMBERS {
        if let Some(number) = source.number(key)? {
            config.insert((*name).to_owned(), json!(number));
        }
    }
    leave_out_prediction_layers(&source, &mut config)?;
    if let Some(heads) = config.get("num_attention_heads").cloned() {
        config.entry("num_key_value_heads").or_insert(heads);
    }
    if !config.contains_key("vocab_size")
        && let Some(size) = source.vocabulary()
    {
        config.insert("vocab_size".to_owned(), json!(size));
    }
    let activation = ACTIVATIONS.iter().find(|(name, _)| *name == architecture).map_or("silu", |(_, name)| name);
    config.insert("hidden_act".to_owned(), json!(activation));
    config.insert("tie_word_embeddings".to_owned(), json!(!weights.contains("lm_head.weight")));
    config.insert("attention_bias".to_owned(), json!(source.has_bias("self_attn.")));
    config.insert("mlp_bias".to_owned(), json!(source.has_bias("mlp.")));
    for (key, name) in [("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")] {
        if let Some(id) = metadata.u32(&format!("tokenizer.ggml.{key}"))? {
            config.insert(name.to_owned(), json!(id));
        }
    }
    let rope = source.rope(&config)?;
    config.insert("rope_parameters".to_owned(), Value::Object(rope));
    families::complete(&source, &mut config)?;
    Ok(config)
}

/// Files count multi-token prediction (`nextn`) layers among the layers, and these are left out.
fn leave_out_prediction_layers(source: &Source<'_>, config: &mut Map<String, Value>) -> Result<()> {
    let heads = source.integers("nextn_predict_layers")?.and_then(|heads| heads.as_u64()).unwrap_or_default();
    let Some(blocks) = config.get("num_hidden_layers").and_then(Value::as_u64).filter(|_| heads > 0) else {
        return Ok(());
    };
    let layers = blocks.saturating_sub(heads);
    config.insert("num_hidden_layers".to_owned(), json!(layers));
    for value in config.values_mut() {
        if let Some(list) = value.as_array_mut().filter(|list| list.len() as u64 == blocks) {
            list.truncate(usize::try_from(layers).unwrap_or(usize::MAX));
            *value = one_or_list(std::mem::take(list));
        }
    }
    Ok(())
}

/// What is said of each layer, as one number where all agree.
fn one_or_list(list: Vec<Value>) -> Value {
    match list.split_first() {
        Some((first, rest)) if rest.iter().all(|other| other == first) => first.clone(),
        _ => Value::Array(list),
    }
}

struct Source<'a> {
    architecture: &'a str,
    metadata: &'a Metadata,
    weights: &'a Weights,
}

impl Source<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// An integer, or a list where the layers differ.
    fn integers(&self, key: &str) -> Result<Option<Value>> {
        let key = self.key(key);
        let Some(len) = self.metadata.get(&key).and_then(gguf::Value::len) else {
            return Ok(self.metadata.u64(&key)?.map(|number| json!(number)));
        };
        if len > LIST_LEN_MAX {
            return Err(Error::corrupt(format!("metadata {} has {len} items, more than {LIST_LEN_MAX}", quote(&key))));
        }
        let list = self.metadata.u32s(&key)?.unwrap_or_default();
        Ok(Some(one_or_list(list.into_iter().map(Value::from).collect())))
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        let key = self.key(key);
        match self.metadata.f64(&key)? {
            Some(number) if !number.is_finite() => {
                Err(Error::corrupt(format!("metadata {} is {number}, not a finite number", quote(&key))))
            }
            number => Ok(number),
        }
    }

    fn vocabulary(&self) -> Option<usize> {
        let tokens = self.metadata.get("tokenizer.ggml.tokens").and_then(gguf::Value::len);
        tokens.or_else(|| self.weights.find("model.embed_tokens.weight")?.shape.first().copied())
    }

    fn has_bias(&self, part: &str) -> bool {
        let names = self.weights.names().filter_map(|name| name.strip_prefix("model.layers.0."));
        names.filter_map(|name| name.strip_prefix(part)).any(|name| name.ends_with(".bias"))
    }

    fn rope(&self, config: &Map<String, Value>) -> Result<Map<String, Value>> {
        let mut rope = Map::new();
        rope.insert("interleaved".to_owned(), json!(INTERLEAVED.contains(&self.architecture)));
        if let Some(theta) = self.number("rope.freq_base")? {
            rope.insert("rope_theta".to_owned(), json!(theta));
        }
        if let Some(factor) = self.rotated_part(config)? {
            rope.insert("partial_rotary_factor".to_owned(), json!(factor));
        }
        if let Some(sections) = self.integers("rope.dimension_sections")? {
            rope.insert("mrope_section".to_owned(), sections);
        }
        if let Some(context) = self.integers("rope.scaling.original_context_length")? {
            rope.insert("original_max_position_embeddings".to_owned(), context);
        }
        if let Some(beta) = self.number("attention.temperature_scale")? {
            rope.insert("llama_4_scaling_beta".to_owned(), json!(beta));
        }
        let scaling = self.scaling()?;
        rope.extend(scaling);
        Ok(rope)
    }

    fn rotated_part(&self, config: &Map<String, Value>) -> Result<Option<f64>> {
        let Some(rotated) = self.integers("rope.dimension_count")?.and_then(|value| value.as_u64()) else {
            return Ok(None);
        };
        let number = |key: &str| config.get(key).and_then(Value::as_u64);
        let from_width = || number("hidden_size")?.checked_div(number("num_attention_heads")?);
        match number("head_dim").or_else(from_width) {
            Some(head_dim) if rotated > head_dim => Err(Error::corrupt(format!(
                "metadata {} is {rotated}, more than the {head_dim} values of a head",
                quote(&self.key("rope.dimension_count"))
            ))),
            Some(head_dim) if head_dim > 0 => Ok(Some(rotated as f64 / head_dim as f64)),
            _ => Ok(None),
        }
    }

    fn scaling(&self) -> Result<Map<String, Value>> {
        let key = self.key("rope.scaling.type");
        let given = self.metadata.string(&key)?;
        let named = given.filter(|name| *name != "none");
        let factor = match self.number("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.number("rope.scale_linear")?,
        };
        // A factor without a type is linear scaling; with the type 'none' it means nothing.
        let factor = factor.filter(|factor| *factor != 0.0 && given != Some("none"));
        let divisors = self.tensor("rope_freqs.weight")?;
        let lists = self.tensor("rope_factors_short.weight")?.zip(self.tensor("rope_factors_long.weight")?);
        let scaling = match (named, divisors, lists) {
            (Some("longrope") | None, None, Some((short, long))) => json!({
                "rope_type": "longrope", "short_factor": short, "long_factor": long, "factor": factor,
                "attention_factor": self.number("rope.scaling.attn_factor")?,
            }),
            (None, Some(divisors), None) if factor.is_none_or(|factor| factor == 1.0) => {
                json!({ "rope_type": "divisors", "divisors": divisors })
            }
            (Some("yarn"), None, None) => self.yarn(factor)?,
            (Some("linear") | None, None, None) => match factor {
                Some(factor) if factor != 1.0 => json!({ "rope_type": "linear", "factor": factor }),
                _ => json!({ "rope_type": "default" }),
            },
            (Some("longrope"), None, None) => {
                return Err(Error::corrupt(format!(
                    "metadata {} is 'longrope', and the file has no tensors 'rope_factors_short.weight' and \
                     'rope_factors_long.weight'",
                    quote(&key)
                )));
            }
            (Some(other), None, None) => json!({ "rope_type": other }),
            (named, ..) => {
                return Err(Error::unsupported(format!(
                    "the file combines RoPE scaling {} with RoPE factors as tensors, which is not supported",
                    quote(named.unwrap_or("none"))
                )));
            }
        };
        Ok(match scaling {
            Value::Object(scaling) => scaling,
            _ => Map::new(),
        })
    }

    /// In GGUF the attention factor multiplies YaRN's own instead of replacing it, and `mscale` is taken for 1.
    fn yarn(&self, factor: Option<f64>) -> Result<Value> {
        let all = self.number("rope.scaling.yarn_log_multiplier")?.filter(|all| *all != 0.0);
        let own = factor.map_or(1.0, |factor| magnitude(factor, 1.0) / all.map_or(1.0, |all| magnitude(factor, all)));
        let extra = self.number("rope.scaling.attn_factor")?.filter(|extra| *extra != 1.0);
        Ok(json!({
            "rope_type": "yarn",
            "factor": factor,
            "beta_fast": self.number("rope.scaling.yarn_beta_fast")?,
            "beta_slow": self.number("rope.scaling.yarn_beta_slow")?,
            "mscale": all.map(|_| 1.0),
            "mscale_all_dim": all,
            "attention_factor": extra.map(|extra| extra * own),
        }))
    }

    /// A short list that is stored as a tensor: the only tensor data that opening a file reads.
    fn tensor(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.weights.find(name) else { return Ok(None) };
        if tensor.shape.iter().product::<usize>() > LIST_LEN_MAX {
            let shape = &tensor.shape;
            return Err(Error::corrupt(format!("tensor '{name}' has the shape {shape:?}, too large for RoPE factors")));
        }
        tensor.to_f32().map(Some)
    }
}
