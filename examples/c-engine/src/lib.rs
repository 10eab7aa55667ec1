//! An engine that uses none of the SDK's arithmetic: it is written in C and keeps its own sequences, as llama.cpp does.
//! The plugin describes checkpoints, maps spans to sequences, and copies sequences.
//!
//! Its cache is opaque: the host knows sequences only by their ids, and with `sequence-state/1` it continues from a
//! copy, so that a conversation is not read again from its beginning.

mod engine;
#[cfg(test)]
mod tests;

use engine::{Engine, Sequence, Sizes};
use pensieve_sdk::{
    Architecture, Batch, Cache, Card, Error, LoadRequest, Model, Plugin, Resident, Result, SequenceState, Services,
    Source,
};
use serde::Deserialize;
use std::{collections::HashMap, fs, path::Path, sync::Arc};

pensieve_sdk::export!(Plugin::new("c-engine", "a recurrent model that an engine in C computes").architecture(CEngine));

const CLASS: &str = "CGruForCausalLM";
const CONTEXT_MAX: u32 = 1 << 20;
/// Block length, at which the host cuts prompts for an opaque model.
const BLOCK_TOKENS: u32 = 16;
const FILE_BYTES_MAX: u64 = 64 << 20;

struct CEngine;

/// Contents of `config.json`.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    architectures: Vec<String>,
    max_position_embeddings: u32,
}

impl Config {
    fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let config: Self = serde_json::from_str(&text(&path)?)
            .map_err(|error| Error::corrupt(error.to_string()).context(path.display()))?;
        if !config.architectures.iter().any(|class| class == CLASS) {
            return Err(Error::declined(format!("{} is not of class {CLASS}", path.display())));
        }
        if !(1..=CONTEXT_MAX).contains(&config.max_position_embeddings) {
            let message =
                format!("max_position_embeddings is {}, not 1 to {CONTEXT_MAX}", config.max_position_embeddings);
            return Err(Error::corrupt(message).context(path.display()));
        }
        Ok(config)
    }
}

fn text(path: &Path) -> Result<String> {
    let here = |error: std::io::Error| Error::from(error).context(path.display());
    let bytes = fs::metadata(path).map_err(here)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(Error::invalid(format!("{} has {bytes} bytes, which are too many", path.display())));
    }
    fs::read_to_string(path).map_err(here)
}

impl Architecture for CEngine {
    fn name(&self) -> &'static str {
        "c-engine"
    }

    fn classes(&self) -> &'static [&'static str] {
        &[CLASS]
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        let config = Config::read(&source.path)?;
        let weights = source.path.join("weights.bin");
        let Sizes { vocabulary, width } = Sizes::read(&weights)?;
        let about = fs::metadata(&weights).map_err(|error| Error::from(error).context(weights.display()))?;
        let written = about.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        Ok(Card {
            architecture: self.name().into(),
            vocabulary,
            context: config.max_position_embeddings,
            block_tokens: BLOCK_TOKENS,
            caches: vec![Cache::Opaque { bytes: state_bytes(width) }],
            hidden: 0,
            token_bytes: 0,
            weight_bytes: about.len(),
            tokenizer: text(&source.path.join("tokenizer.json"))?,
            chat_template: None,
            bos: None,
            add_bos: false,
            eos: vec![0],
            formats: String::new(),
            facts: String::new(),
            fingerprint: format!("c-engine-{vocabulary}-{width}-{}-{written:?}", about.len()),
        })
    }

    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>> {
        if !matches!(request.device.as_str(), "auto" | "cpu") {
            return Err(
                Error::unsupported(format!("the engine does not run on '{}'", request.device)).help("use 'cpu'")
            );
        }
        let config = Config::read(&request.source.path)?;
        services.go_on()?;
        let engine = Engine::open(&request.source.path.join("weights.bin"))?;
        let longest = config.max_position_embeddings;
        let context = if request.context == 0 { longest } else { request.context.min(longest) };
        let most = request.state_bytes / state_bytes(engine.sizes.width);
        if most == 0 {
            let message = format!("{} bytes of state hold no sequence", request.state_bytes);
            return Err(Error::out_of_memory(message).help("raise kv_budget"));
        }
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        Ok(Box::new(Loaded { engine, context, most, sequences: HashMap::new() }))
    }
}

/// Bytes of a sequence, including three scratch rows.
fn state_bytes(width: u32) -> u64 {
    16 + 4 * 4 * u64::from(width)
}

struct Loaded {
    engine: Arc<Engine>,
    context: u32,
    /// Maximum number of sequences alive at once.
    most: u32,
    sequences: HashMap<u64, Sequence>,
}

impl Loaded {
    fn find(&self, id: u64) -> Result<&Sequence> {
        self.sequences.get(&id).ok_or_else(|| Error::not_found(format!("there is no sequence {id}")))
    }
}

impl Model for Loaded {
    fn resident(&self) -> Resident {
        let Sizes { vocabulary, width } = self.engine.sizes;
        let bytes = state_bytes(width);
        Resident {
            device: "cpu".into(),
            note: "an engine in C".into(),
            weight_bytes: 4 * (u64::from(vocabulary) + 6 * u64::from(width)) * u64::from(width),
            state_bytes: self.sequences.len() as u64 * bytes,
            vocabulary,
            context: self.context,
            hidden: 0,
            block_tokens: BLOCK_TOKENS,
            caches: vec![(Cache::Opaque { bytes }, self.most)],
        }
    }

    /// Everything that can be refused is refused before any sequence is changed.
    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        for span in &batch.spans {
            let seen = self.sequences.get(&span.sequence).map_or(0, Sequence::seen);
            if seen != span.past {
                let (id, past) = (span.sequence, span.past);
                return Err(Error::invalid(format!("sequence {id} has seen {seen} tokens, not {past}")));
            }
        }
        let mut rest = logits;
        for span in &batch.spans {
            let (rows, later) = rest.split_at_mut(span.rows() * self.engine.sizes.vocabulary as usize);
            rest = later;
            if span.past == 0 {
                self.sequences.insert(span.sequence, Sequence::new(&self.engine, None)?);
            }
            let Some(sequence) = self.sequences.get_mut(&span.sequence) else { continue };
            sequence.read(&batch.tokens[span.start..span.start + span.len], rows)?;
        }
        Ok(())
    }

    fn release(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
    }

    fn sequence_state(&mut self) -> Option<&mut dyn SequenceState> {
        Some(self)
    }
}

impl SequenceState for Loaded {
    fn fork(&mut self, from: u64, to: u64) -> Result<()> {
        let copy = Sequence::new(&self.engine, Some(self.find(from)?))?;
        self.sequences.insert(to, copy);
        Ok(())
    }

    fn snapshot(&self, sequence: u64) -> Result<Vec<u8>> {
        Ok(self.find(sequence)?.save())
    }

    fn restore(&mut self, sequence: u64, bytes: &[u8]) -> Result<()> {
        let restored = Sequence::load(&self.engine, bytes)?;
        self.sequences.insert(sequence, restored);
        Ok(())
    }
}
