//! A configuration under construction from GGUF metadata, which a plugin completes with its knowledge of a family.

mod shared;

use serde_json::{Map, Value, json};

use crate::rope::magnitude;
use crate::{
    Error, Result, Weights,
    gguf::{self, Kind, Metadata},
    quote,
};

const LIST_LEN_MAX: usize = 4096;
/// The member of `vision_config` with the settings of a GGUF model's image processor.
pub(super) const PROCESSOR: &str = "preprocessor_config";

/// Returns a single value if all layers agree, else the list.
fn one_or_list(list: Vec<Value>) -> Value {
    match list.split_first() {
        Some((first, rest)) if rest.iter().all(|other| other == first) => first.clone(),
        _ => Value::Array(list),
    }
}

/// A configuration under construction from GGUF metadata. Its entries have the names of `config.json`; metadata keys
/// are given without the architecture's prefix.
#[derive(Debug)]
pub struct GgufConfig<'a> {
    architecture: &'a str,
    metadata: &'a Metadata,
    weights: &'a Weights,
    object: Map<String, Value>,
}

impl<'a> GgufConfig<'a> {
    pub(super) fn new(architecture: &'a str, metadata: &'a Metadata, weights: &'a Weights) -> Self {
        Self { architecture, metadata, weights, object: Map::new() }
    }
}

