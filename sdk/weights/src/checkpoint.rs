//! A model on disk as a plugin sees it: its architecture, its configuration, and its tensors.
//!
//! This is the only place that knows both formats. Opening reads only headers and small files, so that a model can be
//! described, or declined, without paying for its weights.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    Bytes, Config, DenseLayer, GgufFamily, RawTensor, Tokenizer, Weights, dense, gguf, gguf_config::PROCESSOR, json,
    names, packed, quote, safetensors, tensors,
};
use crate::{Error, Result};

const ARCHITECTURE_BYTES_MAX: usize = 128;
const PROCESSOR_BYTES_MAX: u64 = 1 << 20;

/// The format of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Gguf,
    Safetensors,
}

/// An opened checkpoint. Its header has been validated; its tensors are mapped.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    format: Format,
    architecture: String,
    config: Config,
    weights: Weights,
    metadata: Option<gguf::Metadata>,
    dense: Vec<DenseLayer>,
    family: GgufFamily,
    /// Header and size of each file.
    files: Vec<(Bytes, usize)>,
    /// Files of a GGUF model, the one with the metadata first.
    gguf: Vec<Bytes>,
}

impl Checkpoint {
    /// Opens a GGUF file, or a folder with `config.json` and safetensors. Its files must not be changed in place while
    /// the checkpoint or one of its tensors is in use.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, GgufFamily::of)
    }

    /// Like [`Checkpoint::open`], with a plugin's conventions for an architecture's GGUF files.
    pub fn open_with(path: &Path, family: impl FnOnce(&str) -> GgufFamily) -> Result<Self> {
        let kind = std::fs::metadata(path).map_err(|error| Error::from(error).context(path.display()))?;
        if kind.is_dir() {
            return Self::open_folder(path);
        }
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if extension == "safetensors" {
            return Err(Error::invalid(format!("{}: is a part of a checkpoint", path.display()))
                .help("give the folder, which also has config.json and the tokenizer"));
        }
        let parts = gguf::open(path)?;
        Self::from_gguf(path, parts, family).map_err(|error| error.context(path.display()))
    }

    /// The path that was opened: a file for GGUF, a folder for safetensors.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// The name by which plugins claim it: GGUF's `general.architecture` (`llama`), or the class in `config.json`
    /// (`LlamaForCausalLM`).
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The metadata of a GGUF file.
    pub fn metadata(&self) -> Option<&gguf::Metadata> {
        self.metadata.as_ref()
    }

    /// The dense layers that follow pooling, in order.
    pub fn dense(&self) -> &[DenseLayer] {
        &self.dense
    }

    /// The complete files of a GGUF model, the one with the metadata first; empty for a folder.
    pub fn gguf(&self) -> &[Bytes] {
        &self.gguf
    }

    /// The settings of the image processor: of `preprocessor_config.json`, or in newer folders of `processor_config.json`.
    /// Without a file there are none, and all have their defaults.
    pub fn processor(&self) -> Result<Config> {
        if self.format == Format::Gguf {
            let vision = self.config.vision()?;
            let settings = vision.as_ref().and_then(|vision| vision.value().get(PROCESSOR));
            return settings.map_or_else(|| Ok(Config::of([])), |settings| Config::part(PROCESSOR, settings));
        }
        let read = |file: &str| -> Result<Option<Value>> {
            let path = self.path.join(file);
            let file = if path.exists() { Some(json::object(&path, PROCESSOR_BYTES_MAX)?) } else { None };
            Ok(file.map(Value::Object))
        };
        let settings = match read("preprocessor_config.json")? {
            Some(settings) => Some(settings),
            None => read("processor_config.json")?.and_then(|file| file.get("image_processor").cloned()),
        };
        let Some(settings) = settings else { return Ok(Config::of([])) };
        Config::part("image_processor", &settings).map_err(|error| error.context(self.path.display()))
    }

    pub(super) fn family(&self) -> &GgufFamily {
        &self.family
    }

    /// Adds a tower from another file.
    pub(super) fn add(&mut self, vision: Value, weights: Weights, files: Vec<(Bytes, usize)>) -> Result<()> {
        self.config = self.config.with_defaults([("vision_config", vision)])?;
        self.files.extend(files);
        self.weights.add(weights)
    }

    /// Forgets the tower's configuration, which is then neither read nor checked.
    #[must_use]
    pub fn without_tower(mut self) -> Self {
        self.config.remove("vision_config");
        self
    }

    /// Reads the tokenizer: a folder's own, or the one that a GGUF file's metadata describes.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match &self.metadata {
            Some(metadata) => Tokenizer::from_gguf(&self.path, metadata, &self.family)
                .map_err(|error| error.context(self.path.display())),
            None => Tokenizer::from_folder(&self.path),
        }
    }

    /// Returns the cache key of this checkpoint in hexadecimal. It hashes headers, sizes, configuration and tokenizer,
    /// small tensors whole and large ones in samples, as fine-tunes of one model differ in nothing else. Reads a few
    /// megabytes whatever the model's size; editing single values of a large tensor in place goes unnoticed, and the
    /// caches then have to be cleared by hand.
    pub fn fingerprint(&self, tokenizer: &Tokenizer) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(b"pensieve checkpoint 1");
        for (header, file_len) in &self.files {
            hash.update((header.len() as u64).to_le_bytes());
            hash.update(&**header);
            hash.update((*file_len as u64).to_le_bytes());
        }
        hash.update(self.config.value().to_string());
        hash.update(&tokenizer.json);
        for tensor in self.weights.iter() {
            sample(tensor, &mut hash);
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn open_folder(folder: &Path) -> Result<Self> {
        let config = Config::read(folder)?;
        let shards = safetensors::open(folder)?;
        let files = shards.iter().map(|shard| (shard.header.clone(), shard.file_len)).collect();
        let stored = shards.into_iter().flat_map(|shard| shard.tensors).collect();
        let mut entries = packed::entries(config.value(), stored).map_err(|error| error.context(folder.display()))?;
        let (dense, tensors) = dense::of_folder(folder)?;
        entries.extend(tensors);
        let weights = Weights::new(entries).map_err(|error| error.context(folder.display()))?;
        let class = config.value().pointer("/architectures/0").or(config.value().get("model_type"));
        let architecture = class.and_then(|class| class.as_str()).ok_or_else(|| {
            let config = folder.join("config.json");
            Error::corrupt(format!("{}: names no class in 'architectures'", config.display()))
        })?;
        let architecture = check_architecture(architecture).map_err(|error| error.context(folder.display()))?;
        let path = folder.to_path_buf();
        Ok(Self {
            path,
            format: Format::Safetensors,
            architecture,
            config,
            weights,
            metadata: None,
            dense,
            family: GgufFamily::USUAL,
            files,
            gguf: Vec::new(),
        })
    }

    pub(super) fn from_gguf(
        path: &Path,
        mut parts: Vec<gguf::Gguf>,
        family: impl FnOnce(&str) -> GgufFamily,
    ) -> Result<Self> {
        let files = parts.iter().map(|part| (part.header.clone(), part.file.len())).collect();
        let gguf = parts.iter().map(|part| part.file.clone()).collect();
        let entries = tensors::of_parts(&mut parts);
        let metadata = parts.into_iter().next().map(|first| first.metadata).unwrap_or_default();
        let key = "general.architecture";
        let architecture = metadata.string(key)?.ok_or_else(|| metadata.missing(key))?;
        let architecture = check_architecture(architecture)?;
        let family = family(&architecture);
        let renamed = entries.into_iter().map(|entry| entry.rename(|name| names::hugging_face(name, family.names)));
        let weights = Weights::new(renamed)?;
        let config = Config::from_gguf(&architecture, &family, &metadata, &weights)?;
        let dense = dense::of_weights(&weights);
        let path = path.to_path_buf();
        let format = Format::Gguf;
        let metadata = Some(metadata);
        Ok(Self { path, format, architecture, config, weights, metadata, dense, family, files, gguf })
    }
}

