//! A paged model whose tokens are bytes, and which does as its tokens tell it: one makes its logits NaN, others have
//! `forward` fail, panic, loop, exit or crash, or report that the device has failed. Everything else is like the bigram example: what comes next depends on all
//! tokens before, read back from the blocks, so that a host that mixes anything up says something else.
//!
//! Its adapters change nothing. They are folders that tell how reading them goes: it waits for as long as there is a file
//! `wait`, having written a file `read` to say so, and fails with the words in a file `broken`.
//!
//! Its sampler `endless` never ends: neither picking a token nor, where its parameters say so, being made.

use pensieve_sdk::{
    AdapterData, AdapterFormat, Architecture, Batch, Cache, Card, Code, Error, KvTransfer, LoadRequest, LowRankPair,
    Model, Plugin, Resident, Result, Services, Source, Span,
    sampler::{Candidates, History, Sampler, Stage},
};
use std::{fs, path::Path, thread::sleep, time::Duration};

const BLOCK_TOKENS: usize = 16;
const BLOCK_BYTES: usize = 4 * BLOCK_TOKENS;

/// Tokens 0 to 255 are bytes.
const END: u32 = 256;
const NAN: u32 = 257;
const ERROR: u32 = 258;
const PANIC: u32 = 259;
const LOOP: u32 = 260;
const EXIT: u32 = 261;
const CRASH: u32 = 262;
const DEVICE: u32 = 263;
const VOCABULARY: u32 = 264;

/// Numbers of an adapter.
const ADAPTER_VALUES: usize = 1024;

pensieve_sdk::export!(
    Plugin::new("faults", "does as its tokens tell it").architecture(Faults).adapter_format(Folders).sampler(Endless)
);

struct Faults;

impl Architecture for Faults {
    fn name(&self) -> &'static str {
        "faults"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["FaultsForCausalLM"]
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        Ok(Card {
            architecture: self.name().into(),
            vocabulary: VOCABULARY,
            context: 32_768,
            block_tokens: BLOCK_TOKENS as u32,
            caches: vec![Cache::Tokens { bytes: BLOCK_BYTES as u64 }],
            hidden: 0,
            token_bytes: 0,
            weight_bytes: 0,
            tokenizer: tokenizer(),
            chat_template: None,
            bos: None,
            add_bos: false,
            eos: vec![END],
            formats: String::new(),
            facts: String::new(),
            fingerprint: format!("faults {}", source.path.display()),
        })
    }

    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>> {
        services.progress(1, 1, "nothing");
        let blocks = usize::try_from(request.state_bytes).unwrap_or(0) / BLOCK_BYTES;
        if blocks == 0 {
            return Err(Error::out_of_memory(format!("{} bytes hold no block", request.state_bytes)));
        }
        let context = if request.context == 0 { 32_768 } else { request.context };
        let ends = setting(&request.source.options, "ends") > 0;
        let pause = Duration::from_micros(setting(&request.source.options, "step_us"));
        let export_pause = Duration::from_micros(setting(&request.source.options, "export_us"));
        let token_pause = Duration::from_micros(setting(&request.source.options, "token_us"));
        let seen = vec![0; blocks * BLOCK_TOKENS];
        let device = if setting(&request.source.options, "gpu") > 0 { "gpu:0" } else { "cpu" };
        Ok(Box::new(Loaded { context, ends, device, pause, token_pause, export_pause, seen, adapters: 0 }))
    }
}

