//! The use of a checkpoint's hidden rows, as its files say: sentence-transformers' `modules.json` and the folders that
//! it lists, or a GGUF file's `pooling_type`. A checkpoint that says nothing is a chat model, whose last token's row is
//! offered all the same.

mod marks;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::Path};

use serde_json::{Value, json};

use super::{
    Checkpoint, Tokenizer, json,
    modules::{self, Module},
    quote,
};
use crate::{Error, Result};

const FILE_BYTES_MAX: u64 = 1 << 20;

/// The use of hidden rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsKind {
    /// A vector for each text.
    Embed,
    /// A score for a query and a document.
    Rank,
    /// A score for each label.
    Classify,
}

/// How a text's rows become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    Last,
    First,
    Mean,
}

/// The modules that are computed, in their order. Only those that share a place may be there more than once.
const ORDER: [&[&str]; 4] = [&["Transformer"], &["Pooling"], &["Dense", "Dropout"], &["Normalize"]];

/// The description of a checkpoint's hidden rows, as `draft/rows/1` of the contract has it.
#[derive(Clone, Debug, PartialEq)]
pub struct RowsUse {
    pub kind: RowsKind,
    /// The checkpoint says what its rows are for.
    pub made_for: bool,
    /// False for a model without an output layer.
    pub generates: bool,
    pub pooling: Pooling,
    /// Width of a row after the model's own `finish`; `None` if nothing follows pooling.
    pub finish: Option<usize>,
    pub normalize: bool,
    /// Width of a result; 0 for that of `finish` or of a hidden row.
    pub dimensions: usize,
    /// Smaller widths that a row may be cut to.
    pub matryoshka: Option<Vec<usize>>,
    /// `sigmoid`, `softmax` or `none`; `None` for the default of `kind`.
    pub activation: Option<String>,
    /// Tokens before a text, between the two of a pair, and after.
    pub open: Vec<u32>,
    pub between: Vec<u32>,
    pub close: Vec<u32>,
    /// A token's row depends on later tokens.
    pub whole: bool,
    /// Texts to put before a text, by name.
    pub prompts: BTreeMap<String, String>,
    /// The prompt of texts that name none.
    pub prompt: Option<String>,
    pub labels: Vec<String>,
    /// The text around `{instruction}`, `{query}` and `{document}`.
    pub pair_template: Option<String>,
    pub instruction: Option<String>,
    /// The longest text in tokens; `None` for the context.
    pub maximum: Option<usize>,
}

/// The names that a checkpoint has for `count` labels; `LABEL_0` and so on for those without one.
pub fn labels(checkpoint: &Checkpoint, count: usize) -> Result<Vec<String>> {
    let given = checkpoint.config().value().get("id2label");
    let listed = checkpoint.metadata().map(|metadata| metadata.strings(&output_labels(checkpoint))).transpose()?;
    let listed = listed.flatten().unwrap_or_default();
    let name = |label: usize| {
        let given = given.and_then(|names| names.get(label.to_string())).and_then(Value::as_str);
        let name = given.or_else(|| listed.get(label).copied()).map(str::to_owned);
        name.unwrap_or_else(|| format!("LABEL_{label}"))
    };
    Ok((0..count).map(name).collect())
}

fn output_labels(checkpoint: &Checkpoint) -> String {
    format!("{}.classifier.output_labels", checkpoint.architecture())
}

fn matryoshka(widths: &Value) -> Option<Vec<usize>> {
    let width = |width: &Value| {
        let whole = || width.as_f64().filter(|width| width.fract() == 0.0 && (0.0..9e15).contains(width));
        width.as_u64().or_else(|| whole().map(|width| width as u64)).and_then(|width| usize::try_from(width).ok())
    };
    widths.as_array()?.iter().map(width).collect()
}

