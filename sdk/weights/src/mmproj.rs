//! A vision tower in a GGUF file of its own beside the text model's, which llama.cpp calls `mmproj`.
//!
//! Its tensors join the checkpoint under transformers' names, and its metadata becomes `vision_config`, so that a plugin
//! reads the tower of a GGUF model as that of a folder. A folder of GGUF files may belong to many models, so a file that
//! the host found there counts only if a family knows its projector; one that the user named has to fit.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{
    Checkpoint, GgufTower, Names, Weights,
    gguf::{self, Metadata},
    gguf_config::{GgufConfig, PROCESSOR},
    quote,
    tensors::of_parts,
};
use crate::{Error, Result};

/// The value of `general.architecture` in such a file.
const ARCHITECTURE: &str = "clip";
/// The prefix of a tower's metadata.
const PREFIX: &str = "clip.vision";

/// Metadata keys with those of `vision_config`.
const KEYS: Names = &[
    ("image_size", "image_size"),
    ("patch_size", "patch_size"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("projection_dim", "projection_dim"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("image_mean", "image_mean"),
    ("image_std", "image_std"),
    ("spatial_merge_size", "spatial_merge_size"),
    ("projector.scale_factor", "scale_factor"),
    ("image_min_pixels", "min_pixels"),
    ("image_max_pixels", "max_pixels"),
];

/// Members of `vision_config` that belong to the image processor.
const OF_PROCESSOR: [&str; 4] = ["image_mean", "image_std", "min_pixels", "max_pixels"];
/// Dozens of families call themselves so in GGUF files.
const SHARED: &str = "llama";

/// Where to look for the tower of a GGUF model. Files are relative to the model's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(untagged)]
pub enum TowerFile {
    /// In this file.
    Named(String),
    /// In one of these, if it is the model's.
    Beside(Vec<String>),
    /// The model's own file is all there is.
    #[default]
    None,
}

/// An opened file: one tower.
struct Tower {
    path: PathBuf,
    parts: Vec<gguf::Gguf>,
}

impl Checkpoint {
    /// Adds the tower of a GGUF model. A folder has its tower already.
    pub fn with_tower(self, file: &TowerFile) -> Result<Self> {
        let tower = self.metadata().and_then(|_| self.family().tower);
        let (tower, names) = match (tower, file) {
            (_, TowerFile::None) | (None, TowerFile::Beside(_)) => return Ok(self),
            (None, TowerFile::Named(file)) => {
                let message = format!("{}: takes no vision tower from {}", self.path().display(), quote(file));
                return Err(Error::invalid(message).help("leave out the option mmproj"));
            }
            (Some(tower), TowerFile::Named(file)) => {
                let found = Tower::open(&self.path().with_file_name(file))?;
                let fits =
                    found.check_kind(tower).and_then(|()| found.check_width(self.config().usize("hidden_size")?));
                fits.map_err(|error| found.context(error))?;
                return self.join(found, tower);
            }
            (Some(tower), TowerFile::Beside(names)) => (tower, names),
        };
        let width = self.config().usize("hidden_size")?;
        let towers = names.iter().filter_map(|name| Tower::open(&self.path().with_file_name(name)).ok());
        let ours: Vec<Tower> = towers.filter(|found| found.check_kind(tower).is_ok()).collect();
        let misfit = ours.first().filter(|_| self.architecture() != SHARED);
        let misfit = misfit.and_then(|found| Some(found.context(found.check_width(width).err()?)));
        match (ours.into_iter().find(|found| found.check_width(width).is_ok()), misfit) {
            (Some(found), _) => self.join(found, tower),
            (None, Some(misfit)) => Err(misfit),
            (None, None) => Ok(self),
        }
    }

    fn join(mut self, mut found: Tower, tower: &GgufTower) -> Result<Self> {
        let renamed = of_parts(&mut found.parts).into_iter();
        let renamed = renamed.map(|entry| entry.rename(|name| hugging_face(name, tower.names)));
        let weights = Weights::new(renamed).map_err(|error| found.context(error))?;
        let kind = found.kind()?;
        let vision = vision_config(found.metadata(), &weights, tower, kind).map_err(|error| found.context(error))?;
        let files = found.parts.iter().map(|part| (part.header.clone(), part.file.len())).collect();
        self.add(vision, weights, files).map_err(|error| found.context(error))?;
        Ok(self)
    }
}

impl Tower {
    fn open(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_path_buf(), parts: gguf::open(path)? })
    }

    fn metadata(&self) -> &Metadata {
        // `gguf::open` returns at least the file that it was given.
        static NONE: std::sync::LazyLock<Metadata> = std::sync::LazyLock::new(Metadata::default);
        self.parts.first().map_or(&NONE, |part| &part.metadata)
    }

    /// Fails if this is another kind of file, or the tower of another family.
    fn check_kind(&self, tower: &GgufTower) -> Result<()> {
        let metadata = self.metadata();
        let architecture = metadata.string("general.architecture")?.unwrap_or_default();
        if architecture != ARCHITECTURE {
            let message = format!("is a model of architecture {}, not a vision tower", quote(architecture));
            return Err(Error::invalid(message).help("name the model's mmproj file"));
        }
        let kind = self.kind()?;
        if tower.projectors.contains(&kind) {
            return Ok(());
        }
        let (kind, known) = (quote(kind), tower.projectors.join(", "));
        Err(Error::invalid(format!("has a projector of type {kind}, and this model one of {known}"))
            .help("name the mmproj file that was published with the model"))
    }

    /// The type of its projector.
    fn kind(&self) -> Result<&str> {
        let of_vision = self.metadata().string("clip.vision.projector_type")?;
        Ok(of_vision.or(self.metadata().string("clip.projector_type")?).unwrap_or_default())
    }

    /// Fails if its rows have another width than the text model's.
    fn check_width(&self, width: usize) -> Result<()> {
        let key = "clip.vision.projection_dim";
        match self.metadata().u64(key)? {
            Some(rows) if rows != width as u64 => {
                let message = format!("makes rows of {rows} values, where the text model takes {width}");
                Err(Error::invalid(message)
                    .help("it belongs to a model of another size: name the right one with the option mmproj"))
            }
            Some(_) => Ok(()),
            None => Err(self.metadata().missing(key)),
        }
    }

    fn context(&self, error: Error) -> Error {
        error.context(self.path.display())
    }
}

