//! A model's `options` in the configuration: the SDK's own, and those that an author adds.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{ops::Kernels, spec::KvType};
use crate::{
    Error, Result, Source,
    weights::{Checkpoint, Dtype, GgufFamily, TowerFile},
};

/// The SDK's options, with their values as shown to users.
const KNOWN: [(&str, &str); 5] = [
    ("kv", "f16, f32, q8, q4"),
    ("kernels", "auto, generic, exact"),
    ("n_cpu_moe", "a number of layers"),
    ("vision", "true, false"),
    ("mmproj", "a file with a GGUF model's vision tower"),
];

/// A model's options as the user has set them. Names that neither the SDK nor the author knows are an error, so that a
/// misspelled option does not go unnoticed.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// The name of a [`KvType`]; without it, `f32` for checkpoints in `f32` and `f16` for all others.
    kv: Option<String>,
    /// `auto`, `generic` or `exact`.
    kernels: Option<String>,
    /// Number of layers, counted from the first, whose experts stay in the host's memory and are computed there.
    pub(super) n_cpu_moe: usize,
    /// False leaves out the layers that read images and sounds.
    pub(super) vision: bool,
    /// Where the vision tower of a GGUF model is.
    mmproj: TowerFile,
    own: Map<String, Value>,
}

impl ModelOptions {
    /// Reads a source's options; `own` are the names that the author adds to the SDK's `kv`, `kernels`, `n_cpu_moe`,
    /// `vision` and `mmproj`.
    pub fn read(source: &Source, own: &[&str]) -> Result<Self> {
        let known = || {
            let known = KNOWN.iter().map(|(name, values)| format!("{name} ({values})"));
            known.chain(own.iter().map(|&name| name.to_owned())).collect::<Vec<_>>().join(", ")
        };
        let wrong = |what: String| {
            Error::invalid(format!("the model's options: {what}")).help(format!("known are {}", known()))
        };
        let text = if source.options.trim().is_empty() { "{}" } else { &source.options };
        let mut object: Map<String, Value> = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let is_known = |name: &str| own.contains(&name) || KNOWN.iter().any(|(known, _)| *known == name);
        if let Some(name) = object.keys().find(|name| !is_known(name)) {
            return Err(wrong(format!("unknown option '{name}'")));
        }
        let of_sdk = |name: &str| object.get(name).filter(|value| !value.is_null()).cloned();
        let (kv, kernels) = (of_sdk("kv"), of_sdk("kernels"));
        let (n_cpu_moe, vision, mmproj) = (of_sdk("n_cpu_moe"), of_sdk("vision"), of_sdk("mmproj"));
        object.retain(|name, _| own.contains(&name.as_str()));
        Ok(Self {
            kv: kv.map(|value| typed("kv", value)).transpose()?,
            kernels: kernels.map(|value| typed("kernels", value)).transpose()?,
            n_cpu_moe: n_cpu_moe.map(|value| typed("n_cpu_moe", value)).transpose()?.unwrap_or_default(),
            vision: vision.map(|value| typed("vision", value)).transpose()?.unwrap_or(true),
            mmproj: mmproj.map(|value| typed("mmproj", value)).transpose()?.unwrap_or_default(),
            own: object,
        })
    }

    /// The value of one of the author's options; `None` if it is not set. An error if it is of another type.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        self.own.get(name).filter(|value| !value.is_null()).map(|value| typed(name, value.clone())).transpose()
    }

    /// Opens a source's checkpoint, with a plugin's conventions for an architecture's GGUF files, and with the vision tower
    /// beside it unless the user does without: then its configuration is not read either, so that a tower that is damaged
    /// or not known does not keep the text model from running.
    pub fn open(&self, source: &Source, family: impl FnOnce(&str) -> GgufFamily) -> Result<Checkpoint> {
        let checkpoint = Checkpoint::open_with(&source.path, family)?;
        if self.vision { checkpoint.with_tower(&self.mmproj) } else { Ok(checkpoint.without_tower()) }
    }

    /// The type of cached keys and values.
    pub(super) fn kv_type(&self, checkpoint: &Checkpoint) -> Result<KvType> {
        let Some(kv) = self.kv.as_deref() else {
            let mut matrices = checkpoint.weights().iter().filter(|tensor| tensor.shape.len() == 2);
            return Ok(if matrices.all(|tensor| tensor.dtype == Dtype::F32) { KvType::F32 } else { KvType::F16 });
        };
        let named = KvType::NAMED.iter().find(|(name, _)| *name == kv);
        named.map(|(_, kind)| *kind).ok_or_else(|| {
            let names = KvType::NAMED.map(|(name, _)| name).join(", ");
            Error::invalid(format!("option kv is '{kv}'")).help(format!("it is one of {names}"))
        })
    }

    pub(super) fn kernels(&self) -> Result<Kernels> {
        Kernels::choose(self.kernels.as_deref())
    }
}

fn typed<T: DeserializeOwned>(name: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|error| Error::invalid(format!("option {name}: {error}")))
}
