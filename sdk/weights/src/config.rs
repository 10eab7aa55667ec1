//! A checkpoint's configuration, in Hugging Face's terms whatever the format.
//!
//! Plugins read one JSON object: `config.json` as it is, or GGUF metadata under the same names. The spellings of
//! several generations of tools are unified (nested text configurations, old and new RoPE parameters), and numbers that
//! sizes are computed from are range-checked before anyone computes with them, including those that a plugin reads
//! through its own struct.

mod from_gguf;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde_json::{Map, Value};

use super::{
    GgufFamily, RopeConfig, RopeScaling, Weights, gguf, json,
    rope::{self, CONTEXT_MAX, is_not},
};
use crate::{Error, Result};

const FILE_BYTES_MAX: u64 = 16 << 20;
const EOS_MAX: usize = 256;

/// A model's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    value: Value,
    eos: Vec<u32>,
}

impl Config {
    /// Settings of an author's own, such as those of an image processor.
    pub fn of<'a>(settings: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        let settings = settings.into_iter().map(|(key, value)| (key.to_owned(), value));
        Self { value: Value::Object(settings.collect()), eos: Vec::new() }
    }

    /// Reads back the JSON of [`Self::of`].
    pub fn from_json(text: &str) -> Result<Self> {
        match serde_json::from_str(text) {
            Ok(value @ Value::Object(_)) => Ok(Self { value, eos: Vec::new() }),
            Ok(_) => Err(Error::invalid("settings are a JSON object".to_owned())),
            Err(error) => Err(Error::invalid(format!("settings are no JSON: {error}"))),
        }
    }

    /// The whole JSON object.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Deserializes the object into an author's struct, whose field names are the keys.
    pub fn parse<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&self.value).map_err(|error| Error::corrupt(format!("the configuration does not fit: {error}")))
    }

    pub fn usize(&self, key: &str) -> Result<usize> {
        self.find_usize(key)?.ok_or_else(|| missing(key))
    }

    pub fn usize_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.find_usize(key)?.unwrap_or(default))
    }

    /// The integer under this key; `None` if absent or null.
    pub fn find_usize(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let limit = Limit::of(key);
        let number = value.as_u64().filter(|number| limit.holds(*number as f64));
        match number.and_then(|number| usize::try_from(number).ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(limit.broken(key, value, "an unsigned integer")),
        }
    }

    /// The number of experts, under any of its three names; `None` for a dense model.
    pub fn experts(&self) -> Result<Option<usize>> {
        for key in ["num_experts", "num_local_experts", "n_routed_experts"] {
            if let Some(count) = self.find_usize(key)?.filter(|count| *count > 0) {
                return Ok(Some(count));
            }
        }
        Ok(None)
    }

    /// The integer of each layer under this key, which has one for all layers or a list of `layers`, as GGUF files have
    /// for `num_key_value_heads`.
    pub fn per_layer(&self, key: &str, layers: usize) -> Result<Vec<usize>> {
        match self.find(key) {
            Some(Value::Array(_)) => {
                let list = self.usizes(key)?;
                let count = list.len();
                if count == layers {
                    Ok(list)
                } else {
                    Err(Error::corrupt(format!("{key} has {count} items for {layers} layers")))
                }
            }
            _ => Ok(vec![self.usize(key)?; layers]),
        }
    }

    /// The integers under this key; empty if absent or null.
    pub fn usizes(&self, key: &str) -> Result<Vec<usize>> {
        let Some(value) = self.find(key) else { return Ok(vec![]) };
        let integer = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        let list = value.as_array().and_then(|list| list.iter().map(integer).collect::<Option<Vec<_>>>());
        list.ok_or_else(|| is_not(key, value, "a list of unsigned integers"))
    }

    /// The numbers under this key; empty if absent or null.
    pub fn f64s(&self, key: &str) -> Result<Vec<f64>> {
        let Some(value) = self.find(key) else { return Ok(vec![]) };
        let list = value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
        list.ok_or_else(|| is_not(key, value, "a list of numbers"))
    }

    pub fn f64(&self, key: &str) -> Result<f64> {
        self.find_f64(key)?.ok_or_else(|| missing(key))
    }

    pub fn f64_or(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self.find_f64(key)?.unwrap_or(default))
    }

    /// The number under this key; `None` if absent or null.
    pub fn find_f64(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let limit = Limit::of(key);
        let number = value.as_f64().filter(|number| limit.holds(*number));
        number.map(Some).ok_or_else(|| limit.broken(key, value, "a number"))
    }

    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool> {
        let Some(value) = self.find(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| is_not(key, value, "true or false"))
    }

    pub fn str(&self, key: &str) -> Result<&str> {
        self.find_str(key)?.ok_or_else(|| missing(key))
    }

    pub fn str_or<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str> {
        Ok(self.find_str(key)?.unwrap_or(default))
    }

    /// The string under this key; `None` if absent or null.
    pub fn find_str(&self, key: &str) -> Result<Option<&str>> {
        let Some(value) = self.find(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| is_not(key, value, "a string"))
    }

    /// Declines a checkpoint with a different value under this key; an absent key is accepted.
    pub fn only(&self, key: &str, expected: impl Into<Value>) -> Result<()> {
        let expected = expected.into();
        match self.find(key) {
            Some(value) if *value != expected => {
                Err(Error::declined(is_not(key, value, &format!("{expected}, which is all that is computed")).message))
            }
            _ => Ok(()),
        }
    }

    /// A copy without these keys, whose values a plugin reads in its own way.
    #[must_use]
    pub fn without(&self, keys: &[&str]) -> Self {
        let mut config = self.clone();
        if let Some(object) = config.value.as_object_mut() {
            object.retain(|key, _| !keys.contains(&key.as_str()));
        }
        config
    }

    /// Fills in defaults for absent keys, as the family's configuration class in transformers has them. Vision-language
    /// checkpoints often store only the values of their text model that differ from those.
    pub fn with_defaults<'a>(&self, defaults: impl IntoIterator<Item = (&'a str, Value)>) -> Result<Self> {
        let mut object = self.value.as_object().cloned().unwrap_or_default();
        for (key, value) in defaults {
            if !object.contains_key(key) {
                object.insert(key.to_owned(), value);
            }
        }
        Ok(Self { eos: self.eos.clone(), ..Self::new(object)? })
    }

    /// The object in the style of transformers 4, for readers that know no other: the fields of `rope_parameters` at
    /// the top level, and no nulls.
    pub fn classic(&self) -> Map<String, Value> {
        let mut object = self.value.as_object().cloned().unwrap_or_default();
        rope::spread(&mut object);
        object.retain(|_, value| !value.is_null());
        object
    }

    /// RoPE parameters, for a model whose layers all share them.
    pub fn rope(&self) -> Result<RopeConfig> {
        RopeConfig::read(&self.value, None)
    }

    /// `mrope_section` of the RoPE parameters: the pairs of a head that turn by time, height and width. In GGUF files a
    /// fourth number follows, for an axis that is not used.
    pub fn mrope_section(&self) -> Result<Option<[usize; 3]>> {
        let Some(sections) = self.value.pointer("/rope_parameters/mrope_section") else { return Ok(None) };
        let number = |index: usize| Some(sections.get(index)?.as_u64().filter(|pairs| *pairs < 1024)? as usize);
        let is_three = sections.as_array().is_some_and(|list| {
            list.len() == 3 || list.len() == 4 && list.last().is_some_and(|last| last.as_u64() == Some(0))
        });
        match (number(0), number(1), number(2)) {
            (Some(time), Some(height), Some(width)) if is_three => Ok(Some([time, height, width])),
            _ => Err(is_not("mrope_section", sections, "three numbers of pairs")),
        }
    }

    /// RoPE parameters of a layer type that `layer_types` names.
    pub fn rope_for(&self, layer_type: &str) -> Result<RopeConfig> {
        RopeConfig::read(&self.value, Some(layer_type))
    }

    /// RoPE parameters of full-attention layers and of sliding-window layers; the latter are not scaled if the
    /// configuration has one set for both.
    pub fn ropes(&self) -> Result<(RopeConfig, RopeConfig)> {
        let is_nested = |layer_type: &str| self.value["rope_parameters"].get(layer_type).is_some();
        let full = if is_nested("full_attention") { self.rope_for("full_attention")? } else { self.rope()? };
        if is_nested("sliding_attention") {
            return Ok((full, self.rope_for("sliding_attention")?));
        }
        let theta = self.find_f64("rope_local_base_freq")?.unwrap_or(full.theta);
        Ok((full.clone(), RopeConfig { theta, scaling: RopeScaling::None, ..full }))
    }

    /// The sliding window in tokens; `None` for full attention, or if the window is disabled.
    pub fn sliding_window(&self) -> Result<Option<usize>> {
        let is_on = self.bool_or("use_sliding_window", true)?;
        Ok(self.find_usize("sliding_window")?.filter(|window| is_on && *window > 0))
    }

    /// The window of each layer: by `layer_types`, or from layer `max_window_layers` on.
    pub fn sliding_windows(&self, layers: usize) -> Result<Vec<Option<usize>>> {
        let window = self.sliding_window()?;
        let Some(types) = self.find("layer_types") else {
            let full = self.usize_or("max_window_layers", 0)?;
            return Ok((0..layers).map(|layer| window.filter(|_| layer >= full)).collect());
        };
        let of_type = |name: &Value| match name.as_str() {
            Some("full_attention") => Some(None),
            Some("sliding_attention") => Some(window),
            _ => None,
        };
        let windows = types.as_array().and_then(|types| types.iter().map(of_type).collect::<Option<Vec<_>>>());
        let what = format!("a list of {layers} of 'full_attention' and 'sliding_attention'");
        windows.filter(|list| list.len() == layers).ok_or_else(|| is_not("layer_types", types, &what))
    }

    /// The per-layer entries of the list `key` (`layer_types`, `layers_block_type`); `None` if the configuration has no
    /// such list.
    pub fn layer_types(&self, key: &str, layers: usize) -> Result<Option<&[Value]>> {
        let Some(types) = self.value[key].as_array() else { return Ok(None) };
        if types.len() != layers {
            return Err(Error::corrupt(format!("{key} names {} of {layers} layers", types.len())));
        }
        Ok(Some(types))
    }

    /// Ids that end a generation, from `generation_config.json` and `config.json` together.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos
    }

    /// Reads `config.json`, and `generation_config.json` if it exists.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let file = json::object(&path, FILE_BYTES_MAX)?;
        let mut config = Self::new(file).map_err(|error| error.context(path.display()))?;
        let path = folder.join("generation_config.json");
        if path.exists() {
            let generation = json::object(&path, FILE_BYTES_MAX)?;
            let eos = eos(&generation).map_err(|error| error.context(path.display()))?;
            config.eos.extend(eos);
            config.eos.sort_unstable();
            config.eos.dedup();
        }
        Ok(config)
    }

    /// Translates the metadata of a GGUF file.
    pub(super) fn from_gguf(
        architecture: &str,
        family: &GgufFamily,
        metadata: &gguf::Metadata,
        weights: &Weights,
    ) -> Result<Self> {
        Self::new(from_gguf::translate(architecture, family, metadata, weights)?)
    }

    /// The configuration of the vision tower, `vision_config`; `None` if the checkpoint has no tower.
    pub fn vision(&self) -> Result<Option<Self>> {
        self.find("vision_config").map(|value| Self::part("vision_config", value)).transpose()
    }

    pub(super) fn remove(&mut self, key: &str) {
        if let Value::Object(object) = &mut self.value {
            object.remove(key);
        }
    }

    /// A configuration within another, or in a file of its own.
    pub(super) fn part(key: &str, value: &Value) -> Result<Self> {
        let object = value.as_object().ok_or_else(|| is_not(key, value, "an object"))?;
        check_limits(object)?;
        Ok(Self { value: value.clone(), eos: Vec::new() })
    }

    fn new(mut object: Map<String, Value>) -> Result<Self> {
        lift_text_config(&mut object);
        if !object.contains_key("dtype")
            && let Some(dtype) = object.get("torch_dtype").cloned()
        {
            object.insert("dtype".to_owned(), dtype);
        }
        rope::normalise(&mut object)?;
        check_limits(&object)?;
        let eos = eos(&object)?;
        Ok(Self { value: Value::Object(object), eos })
    }

    fn find(&self, key: &str) -> Option<&Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }
}

