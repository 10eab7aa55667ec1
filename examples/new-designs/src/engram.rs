//! A memory of n-grams (Engram, arXiv 2601.07372): in front of some blocks each token looks up the hashes of the
//! n-grams that end with it, and a gate decides how much of what it finds is added. Without the paper's short
//! convolution.
//!
//! The tables stay on disk, so they may be larger than memory. A chunk of a prompt begins in the middle of n-grams: the
//! last tokens of each sequence are kept as a state.

use pensieve_sdk::{
    Result,
    nn::{
        AttentionCache, CausalLm, Decoder, KvShape, LayerCache, Linear, Loader, MappedTable, RmsNorm, Rope, Shape,
        Step, Tensor,
    },
    weights::Checkpoint,
};

use crate::llama::{Block, Config};

/// Factors of the hash for a token, the one before, and so on.
const FACTORS: [u64; 4] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d, 0x27d4_eb2f];

pub struct EngramConfig {
    llama: Config,
    /// The layers with a memory.
    engram_layers: Vec<usize>,
    /// The longest n-gram; the shortest has two tokens.
    engram_ngram: usize,
    /// Rows of each table: different primes, one for each hash of each length.
    engram_rows: Vec<usize>,
    /// Values in a row.
    engram_dim: usize,
}

pub struct Engram {
    model: CausalLm<Remembering>,
    rope: Rope,
    ngram: usize,
    /// Index of the state with the last tokens.
    state: usize,
}

struct Remembering {
    memory: Option<Memory>,
    block: Block,
}

struct Memory {
    tables: Vec<MappedTable>,
    key_proj: Linear,
    value_proj: Linear,
    query_norm: RmsNorm,
    key_norm: RmsNorm,
    width: usize,
}

impl Memory {
    fn load(loader: &Loader<'_>, config: &EngramConfig) -> Result<Self> {
        let (width, eps) = (config.llama.sizes.hidden_size, config.llama.sizes.rms_norm_eps);
        let found = config.engram_rows.len() * config.engram_dim;
        let table = |(index, rows): (usize, &usize)| loader.at("tables").table(index, *rows, config.engram_dim);
        Ok(Self {
            tables: config.engram_rows.iter().enumerate().map(table).collect::<Result<_>>()?,
            key_proj: loader.linear("key_proj", found, width)?,
            value_proj: loader.linear("value_proj", found, width)?,
            query_norm: RmsNorm::load(loader, "query_norm", width, eps)?,
            key_norm: RmsNorm::load(loader, "key_norm", width, eps)?,
            width,
        })
    }

    /// `x + sigmoid(x · key / √width) · value`, with key and value from the tables.
    fn add_to(&self, x: &Tensor, grams: &[Vec<u64>], step: &Step<'_>) -> Result<Tensor> {
        // Several hashes of the same n-grams go to tables of their own.
        let per_length = self.tables.len() / grams.len();
        let found = self.tables.iter().enumerate().map(|(index, table)| {
            let hashes = &grams[index / per_length];
            let ids: Vec<u32> = hashes.iter().map(|hash| (hash % table.rows() as u64) as u32).collect();
            table.lookup(&ids, step)
        });
        let found = Tensor::cat(&found.collect::<Result<Vec<_>>>()?, 1)?;
        let key = self.key_norm.forward(&self.key_proj.forward(&found, step)?, step)?;
        let score = ((self.query_norm.forward(x, step)? * key)?.sum_keepdim(1)? / (self.width as f64).sqrt())?;
        let gate = (score.neg()?.exp()? + 1.0)?.recip()?;
        step.ops().add(x, &self.value_proj.forward(&found, step)?.broadcast_mul(&gate)?)
    }
}

/// The hash of an n-gram, its last token first; tokens before the text count as 0, all others as one more than their id.
fn hash(tokens: impl Iterator<Item = u64>) -> u64 {
    tokens.zip(FACTORS).fold(0, |hash, (token, factor)| hash ^ token.wrapping_mul(factor))
}

