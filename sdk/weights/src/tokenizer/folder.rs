//! The tokenizer of a folder in Hugging Face's layout.
//!
//! `tokenizer.json` says how text becomes ids and is passed on as it is. The roles of special ids are spread over up to
//! five more files, each of which may be missing and some of which repeat each other; newer versions of transformers
//! move things from one to the next. The tokenizer's files take precedence over the model's.

use std::path::Path;

use serde_json::Value;

use super::{
    HOW_TO_CONVERT, Tokenizer, document, longest,
    model_file::ModelFile,
    outline::{Outline, Place, rewritten},
    sentencepiece,
    special::{checked_template, turn_ends, unique},
    vocabulary::{Kind, Vocabulary},
};
use crate::{Code, Error, Result, json, quote};

const FILE_BYTES_MAX: u64 = 64 << 20;
const ADDED_MAX: u32 = 1 << 20;

/// Reads a whole text file; `None` if it does not exist.
pub(super) fn read_text(path: &Path) -> Result<Option<String>> {
    let Some(bytes) = read_bytes(path)? else { return Ok(None) };
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|_| Error::corrupt(format!("{}: is not UTF-8 text", path.display())))
}

/// Reads the tokenizer of a folder.
pub(super) fn read(folder: &Path) -> Result<Tokenizer> {
    let settings = Settings::read(folder)?;
    let path = folder.join("tokenizer.json");
    if let Some(json) = read_text(&path)? {
        return settings.with_json(json).map_err(|error| error.context(path.display()));
    }
    let path = folder.join("tokenizer.model");
    if let Some(file) = read_bytes(&path)? {
        return settings.with_model_file(&file).map_err(|error| error.context(path.display()));
    }
    let path = folder.join(longest::FILE);
    if let Some(file) = read_text(&path)? {
        return settings.with_longest(&file).map_err(|error| error.context(path.display()));
    }
    Err(Error::not_found(format!("{}: has neither tokenizer.json nor tokenizer.model", folder.display()))
        .help(HOW_TO_CONVERT))
}

/// The files beside `tokenizer.json`; null if absent.
struct Settings {
    tokenizer: Value,
    special: Value,
    generation: Value,
    model: Value,
    added: Value,
    chat_template: Option<String>,
}

impl Settings {
    fn read(folder: &Path) -> Result<Self> {
        let tokenizer = read_json(&folder.join("tokenizer_config.json"))?;
        let processor = read_json(&folder.join("chat_template.json"))?;
        let file = read_text(&folder.join("chat_template.jinja"))?;
        let template = file.as_deref().or_else(|| template(&tokenizer)).or_else(|| template(&processor));
        Ok(Self {
            chat_template: template.map(|template| checked_template(template, "the chat template")).transpose()?,
            special: read_json(&folder.join("special_tokens_map.json"))?,
            generation: read_json(&folder.join("generation_config.json"))?,
            model: read_json(&folder.join("config.json"))?,
            added: read_json(&folder.join("added_tokens.json"))?,
            tokenizer,
        })
    }

    fn with_json(self, json: String) -> Result<Tokenizer> {
        let outline = Outline::read(&json)?;
        let added = outline.added_tokens().iter().map(|token| (token.id, token.content.as_str()));
        let mut tokenizer = self.ids(outline.len(), turn_ends(added), |text| outline.id(text))?;
        let found =
            (outline.adds(tokenizer.bos, Place::Front), outline.adds(tokenizer.eos.first().copied(), Place::Back));
        tokenizer.add_bos = self.flag("add_bos_token").unwrap_or(found.0) && tokenizer.bos.is_some();
        tokenizer.add_eos = self.flag("add_eos_token").unwrap_or(found.1) && !tokenizer.eos.is_empty();
        let agrees = found == (tokenizer.add_bos, tokenizer.add_eos);
        let processor = || document::post_processor(&tokenizer, |id| outline.text(id).map(str::to_owned));
        tokenizer.json = match (!agrees).then(processor) {
            None if !outline.resizes() => json,
            processor => rewritten(&json, processor)?,
        };
        Ok(tokenizer)
    }

    fn with_model_file(self, file: &[u8]) -> Result<Tokenizer> {
        let mut model = ModelFile::read(file)?;
        self.add_tokens(&mut model)?;
        let mut vocabulary = Vocabulary::new(model.texts, model.kinds)?;
        let ends = turn_ends(vocabulary.matched().map(|(id, text, _)| (id, text)));
        let mut tokenizer = self.ids(vocabulary.len(), ends, |text| vocabulary.find(text))?;
        tokenizer.bos = tokenizer.bos.or(model.bos);
        tokenizer.pad = tokenizer.pad.or(model.pad);
        tokenizer.unknown = tokenizer.unknown.or(model.unknown);
        if tokenizer.eos.is_empty() {
            tokenizer.eos.extend(model.eos);
        }
        tokenizer.add_bos = self.flag("add_bos_token").unwrap_or(true) && tokenizer.bos.is_some();
        tokenizer.add_eos = self.flag("add_eos_token").unwrap_or(false) && !tokenizer.eos.is_empty();
        tokenizer.json = sentencepiece::build(&mut vocabulary, &model.scores, model.prefix, &tokenizer)?;
        Ok(tokenizer)
    }