/// The range of a number: far above any existing model, and far below where sums overflow.
struct Limit {
    key: &'static str,
    min: f64,
    max: f64,
}

const fn limit(key: &'static str, min: f64, max: f64) -> Limit {
    Limit { key, min, max }
}

const SIZE_MAX: f64 = (1u32 << 24) as f64;
const HEADS_MAX: f64 = 4096.0;

const LIMITS: &[Limit] = &[
    limit("hidden_size", 1.0, SIZE_MAX),
    limit("intermediate_size", 1.0, SIZE_MAX),
    limit("vocab_size", 1.0, SIZE_MAX),
    limit("num_hidden_layers", 1.0, 4096.0),
    limit("num_attention_heads", 1.0, HEADS_MAX),
    limit("num_key_value_heads", 1.0, HEADS_MAX),
    limit("head_dim", 1.0, 1024.0),
    limit("max_position_embeddings", 1.0, CONTEXT_MAX),
    limit("original_max_position_embeddings", 1.0, CONTEXT_MAX),
    limit("sliding_window", 0.0, CONTEXT_MAX),
    limit("num_local_experts", 0.0, 65_536.0),
    limit("num_experts", 0.0, 65_536.0),
    limit("n_routed_experts", 0.0, 65_536.0),
    limit("num_experts_per_tok", 0.0, 65_536.0),
    limit("moe_num_experts", 0.0, 65_536.0),
    limit("moe_num_shared_experts", 0.0, 65_536.0),
    limit("n_shared_experts", 0.0, 65_536.0),
    limit("moe_k", 0.0, 65_536.0),
    limit("top_k_experts", 0.0, 65_536.0),
    limit("mamba_expand", 0.0, 1024.0),
    limit("rotary_dim", 0.0, SIZE_MAX),
    limit("moe_intermediate_size", 1.0, SIZE_MAX),
    limit("shared_expert_intermediate_size", 0.0, SIZE_MAX),
    limit("q_lora_rank", 1.0, SIZE_MAX),
    limit("kv_lora_rank", 1.0, SIZE_MAX),
    limit("qk_nope_head_dim", 1.0, SIZE_MAX),
    limit("qk_rope_head_dim", 1.0, 1024.0),
    limit("v_head_dim", 1.0, SIZE_MAX),
    limit("conv_L_cache", 2.0, 1024.0),
    limit("global_head_dim", 1.0, 1024.0),
    limit("num_global_key_value_heads", 1.0, HEADS_MAX),
    limit("hidden_size_per_layer_input", 0.0, SIZE_MAX),
    limit("vocab_size_per_layer_input", 1.0, SIZE_MAX),
    limit("linear_num_key_heads", 1.0, HEADS_MAX),
    limit("linear_num_value_heads", 1.0, HEADS_MAX),
    limit("linear_key_head_dim", 1.0, 1024.0),
    limit("linear_value_head_dim", 1.0, 1024.0),
    limit("linear_conv_kernel_dim", 2.0, 1024.0),
    limit("full_attention_interval", 1.0, 4096.0),
    limit("mamba_n_heads", 1.0, HEADS_MAX),
    limit("mamba_d_head", 1.0, 1024.0),
    limit("mamba_d_state", 1.0, 1024.0),
    limit("mamba_n_groups", 1.0, HEADS_MAX),
    limit("mamba_d_conv", 2.0, 1024.0),
    limit("mamba_num_heads", 1.0, HEADS_MAX),
    limit("mamba_head_dim", 1.0, 1024.0),
    limit("n_groups", 1.0, HEADS_MAX),
    limit("ssm_state_size", 1.0, 1024.0),
    limit("num_heads", 1.0, HEADS_MAX),
    limit("state_size", 1.0, 1024.0),
    limit("mamba_d_ssm", 1.0, SIZE_MAX),
    limit("num_dense_layers", 0.0, 4096.0),
    limit("conv_kernel", 2.0, 1024.0),
    limit("shared_intermediate_size", 0.0, SIZE_MAX),
    limit("moe_shared_expert_intermediate_size", 1.0, SIZE_MAX),
    limit("block_ff_dim", 1.0, SIZE_MAX),
    limit("block_multiple_of", 1.0, SIZE_MAX),
    limit("block_ffn_dim_multiplier", 1e-6, 1024.0),
    limit("rms_norm_eps", 0.0, 1.0),
    limit("layer_norm_eps", 0.0, 1.0),
    limit("layer_norm_epsilon", 0.0, 1.0),
    limit("rope_theta", 1.0, 1e15),
    limit("partial_rotary_factor", 1e-6, 1.0),
];