impl Engram {
    /// For each length of n-grams the hash at each token. Advances the state.
    fn grams(&self, step: &mut Step<'_>) -> Result<Vec<Vec<u64>>> {
        let (tokens, before) = (step.tokens(), self.ngram - 1);
        let mut grams = vec![Vec::with_capacity(tokens.len()); before];
        step.recur(self.state, |_, state, rows| {
            // Ids up to 2^24 are exact in a state.
            let mut text: Vec<u64> = state.to_vec1::<f32>()?.into_iter().map(|id| id as u64).collect();
            text.extend(tokens[rows].iter().map(|id| u64::from(*id) + 1));
            for end in before..text.len() {
                for (index, grams) in grams.iter_mut().enumerate() {
                    grams.push(hash(text[end - index - 1..=end].iter().rev().copied()));
                }
            }
            let last: Vec<f32> = text[text.len() - before..].iter().map(|id| *id as f32).collect();
            Ok(Tensor::new(last, state.device())?)
        })?;
        Ok(grams)
    }
}

impl Decoder for Engram {
    const NAME: &'static str = "engram";
    const GGUF: &'static [&'static str] = &[];
    const CLASSES: &'static [&'static str] = &["EngramForCausalLM"];
    type Config = EngramConfig;

    fn config(checkpoint: &Checkpoint) -> Result<EngramConfig> {
        let config = checkpoint.config();
        let (ngram, rows) = (config.usize("engram_ngram")?, config.usizes("engram_rows")?);
        if !(2..=FACTORS.len()).contains(&ngram) || rows.is_empty() || !rows.len().is_multiple_of(ngram - 1) {
            let message = format!("{} tables for n-grams of up to {ngram} tokens", rows.len());
            return Err(pensieve_sdk::Error::corrupt(message));
        }
        let (llama, engram_layers) = (Config::read(checkpoint)?, config.usizes("engram_layers")?);
        let layers = llama.sizes.num_hidden_layers;
        if let Some(layer) = engram_layers.iter().find(|layer| **layer >= layers) {
            let message = format!("'engram_layers' has layer {layer}, and there are {layers}");
            return Err(pensieve_sdk::Error::corrupt(message));
        }
        Ok(EngramConfig {
            llama,
            engram_layers,
            engram_ngram: ngram,
            engram_rows: rows,
            engram_dim: config.usize("engram_dim")?,
        })
    }

    fn is_mapped(_: &EngramConfig, tensor: &str) -> bool {
        tensor.contains(".engram.tables.")
    }

    fn shape(config: &EngramConfig) -> Shape {
        let sizes = &config.llama.sizes;
        let attention = LayerCache::Attention(AttentionCache::new(sizes.num_key_value_heads, sizes.head_dim));
        let mut caches = vec![attention; sizes.num_hidden_layers];
        caches.push(LayerCache::State(config.engram_ngram - 1));
        Shape { kv: KvShape::new(caches), ..sizes.shape() }
    }

    fn load(loader: &Loader<'_>, config: &EngramConfig) -> Result<Self> {
        let EngramConfig { llama, engram_layers, .. } = config;
        let block = |loader: &Loader<'_>, layer: usize| {
            let has_memory = engram_layers.contains(&layer);
            Ok(Remembering {
                memory: if has_memory { Some(Memory::load(&loader.at("engram"), config)?) } else { None },
                block: Block::load(loader, llama, layer)?,
            })
        };
        Ok(Self {
            model: CausalLm::load(loader, &llama.sizes, block)?,
            rope: Rope::new(&llama.rope, llama.sizes.head_dim, loader.context())?,
            ngram: config.engram_ngram,
            state: llama.sizes.num_hidden_layers,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let (angles, grams) = (self.rope.angles(step)?, self.grams(step)?);
        self.model.hidden(step, |layer, x, step| match &layer.memory {
            Some(memory) => layer.block.forward(&memory.add_to(x, &grams, step)?, &angles, step),
            None => layer.block.forward(x, &angles, step),
        })
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.logits(hidden, step)
    }
}
