//! Adapters as saved by Hugging Face's PEFT: a folder with `adapter_config.json` and `adapter_model.safetensors`, whose
//! tensors are named after the modules that they change.

use pensieve_sdk::{
    AdapterData, AdapterFormat, Error, Result,
    weights::{RawTensor, Weights},
};
use regex_lite::Regex;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{fs, path::Path};

use crate::pairs::{Half, Pairs};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// The pickle written by older versions, which can run code when loaded.
const PICKLE: &str = "adapter_model.bin";
const CONFIG_BYTES_MAX: u64 = 1 << 20;
const PATTERN_BYTES_MAX: usize = 16 << 10;
const PREFIX: &str = "base_model.model.";

/// PEFT's adapter format.
pub struct Peft;

impl AdapterFormat for Peft {
    fn name(&self) -> &'static str {
        "peft"
    }

    fn claims(&self, path: &Path) -> bool {
        path.join(CONFIG).is_file()
    }

    fn open(&self, path: &Path) -> Result<AdapterData> {
        let config = Config::read(&path.join(CONFIG))?;
        let here = |error: Error| error.context(path.join(CONFIG).display());
        config.check().map_err(here)?;
        let scales = Scales::of(&config).map_err(here)?;
        let targets = Targets::of(&config).map_err(here)?;
        let file = path.join(WEIGHTS);
        if !file.exists() && path.join(PICKLE).exists() {
            let message = format!("{} is a pickle, which runs code when it is read", path.join(PICKLE).display());
            return Err(Error::unsupported(message).help("save the adapter as safetensors"));
        }
        let here = |error: Error| error.context(file.display());
        let mut pairs = Pairs::default();
        for tensor in Weights::of_safetensors(&file)?.iter() {
            add(&mut pairs, tensor, &targets).map_err(here)?;
        }
        let (pairs, fingerprint) = pairs.finish(|target, rank| scales.of_target(target, rank)).map_err(here)?;
        Ok(AdapterData { base: config.base_model_name_or_path.unwrap_or_default(), fingerprint, pairs })
    }
}

/// The settings that affect inference; the others only affect training.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    peft_type: Option<String>,
    #[serde(default)]
    base_model_name_or_path: Option<String>,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    rank_pattern: Map<String, Value>,
    #[serde(default)]
    alpha_pattern: Map<String, Value>,
    #[serde(default)]
    target_modules: Value,
    /// Keys that are read only to reject them.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Config {
    fn read(path: &Path) -> Result<Self> {
        let here = |error: Error| error.context(path.display());
        let bytes = fs::metadata(path).map_err(|error| here(error.into()))?.len();
        if bytes > CONFIG_BYTES_MAX {
            return Err(here(Error::invalid(format!(
                "{bytes} bytes are more than the {CONFIG_BYTES_MAX} that are read"
            ))));
        }
        let text = fs::read(path).map_err(|error| here(error.into()))?;
        serde_json::from_slice(&text)
            .map_err(|error| here(Error::corrupt(format!("not a PEFT configuration: {error}"))))
    }

    /// Declines other adapter types, and rejects settings that low-rank pairs cannot express.
    fn check(&self) -> Result<()> {
        let kind = self.peft_type.as_deref().unwrap_or("LORA");
        if kind != "LORA" {
            return Err(Error::declined(format!("an adapter of type '{kind}' is not low-rank; only LORA is served")));
        }
        let says = |key: &str| self.rest.get(key).filter(|value| !is_nothing(value));
        if let Some(bias) = says("bias").filter(|bias| bias.as_str() != Some("none")) {
            let message = format!("bias is {bias}: the adapter was trained together with biases of its base");
            return Err(Error::unsupported(message).help("merge it into its base, or train it with bias none"));
        }
        for (key, what) in REFUSED {
            if let Some(value) = says(key) {
                let message = format!("{key} is {value}: {what}");
                return Err(Error::unsupported(message).help("merge the adapter into its base model"));
            }
        }
        Ok(())
    }
}