impl Limit {
    fn of(key: &str) -> Self {
        let known = LIMITS.iter().find(|limit| limit.key == key);
        known.map_or(limit("", f64::MIN, f64::MAX), |known| limit(known.key, known.min, known.max))
    }

    fn holds(&self, number: f64) -> bool {
        (self.min..=self.max).contains(&number)
    }

    fn broken(&self, key: &str, value: &Value, what: &str) -> Error {
        if self.key.is_empty() {
            return is_not(key, value, what);
        }
        is_not(key, value, &format!("{what} from {} to {}", self.min, self.max))
    }
}

fn check_limits(object: &Map<String, Value>) -> Result<()> {
    for (limit, value) in LIMITS.iter().filter_map(|limit| Some((limit, object.get(limit.key)?))) {
        if value.as_f64().is_some_and(|number| !limit.holds(number)) {
            return Err(limit.broken(limit.key, value, "a number"));
        }
    }
    Ok(())
}

fn missing(key: &str) -> Error {
    Error::not_found(format!("the configuration has no '{key}'"))
        .help("the checkpoint is incomplete or of another architecture: download its configuration again")
}

/// Lifts the text model's configuration out of `text_config`, where multimodal models keep it.
fn lift_text_config(object: &mut Map<String, Value>) {
    if object.contains_key("hidden_size") {
        return;
    }
    if let Some(Value::Object(text)) = object.get("text_config").cloned() {
        for (key, value) in text {
            // Embeddings are tied if either level says so; an output layer in the checkpoint takes precedence over
            // that.
            let says_tied = key == "tie_word_embeddings" && value.as_bool() == Some(true);
            let is_outer = ["architectures", "tie_word_embeddings"].contains(&key.as_str()) && !says_tied;
            if !is_outer || object.get(&key).is_none_or(Value::is_null) {
                object.insert(key, value);
            }
        }
    }
}

fn eos(object: &Map<String, Value>) -> Result<Vec<u32>> {
    let Some(value) = object.get("eos_token_id") else { return Ok(vec![]) };
    let ids = match value {
        Value::Null => return Ok(vec![]),
        Value::Array(ids) => ids.as_slice(),
        single => std::slice::from_ref(single),
    };
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    match ids.iter().map(id).collect::<Option<Vec<_>>>() {
        Some(ids) if ids.len() <= EOS_MAX => Ok(ids),
        _ => Err(is_not("eos_token_id", value, &format!("a token id or a list of at most {EOS_MAX}"))),
    }
}