/// Returns the transformers name of a tower's tensor.
fn hugging_face(name: &str, names: Names) -> String {
    let find = |wanted: &str| names.iter().find(|(gguf, _)| *gguf == wanted).map(|(_, name)| *name);
    if let Some(found) = find(name) {
        return found.to_owned();
    }
    let Some((path, kind)) = name.rsplit_once('.') else { return name.to_owned() };
    if let Some(found) = find(path) {
        return format!("{found}.{kind}");
    }
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let Some(number) = path.split('.').find(is_number) else { return name.to_owned() };
    let any: Vec<&str> = path.split('.').map(|part| if part == number { "*" } else { part }).collect();
    find(&any.join(".")).map_or_else(|| name.to_owned(), |found| format!("{}.{kind}", found.replace('*', number)))
}

fn vision_config(metadata: &Metadata, weights: &Weights, tower: &GgufTower, kind: &str) -> Result<Value> {
    let mut config = GgufConfig::new(PREFIX, metadata, weights);
    config.rename(KEYS)?;
    config.rename(tower.keys)?;
    config.set("projector_type", kind);
    config.set("hidden_act", tower.activation);
    config.set(PROCESSOR, Map::new());
    (tower.complete)(&mut config)?;
    let mut object = config.into_object();
    let settings: Vec<_> = OF_PROCESSOR.into_iter().filter_map(|key| object.remove_entry(key)).collect();
    if let Some(processor) = object.get_mut(PROCESSOR).and_then(Value::as_object_mut) {
        processor.extend(settings);
    }
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        GgufFamily,
        fixture::{Gguf, folder},
    };

    const TOWER: GgufTower = GgufTower {
        projectors: &["gemma3"],
        names: GgufTower::SIGLIP,
        keys: &[],
        activation: "gelu_pytorch_tanh",
        complete: |config| {
            config.set("mm_tokens", config.size("image_size").unwrap_or_default());
            Ok(())
        },
    };

    fn family(_: &str) -> GgufFamily {
        static OF_GEMMA: GgufTower = TOWER;
        GgufFamily { tower: Some(&OF_GEMMA), ..GgufFamily::USUAL }
    }

    fn text() -> Vec<u8> {
        Gguf::new("gemma3")
            .u32("gemma3.embedding_length", 2)
            .f32_tensor("output_norm.weight", &[2], &[1.0, 2.0])
            .bytes()
    }

    fn tower(kind: &str, rows: u32) -> Vec<u8> {
        Gguf::new("clip")
            .text("clip.projector_type", kind)
            .u32("clip.vision.projection_dim", rows)
            .u32("clip.vision.image_size", 48)
            .u32("clip.vision.embedding_length", 3)
            .u32("clip.vision.image_max_pixels", 900)
            .f32s("clip.vision.image_mean", &[0.5, 0.5, 0.5])
            .f32_tensor("v.blk.1.ffn_up.bias", &[1], &[3.0])
            .f32_tensor("mm.input_projection.weight", &[1], &[4.0])
            .bytes()
    }

    /// Opens a model of width 2 beside these files.
    fn open(files: &[(&str, &[u8])], named: Option<&str>) -> Result<Checkpoint> {
        let folder = folder(&[&[("text.gguf", &text()[..])], files].concat());
        let beside = files.iter().map(|(name, _)| (*name).to_owned()).collect();
        let file = named.map_or(TowerFile::Beside(beside), |name| TowerFile::Named(name.to_owned()));
        Checkpoint::open_with(&folder.path().join("text.gguf"), family)?.with_tower(&file)
    }

    #[test]
    fn a_tower_beside_the_model_joins_it_under_the_names_of_a_folder() {
        let checkpoint = open(&[("mmproj-f16.gguf", &tower("gemma3", 2))], None).unwrap();
        let names: Vec<&str> = checkpoint.weights().names().collect();
        let bias = "vision_tower.encoder.layers.1.mlp.fc1.bias";
        assert_eq!(names, ["model.norm.weight", "multi_modal_projector.mm_input_projection_weight", bias]);
        let vision = checkpoint.config().vision().unwrap().unwrap();
        assert_eq!([vision.usize("hidden_size").unwrap(), vision.usize("mm_tokens").unwrap()], [3, 48]);
        assert_eq!(checkpoint.config().usize("hidden_size").unwrap(), 2);
        let processor = checkpoint.processor().unwrap();
        assert_eq!(processor.value()["image_mean"], serde_json::json!([0.5, 0.5, 0.5]));
        assert_eq!(processor.usize("max_pixels").unwrap(), 900);
        assert_eq!(vision.find_str("projector_type").unwrap(), Some("gemma3"));
        let alone = open(&[], None).unwrap();
        assert!(alone.config().vision().unwrap().is_none());
        assert_eq!(alone.processor().unwrap().value(), &serde_json::json!({}));
        let tokenizer = Default::default();
        assert_ne!(alone.fingerprint(&tokenizer).unwrap(), checkpoint.fingerprint(&tokenizer).unwrap());
    }

    #[test]
    fn a_tower_of_another_size_is_refused_with_both_sizes() {
        for (file, named) in [("mmproj.gguf", None), ("mmproj.gguf", Some("mmproj.gguf")), ("x.gguf", Some("x.gguf"))] {
            let error = open(&[(file, &tower("gemma3", 7))], named).unwrap_err();
            let message = "makes rows of 7 values, where the text model takes 2";
            assert!(error.message.contains(file) && error.message.ends_with(message), "{error}");
        }
        let towers = [("mmproj-a.gguf", &tower("gemma3", 7)[..]), ("mmproj-b.gguf", &tower("gemma3", 2))];
        assert!(open(&towers, None).unwrap().config().vision().unwrap().is_some(), "the one that fits");
    }

    #[test]
    fn beside_a_file_that_calls_itself_as_many_do_a_tower_of_another_size_is_another_models() {
        let text = Gguf::new("llama")
            .u32("llama.embedding_length", 2)
            .f32_tensor("output_norm.weight", &[2], &[1.0, 2.0])
            .bytes();
        let folder = folder(&[("text.gguf", &text), ("mmproj.gguf", &tower("gemma3", 7))]);
        let open = |file: TowerFile| {
            Checkpoint::open_with(&folder.path().join("text.gguf"), family).unwrap().with_tower(&file)
        };
        let beside = open(TowerFile::Beside(vec!["mmproj.gguf".to_owned()])).unwrap();
        assert!(beside.config().vision().unwrap().is_none());
        assert!(open(TowerFile::Named("mmproj.gguf".to_owned())).is_err());
    }

    #[test]
    fn what_belongs_to_another_model_is_passed_over_unless_it_is_named() {
        let strangers = [("mmproj-a.gguf", &tower("resampler", 2)[..]), ("mmproj-b.gguf", b"none")];
        assert!(open(&strangers, None).unwrap().config().vision().unwrap().is_none());
        let other = open(&strangers, Some("mmproj-a.gguf")).unwrap_err();
        assert!(
            other.message.ends_with("has a projector of type 'resampler', and this model one of gemma3"),
            "{other}"
        );
        assert!(open(&strangers, Some("mmproj-b.gguf")).is_err() && open(&strangers, Some("none.gguf")).is_err());
        let text = open(&strangers, Some("text.gguf")).unwrap_err();
        assert!(text.message.ends_with("is a model of architecture 'gemma3', not a vision tower"), "{text}");
    }

    #[test]
    fn a_family_without_towers_takes_none() {
        let folder = folder(&[("text.gguf", &text()), ("mmproj.gguf", &tower("gemma3", 2))]);
        let checkpoint = || Checkpoint::open(&folder.path().join("text.gguf")).unwrap();
        let beside = TowerFile::Beside(vec!["mmproj.gguf".to_owned()]);
        assert!(checkpoint().with_tower(&beside).unwrap().config().vision().unwrap().is_none());
        let error = checkpoint().with_tower(&TowerFile::Named("mmproj.gguf".to_owned())).unwrap_err();
        assert!(error.message.ends_with("takes no vision tower from 'mmproj.gguf'"), "{error}");
    }

    #[test]
    fn names_are_found_whole_or_by_the_number_of_a_layer() {
        let names: Names = &[("a.*.b", "x.*.y"), ("a.0", "first"), ("a.0.weight.1", "second.half")];
        for (name, expected) in [
            ("a.12.b.bias", "x.12.y.bias"),
            ("a.0.weight", "first.weight"),
            ("a.0.weight.1", "second.half"),
            ("a.c.b.weight", "a.c.b.weight"),
            ("a", "a"),
        ] {
            assert_eq!(hugging_face(name, names), expected);
        }
    }
}
