//! Rotary position embeddings (RoPE) as a checkpoint configures them.
//!
//! There are three generations of spelling: `rope_theta` with `rope_scaling` (whose type is `type` or `rope_type`), and
//! `rope_parameters` with everything in it, possibly once per layer type. They are normalized to the last form and read
//! from there. Defaults follow transformers' `modeling_rope_utils.py`, and everything that can be computed from the
//! configuration alone, such as attention factors, is computed here, once.

use serde_json::{Map, Value, json};

use crate::{Error, Result, quote};

/// A longer context is considered a mistake.
pub(super) const CONTEXT_MAX: f64 = (1u32 << 30) as f64;
const THETA_DEFAULT: f64 = 10_000.0;
const PAIRS_MAX: usize = 512;

/// The settings of rotary position embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base of the wavelengths.
    pub theta: f64,
    /// Fraction of each head that is rotated, from its start.
    pub partial_rotary_factor: f64,
    pub style: RopeStyle,
    pub scaling: RopeScaling,
}

/// Which values of a head are rotated in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Value `i` with `i + rotary_dim / 2`: Hugging Face's order.
    NeoX,
    /// Value `2i` with `2i + 1`: GGUF files of Llama and its relatives, whose query and key rows were reordered for it.
    Interleaved,
}

/// Frequency scaling for contexts longer than in training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Every frequency is divided by the factor.
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_context: usize,
    },
    /// `attention_factor` multiplies sines and cosines.
    Yarn {
        factor: f64,
        original_context: usize,
        beta_fast: f64,
        beta_slow: f64,
        attention_factor: f64,
        truncate: bool,
    },
    /// Each pair's frequency is divided by its entry in `short` up to the original context, and in `long` beyond it.
    LongRope {
        short: Vec<f32>,
        long: Vec<f32>,
        original_context: usize,
        short_attention_factor: f64,
        long_attention_factor: f64,
    },
    /// Part of each half of a head is rotated, and frequencies are spread over the whole head (Gemma 4).
    Proportional {
        factor: f64,
    },
    /// Each pair's frequency is divided by its entry; GGUF files carry this instead of Llama 3's parameters.
    Divisors(Vec<f32>),
}

impl RopeConfig {
    /// Number of rotated values in a head: even, and with one entry per pair in every list of the scaling.
    pub fn rotary_dim(&self, head_dim: usize) -> Result<usize> {
        // The product with a rounded quotient may fall just below the intended integer.
        let is_whole = matches!(self.scaling, RopeScaling::Proportional { .. });
        let part = if is_whole { 1.0 } else { self.partial_rotary_factor };
        let dim = (head_dim as f64 * part + 1e-9) as usize;
        if dim == 0 || dim % 2 == 1 || dim > head_dim {
            return Err(Error::corrupt(format!(
                "the configuration rotates {dim} of the {head_dim} values of a head, not an even number of them"
            )));
        }
        let lists = match &self.scaling {
            RopeScaling::LongRope { short, long, .. } => vec![short, long],
            RopeScaling::Divisors(divisors) => vec![divisors],
            _ => vec![],
        };
        match lists.iter().find(|list| list.len() != dim / 2) {
            None => Ok(dim),
            Some(list) => Err(Error::corrupt(format!(
                "the configuration scales {} pairs of values per head, and {} are rotated",
                list.len(),
                dim / 2
            ))),
        }
    }

    /// Reads normalized parameters.
    pub(super) fn read(config: &Value, layer_type: Option<&str>) -> Result<Self> {
        let parameters = Parameters::select(config, layer_type)?;
        Ok(Self {
            theta: parameters.number("rope_theta", 1.0, 1e15)?.unwrap_or(THETA_DEFAULT),
            partial_rotary_factor: parameters.number("partial_rotary_factor", 1e-6, 1.0)?.unwrap_or(1.0),
            style: match parameters.object.get("interleaved") {
                Some(Value::Bool(true)) => RopeStyle::Interleaved,
                _ => RopeStyle::NeoX,
            },
            scaling: parameters.scaling()?,
        })
    }
}

/// Converts every spelling to `rope_parameters`.
pub(super) fn normalise(config: &mut Map<String, Value>) -> Result<()> {
    let given = ["rope_scaling", "rope_parameters"].into_iter().find_map(|key| {
        let value = config.get(key)?;
        let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
        (!is_empty).then_some((key, value))
    });
    let mut parameters = match given {
        None => Map::new(),
        Some((_, Value::Object(parameters))) => parameters.clone(),
        Some((key, value)) => return Err(is_not(key, value, "an object")),
    };
    let labels = nested_labels(config, &parameters);
    if labels.is_empty() {
        complete(config, &mut parameters);
    }
    for label in labels {
        if let Some(Value::Object(nested)) = parameters.get_mut(&label) {
            complete(config, nested);
        }
    }
    config.insert("rope_parameters".to_owned(), Value::Object(parameters));
    Ok(())
}