/// A number out of a JSON object; 0 if it is not there.
fn setting(json: &str, name: &str) -> u64 {
    let rest = json.split_once(&format!("\"{name}\"")).map_or("", |(_, rest)| rest);
    let digits: String = rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

fn tokenizer() -> String {
    let names = ["end", "nan", "error", "panic", "loop", "exit", "crash", "device"];
    let bytes = (0..256).map(|byte| format!(r#""<0x{byte:02X}>":{byte}"#));
    let faults = names.iter().zip(END..).map(|(name, id)| format!(r#""<{name}>":{id}"#));
    let vocab: Vec<String> = bytes.chain(faults).collect();
    format!(
        r#"{{"version":"1.0","added_tokens":[],"decoder":{{"type":"ByteFallback"}},"model":{{"type":"BPE","byte_fallback":true,"vocab":{{{}}},"merges":[]}}}}"#,
        vocab.join(",")
    )
}

struct Loaded {
    context: u32,
    ends: bool,
    device: &'static str,
    pause: Duration,
    token_pause: Duration,
    export_pause: Duration,
    seen: Vec<u32>,
    adapters: u32,
}

impl Model for Loaded {
    fn resident(&self) -> Resident {
        let blocks = (self.seen.len() / BLOCK_TOKENS) as u32;
        Resident {
            device: self.device.into(),
            note: "no kernels".into(),
            weight_bytes: 0,
            state_bytes: u64::from(blocks) * BLOCK_BYTES as u64,
            vocabulary: VOCABULARY,
            context: self.context,
            hidden: 0,
            block_tokens: BLOCK_TOKENS as u32,
            caches: vec![(Cache::Tokens { bytes: BLOCK_BYTES as u64 }, blocks)],
        }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        batch.tokens.iter().try_for_each(|token| obey(*token))?;
        sleep(self.pause + self.token_pause * batch.tokens.len() as u32);
        let mut rows = logits.chunks_exact_mut(VOCABULARY as usize);
        for span in &batch.spans {
            let past = (0..span.past).fold(1, |history, place| next(history, self.seen[slot(span, place)], place));
            let mut history = past;
            for index in 0..span.len {
                let (token, position) = (batch.tokens[span.start + index], batch.positions[span.start + index]);
                self.seen[slot(span, span.past + index)] = token;
                history = next(history, token, position as usize);
            }
            if span.want.rows(span.len) > 0
                && let Some(row) = rows.next()
            {
                score(history, self.ends, row);
                let last = batch.tokens[span.start + span.len - 1];
                row[usize::from(b'q')] = if last == NAN { f32::NAN } else { row[usize::from(b'q')] };
            }
        }
        Ok(())
    }

    fn attach(&mut self, _adapter: &AdapterData) -> Result<u32> {
        self.adapters += 1;
        Ok(self.adapters)
    }

    fn detach(&mut self, _adapter: u32) -> Result<()> {
        Ok(())
    }

    fn release(&mut self, _sequence: u64) {}

    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        Some(self)
    }
}

impl KvTransfer for Loaded {
    fn bytes(&self, _group: usize) -> usize {
        BLOCK_BYTES
    }

    fn export(&self, _group: usize, block: u32, bytes: &mut [u8]) -> Result<()> {
        sleep(self.export_pause);
        let start = block as usize * BLOCK_TOKENS;
        for (token, bytes) in self.seen[start..start + BLOCK_TOKENS].iter().zip(bytes.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        Ok(())
    }

    fn import(&mut self, _group: usize, block: u32, bytes: &[u8]) -> Result<()> {
        let start = block as usize * BLOCK_TOKENS;
        for (token, bytes) in self.seen[start..start + BLOCK_TOKENS].iter_mut().zip(bytes.chunks_exact(4)) {
            *token = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }
}

struct Folders;

impl AdapterFormat for Folders {
    fn name(&self) -> &'static str {
        "folders"
    }

    fn claims(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn open(&self, path: &Path) -> Result<AdapterData> {
        if path.join("wait").exists() {
            fs::write(path.join("read"), "").map_err(|error| Error::invalid(error.to_string()))?;
        }
        while path.join("wait").exists() {
            sleep(Duration::from_millis(5));
        }
        if let Ok(words) = fs::read_to_string(path.join("broken")) {
            return Err(Error::invalid(words));
        }
        let half = ADAPTER_VALUES / 2;
        let (a, b) = (vec![0.0; half], vec![0.0; half]);
        let pair = LowRankPair { target: "nothing".into(), rank: 1, inputs: half, outputs: half, scale: 1.0, a, b };
        Ok(AdapterData { base: String::new(), fingerprint: path.display().to_string(), pairs: vec![pair] })
    }
}

struct Endless;

impl Sampler for Endless {
    fn name(&self) -> &'static str {
        "endless"
    }

    fn create(&self, parameters: &str, _vocabulary: u32, _seed: u64) -> Result<Box<dyn Stage>> {
        if setting(parameters, "made") == 0 { Ok(Box::new(Self)) } else { spin() }
    }
}

impl Stage for Endless {
    fn sample(&mut self, _candidates: &mut Candidates<'_>, _history: History<'_>) -> Result<Option<u32>> {
        spin()
    }
}

fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

fn obey(token: u32) -> Result<()> {
    match token {
        ERROR => return Err(Error::out_of_memory("as told, no memory")),
        DEVICE => return Err(Error::new(Code::Device, "as told, the driver ignores submissions")),
        PANIC => panic!("as told, in forward"),
        LOOP => loop {
            sleep(Duration::from_secs(1));
        },
        EXIT => std::process::exit(0),
        CRASH => {
            let nowhere = std::hint::black_box(std::ptr::without_provenance_mut::<u32>(64));
            // SAFETY: there is none: the crash is the point.
            unsafe { nowhere.write_volatile(1) };
        }
        _ => {}
    }
    Ok(())
}

fn slot(span: &Span<'_>, place: usize) -> usize {
    span.blocks(0)[place / BLOCK_TOKENS] as usize * BLOCK_TOKENS + place % BLOCK_TOKENS
}

/// What all tokens up to a place amount to.
fn next(history: u32, token: u32, place: usize) -> u32 {
    mix(mix(history, token), place as u32)
}

/// Small letters are likely, other bytes are not, and white space, of which JSON may have any number, even less.
fn score(history: u32, ends: bool, row: &mut [f32]) {
    let chance = |token: u32| (mix(history, token) % 4096) as f32 / 1024.0;
    row.fill(-20.0);
    b"\t\n\r ".iter().for_each(|white| row[usize::from(*white)] = -30.0);
    for letter in b'a'..=b'z' {
        row[usize::from(letter)] = chance(u32::from(letter));
    }
    if ends {
        row[END as usize] = chance(END);
    }
}

fn mix(a: u32, b: u32) -> u32 {
    let mut hash = a.rotate_left(15).wrapping_add(b).wrapping_add(0x9e37_79b9);
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x21f0_aaad);
    hash = (hash ^ (hash >> 15)).wrapping_mul(0x735a_2d97);
    hash ^ (hash >> 15)
}
