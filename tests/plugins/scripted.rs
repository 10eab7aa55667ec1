//! A model that says what a script tells it, so that servers, dialects and clients can be tested on known answers.
//!
//! Its checkpoint is a folder with `config.json`, `tokenizer.json`, `chat_template.jinja` and `script.json`, a list of
//! `{"when": "text", "say": "text"}`. It says the first entry whose `when` stands in a turn since its last answer; an
//! empty `when` fits any. Without a turn in the prompt, `say` follows the last `when` in the text. Special tokens in `say`
//! are meant as tokens, and the turn ends after it.
//!
//! Turns are ChatML's, unless `config.json` has `"turns": {"user": ["text"], "answer": "text"}`: what begins a turn of the user
//! or of a tool, and what begins an answer.
//!
//! Like a real model it is a function of the tokens before, read back from blocks, so prefixes are reused and sequences
//! recomputed as they are elsewhere. The next token of the script has by far the highest logit, and any sampler picks it.
//! Where a grammar forces other tokens, the script waits until it may go on; meanwhile what ends texts, objects and lists is
//! likelier than what prolongs them, and a call is likelier than other texts.

use pensieve_sdk::{
    Architecture, Batch, Cache, Card, Error, LoadRequest, Model, Output, Outputs, Plugin, Resident, Result, Services,
    Source, Span,
};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::hash_map::DefaultHasher,
    fs,
    hash::{Hash, Hasher},
    thread::sleep,
    time::Duration,
};

const BLOCK_TOKENS: usize = 16;
const BLOCK_BYTES: usize = 4 * BLOCK_TOKENS;
const CONTEXT: u32 = 65_536;
const VOCABULARY_MAX: usize = 1 << 17;

const USER: &[u8] = b"<|im_start|>user";
const ANSWER: &[u8] = b"<|im_start|>assistant\n";
const END: &str = "<|im_end|>";

/// The logits of the script's token, of the least of those that end something, and of a token that nothing speaks for.
const SCRIPTED: f32 = 60.0;
const CLOSING: f32 = 10.0;
const OTHER: f32 = -10.0;

pensieve_sdk::export!(Plugin::new("scripted", "says what its script tells it").architecture(Scripted));

struct Scripted;

impl Architecture for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["ScriptedForCausalLM"]
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        let config = json(&read(source, "config.json")?, "config.json")?;
        let tokenizer = read(source, "tokenizer.json")?;
        let tokens = Tokens::read(&tokenizer)?;
        let chat_template = read(source, "chat_template.jinja").ok();
        let mut hasher = DefaultHasher::new();
        (&tokenizer, &chat_template, read(source, "script.json")?).hash(&mut hasher);
        Ok(Card {
            architecture: self.name().into(),
            vocabulary: tokens.bytes.len() as u32,
            context: config["max_position_embeddings"].as_u64().map_or(CONTEXT, |context| context as u32),
            block_tokens: BLOCK_TOKENS as u32,
            caches: vec![Cache::Tokens { bytes: BLOCK_BYTES as u64 }],
            hidden: 0,
            token_bytes: 0,
            weight_bytes: 0,
            tokenizer,
            chat_template,
            bos: None,
            add_bos: false,
            eos: vec![tokens.end],
            formats: config.get("formats").map(ToString::to_string).unwrap_or_default(),
            facts: String::new(),
            fingerprint: format!("scripted-{:016x}", hasher.finish()),
        })
    }

    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>> {
        services.progress(1, 1, "script");
        let card = self.describe(&request.source)?;
        let script = read(&request.source, "script.json")?;
        let script: Vec<Line> =
            serde_json::from_str(&script).map_err(|error| Error::corrupt(format!("script.json: {error}")))?;
        let blocks = usize::try_from(request.state_bytes).unwrap_or(0) / BLOCK_BYTES;
        if blocks == 0 {
            return Err(Error::out_of_memory(format!("{} bytes hold no block", request.state_bytes)));
        }
        let options = if request.source.options.is_empty() { "{}" } else { &request.source.options };
        let options = json(options, "options")?;
        let pause = |name: &str| Duration::from_micros(options[name].as_u64().unwrap_or(0));
        Ok(Box::new(Loaded {
            context: if request.context == 0 { card.context } else { request.context.min(card.context) },
            script,
            tokens: Tokens::read(&card.tokenizer)?,
            turns: turns(&request.source)?,
            device: options["device"].as_str().unwrap_or("cpu").to_owned(),
            step_pause: pause("step_us"),
            token_pause: pause("token_us"),
            seen: vec![0; blocks * BLOCK_TOKENS],
        }))
    }
}

/// An entry of the script.
#[derive(Deserialize)]
struct Line {
    when: String,
    say: String,
}

/// What begins turns that are not ChatML's.
#[derive(Deserialize)]
struct Turns {
    user: Vec<String>,
    answer: String,
}

