//! Adapters as GGUF files in llama.cpp's layout: `general.type = adapter`, `adapter.lora.alpha`, and for each weight
//! the tensors `NAME.weight.lora_a` and `NAME.weight.lora_b`.
//!
//! GGUF's names are kept, and with them the row order: only the model that the adapter is attached to knows its head
//! size.

use pensieve_sdk::{
    AdapterData, AdapterFormat, Error, Result,
    weights::{RawTensor, Weights},
};
use std::{fs::File, io::Read, path::Path};

use crate::pairs::{Half, Pairs};

const MAGIC: [u8; 4] = *b"GGUF";
/// The embedding, whose factors are stored transposed.
const TABLE: &str = "token_embd";

/// llama.cpp's adapter format.
pub struct Gguf;

impl AdapterFormat for Gguf {
    fn name(&self) -> &'static str {
        "gguf"
    }

    fn claims(&self, path: &Path) -> bool {
        let mut magic = [0; 4];
        path.is_file() && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == MAGIC
    }

    fn open(&self, path: &Path) -> Result<AdapterData> {
        let (weights, metadata) = Weights::of_gguf(path)?;
        let here = |error: Error| error.context(path.display());
        let kind = metadata.string("general.type").map_err(here)?.unwrap_or("model");
        if kind != "adapter" {
            let message = format!("this GGUF file holds a {kind}, not an adapter");
            return Err(here(
                Error::declined(message).help("give it as a model's source, or name the adapter's own file"),
            ));
        }
        let method = metadata.string("adapter.type").map_err(here)?.unwrap_or("lora");
        if method != "lora" {
            return Err(here(Error::declined(format!("adapters of type '{method}' are not known, only lora"))));
        }
        if metadata.contains("adapter.alora.invocation_tokens") {
            return Err(here(Error::unsupported(
                "this adapter begins to hold at certain tokens (aLoRA), which is not served",
            )));
        }
        let alpha = metadata.f32("adapter.lora.alpha").map_err(here)?;
        let alpha = alpha.ok_or_else(|| here(metadata.missing("adapter.lora.alpha")))?;
        let mut pairs = Pairs::default();
        for tensor in weights.iter() {
            add(&mut pairs, tensor).map_err(here)?;
        }
        // llama.cpp does not scale if alpha is 0.
        let scale = |_: &str, rank: usize| Ok(if alpha == 0.0 { 1.0 } else { alpha / rank as f32 });
        let (pairs, fingerprint) = pairs.finish(scale).map_err(here)?;
        let base = metadata.string("general.base_model.0.name").ok().flatten();
        let base = base.or(metadata.string("general.architecture").ok().flatten()).unwrap_or_default();
        Ok(AdapterData { base: base.to_owned(), fingerprint, pairs })
    }
}

fn add(pairs: &mut Pairs, tensor: &RawTensor) -> Result<()> {
    let name = tensor.name.as_str();
    let halves = [(".weight.lora_a", Half::A), (".weight.lora_b", Half::B)];
    let found = halves.iter().find_map(|(suffix, half)| Some((name.strip_suffix(suffix)?, *half)));
    let Some((target, half)) = found else {
        let message = format!("tensor '{name}' is no half of a low-rank pair, and would be left out");
        return Err(Error::unsupported(message));
    };
    match (target, half) {
        // The embedding's tensor is [rows, rank] where PEFT has [rank, rows].
        (TABLE, Half::A) => pairs.add(target, Half::TableRows, tensor.clone()),
        (TABLE, _) => pairs.add(target, Half::TableB, tensor.clone()),
        _ => pairs.add(target, half, tensor.clone()),
    }
}