/// Moves the parameters to the top level, under the names from before `rope_parameters`. If layer types have separate
/// parameters, those of full attention get the plain names and those with a window get Gemma 3's.
pub(super) fn spread(config: &mut Map<String, Value>) {
    let Some(Value::Object(parameters)) = config.remove("rope_parameters") else { return };
    let labels = nested_labels(config, &parameters);
    let nested = |label: &str| parameters.get(label).and_then(Value::as_object).filter(|_| !labels.is_empty());
    if let Some(theta) = nested("sliding_attention").and_then(|sliding| sliding.get("rope_theta")) {
        config.insert("rope_local_base_freq".to_owned(), theta.clone());
    }
    let plain = nested("full_attention").unwrap_or(&parameters);
    for key in ["rope_theta", "partial_rotary_factor"] {
        if let Some(value) = plain.get(key) {
            config.insert(key.to_owned(), value.clone());
        }
    }
    let is_scaled = plain.get("rope_type").is_some_and(|kind| *kind != "default");
    config.insert("rope_scaling".to_owned(), if is_scaled { Value::Object(plain.clone()) } else { Value::Null });
}

/// Layer types with separate parameters.
fn nested_labels(config: &Map<String, Value>, parameters: &Map<String, Value>) -> Vec<String> {
    let Some(Value::Array(types)) = config.get("layer_types") else { return vec![] };
    let is_nested =
        |(key, value): &(&String, &Value)| value.is_object() && types.iter().any(|name| name == key.as_str());
    parameters.iter().filter(is_nested).map(|(key, _)| key.clone()).collect()
}

/// Adds parameters from the top level, and defaults.
fn complete(config: &Map<String, Value>, parameters: &mut Map<String, Value>) {
    for key in ["rope_theta", "partial_rotary_factor"] {
        if let Some(value) = config.get(key).filter(|value| !value.is_null()) {
            parameters.entry(key).or_insert_with(|| value.clone());
        }
    }
    let named = parameters.get("rope_type").or(parameters.get("type")).cloned().unwrap_or_else(|| json!("default"));
    // Early Phi-3 files call longrope 'su' or 'yarn'; only longrope has these lists.
    let has_lists = parameters.contains_key("short_factor") && parameters.contains_key("long_factor");
    let is_longrope = named == "su" || (named == "yarn" && has_lists);
    let rope_type = if is_longrope { json!("longrope") } else { named };
    if ["llama3", "yarn", "longrope"].iter().any(|scaled| rope_type == *scaled) {
        let beside = config.get("original_max_position_embeddings").filter(|value| !value.is_null());
        let within = parameters.get("original_max_position_embeddings").filter(|value| !value.is_null());
        if let Some(original) = beside.or(within).or(config.get("max_position_embeddings")).cloned() {
            parameters.insert("original_max_position_embeddings".to_owned(), original);
        }
        if let Some(context) = config.get("max_position_embeddings").cloned() {
            parameters.insert("max_position_embeddings".to_owned(), context);
        }
    }
    parameters.insert("rope_type".to_owned(), rope_type);
}

/// The parameters of one layer type.
struct Parameters<'a> {
    object: &'a Map<String, Value>,
}

impl<'a> Parameters<'a> {
    fn select(config: &'a Value, layer_type: Option<&str>) -> Result<Self> {
        let Some(Value::Object(object)) = config.get("rope_parameters") else {
            return Err(Error::not_found("the configuration has no 'rope_parameters'"));
        };
        let labels = config.as_object().map(|config| nested_labels(config, object)).unwrap_or_default();
        let nested = layer_type.filter(|label| labels.iter().any(|known| known == label));
        let nested = nested.and_then(|label| object.get(label)).and_then(Value::as_object);
        if labels.is_empty() || nested.is_some() {
            return Ok(Self { object: nested.unwrap_or(object) });
        }
        Err(Error::unsupported(format!(
            "the configuration rotates positions differently by layer type ({}), and not for {}",
            labels.join(", "),
            layer_type.map_or_else(|| "all layers alike".to_owned(), super::quote)
        )))
    }