fn turns(source: &Source) -> Result<Option<Turns>> {
    let mut config = json(&read(source, "config.json")?, "config.json")?;
    let turns = serde_json::from_value(config["turns"].take());
    turns.map_err(|error| Error::corrupt(format!("config.json: turns: {error}")))
}

struct Loaded {
    context: u32,
    script: Vec<Line>,
    turns: Option<Turns>,
    tokens: Tokens,
    /// How long a step takes, and each token of it.
    device: String,
    step_pause: Duration,
    token_pause: Duration,
    seen: Vec<u32>,
}

impl Model for Loaded {
    fn resident(&self) -> Resident {
        let blocks = (self.seen.len() / BLOCK_TOKENS) as u32;
        Resident {
            device: self.device.clone(),
            note: String::new(),
            weight_bytes: 0,
            state_bytes: u64::from(blocks) * BLOCK_BYTES as u64,
            vocabulary: self.tokens.bytes.len() as u32,
            context: self.context,
            hidden: 0,
            block_tokens: BLOCK_TOKENS as u32,
            caches: vec![(Cache::Tokens { bytes: BLOCK_BYTES as u64 }, blocks)],
        }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        sleep(self.step_pause + self.token_pause * batch.tokens.len() as u32);
        let mut rows = logits.chunks_exact_mut(self.tokens.bytes.len());
        for span in &batch.spans {
            for index in 0..span.len {
                self.seen[slot(span, span.past + index)] = batch.tokens[span.start + index];
            }
            let wanted = span.want.rows(span.len);
            if wanted == 0 {
                continue;
            }
            let tokens: Vec<u32> = (0..span.past + span.len).map(|place| self.seen[slot(span, place)]).collect();
            for length in tokens.len() - wanted + 1..=tokens.len() {
                if let Some(row) = rows.next() {
                    self.score(&tokens[..length], row);
                }
            }
        }
        Ok(())
    }

    /// On another device than the processor it hands out single candidates, and nothing else.
    fn forward_to(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        if self.device != "cpu"
            && (batch.top != 1 || batch.spans.iter().any(|span| span.rows() > 0 && span.output != Output::Candidates))
        {
            return Err(Error::unsupported(format!("whole logits cross from {}", self.device)));
        }
        outputs.fill_from_logits(batch, |batch, logits| self.forward(batch, logits))
    }

    fn release(&mut self, _sequence: u64) {}
}

impl Loaded {
    /// The probability of each token after these.
    fn score(&self, tokens: &[u32], row: &mut [f32]) {
        for (id, (logit, bytes)) in row.iter_mut().zip(&self.tokens.bytes).enumerate() {
            // White space, of which JSON may have any amount, comes last, and specials never come by themselves.
            let burden = if self.tokens.special[id] || bytes.is_empty() {
                1000.0
            } else if bytes.starts_with(b"<") {
                // It does not begin to think where it is bound to answer.
                500.0
            } else if bytes.iter().all(u8::is_ascii_whitespace) {
                30.0
            } else {
                bytes.len() as f32 + (id % 97) as f32 / 97.0
            };
            *logit = OTHER - burden;
        }
        for (rank, text) in ["<tool_call>", END, "]", "}", "\""].iter().enumerate() {
            if let Some(id) = self.tokens.named(text.as_bytes()) {
                row[id as usize] = CLOSING + rank as f32;
            }
        }
        if let Some(next) = self.next(tokens) {
            row[next as usize] = SCRIPTED;
        }
    }

    /// The next token of the script; none if no entry fits.
    fn next(&self, tokens: &[u32]) -> Option<u32> {
        let mut text = Vec::new();
        let mut ends = Vec::with_capacity(tokens.len());
        for token in tokens {
            text.extend_from_slice(&self.tokens.bytes[*token as usize]);
            ends.push(text.len());
        }
        let (line, begin) = self.line(&text)?;
        let mut rest = line.say.as_bytes();
        // Tokens that the script does not have were forced, and it waits for them to pass.
        for (token, end) in tokens.iter().zip(&ends).filter(|(_, end)| **end > begin) {
            let bytes = &self.tokens.bytes[*token as usize];
            if end - bytes.len() >= begin {
                rest = rest.strip_prefix(bytes.as_slice()).unwrap_or(rest);
            }
        }
        Some(if rest.is_empty() { self.tokens.end } else { self.tokens.first_of(rest) })
    }

