//! The details of a model in Ollama's lists: format, family, size and quantization, from the model's card and the name of its
//! file.

use std::path::Path;

use serde_json::{Value, json};

use crate::dialects::catalog::ListedModel;

/// Formats of weights that are not quantized, by falling precision.
const PLAIN: [&str; 3] = ["F32", "F16", "BF16"];

pub(super) fn of(entry: &ListedModel) -> Value {
    let card = entry.target.as_ref().map(|target| &*target.card);
    let family = card.map_or("", |card| card.architecture.as_str());
    let facts: Value = card.and_then(|card| serde_json::from_str(&card.facts).ok()).unwrap_or_default();
    let formats: Vec<&str> = facts["formats"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    json!({
        "parent_model": "",
        "format": format(&entry.source),
        "family": family,
        "families": [family],
        "parameter_size": facts["parameters"].as_u64().map(parameters).unwrap_or_default(),
        "quantization_level": in_name(&entry.source).unwrap_or_else(|| quantization(&formats)),
    })
}

fn format(source: &Path) -> &'static str {
    let is_gguf = source.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if is_gguf { "gguf" } else { "safetensors" }
}

/// A number of parameters as Ollama writes it: `8.0B`, `134.52M`.
fn parameters(count: u64) -> String {
    let of = |unit: f64| count as f64 / unit;
    match count {
        1_000_000_000.. => format!("{:.1}B", of(1e9)),
        1_000_000.. => format!("{:.2}M", of(1e6)),
        1_000.. => format!("{:.2}K", of(1e3)),
        _ => count.to_string(),
    }
}

/// The quantization in a file's name: `model-Q4_K_M.gguf`. It says more than the formats of the tensors.
fn in_name(source: &Path) -> Option<String> {
    let stem = source.file_stem()?.to_str()?.to_ascii_uppercase();
    let is_level = |part: &&str| {
        let digits = part.strip_prefix("IQ").or_else(|| part.strip_prefix('Q')).or_else(|| part.strip_prefix("TQ"));
        PLAIN.contains(part) || digits.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    stem.split(['-', '.']).rfind(is_level).map(str::to_owned)
}

/// The name of a mixture of formats, after the coarsest of them: the finer ones are for a few tensors.
fn quantization(formats: &[&str]) -> String {
    let bits = |format: &&&str| {
        let digits: String = format.chars().filter(char::is_ascii_digit).take(1).collect();
        digits.parse::<u32>().unwrap_or(u32::MAX)
    };
    let quantized: Vec<&str> = formats.iter().copied().filter(|format| !PLAIN.contains(format)).collect();
    let Some(coarsest) = quantized.iter().min_by_key(bits) else {
        return PLAIN.iter().rev().find(|plain| formats.contains(plain)).copied().unwrap_or_default().to_owned();
    };
    match coarsest.strip_suffix("_K") {
        Some(_) if *coarsest == "Q6_K" => "Q6_K".to_owned(),
        Some(_) => format!("{coarsest}_{}", if quantized.len() > 1 { "M" } else { "S" }),
        None => (*coarsest).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_quantizations_are_written_as_ollama_does() {
        for (count, expected) in
            [(8_030_261_248, "8.0B"), (134_515_008, "134.52M"), (1_100_048_384, "1.1B"), (14_500, "14.50K"), (7, "7")]
        {
            assert_eq!(parameters(count), expected);
        }
        let named = |name: &str| in_name(Path::new(name));
        assert_eq!(named("models/smollm2-135m-instruct-q4_k_m.gguf").as_deref(), Some("Q4_K_M"));
        assert_eq!(named("Qwen3-0.6B-IQ2_XS.gguf").as_deref(), Some("IQ2_XS"));
        assert_eq!(named("gemma-F16.gguf").as_deref(), Some("F16"));
        assert_eq!(named("qwen2.5-coder"), None);
        for (formats, expected) in [
            (vec!["F32", "Q4_K", "Q6_K"], "Q4_K_M"),
            (vec!["F32", "Q4_K"], "Q4_K_S"),
            (vec!["F32", "Q6_K"], "Q6_K"),
            (vec!["Q8_0", "F32"], "Q8_0"),
            (vec!["BF16", "F32"], "BF16"),
            (vec!["F32"], "F32"),
            (vec![], ""),
        ] {
            assert_eq!(quantization(&formats), expected, "{formats:?}");
        }
        assert_eq!((format(Path::new("a.GGUF")), format(Path::new("folder"))), ("gguf", "safetensors"));
    }
}