impl RowsUse {
    /// Embeddings of a decoder whose checkpoint does not mention any: the last token's row, normalized.
    pub fn of_decoder() -> Self {
        Self {
            kind: RowsKind::Embed,
            made_for: false,
            generates: true,
            pooling: Pooling::Last,
            finish: None,
            normalize: true,
            dimensions: 0,
            matryoshka: None,
            activation: None,
            open: Vec::new(),
            between: Vec::new(),
            close: Vec::new(),
            whole: false,
            prompts: BTreeMap::new(),
            prompt: None,
            labels: Vec::new(),
            pair_template: None,
            instruction: None,
            maximum: None,
        }
    }

    /// Reads the description from the checkpoint's files; what they leave open is that of a decoder.
    pub fn read(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Self> {
        let mut rows = Self::of_decoder();
        let lowers = marks::read(&tokenizer.json, &mut rows)?;
        match checkpoint.metadata() {
            Some(metadata) => {
                let architecture = checkpoint.architecture();
                let kind = metadata.u32(&format!("{architecture}.pooling_type"))?;
                rows.take_pooling_type(kind)?;
                let labels = metadata.strings(&output_labels(checkpoint))?;
                rows.labels = labels.unwrap_or_default().into_iter().map(str::to_owned).collect();
            }
            None => rows.read_folder(checkpoint.path(), lowers)?,
        }
        let config = checkpoint.config().value();
        let widths = config.get("matryoshka_dimensions").filter(|widths| !widths.is_null());
        let widths = widths
            .map(|widths| {
                matryoshka(widths).ok_or_else(|| {
                    let message = "'matryoshka_dimensions' of the configuration is not a list of widths";
                    Error::corrupt(message).help("correct it, or remove it")
                })
            })
            .transpose()?;
        let any = config.get("is_matryoshka").and_then(Value::as_bool).unwrap_or(false);
        rows.matryoshka = widths.or_else(|| any.then(Vec::new));
        Ok(rows)
    }

    /// llama.cpp's numbers of poolings.
    fn take_pooling_type(&mut self, kind: Option<u32>) -> Result<()> {
        self.pooling = match kind {
            None | Some(0) => return Ok(()),
            Some(1) => Pooling::Mean,
            Some(2) => Pooling::First,
            Some(3) => Pooling::Last,
            Some(4) => {
                self.kind = RowsKind::Rank;
                self.normalize = false;
                Pooling::Last
            }
            Some(other) => {
                return Err(Error::unsupported(format!("metadata 'pooling_type' is {other}, which is not known"))
                    .help("known are 1 (mean), 2 (first), 3 (last) and 4 (rank)"));
            }
        };
        self.made_for = true;
        Ok(())
    }

    fn read_folder(&mut self, folder: &Path, lowers: bool) -> Result<()> {
        let Some(modules) = modules::read(folder)? else { return Ok(()) };
        let unsupported = |message: String, help: &str| {
            let path = folder.join("modules.json");
            Err(Error::unsupported(format!("{}: {message}", path.display())).help(help))
        };
        (self.made_for, self.normalize) = (true, false);
        let mut before: Option<(usize, &str)> = None;
        for Module { kind, place } in &modules {
            let Some(order) = ORDER.iter().position(|kinds| kinds.contains(&kind.as_str())) else {
                return unsupported(
                    format!("a module {} is not known", quote(kind)),
                    "known are Transformer, Pooling, Dense, Dropout and Normalize",
                );
            };
            if let Some((last, name)) = before
                && (order < last || order == last && ORDER[order].len() == 1)
            {
                return unsupported(
                    format!("a module {kind} after {name} is not computed"),
                    "the order is Transformer, Pooling, any of Dense and Dropout, Normalize",
                );
            }
            before = Some((order, kind));
            match kind.as_str() {
                "Transformer" => self.read_transformer(&folder.join(place), lowers)?,
                "Pooling" => self.read_pooling(&folder.join(place).join("config.json"))?,
                "Normalize" => self.normalize = true,
                // Dense layers are among the checkpoint's weights.
                _ => {}
            }
        }
        self.read_prompts(&folder.join("config_sentence_transformers.json"))
    }

    fn read_transformer(&mut self, folder: &Path, lowers: bool) -> Result<()> {
        let path = folder.join("sentence_bert_config.json");
        if path.is_file() {
            let config = json::object(&path, FILE_BYTES_MAX)?;
            let longest = config.get("max_seq_length").and_then(Value::as_u64);
            self.maximum = longest.map(|tokens| tokens as usize);
            if !lowers && config.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false) {
                let message = format!("{}: 'do_lower_case' is not applied to texts", path.display());
                return Err(Error::unsupported(message).help("add a Lowercase normalizer to tokenizer.json"));
            }
        }
        Ok(())
    }