/// Validates a name that ends up in messages and keys.
fn check_architecture(name: &str) -> Result<String> {
    if name.is_empty() || name.len() > ARCHITECTURE_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Error::corrupt(format!("the architecture {} is not a name", quote(name))));
    }
    Ok(name.to_owned())
}

/// Hashes a small tensor, or evenly spaced pieces of a large one.
fn sample(tensor: &RawTensor, hash: &mut Sha256) {
    const WHOLE_BYTES: usize = 1 << 16;
    const PIECES: usize = 16;
    const PIECE_BYTES: usize = 512;
    if tensor.data.len() <= WHOLE_BYTES {
        return hash.update(&*tensor.data);
    }
    let step = (tensor.data.len() / PIECES).max(PIECE_BYTES);
    for piece in tensor.data.chunks(step).take(PIECES + 1) {
        hash.update(piece.get(..PIECE_BYTES).unwrap_or(piece));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Code,
        fixture::{Gguf, f32_safetensors, folder},
    };

    const CONFIG: &[u8] = br#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 2}"#;

    fn weights(value: f32) -> Vec<u8> {
        f32_safetensors(&[("model.norm.weight", &[2], &[1.0, value])])
    }

    fn gguf(value: f32) -> Vec<u8> {
        Gguf::new("llama").f32_tensor("output_norm.weight", &[2], &[1.0, value]).bytes()
    }

    #[test]
    fn both_formats_read_alike() {
        let folder = folder(&[("config.json", CONFIG), ("model.safetensors", &weights(2.0)), ("x.gguf", &gguf(2.0))]);
        let safetensors = Checkpoint::open(folder.path()).unwrap();
        let gguf = Checkpoint::open(&folder.path().join("x.gguf")).unwrap();
        assert_eq!((safetensors.format(), safetensors.architecture()), (Format::Safetensors, "LlamaForCausalLM"));
        assert_eq!((gguf.format(), gguf.architecture()), (Format::Gguf, "llama"));
        for checkpoint in [&safetensors, &gguf] {
            let norm = checkpoint.weights().get("model.norm.weight").unwrap().expect_shape(&[2]).unwrap();
            assert_eq!(norm.to_f32().unwrap(), [1.0, 2.0]);
        }
        assert!(safetensors.metadata().is_none());
        assert_eq!(gguf.metadata().unwrap().string("general.architecture").unwrap(), Some("llama"));
        assert_eq!(gguf.path(), folder.path().join("x.gguf"));
    }

    #[test]
    fn a_fingerprint_knows_content_and_nothing_else() {
        let fingerprint = |config: &[u8], value| {
            let folder = folder(&[("config.json", config), ("model.safetensors", &weights(value))]);
            Checkpoint::open(folder.path()).unwrap().fingerprint(&tokenizer("{}")).unwrap()
        };
        assert_eq!(fingerprint(CONFIG, 2.0), fingerprint(CONFIG, 2.0));
        assert_eq!(fingerprint(CONFIG, 2.0).len(), 64);
        assert_ne!(fingerprint(CONFIG, 2.0), fingerprint(CONFIG, 2.5));
        let other = br#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 4}"#;
        assert_ne!(fingerprint(CONFIG, 2.0), fingerprint(other, 2.0));
        let folder = folder(&[("config.json", CONFIG), ("model.safetensors", &weights(2.0))]);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_ne!(
            checkpoint.fingerprint(&tokenizer("{}")).unwrap(),
            checkpoint.fingerprint(&tokenizer("[]")).unwrap()
        );
    }

    fn tokenizer(json: &str) -> Tokenizer {
        Tokenizer { json: json.to_owned(), ..Tokenizer::default() }
    }

    #[test]
    fn the_configuration_of_a_tower_that_is_left_out_is_not_read() {
        let config = br#"{"architectures": ["LlavaForCausalLM"], "hidden_size": 2, "vision_config": 7}"#;
        let folder = folder(&[("config.json", config), ("model.safetensors", &weights(2.0))]);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.config().vision().unwrap_err().code, Code::Corrupt);
        let without = checkpoint.without_tower();
        assert!(without.config().vision().unwrap().is_none());
        assert_eq!(without.config().usize("hidden_size").unwrap(), 2);
    }

    #[test]
    fn a_checkpoint_without_an_architecture_is_refused() {
        let folder = folder(&[("config.json", b"{}"), ("model.safetensors", &weights(2.0))]);
        let error = Checkpoint::open(folder.path()).unwrap_err();
        assert!(error.message.ends_with("config.json: names no class in 'architectures'"), "{error}");
        let nameless = Gguf::new("").bytes();
        std::fs::write(folder.path().join("x.gguf"), nameless).unwrap();
        let error = Checkpoint::open(&folder.path().join("x.gguf")).unwrap_err();
        assert!(error.message.ends_with("x.gguf: the architecture '' is not a name"), "{error}");
    }

    #[test]
    fn paths_that_are_no_checkpoint_say_so() {
        let folder = folder(&[("config.json", CONFIG), ("model.safetensors", &weights(2.0)), ("x.txt", b"text")]);
        let open = |name| Checkpoint::open(&folder.path().join(name)).unwrap_err();
        let part = open("model.safetensors");
        assert!(part.message.ends_with("model.safetensors: is a part of a checkpoint"), "{part}");
        let text = open("x.txt");
        assert!(text.message.ends_with("the file is not GGUF: it starts with \"text\" instead of \"GGUF\""), "{text}");
        assert_eq!(open("absent").code, Code::NotFound);
    }
}
