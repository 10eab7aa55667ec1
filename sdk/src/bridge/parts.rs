//! Inputs for loading a wrapped model: the configuration as candle's own struct, tensors by name, or a whole GGUF file
//! for models that parse such files themselves.
//!
//! The SDK opens, maps and validates files as for any other model, before candle gets them.

use candle_core::{
    DType, Device, Shape, Tensor,
    quantized::gguf_file::{Content, Value as GgufValue},
};
use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::{
    collections::{HashMap, HashSet},
    io::Cursor,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::GgufReader;
use crate::{
    Error, Result, Services,
    nn::{dequantize, unused},
    weights::{Checkpoint, Weights},
};

/// Names that candle asks for, paired with the checkpoint's names for the same tensors.
type Renamed = &'static [(&'static str, &'static str)];

/// A checkpoint being loaded.
pub struct Parts<'a> {
    checkpoint: &'a Checkpoint,
    device: &'a Device,
    context: usize,
    services: &'a Services,
    log: Arc<Mutex<Log>>,
}

/// The tensors given to candle so far.
#[derive(Default)]
struct Log {
    used: HashSet<String>,
    bytes: u64,
}

impl Log {
    /// Adds a tensor, and returns the total of bytes so far.
    fn add(&mut self, name: &str, bytes: usize) -> u64 {
        if self.used.insert(name.to_owned()) {
            self.bytes += bytes as u64;
        }
        self.bytes
    }
}

impl<'a> Parts<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, device: &'a Device, context: usize, services: &'a Services) -> Self {
        Self { checkpoint, device, context, services, log: Arc::default() }
    }

    /// The opened checkpoint, for metadata that is not in the configuration.
    pub fn checkpoint(&self) -> &Checkpoint {
        self.checkpoint
    }

    /// The device to load tensors on.
    pub fn device(&self) -> &Device {
        self.device
    }

    /// The context that the model is loaded with, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Returns the configuration as candle's own struct. `defaults` apply to keys that the checkpoint leaves out;
    /// `fixed` values override it. RoPE parameters are under transformers 4's names, head sizes are filled in, and the
    /// maximum position is the loaded context.
    pub fn config<T: DeserializeOwned>(&self, defaults: Value, fixed: Value) -> Result<T> {
        let config = self.checkpoint.config();
        let mut object = config.classic();
        if let (Ok(width), Ok(heads)) = (config.usize("hidden_size"), config.usize("num_attention_heads")) {
            object.entry("num_key_value_heads").or_insert_with(|| heads.into());
            object.entry("head_dim").or_insert_with(|| (width / heads).into());
        }
        for (key, value) in entries(defaults) {
            object.entry(key).or_insert(value);
        }
        object.extend(entries(fixed));
        object.insert("max_position_embeddings".to_owned(), self.context.into());
        T::deserialize(Value::Object(object))
            .map_err(|error| Error::corrupt(format!("the configuration does not fit: {error}")))
    }

    /// Returns the tensors under Hugging Face's names, in `f32`: in half precision, many of candle's models lose
    /// positions. `renamed` pairs names that candle asks for with the checkpoint's.
    pub fn tensors(&self, renamed: Renamed) -> VarBuilder<'static> {
        let source = TensorSource {
            weights: self.checkpoint.weights().clone(),
            renamed,
            services: self.services.clone(),
            log: Arc::clone(&self.log),
            given: Mutex::default(),
        };
        VarBuilder::from_backend(Box::new(source), DType::F32, self.device.clone())
    }

    /// Returns a GGUF file for a model that parses it, with the context set to the loaded one.
    pub fn gguf(&self) -> Result<(Content, GgufReader)> {
        let path = self.checkpoint.path().display();
        let file = match self.checkpoint.gguf() {
            [file] => file,
            [] => return Err(Error::invalid(format!("{path}: is no GGUF file, so it cannot be read as one"))),
            parts => {
                let message = format!("{path}: is split into {} files, and this model reads one", parts.len());
                return Err(Error::unsupported(message).help("merge the parts with gguf-split"));
            }
        };
        let mut content = Content::read(&mut Cursor::new(file))?;
        let key = format!("{}.context_length", self.checkpoint.architecture());
        content.metadata.insert(key, GgufValue::U32(u32::try_from(self.context).unwrap_or(u32::MAX)));
        let total = self.checkpoint.weights().bytes();
        let reader = GgufReader::new(file.clone(), &content, total, self.services.clone());
        Ok((content, reader))
    }

    /// Lists tensors that were never requested, if the model was loaded tensor by tensor.
    pub(super) fn unused(&self) -> Option<String> {
        let log = lock(&self.log);
        if log.used.is_empty() { None } else { unused(self.checkpoint.weights(), &log.used) }
    }
}

fn entries(object: Value) -> Map<String, Value> {
    if let Value::Object(entries) = object { entries } else { Map::new() }
}

/// A checkpoint as a tensor source for candle. A tensor requested again is returned without a copy.
struct TensorSource {
    weights: Weights,
    renamed: Renamed,
    services: Services,
    log: Arc<Mutex<Log>>,
    given: Mutex<HashMap<String, Tensor>>,
}

impl TensorSource {
    fn name<'a>(&self, name: &'a str) -> &'a str {
        let instead = self.renamed.iter().find(|(asked, _)| *asked == name).map(|(_, has)| *has);
        instead.filter(|_| !self.weights.contains(name)).unwrap_or(name)
    }

    fn load(&self, name: &str, shape: Option<&[usize]>, device: &Device) -> Result<Tensor> {
        let name = self.name(name);
        let raw = self.weights.get(name)?;
        let raw = if let Some(shape) = shape { raw.expect_shape(shape)? } else { raw };
        if let Some(tensor) = lock(&self.given).get(name) {
            return Ok(tensor.clone());
        }
        self.services.go_on()?;
        let tensor = Tensor::from_vec(dequantize(&raw)?, raw.shape.as_slice(), device)?;
        lock(&self.given).insert(name.to_owned(), tensor.clone());
        let done = lock(&self.log).add(name, raw.data.len());
        // The host's code runs here, so no lock may be held.
        self.services.progress(done, self.weights.bytes(), name);
        Ok(tensor)
    }

    fn give(&self, name: &str, shape: Option<&[usize]>, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        self.load(name, shape, device)?.to_dtype(dtype)
    }
}

impl SimpleBackend for TensorSource {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        self.give(name, Some(shape.dims()), dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        self.give(name, None, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.weights.contains(self.name(name))
    }
}

/// Ignores poisoning: no update can be left half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