/// Settings of adapters that are more than low-rank pairs; rejected.
const REFUSED: [(&str, &str); 9] = [
    ("use_dora", "magnitudes are rescaled (DoRA), which is more than a low-rank change"),
    ("modules_to_save", "it replaces whole modules of its base"),
    ("lora_bias", "its factors have biases"),
    ("fan_in_fan_out", "its base keeps weights transposed (Conv1D)"),
    ("trainable_token_indices", "it replaces single rows of the embedding"),
    ("layer_replication", "it repeats layers of its base"),
    ("target_parameters", "it changes parameters that are no linear layers"),
    ("alora_invocation_tokens", "it begins to hold at certain tokens (aLoRA)"),
    ("use_qalora", "its inputs are grouped (QALoRA)"),
];

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    }
}

/// The scale of each target.
struct Scales {
    rank: usize,
    alpha: f64,
    by_root: bool,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
}

impl Scales {
    fn of(config: &Config) -> Result<Self> {
        Ok(Self {
            rank: config.r,
            alpha: config.lora_alpha,
            by_root: config.use_rslora,
            ranks: patterns("rank_pattern", &config.rank_pattern)?,
            alphas: patterns("alpha_pattern", &config.alpha_pattern)?,
        })
    }

    fn of_target(&self, target: &str, rank: usize) -> Result<f32> {
        let first = |list: &[(Regex, f64)]| list.iter().find(|(key, _)| key.is_match(target)).map(|(_, value)| *value);
        let said = first(&self.ranks).unwrap_or(self.rank as f64);
        if said != rank as f64 {
            return Err(Error::corrupt(format!("it has rank {rank}, {CONFIG} says {said}")));
        }
        let alpha = first(&self.alphas).unwrap_or(self.alpha);
        Ok((alpha / if self.by_root { said.sqrt() } else { said }) as f32)
    }
}

/// Values by pattern. A pattern applies to modules whose name it matches from the start of any component to the end.
fn patterns(what: &str, object: &Map<String, Value>) -> Result<Vec<(Regex, f64)>> {
    let pattern = |(key, value): (&String, &Value)| {
        let number = value.as_f64().filter(|number| number.is_finite() && *number >= 0.0);
        let number = number.ok_or_else(|| Error::corrupt(format!("{what}: '{key}' is {value}, not a number")))?;
        Ok((regex(what, key, &format!("^(?:.*\\.)?(?:{key})$"))?, number))
    };
    object.iter().map(pattern).collect()
}

fn regex(what: &str, shown: &str, pattern: &str) -> Result<Regex> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(Error::invalid(format!("{what}: a pattern of {} bytes is too long", pattern.len())));
    }
    Regex::new(pattern).map_err(|error| {
        let message = format!("{what}: the pattern '{shown}' is not understood: {error}");
        Error::unsupported(message).help("write it without look-around and back references")
    })
}

/// The `target_modules` of a configuration.
enum Targets {
    /// Every linear layer, or PEFT's default for the model type.
    Any,
    /// Modules whose name ends in one of these.
    Names(Vec<String>),
    /// Modules whose whole name matches.
    Pattern(Regex),
}

