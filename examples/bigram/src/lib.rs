//! The smallest legal architecture: a language model without a tensor.
//!
//! Its checkpoint is a folder with a single `config.json`. As in every bigram model, a table gives the next token; here
//! the table is a hash function, so there is nothing to train or ship. A contribution of all earlier tokens is added,
//! read back from the blocks that the host allocates: a host that mixes up blocks, positions or sequences gets other
//! numbers, which makes this model good for testing hosts.

use pensieve_sdk::{
    Architecture, Batch, Cache, Card, Error, LoadRequest, Model, Plugin, Resident, Result, Services, Source, Span,
};

pensieve_sdk::export!(Plugin::new("bigram", "the smallest legal architecture").architecture(Bigram));

const BLOCK_TOKENS: u32 = 16;
const BLOCK_BYTES: u64 = 4 * BLOCK_TOKENS as u64;
const VOCABULARY_MAX: u32 = 65_536;
const CONTEXT_MAX: u32 = 1 << 20;

struct Bigram;

impl Architecture for Bigram {
    fn name(&self) -> &'static str {
        "bigram"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["BigramForCausalLM"]
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        let config = Config::read(source)?;
        Ok(Card {
            architecture: self.name().into(),
            vocabulary: config.vocabulary,
            context: config.context,
            block_tokens: BLOCK_TOKENS,
            caches: vec![Cache::Tokens { bytes: BLOCK_BYTES }],
            hidden: 0,
            token_bytes: 0,
            weight_bytes: 0,
            tokenizer: config.tokenizer(),
            chat_template: None,
            bos: None,
            add_bos: false,
            eos: vec![0],
            formats: String::new(),
            facts: String::new(),
            fingerprint: format!("bigram-{}-{}", config.vocabulary, config.context),
        })
    }

    fn load(&self, request: &LoadRequest, _services: &Services) -> Result<Box<dyn Model>> {
        if !matches!(request.device.as_str(), "auto" | "cpu") {
            return Err(Error::unsupported(format!("bigram does not run on '{}'", request.device)).help("use 'cpu'"));
        }
        let config = Config::read(&request.source)?;
        let context = if request.context == 0 { config.context } else { request.context.min(config.context) };
        let blocks = u32::try_from(request.state_bytes / BLOCK_BYTES).unwrap_or(u32::MAX).min(CONTEXT_MAX);
        if blocks == 0 {
            let message = format!("{} bytes of state hold no block of {BLOCK_BYTES}", request.state_bytes);
            return Err(Error::out_of_memory(message).help("raise kv_budget"));
        }
        let seen = vec![0; blocks as usize * BLOCK_TOKENS as usize];
        Ok(Box::new(Loaded { vocabulary: config.vocabulary, context, blocks, seen }))
    }
}

struct Loaded {
    vocabulary: u32,
    context: u32,
    blocks: u32,
    /// The token in each slot of each block, in place of an attention layer's keys and values.
    seen: Vec<u32>,
}

impl Model for Loaded {
    fn resident(&self) -> Resident {
        Resident {
            device: "cpu".into(),
            note: String::new(),
            weight_bytes: 0,
            state_bytes: u64::from(self.blocks) * BLOCK_BYTES,
            vocabulary: self.vocabulary,
            context: self.context,
            hidden: 0,
            block_tokens: BLOCK_TOKENS,
            caches: vec![(Cache::Tokens { bytes: BLOCK_BYTES }, self.blocks)],
        }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        let mut rows = logits.chunks_exact_mut(self.vocabulary as usize);
        for span in &batch.spans {
            let past = (0..span.past).fold(0, |history, place| mix(history, self.seen[slot(span, place)]));
            let unwanted = span.len - span.want.rows(span.len);
            let mut history = past;
            for index in 0..span.len {
                let (token, position) = (batch.tokens[span.start + index], batch.positions[span.start + index]);
                self.seen[slot(span, span.past + index)] = token;
                history = mix(history, token);
                if index >= unwanted
                    && let Some(row) = rows.next()
                {
                    score(token, mix(history, position), row);
                }
            }
        }
        Ok(())
    }

    fn release(&mut self, _sequence: u64) {}
}

/// The slot of a sequence's token, by its block table.
fn slot(span: &Span<'_>, place: usize) -> usize {
    let block_tokens = BLOCK_TOKENS as usize;
    span.blocks(0)[place / block_tokens] as usize * block_tokens + place % block_tokens
}

/// Logits of the next token.
fn score(token: u32, history: u32, row: &mut [f32]) {
    for (next, logit) in (0..).zip(row) {
        let (table, pinch) = (mix(token, next) % 1024, mix(history, next) % 1024);
        *logit = table as f32 / 64.0 + pinch as f32 / 512.0;
    }
}

/// Hashes two numbers into one.
fn mix(a: u32, b: u32) -> u32 {
    let mut hash = a.rotate_left(15).wrapping_add(b).wrapping_add(0x9e37_79b9);
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x21f0_aaad);
    hash = (hash ^ (hash >> 15)).wrapping_mul(0x735a_2d97);
    hash ^ (hash >> 15)
}

struct Config {
    vocabulary: u32,
    context: u32,
}

impl Config {
    fn read(source: &Source) -> Result<Self> {
        let path = source.path.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|error| Error::from(error).context(path.display()))?;
        if !text.contains("\"BigramForCausalLM\"") {
            return Err(Error::declined(format!("{} is not of class BigramForCausalLM", path.display())));
        }
        let vocabulary = number(&text, "vocab_size", VOCABULARY_MAX)?;
        Ok(Self { vocabulary, context: number(&text, "max_position_embeddings", CONTEXT_MAX)? })
    }

    /// One word per token: its number, preceded by the space that `▁` stands for.
    fn tokenizer(&self) -> String {
        let words: Vec<String> = (0..self.vocabulary).map(|token| format!("\"▁{token}\":{token}")).collect();
        let spaces = r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}"#;
        format!(
            r#"{{"version":"1.0","added_tokens":[],"pre_tokenizer":{spaces},"decoder":{spaces},"model":{{"type":"WordLevel","vocab":{{{}}},"unk_token":"▁0"}}}}"#,
            words.join(",")
        )
    }
}

/// Reads a number between 1 and a limit. An architecture with a real checkpoint would use `pensieve_sdk::weights`.
fn number(json: &str, key: &str, max: u32) -> Result<u32> {
    let value = json.split_once(&format!("\"{key}\"")).and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
    let digits = value.map_or("", |value| value.split([',', '}', '\n']).next().unwrap_or_default().trim());
    match digits.parse() {
        Ok(number) if (1..=max).contains(&number) => Ok(number),
        _ => Err(Error::corrupt(format!("config.json: {key} is '{digits}', not a number from 1 to {max}"))),
    }
}
