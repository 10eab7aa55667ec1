//! What a GGUF file leaves to its reader's knowledge of a family: the windows of Gemma's layers, the base of their rotations,
//! what scores are scaled by, whether the weights of chosen experts are made to add up to one.

use serde_json::{Map, Value, json};

use super::{LIST_LEN_MAX, Source};
use crate::{Error, Result, weights::quote};

/// Architectures in whose mixtures the weights of the chosen experts add up to one, unless a file says otherwise.
const RENORMALISED: &[&str] = &["llama", "qwen3moe", "qwen3vlmoe", "qwen3next", "gpt-oss", "granitemoe", "glm4moe"];

/// Layers of Gemma 2 and 3 by model: those of 27 B scale scores by the width over the heads instead of a head's size.
const GEMMA_27B: &[(&str, u64)] = &[("gemma2", 46), ("gemma3", 62)];

/// Adds what the family of a file makes of its metadata.
pub(super) fn complete(source: &Source<'_>, config: &mut Map<String, Value>) -> Result<()> {
    match source.architecture {
        "gemma2" => {
            config.entry("sliding_window").or_insert(json!(4096));
            windows(source, config, 2)?;
            scores(source, config);
        }
        "gemma3" => {
            if config.contains_key("sliding_window") {
                windows(source, config, 6)?;
                let base = source.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
                config.insert("rope_local_base_freq".to_owned(), json!(base));
            }
            scores(source, config);
        }
        "gpt-oss" => {
            windows(source, config, 2)?;
            // Files do not say it, and the model was trained so.
            if let Some(Value::Object(rope)) = config.get_mut("rope_parameters") {
                rope.insert("truncate".to_owned(), json!(false));
            }
        }
        "lfm2" => short_convolutions(config),
        _ => (),
    }
    if !config.contains_key("num_local_experts") {
        return Ok(());
    }
    let given = source.metadata.bool(&source.key("expert_weights_norm"))?;
    let norms = given.unwrap_or(RENORMALISED.contains(&source.architecture));
    config.insert("norm_topk_prob".to_owned(), json!(norms));
    Ok(())
}

/// The names that LFM2 has for them; layers without heads of keys convolve.
fn short_convolutions(config: &mut Map<String, Value>) {
    if let Some(Value::Array(heads)) = config.get("num_key_value_heads").cloned() {
        let of = |heads: &Value| if heads.as_u64() == Some(0) { "conv" } else { "full_attention" };
        let types: Vec<&str> = heads.iter().map(of).collect();
        let most = heads.iter().filter_map(Value::as_u64).max().unwrap_or_default();
        config.insert("layer_types".to_owned(), json!(types));
        config.insert("num_key_value_heads".to_owned(), json!(most));
    }
    if let Some(eps) = config.get("rms_norm_eps").cloned() {
        config.insert("norm_eps".to_owned(), eps);
    }
    // Files give the width that the blocks have.
    config.insert("block_auto_adjust_ff_dim".to_owned(), json!(false));
}

/// The layers' types: the file's own list, or windows in all but every `period`th layer.
fn windows(source: &Source<'_>, config: &mut Map<String, Value>, period: u64) -> Result<()> {
    let layers = config.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or_default();
    let layers = layers.min(LIST_LEN_MAX as u64);
    let key = source.key("attention.sliding_window_pattern");
    let is_list = source.metadata.get(&key).is_some_and(|value| value.len().is_some());
    let is_windowed: Vec<bool> = if is_list {
        source.metadata.bools(&key)?.unwrap_or_default()
    } else {
        let period = source.metadata.u64(&key)?.unwrap_or(period).max(1);
        (0..layers).map(|layer| layer % period != period - 1).collect()
    };
    if is_windowed.len() as u64 != layers {
        let message = format!("metadata {} has {} items for {layers} layers", quote(&key), is_windowed.len());
        return Err(Error::corrupt(message));
    }
    let name = |windowed: &bool| if *windowed { "sliding_attention" } else { "full_attention" };
    config.insert("layer_types".to_owned(), is_windowed.iter().map(name).collect());
    Ok(())
}

fn scores(source: &Source<'_>, config: &mut Map<String, Value>) {
    let number = |key: &str| config.get(key).and_then(Value::as_u64);
    let is_of_27b =
        |(name, layers): &(&str, u64)| *name == source.architecture && number("num_hidden_layers") == Some(*layers);
    let per_head = || number("hidden_size")?.checked_div(number("num_attention_heads")?);
    let head_dim = || number("head_dim").or_else(per_head);
    let scalar = if GEMMA_27B.iter().any(is_of_27b) { per_head() } else { head_dim() };
    if let Some(scalar) = scalar {
        config.insert("query_pre_attn_scalar".to_owned(), json!(scalar));
    }
}