impl Targets {
    fn of(config: &Config) -> Result<Self> {
        let wrong = || Error::corrupt(format!("target_modules is {}, no pattern or list", config.target_modules));
        match &config.target_modules {
            Value::Null => Ok(Self::Any),
            Value::String(name) if name == "all-linear" => Ok(Self::Any),
            Value::String(pattern) => Ok(Self::Pattern(regex("target_modules", pattern, &format!("^(?:{pattern})$"))?)),
            Value::Array(names) => {
                let names = names.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>();
                names.map(Self::Names).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }

    fn speak_of(&self, target: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Names(names) => names.iter().any(|name| {
                target.strip_suffix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }),
            Self::Pattern(pattern) => pattern.is_match(target),
        }
    }
}

fn add(pairs: &mut Pairs, tensor: &RawTensor, targets: &Targets) -> Result<()> {
    let name = tensor.name.as_str();
    let Some((target, half)) = half_of(name) else {
        let message = format!("tensor '{name}' is no half of a low-rank pair, and would be left out");
        return Err(Error::unsupported(message).help("merge the adapter into its base model"));
    };
    if !targets.speak_of(target) {
        return Err(Error::corrupt(format!("tensor '{name}': target_modules in {CONFIG} does not speak of it")));
    }
    pairs.add(target, half, tensor.clone())
}

/// Splits a tensor name into its module and its factor of the pair. The adapter's name may come before `weight`.
fn half_of(name: &str) -> Option<(&str, Half)> {
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    let kinds = [
        (".lora_A", Half::A),
        (".lora_B", Half::B),
        (".lora_embedding_A", Half::TableA),
        (".lora_embedding_B", Half::TableB),
    ];
    kinds.iter().find_map(|(kind, half)| {
        let (target, rest) = name.split_once(kind)?;
        let is_table = matches!(half, Half::TableA | Half::TableB);
        let ends = rest == ".weight" || (rest.starts_with('.') && rest.ends_with(".weight")) || is_table;
        let whole = rest.is_empty() || rest.starts_with('.');
        (ends && whole && !target.is_empty()).then_some((target, *half))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(mut change: Value) -> Result<Config> {
        let mut whole =
            json!({ "peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none" });
        whole.as_object_mut().unwrap().append(change.as_object_mut().unwrap());
        let config: Config = serde_json::from_value(whole).unwrap();
        config.check().map(|()| config)
    }

    #[test]
    fn tensors_are_named_after_their_modules() {
        let check = |name: &str, expected: Option<(&str, Half)>| assert_eq!(half_of(name), expected, "{name}");
        let q = "model.layers.0.self_attn.q_proj";
        check(&format!("base_model.model.{q}.lora_A.weight"), Some((q, Half::A)));
        check(&format!("base_model.model.{q}.lora_B.default.weight"), Some((q, Half::B)));
        check("base_model.model.model.embed_tokens.lora_embedding_A", Some(("model.embed_tokens", Half::TableA)));
        check(
            "base_model.model.model.embed_tokens.lora_embedding_B.default",
            Some(("model.embed_tokens", Half::TableB)),
        );
        check(&format!("base_model.model.{q}.lora_magnitude_vector.weight"), None);
        check(&format!("base_model.model.{q}.lora_A.bias"), None);
        check("base_model.model.lm_head.weight", None);
    }

    #[test]
    fn patterns_override_rank_and_alpha_of_modules_that_end_in_them() {
        let config = config(json!({
            "use_rslora": true, "rank_pattern": { "k_proj": 4, "^model.layers.1.*q_proj": 2 },
            "alpha_pattern": { "layers.0.self_attn.q_proj": 32 },
        }));
        let scales = Scales::of(&config.unwrap()).unwrap();
        let scale = |target, rank| scales.of_target(target, rank);
        assert_eq!(scale("model.layers.0.self_attn.q_proj", 8).unwrap(), (32.0 / 8f64.sqrt()) as f32);
        assert_eq!(scale("model.layers.0.self_attn.k_proj", 4).unwrap(), 8.0);
        assert_eq!(scale("model.layers.0.self_attn.blk_proj", 8).unwrap(), (16.0 / 8f64.sqrt()) as f32);
        assert!(scale("model.layers.0.self_attn.k_proj", 8).is_err(), "the file has another rank");
    }

    #[test]
    fn target_modules_are_names_a_pattern_or_everything() {
        let speaks = |target_modules: Value| {
            let config = config(json!({ "target_modules": target_modules })).unwrap();
            Targets::of(&config).map(|targets| targets.speak_of("model.layers.0.self_attn.q_proj"))
        };
        assert!(speaks(json!(["q_proj"])).unwrap());
        assert!(speaks(json!("all-linear")).unwrap());
        assert!(speaks(json!(r".*\.self_attn\.(q|k)_proj")).unwrap());
        assert!(!speaks(json!(["proj"])).unwrap());
        assert!(!speaks(json!(r"q_proj")).unwrap(), "a pattern matches the whole name");
        assert!(speaks(json!("(")).is_err());
        assert!(speaks(json!(7)).is_err());
    }

    #[test]
    fn what_pairs_cannot_express_is_refused_with_its_reason() {
        for (change, named) in [
            (json!({ "use_dora": true }), "DoRA"),
            (json!({ "bias": "lora_only" }), "bias"),
            (json!({ "modules_to_save": ["lm_head"] }), "modules_to_save"),
            (json!({ "peft_type": "IA3" }), "IA3"),
        ] {
            let message = config(change).err().unwrap().to_string();
            assert!(message.contains(named), "{message}");
        }
        assert!(config(json!({ "use_dora": false, "modules_to_save": null, "layer_replication": [] })).is_ok());
    }
}