    fn scaling(&self) -> Result<RopeScaling> {
        let rope_type = self.object.get("rope_type").and_then(Value::as_str);
        match rope_type.ok_or_else(|| self.is_not("rope_type", "a string"))? {
            // "mrope" has sections for time, height and width, which coincide for text; "dynamic" starts to stretch
            // beyond the configured context, and no model is loaded with a longer one.
            "default" | "none" | "mrope" | "dynamic" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: self.factor()? }),
            "proportional" => {
                Ok(RopeScaling::Proportional { factor: self.number("factor", 1e-6, 1e6)?.unwrap_or(1.0) })
            }
            "llama3" => self.llama3(),
            "yarn" => self.yarn(),
            "longrope" => self.longrope(),
            "divisors" => Ok(RopeScaling::Divisors(self.list("divisors")?)),
            other => {
                Err(Error::unsupported(format!("the configuration's RoPE type {} is not supported", quote(other)))
                    .help("supported are default, linear, dynamic, llama3, yarn, longrope and proportional"))
            }
        }
    }

    fn llama3(&self) -> Result<RopeScaling> {
        let low_freq_factor = self.required("low_freq_factor", 1e-6, 1e6)?;
        let high_freq_factor = self.required("high_freq_factor", 1e-6, 1e6)?;
        if high_freq_factor <= low_freq_factor {
            return Err(self.is_not("high_freq_factor", &format!("more than 'low_freq_factor', {low_freq_factor}")));
        }
        let (factor, original_context) = (self.factor()?, self.original_context()?);
        Ok(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context })
    }

    fn yarn(&self) -> Result<RopeScaling> {
        let original_context = self.original_context()?;
        let factor = self.stretch(original_context)?;
        // As in the reference, zero means absent for these four.
        let given = |key: &str| Ok::<_, Error>(self.number(key, 0.0, 1e6)?.filter(|number| *number != 0.0));
        let default = match (given("mscale")?, given("mscale_all_dim")?) {
            (Some(scale), Some(all)) => magnitude(factor, scale) / magnitude(factor, all),
            _ => magnitude(factor, 1.0),
        };
        let truncate = match self.object.get("truncate") {
            None | Some(Value::Null) => true,
            Some(Value::Bool(truncate)) => *truncate,
            Some(_) => return Err(self.is_not("truncate", "true or false")),
        };
        Ok(RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast: given("beta_fast")?.unwrap_or(32.0),
            beta_slow: given("beta_slow")?.unwrap_or(1.0),
            attention_factor: self.number("attention_factor", 0.0, 1e6)?.unwrap_or(default),
            truncate,
        })
    }

    fn longrope(&self) -> Result<RopeScaling> {
        let original_context = self.original_context()?;
        let factor = self.stretch(original_context)?;
        let default = if factor <= 1.0 || original_context < 2 {
            1.0
        } else {
            (1.0 + factor.ln() / (original_context as f64).ln()).sqrt()
        };
        let attention_factor = self.number("attention_factor", 0.0, 1e6)?.unwrap_or(default);
        Ok(RopeScaling::LongRope {
            short: self.list("short_factor")?,
            long: self.list("long_factor")?,
            original_context,
            short_attention_factor: self.number("short_mscale", 0.0, 1e6)?.unwrap_or(attention_factor),
            long_attention_factor: self.number("long_mscale", 0.0, 1e6)?.unwrap_or(attention_factor),
        })
    }

    fn factor(&self) -> Result<f64> {
        self.required("factor", 1e-6, 1e6)
    }

    fn original_context(&self) -> Result<usize> {
        Ok(self.required("original_max_position_embeddings", 1.0, CONTEXT_MAX)? as usize)
    }

    /// The factor; by default the ratio of the context to the original one.
    fn stretch(&self, original_context: usize) -> Result<f64> {
        match self.number("factor", 1e-6, 1e6)? {
            Some(factor) => Ok(factor),
            None => Ok(self.required("max_position_embeddings", 1.0, CONTEXT_MAX)? / original_context as f64),
        }
    }

    fn required(&self, key: &str, min: f64, max: f64) -> Result<f64> {
        self.number(key, min, max)?.ok_or_else(|| {
            Error::corrupt(format!("the configuration has no 'rope_parameters.{key}', which its RoPE type needs"))
        })
    }

    fn number(&self, key: &str, min: f64, max: f64) -> Result<Option<f64>> {
        let Some(value) = self.object.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let number = value.as_f64().filter(|number| (min..=max).contains(number));
        number.map(Some).ok_or_else(|| self.is_not(key, &format!("a number from {min} to {max}")))
    }

    fn list(&self, key: &str) -> Result<Vec<f32>> {
        let number = |value: &Value| {
            value.as_f64().map(|number| number as f32).filter(|number| number.is_normal() && *number > 0.0)
        };
        let items =
            self.object.get(key).and_then(Value::as_array).filter(|items| (1..=PAIRS_MAX).contains(&items.len()));
        let list = items.and_then(|items| items.iter().map(number).collect());
        list.ok_or_else(|| self.is_not(key, &format!("a list of 1 to {PAIRS_MAX} positive numbers")))
    }

    fn is_not(&self, key: &str, what: &str) -> Error {
        is_not(&format!("rope_parameters.{key}"), self.object.get(key).unwrap_or(&Value::Null), what)
    }
}

/// YaRN's attention factor (`mscale`) for a scaling factor.
pub(super) fn magnitude(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

/// The error for a key whose value has the wrong type.
pub(super) fn is_not(key: &str, value: &Value, what: &str) -> Error {
    let found = match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => quote(text),
        plain => plain.to_string(),
    };
    Error::corrupt(format!("the configuration's '{key}' is {found}, not {what}"))
}