    fn read_pooling(&mut self, path: &Path) -> Result<()> {
        const MODES: [(&str, &str, Pooling); 3] = [
            ("pooling_mode_cls_token", "cls", Pooling::First),
            ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
            ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
        ];
        let config = json::object(path, FILE_BYTES_MAX)?;
        let flagged = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
        let named = config.get("pooling_mode").and_then(Value::as_str);
        let on = config.iter().filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Value::Bool(true));
        let modes: Vec<Pooling> = match named {
            Some(name) => MODES.iter().filter(|mode| mode.1 == name).map(|mode| mode.2).collect(),
            None if on.count() > 1 => Vec::new(),
            None => MODES.iter().filter(|mode| flagged(mode.0)).map(|mode| mode.2).collect(),
        };
        let [pooling] = modes[..] else {
            return Err(Error::unsupported(format!("{}: is not one known way of pooling", path.display()))
                .help("known are cls, mean and lasttoken, one of them"));
        };
        if !config.get("include_prompt").and_then(Value::as_bool).unwrap_or(true) {
            let message = format!("{}: leaves the prompt out of pooling, which is not computed", path.display());
            return Err(Error::unsupported(message));
        }
        self.pooling = pooling;
        Ok(())
    }

    fn read_prompts(&mut self, path: &Path) -> Result<()> {
        if !path.is_file() {
            return Ok(());
        }
        let config = json::object(path, FILE_BYTES_MAX)?;
        let prompts = config.get("prompts").and_then(Value::as_object);
        let text = |(name, text): (&String, &Value)| Some((name.clone(), text.as_str()?.to_owned()));
        self.prompts = prompts.map(|prompts| prompts.iter().filter_map(text).collect()).unwrap_or_default();
        let default = config.get("default_prompt_name").and_then(Value::as_str);
        self.prompt = default.filter(|name| self.prompts.contains_key(*name)).map(str::to_owned);
        Ok(())
    }

    /// The description as the contract's JSON, for rows of `hidden` values.
    pub fn to_json(&self, hidden: usize) -> String {
        let word = match self.kind {
            RowsKind::Embed => "embed",
            RowsKind::Rank => "rank",
            RowsKind::Classify => "classify",
        };
        let pooling = match self.pooling {
            Pooling::Last => "last",
            Pooling::First => "first",
            Pooling::Mean => "mean",
        };
        let width = if self.dimensions > 0 { self.dimensions } else { self.finish.unwrap_or(hidden) };
        let mut rows = json!({
            "kind": word, "made_for": self.made_for, "generates": self.generates, "pooling": pooling,
            "normalize": self.normalize, "dimensions": width, "open": self.open, "between": self.between,
            "close": self.close, "whole": self.whole, "prompts": self.prompts, "labels": self.labels,
        });
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                rows[key] = value;
            }
        };
        put("finish", self.finish.map(Value::from));
        put("matryoshka", self.matryoshka.as_ref().map(|of| if of.is_empty() { true.into() } else { json!(of) }));
        put("activation", self.activation.clone().map(Value::from));
        put("prompt", self.prompt.clone().map(Value::from));
        put("pair_template", self.pair_template.clone().map(Value::from));
        put("instruction", self.instruction.clone().map(Value::from));
        put("maximum", self.maximum.map(Value::from));
        rows.to_string()
    }
}
