//! What a GGUF file leaves to its reader's knowledge of a family: the windows of Gemma's layers, the base of their rotations,
//! what scores are scaled by, whether the weights of chosen experts are made to add up to one.

use serde_json::{Map, Value, json};

use super::{LIST_LEN_MAX, Source};
use crate::{Error, Result, quote};

/// Architectures in whose mixtures the weights of the chosen experts add up to one, unless a file says otherwise.
const RENORMALISED: &[&str] = &[
    "llama",
    "qwen3moe",
    "qwen3vlmoe",
    "qwen3next",
    "qwen35moe",
    "nemotron_h_moe",
    "gpt-oss",
    "granitemoe",
    "granitehybrid",
    "glm4moe",
    "lfm2moe",
];

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
        "gemma4" => gemma4(source, config)?,
        "cohere2" => windows(source, config, 4)?,
        "exaone4" if config.contains_key("sliding_window") => windows(source, config, 4)?,
        "gpt-oss" => {
            windows(source, config, 2)?;
            // Files do not say it, and the model was trained so.
            if let Some(Value::Object(rope)) = config.get_mut("rope_parameters") {
                rope.insert("truncate".to_owned(), json!(false));
            }
        }
        "lfm2" | "lfm2moe" => short_convolutions(config),
        "mamba2" => {
            // Files say zero of what such models do not have.
            config.retain(|_, value| *value != json!(0));
            state_spaces(source, config)?;
        }
        "falcon-h1" | "granitehybrid" | "nemotron_h" | "nemotron_h_moe" => state_spaces(source, config)?,
        "deepseek2" => latents(source, config)?,
        // Files of hybrids without state spaces give the width of blocks that these do not have.
        "granite" => {
            if let Some(width) = width_of(source, "up_proj") {
                config.insert("intermediate_size".to_owned(), json!(width));
            }
        }
        "qwen3next" | "qwen35" | "qwen35moe" => gated_deltas(source, config)?,
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

/// Gemma 4's layers that see everything have other heads than those with windows.
fn gemma4(source: &Source<'_>, config: &mut Map<String, Value>) -> Result<()> {
    windows(source, config, 6)?;
    let windowed: Vec<bool> = match config.get("layer_types") {
        Some(Value::Array(types)) => types.iter().map(|of| of == "sliding_attention").collect(),
        _ => Vec::new(),
    };
    let of_kind = |list: &[Value], kind: bool| {
        list.iter().zip(&windowed).find(|(_, windowed)| **windowed == kind).map(|(value, _)| value.clone())
    };
    if let Some(Value::Array(heads)) = config.get("num_key_value_heads").cloned() {
        for (name, kind) in [("num_key_value_heads", true), ("num_global_key_value_heads", false)] {
            if let Some(heads) = of_kind(&heads, kind) {
                config.insert(name.to_owned(), heads);
            }
        }
    }
    if let Some(Value::Array(widths)) = config.get("intermediate_size").cloned()
        && let Some(first) = widths.first()
    {
        config.insert("intermediate_size".to_owned(), first.clone());
        config.insert("use_double_wide_mlp".to_owned(), json!(true));
    }
    if let Some(narrow) = source.integers("attention.key_length_swa")?
        && let Some(wide) = config.insert("head_dim".to_owned(), narrow)
    {
        config.insert("global_head_dim".to_owned(), wide);
    }
    let full = windowed.iter().position(|windowed| !windowed);
    let takes_keys = full.is_some_and(|layer| {
        let has = |part: &str| source.weights.contains(&format!("model.layers.{layer}.self_attn.{part}.weight"));
        has("k_proj") && !has("v_proj")
    });
    config.insert("attention_k_eq_v".to_owned(), json!(takes_keys));
    let has_experts = config.contains_key("num_local_experts");
    config.insert("enable_moe_block".to_owned(), json!(has_experts));
    let base = source.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
    config.insert("rope_local_base_freq".to_owned(), json!(base));
    Ok(())
}

/// The inner width of the first layer's feed-forward block, by its tensor.
fn width_of(source: &Source<'_>, name: &str) -> Option<usize> {
    source.weights.find(&format!("model.layers.0.mlp.{name}.weight"))?.shape.first().copied()
}

/// The types of layers; those without heads of keys do not attend.
fn layer_types(config: &mut Map<String, Value>, other: &str) {
    if let Some(Value::Array(heads)) = config.get("num_key_value_heads").cloned() {
        let of = |heads: &Value| if heads.as_u64() == Some(0) { other } else { "full_attention" };
        let types: Vec<&str> = heads.iter().map(of).collect();
        let most = heads.iter().filter_map(Value::as_u64).max().unwrap_or_default();
        config.insert("layer_types".to_owned(), json!(types));
        config.insert("num_key_value_heads".to_owned(), json!(most));
    }
}