impl GgufConfig<'_> {
    pub(super) fn into_object(self) -> Map<String, Value> {
        self.object
    }

    /// The file's `general.architecture`.
    pub fn architecture(&self) -> &str {
        self.architecture
    }

    pub fn metadata(&self) -> &Metadata {
        self.metadata
    }

    /// The tensors, under transformers' names.
    pub fn weights(&self) -> &Weights {
        self.weights
    }

    /// Prepends the architecture's prefix to a metadata key.
    pub fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.object.get(name)
    }

    /// The unsigned integer of this name; `None` for anything else.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.get(name).and_then(Value::as_u64)
    }

    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.object.insert(name.to_owned(), value.into());
    }

    /// Sets a value that the file leaves out.
    pub fn default(&mut self, name: &str, value: impl Into<Value>) {
        self.object.entry(name).or_insert_with(|| value.into());
    }

    pub fn remove(&mut self, name: &str) -> Option<Value> {
        self.object.remove(name)
    }

    /// Keeps the entries for which `keep` returns true.
    pub fn retain(&mut self, keep: impl FnMut(&String, &mut Value) -> bool) {
        self.object.retain(keep);
    }

    /// `rope_parameters`, mutable.
    pub fn rope(&mut self) -> Option<&mut Map<String, Value>> {
        self.object.get_mut("rope_parameters").and_then(Value::as_object_mut)
    }

    /// An unsigned integer from the metadata, or a list if the layers differ.
    pub fn integers(&self, key: &str) -> Result<Option<Value>> {
        let key = self.key(key);
        if self.list_len(&key)?.is_none() {
            return Ok(self.metadata.u64(&key)?.map(Value::from));
        }
        let list = self.metadata.u32s(&key)?.unwrap_or_default();
        Ok(Some(one_or_list(list.into_iter().map(Value::from).collect())))
    }

    /// A finite number from the metadata.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        let key = self.key(key);
        match self.metadata.f64(&key)? {
            Some(number) if !number.is_finite() => {
                Err(Error::corrupt(format!("metadata {} is {number}, not a finite number", quote(&key))))
            }
            number => Ok(number),
        }
    }

    /// Copies metadata values of any type under other names.
    pub fn rename(&mut self, keys: &[(&str, &str)]) -> Result<()> {
        for (key, name) in keys {
            if let Some(value) = self.value(key)? {
                self.set(name, value);
            }
        }
        Ok(())
    }

    /// Copies the architecture's other metadata under its own keys, such as `ssm.conv_kernel`, so that a plugin for a new
    /// family can read it. Values that a configuration cannot have are left out.
    pub(super) fn keep_unknown(&mut self, is_known: impl Fn(&str) -> bool) {
        let prefix = self.key("");
        let keys = self.metadata.keys().filter_map(|key| key.strip_prefix(&prefix));
        for key in keys.filter(|key| !is_known(key)).collect::<Vec<_>>() {
            if let Ok(Some(value)) = self.value(key) {
                self.default(key, value);
            }
        }
    }

    fn value(&self, key: &str) -> Result<Option<Value>> {
        let whole = self.key(key);
        let Some(kind) = self.metadata.get(&whole).map(gguf::Value::kind) else { return Ok(None) };
        let is_list = self.list_len(&whole)?.is_some();
        Ok(match kind {
            Kind::Bool if is_list => self.metadata.bools(&whole)?.map(Value::from),
            Kind::Bool => self.metadata.bool(&whole)?.map(Value::from),
            Kind::Text if is_list => self.metadata.strings(&whole)?.map(Value::from),
            Kind::Text => self.metadata.string(&whole)?.map(Value::from),
            Kind::F32 | Kind::F64 if is_list => self.metadata.f32s(&whole)?.map(Value::from),
            Kind::F32 | Kind::F64 => self.number(key)?.map(Value::from),
            _ => self.integers(key)?,
        })
    }

    /// The length of a metadata list, checked against the limit.
    fn list_len(&self, key: &str) -> Result<Option<usize>> {
        match self.metadata.get(key).and_then(gguf::Value::len) {
            Some(len) if len > LIST_LEN_MAX => {
                Err(Error::corrupt(format!("metadata {} has {len} items, more than {LIST_LEN_MAX}", quote(key))))
            }
            len => Ok(len),
        }
    }

    /// Drops multi-token prediction (`nextn`) layers, which files count among the layers.
    pub(super) fn leave_out_prediction_layers(&mut self) -> Result<()> {
        let heads = self.integers("nextn_predict_layers")?.and_then(|heads| heads.as_u64()).unwrap_or_default();
        let Some(blocks) = self.size("num_hidden_layers").filter(|_| heads > 0) else { return Ok(()) };
        let layers = blocks.saturating_sub(heads);
        self.set("num_hidden_layers", layers);
        for value in self.object.values_mut() {
            if let Some(list) = value.as_array_mut().filter(|list| list.len() as u64 == blocks) {
                list.truncate(usize::try_from(layers).unwrap_or(usize::MAX));
                *value = one_or_list(std::mem::take(list));
            }
        }
        Ok(())
    }

    pub(super) fn vocabulary(&self) -> Option<usize> {
        let tokens = self.metadata.get("tokenizer.ggml.tokens").and_then(gguf::Value::len);
        tokens.or_else(|| self.weights.find("model.embed_tokens.weight")?.shape.first().copied())
    }

    pub(super) fn has_bias(&self, part: &str) -> bool {
        let names = self.weights.names().filter_map(|name| name.strip_prefix("model.layers.0."));
        names.filter_map(|name| name.strip_prefix(part)).any(|name| name.ends_with(".bias"))
    }

    pub(super) fn read_rope(&self, interleaved: bool) -> Result<Map<String, Value>> {
        let mut rope = Map::new();
        rope.insert("interleaved".to_owned(), json!(interleaved));
        if let Some(theta) = self.number("rope.freq_base")? {
            rope.insert("rope_theta".to_owned(), json!(theta));
        }
        if let Some(factor) = self.rotated_part()? {
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

    fn rotated_part(&self) -> Result<Option<f64>> {
        let Some(rotated) = self.integers("rope.dimension_count")?.and_then(|value| value.as_u64()) else {
            return Ok(None);
        };
        let from_width = || self.size("hidden_size")?.checked_div(self.size("num_attention_heads")?);
        match self.size("head_dim").or_else(from_width) {
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
        // A factor without a type is linear scaling; with type 'none' it is meaningless.
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

    /// In GGUF the attention factor multiplies YaRN's own instead of replacing it, and `mscale` is assumed to be 1.
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

    /// Reads a short list stored as a tensor: the only tensor data read while opening a file.
    fn tensor(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.weights.find(name) else { return Ok(None) };
        if tensor.shape.iter().product::<usize>() > LIST_LEN_MAX {
            let shape = &tensor.shape;
            return Err(Error::corrupt(format!("tensor '{name}' has the shape {shape:?}, too large for RoPE factors")));
        }
        tensor.to_f32().map(Some)
    }
}