    /// The entry that answers a text, and where in it the answer begins.
    fn line(&self, text: &[u8]) -> Option<(&Line, usize)> {
        if let Some(turns) = &self.turns {
            // An answer may consist of several messages, so it begins behind the last turn that is not the model's.
            let user = turns.user.iter().filter_map(|user| last(text, user.as_bytes())).max()?;
            let since = last(&text[..user], turns.answer.as_bytes()).unwrap_or(0);
            let answer = user + first(&text[user..], turns.answer.as_bytes())?;
            let turn = &text[since..answer];
            let begin = turns.user.iter().filter_map(|user| first(turn, user.as_bytes())).min()?;
            let line = self.script.iter().find(|line| last(&turn[begin..], line.when.as_bytes()).is_some())?;
            return Some((line, answer + turns.answer.len()));
        }
        if let Some(answer) = last(text, ANSWER) {
            let since = last(&text[..answer], ANSWER).unwrap_or(0);
            let turn =
                first(&text[since..answer], USER).map_or(&text[since..answer], |turn| &text[since + turn..answer]);
            let line = self.script.iter().find(|line| last(turn, line.when.as_bytes()).is_some())?;
            return Some((line, answer + ANSWER.len()));
        }
        let ends = self.script.iter().filter(|line| !line.when.is_empty()).filter_map(|line| {
            let begin = last(text, line.when.as_bytes())?;
            Some((line, begin + line.when.len()))
        });
        ends.max_by_key(|(_, end)| *end)
    }
}

/// Where a text stands first in another.
fn first(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// Where a text stands last in another.
fn last(text: &[u8], wanted: &[u8]) -> Option<usize> {
    if wanted.is_empty() { Some(text.len()) } else { text.windows(wanted.len()).rposition(|window| window == wanted) }
}

fn slot(span: &Span<'_>, place: usize) -> usize {
    span.blocks(0)[place / BLOCK_TOKENS] as usize * BLOCK_TOKENS + place % BLOCK_TOKENS
}

/// What the tokens of a byte-level BPE stand for.
struct Tokens {
    bytes: Vec<Vec<u8>>,
    special: Vec<bool>,
    end: u32,
    longest: usize,
}

impl Tokens {
    fn read(tokenizer: &str) -> Result<Self> {
        let tokenizer = json(tokenizer, "tokenizer.json")?;
        let mut found: Vec<(usize, Vec<u8>, bool)> = Vec::new();
        for (text, id) in tokenizer["model"]["vocab"].as_object().into_iter().flatten() {
            let bytes: Option<Vec<u8>> = text.chars().map(byte_of).collect();
            let bytes = bytes.ok_or_else(|| Error::corrupt(format!("tokenizer.json: '{text}' is not of bytes")))?;
            found.push((id.as_u64().unwrap_or(u64::MAX) as usize, bytes, false));
        }
        for added in tokenizer["added_tokens"].as_array().into_iter().flatten() {
            let id = added["id"].as_u64().unwrap_or(u64::MAX) as usize;
            let text = added["content"].as_str().unwrap_or_default();
            found.push((id, text.as_bytes().to_vec(), added["special"] == true));
        }
        let size = found.iter().map(|(id, _, _)| id.saturating_add(1)).max().unwrap_or(0);
        if size == 0 || size > VOCABULARY_MAX {
            return Err(Error::corrupt(format!("tokenizer.json: {size} tokens are not within 1 to {VOCABULARY_MAX}")));
        }
        let mut tokens = Self { bytes: vec![Vec::new(); size], special: vec![false; size], end: 0, longest: 0 };
        for (id, bytes, special) in found {
            tokens.longest = tokens.longest.max(bytes.len());
            (tokens.bytes[id], tokens.special[id]) = (bytes, special);
        }
        tokens.end = tokens
            .named(END.as_bytes())
            .ok_or_else(|| Error::corrupt(format!("tokenizer.json: there is no token '{END}'")))?;
        Ok(tokens)
    }

    fn named(&self, text: &[u8]) -> Option<u32> {
        self.bytes.iter().position(|bytes| bytes == text).map(|id| id as u32)
    }

    /// The longest token that a text begins with: not how the tokenizer cuts it, and so a text that it would not write.
    fn first_of(&self, text: &[u8]) -> u32 {
        let lengths = (1..=self.longest.min(text.len())).rev();
        lengths.into_iter().find_map(|length| self.named(&text[..length])).unwrap_or(self.end)
    }
}

/// GPT-2's alphabet: bytes that Latin-1 prints stand for themselves, the others for the characters from U+0100 on.
fn byte_of(char: char) -> Option<u8> {
    let prints = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(char);
    match u8::try_from(code) {
        Ok(byte) => prints(byte).then_some(byte),
        Err(_) => (0..=255u8).filter(|byte| !prints(*byte)).nth(code.checked_sub(256)? as usize),
    }
}

fn read(source: &Source, name: &str) -> Result<String> {
    fs::read_to_string(source.path.join(name)).map_err(|error| Error::from(error).context(name))
}

fn json(text: &str, name: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|error| Error::corrupt(format!("{name}: {error}")))
}