/// The sizes of Mamba-2's layers, under Granite's names.
fn state_spaces(source: &Source<'_>, config: &mut Map<String, Value>) -> Result<()> {
    layer_types(config, "linear_attention");
    for (key, name) in [
        ("ssm.conv_kernel", "mamba_d_conv"),
        ("ssm.state_size", "mamba_d_state"),
        ("ssm.group_count", "mamba_n_groups"),
        ("ssm.time_step_rank", "mamba_n_heads"),
    ] {
        if let Some(value) = source.integers(key)? {
            config.insert(name.to_owned(), value);
        }
    }
    let inner = source.integers("ssm.inner_size")?.and_then(|inner| inner.as_u64());
    let heads = config.get("mamba_n_heads").and_then(Value::as_u64);
    if let Some(width) = inner.zip(heads).and_then(|(inner, heads)| inner.checked_div(heads)) {
        config.insert("mamba_d_head".to_owned(), json!(width));
    }
    let rotates = source.metadata.bool(&source.key("rope.scaling.finetuned"))?.unwrap_or(true);
    config.insert("position_embedding_type".to_owned(), json!(if rotates { "rope" } else { "nope" }));
    // Layers that only transform have widths, and others none.
    if let Some(Value::Array(widths)) = config.get("intermediate_size") {
        let widest = widths.iter().filter_map(Value::as_u64).max().unwrap_or_default();
        config.insert("intermediate_size".to_owned(), json!(widest));
    }
    // Some say that none has, and bring layers that do.
    if config.get("intermediate_size") == Some(&json!(0)) {
        let mut blocks = source.weights.names().filter(|name| name.ends_with(".mixer.up_proj.weight"));
        let width = blocks.next().and_then(|name| source.weights.find(name)?.shape.first().copied());
        match width {
            Some(width) => config.insert("intermediate_size".to_owned(), json!(width)),
            None => config.remove("intermediate_size"),
        };
    }
    // Without experts the block that all tokens share is the only one.
    if let Some(shared) = width_of(source, "shared_expert.up_proj").or_else(|| width_of(source, "up_proj")) {
        config.insert("shared_intermediate_size".to_owned(), json!(shared));
    }
    Ok(())
}

/// The sizes of DeepSeek's attention. Files give keys and values as the latent that they are computed from, beside the sizes that
/// they have; older ones only the latter.
fn latents(source: &Source<'_>, config: &mut Map<String, Value>) -> Result<()> {
    let size = |key: &str| Ok::<_, Error>(source.integers(key)?.and_then(|size| size.as_u64()));
    for (key, name) in [("attention.q_lora_rank", "q_lora_rank"), ("attention.kv_lora_rank", "kv_lora_rank")] {
        if let Some(rank) = size(key)?.filter(|rank| *rank > 0) {
            config.insert(name.to_owned(), json!(rank));
        }
    }
    let either = |key: &str| Ok::<_, Error>(size(&format!("{key}_mla"))?.or(size(key)?));
    if let (Some(key), Some(rotated)) = (either("attention.key_length")?, size("rope.dimension_count")?) {
        config.insert("qk_nope_head_dim".to_owned(), json!(key.saturating_sub(rotated)));
        config.insert("qk_rope_head_dim".to_owned(), json!(rotated));
    }
    if let Some(value) = either("attention.value_length")? {
        config.insert("v_head_dim".to_owned(), json!(value));
    }
    config.remove("head_dim");
    // Scores that are corrected for the choice are sigmoids, whatever a file leaves out.
    let is_corrected = source.weights.names().any(|name| name.contains("e_score_correction"));
    let is_sigmoid = size("expert_gating_func")?.map_or(is_corrected, |function| function == 2);
    config.insert("scoring_func".to_owned(), json!(if is_sigmoid { "sigmoid" } else { "softmax" }));
    if let Some(Value::Object(rope)) = config.get_mut("rope_parameters") {
        // All of what is rotated is one part of a head, which has its own layer.
        rope.remove("partial_rotary_factor");
        // Files give a tenth of `mscale_all_dim`; `mscale`, which GGUF omits, equals it in every published model.
        if let Some(all) = source.number("rope.scaling.yarn_log_multiplier")?.filter(|all| *all != 0.0) {
            let all = 10.0 * all;
            rope.extend([("mscale".to_owned(), json!(all)), ("mscale_all_dim".to_owned(), json!(all))]);
        }
    }
    Ok(())
}

/// The names that LFM2 has for them; layers without heads of keys convolve.
fn short_convolutions(config: &mut Map<String, Value>) {
    layer_types(config, "conv");
    if let Some(eps) = config.get("rms_norm_eps").cloned() {
        config.insert("norm_eps".to_owned(), eps);
    }
    // Files give the width that the blocks have.
    config.insert("block_auto_adjust_ff_dim".to_owned(), json!(false));
}

/// The sizes of Qwen's recurrent layers.
fn gated_deltas(source: &Source<'_>, config: &mut Map<String, Value>) -> Result<()> {
    for (key, name) in [
        ("ssm.conv_kernel", "linear_conv_kernel_dim"),
        ("ssm.state_size", "linear_key_head_dim"),
        ("ssm.group_count", "linear_num_key_heads"),
        ("ssm.time_step_rank", "linear_num_value_heads"),
    ] {
        if let Some(value) = source.integers(key)? {
            config.insert(name.to_owned(), value);
        }
    }
    let inner = source.integers("ssm.inner_size")?.and_then(|inner| inner.as_u64());
    let heads = config.get("linear_num_value_heads").and_then(Value::as_u64);
    if let Some(width) = inner.zip(heads).and_then(|(inner, heads)| inner.checked_div(heads)) {
        config.insert("linear_value_head_dim".to_owned(), json!(width));
    }
    Ok(())
}

/// The layers' types: the file's own list, or windows in all but every `period`th layer.
fn windows(source: &Source<'_>, config: &mut Map<String, Value>, period: u64) -> Result<()> {
    let layers = config.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or_default();
    let layers = layers.min(LIST_LEN_MAX as u64);
    let key = source.key("attention.sliding_window_pattern");
    let is_list = source.metadata.get(&key).is_some_and(|value| value.len().is_some());
    let is_windowed: Vec<bool> = if is_list {
        let mut list = source.metadata.bools(&key)?.unwrap_or_default();
        // Multi-token prediction (`nextn`) layers are in the list, too.
        let heads = source.integers("nextn_predict_layers")?.and_then(|heads| heads.as_u64()).unwrap_or_default();
        if list.len() as u64 == layers.saturating_add(heads) {
            list.truncate(usize::try_from(layers).unwrap_or(usize::MAX));
        }
        list
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
