//! Plugin manifests as plain data.
//!
//! A worker or an inspecting child copies the manifest out of the plugin's memory; the server routes by it without mapping the
//! library. The server prints its strings and uses ids in paths and metrics, so they are restricted: names are short and use
//! few characters, texts have no control characters, lists are bounded. Both sides check this: the child for good error
//! messages, the server because plugin code may have forged the child's answer.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::HashSet;

use crate::outside::Outside;

const NAME_LEN_MAX: usize = 64;
const TEXT_LEN_MAX: usize = 512;
const DESCRIPTION_LEN_MAX: usize = 8 << 10;
const PROVIDERS_MAX: usize = 256;
const CLAIMS_MAX: usize = 256;

/// A plugin's identity and providers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Short and unique among installed plugins: `llama`.
    pub id: String,
    pub version: String,
    /// One line of text.
    pub description: String,
    /// The compiler that built it.
    pub toolchain: String,
    /// The SDK it was built with; empty for none.
    pub sdk: String,
    /// Architectures with the checkpoints that they claim.
    pub architectures: Vec<Claim>,
    pub samplers: Vec<String>,
    /// JSON objects that describe the samplers, in their order; empty texts for those without a description, and an empty
    /// list if none has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sampler_descriptions: Vec<String>,
    pub adapter_formats: Vec<String>,
    /// The contract that the library was built with, such as `1.0`; a package has it in a place of its own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub contract: String,
    /// Ids of the contract's extensions that the plugin as a whole offers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<String>,
}

/// An architecture and the checkpoints that it claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub architecture: String,
    /// Values of a GGUF file's `general.architecture`.
    pub gguf: Vec<String>,
    /// Values in the `architectures` of a `config.json`.
    pub classes: Vec<String>,
}

impl Manifest {
    /// Checks all restrictions; the error names the first string that breaks one.
    pub fn check(&self) -> Result<(), String> {
        if !is_name(&self.id, b"-") {
            let id = quoted(&self.id);
            return Err(format!("its id is {id}, not 1 to {NAME_LEN_MAX} of the characters a-z, 0-9 and '-'"));
        }
        text("version", &self.version, NAME_LEN_MAX)?;
        text("description", &self.description, TEXT_LEN_MAX)?;
        text("toolchain", &self.toolchain, TEXT_LEN_MAX)?;
        text("sdk", &self.sdk, TEXT_LEN_MAX)?;
        text("contract", &self.contract, NAME_LEN_MAX)?;
        if self.extensions.len() > PROVIDERS_MAX {
            return Err(format!("it offers {} extensions, more than {PROVIDERS_MAX}", self.extensions.len()));
        }
        self.extensions.iter().try_for_each(|extension| text("extension", extension, TEXT_LEN_MAX))?;
        names("architecture", self.architectures.iter().map(|claim| &claim.architecture))?;
        for claim in &self.architectures {
            values(&claim.architecture, "GGUF names", &claim.gguf)?;
            values(&claim.architecture, "class names", &claim.classes)?;
        }
        names("sampler", self.samplers.iter())?;
        self.check_descriptions()?;
        names("adapter format", self.adapter_formats.iter())
    }
}

impl Manifest {
    fn check_descriptions(&self) -> Result<(), String> {
        if ![0, self.samplers.len()].contains(&self.sampler_descriptions.len()) {
            let (described, samplers) = (self.sampler_descriptions.len(), self.samplers.len());
            return Err(format!("it describes {described} samplers and lists {samplers}"));
        }
        for (name, text) in self.samplers.iter().zip(&self.sampler_descriptions).filter(|(_, text)| !text.is_empty()) {
            let name = quoted(name);
            let described = if text.len() <= DESCRIPTION_LEN_MAX { serde_json::from_str(text).ok() } else { None };
            let Some(Value::Object(described)) = described else {
                return Err(format!(
                    "the description of sampler {name} is not a JSON object of at most {DESCRIPTION_LEN_MAX} bytes"
                ));
            };
            description(&described).map_err(|wrong| format!("in the description of sampler {name}, {wrong}"))?;
        }
        Ok(())
    }
}

/// Checks what an interface reads of a sampler's description. Other members are ignored, as are parameters of types that
/// do not exist yet.
fn description(described: &Map<String, Value>) -> Result<(), String> {
    let is_absent_or = |value: Option<&Value>, is: fn(&Value) -> bool| value.is_none_or(is);
    if !is_absent_or(described.get("text"), Value::is_string) {
        return Err("'text' is not a text".to_owned());
    }
    if !is_absent_or(described.get("picks"), Value::is_boolean) {
        return Err("'picks' is neither true nor false".to_owned());
    }
    let parameters = match described.get("parameters") {
        None => return Ok(()),
        Some(Value::Array(parameters)) => parameters,
        Some(_) => return Err("'parameters' is not a list".to_owned()),
    };
    for (place, parameter) in parameters.iter().enumerate() {
        let texts = ["name", "type"].map(|member| parameter.get(member).and_then(Value::as_str));
        let [Some(name), Some(kind)] = texts else {
            return Err(format!("parameter {place} is not an object with the texts 'name' and 'type'"));
        };
        let name = quoted(name);
        if !is_absent_or(parameter.get("text"), Value::is_string) {
            return Err(format!("the 'text' of parameter {name} is not a text"));
        }
        let numbers: &[&str] = match kind {
            "number" | "integer" => &["minimum", "maximum", "default"],
            "biases" => &["minimum", "maximum"],
            _ => &[],
        };
        if let Some(wrong) = numbers.iter().find(|member| !is_absent_or(parameter.get(**member), Value::is_number)) {
            return Err(format!("the '{wrong}' of parameter {name} is not a number"));
        }
    }
    Ok(())
}

/// Checks provider names, which must be unique per kind, as requests and configurations use them.
fn names<'a>(kind: &str, names: impl ExactSizeIterator<Item = &'a String>) -> Result<(), String> {
    if names.len() > PROVIDERS_MAX {
        return Err(format!("it lists {} {kind}s, more than {PROVIDERS_MAX}", names.len()));
    }
    let mut seen = HashSet::new();
    for name in names {
        if !is_name(name, b"-_.") {
            let name = quoted(name);
            return Err(format!(
                "{kind} {name} does not have a name of 1 to {NAME_LEN_MAX} of the characters a-z, 0-9, '-', '_' and '.'"
            ));
        }
        if !seen.insert(name) {
            return Err(format!("{kind} '{name}' is listed twice"));
        }
    }
    Ok(())
}

/// Checks an architecture's claims, which the host only compares and prints.
fn values(architecture: &str, what: &str, values: &[String]) -> Result<(), String> {
    if values.len() > CLAIMS_MAX {
        return Err(format!("architecture '{architecture}' claims {} {what}, more than {CLAIMS_MAX}", values.len()));
    }
    for value in values {
        if value.is_empty() {
            return Err(format!("architecture '{architecture}' has an empty value among its {what}"));
        }
        text(what, value, TEXT_LEN_MAX)?;
    }
    Ok(())
}

fn text(what: &str, text: &str, len_max: usize) -> Result<(), String> {
    if text.len() > len_max {
        return Err(format!("its {what} has {} bytes, more than {len_max}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("its {what} {} has a control character", quoted(text)));
    }
    Ok(())
}

fn is_name(name: &str, besides: &[u8]) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || besides.contains(&byte);
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(legal)
}

fn quoted(text: &str) -> String {
    format!("'{}'", Outside::new(text).at_most(NAME_LEN_MAX))
}