    /// RWKV's vocabulary, in which one token begins and ends a text.
    fn with_longest(self, file: &str) -> Result<Tokenizer> {
        let (vocabulary, json) = longest::from_file(file)?;
        let tokenizer = self.ids(vocabulary.len(), vec![], |text| vocabulary.find(text))?;
        let eos = if tokenizer.eos.is_empty() { vec![0] } else { tokenizer.eos.clone() };
        Ok(Tokenizer { json, eos, ..tokenizer })
    }

    /// Reads the special ids, each checked against the number of tokens.
    fn ids(&self, tokens: usize, ends: Vec<u32>, id_of: impl Fn(&str) -> Option<u32>) -> Result<Tokenizer> {
        let named = |name: &str| self.special_text(&format!("{name}_token")).and_then(&id_of);
        // A tokenizer that names its special tokens but omits one does not have it.
        let names_any = !self.tokenizer.is_null() || !self.special.is_null();
        let configured = |name: &str| {
            let ids = self.configured(&format!("{name}_token_id"), tokens)?;
            Ok::<_, Error>(ids.first().copied().filter(|_| !names_any))
        };
        let mut eos: Vec<_> = named("eos").into_iter().collect();
        eos.extend(self.configured("eos_token_id", tokens)?);
        eos.extend(ends);
        Ok(Tokenizer {
            bos: named("bos").or(configured("bos")?),
            pad: named("pad").or(configured("pad")?),
            unknown: named("unk").or(configured("unk")?),
            eos: unique(eos),
            chat_template: self.chat_template.clone(),
            ..Tokenizer::default()
        })
    }

    /// The ids from `generation_config.json`, then those from `config.json`.
    fn configured(&self, key: &str, tokens: usize) -> Result<Vec<u32>> {
        let mut ids = vec![];
        for (file, settings) in [("generation_config.json", &self.generation), ("config.json", &self.model)] {
            let value = settings.get(key).or_else(|| settings.get("text_config")?.get(key)).unwrap_or(&Value::Null);
            let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            // A negative id means that there is none.
            for id in values.iter().filter_map(Value::as_u64) {
                match u32::try_from(id) {
                    Ok(id) if (id as usize) < tokens => ids.push(id),
                    _ => {
                        return Err(Error::corrupt(format!(
                            "{file}: '{key}' is {id}, outside of the vocabulary of {tokens} tokens"
                        )));
                    }
                }
            }
        }
        Ok(ids)
    }

    /// The text of a special token, given as a string or an object.
    fn special_text(&self, key: &str) -> Option<&str> {
        [&self.tokenizer, &self.special].into_iter().find_map(|settings| {
            let value = settings.get(key)?;
            value.as_str().or_else(|| value.get("content")?.as_str())
        })
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.tokenizer.get(key).and_then(Value::as_bool)
    }

    /// Appends `added_tokens.json` to the pieces of a `tokenizer.model`.
    fn add_tokens(&self, model: &mut ModelFile) -> Result<()> {
        let described = self.tokenizer.get("added_tokens_decoder").and_then(Value::as_object);
        let described = described.into_iter().flatten().filter_map(|(id, token)| {
            let is_special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
            Some((id.parse().ok()?, token.get("content")?.as_str()?, is_special))
        });
        let listed = self.added.as_object().into_iter().flatten();
        let listed = listed.filter_map(|(text, id)| Some((u32::try_from(id.as_u64()?).ok()?, text.as_str(), false)));
        for (id, text, is_special) in listed.chain(described) {
            if id >= ADDED_MAX {
                return Err(Error::corrupt(format!("the added token {} has the impossible id {id}", quote(text))));
            }
            let len = model.texts.len().max(id as usize + 1);
            model.texts.resize(len, String::new());
            model.kinds.resize(len, Kind::Unused);
            model.scores.resize(len, 0.0);
            let slots = (model.texts.get_mut(id as usize), model.kinds.get_mut(id as usize));
            if let (Some(known), Some(kind)) = slots {
                text.clone_into(known);
                *kind = if is_special { Kind::Control } else { Kind::UserDefined };
            }
        }
        Ok(())
    }
}

/// The template in a settings file: a string, or a list of named templates of which `default` or the only one counts.
fn template(settings: &Value) -> Option<&str> {
    let value = settings.get("chat_template")?;
    let Some(list) = value.as_array() else { return value.as_str() };
    let is_default = |item: &&Value| item.get("name").and_then(Value::as_str) == Some("default");
    let chosen = list.iter().find(is_default).or(if let [only] = list.as_slice() { Some(only) } else { None });
    chosen?.get("template")?.as_str()
}

fn read_json(path: &Path) -> Result<Value> {
    let Some(text) = read_text(path)? else { return Ok(Value::Null) };
    serde_json::from_str(&text).map_err(|error| Error::corrupt(format!("{}: is not JSON: {error}", path.display())))
}

fn read_bytes(path: &Path) -> Result<Option<Vec<u8>>> {
    match json::read(path, FILE_BYTES_MAX) {
        Err(error) if error.code == Code::NotFound => Ok(None),
        read => read.map(Some),
    }
}
