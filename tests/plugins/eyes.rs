//! A paged model that reads images, and whose tokens are bytes. What comes next depends on all tokens before, on the colour
//! of every row, and on positions that images shift: a host that mixes up any of them gets another answer.
//!
//! An image becomes a row for each cell of 16 by 16 pixels, with the cell's mean colour. Images do as their first cell tells:
//! one colour has `open` fail, others `encode`, by an error or a panic. Three widths are fatal to the process that prepares them. Encoding takes `encode_us` for each row, if the
//! options say so, and with `"whole": true` slots see each other, as far as a host can tell.

use pensieve_sdk::{
    Architecture, Batch, Cache, Card, Encode, Error, KvTransfer, LoadRequest, Measured, MediaItem, MediaKind,
    MediaSize, Model, Placement, Plugin, Prepare, Resident, Result, Services, Source, Span,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    thread::sleep,
    time::{Duration, Instant},
};

const BLOCK_TOKENS: usize = 16;
const BLOCK_BYTES: usize = 4 * BLOCK_TOKENS;
const CONTEXT: u32 = 32_768;

/// Tokens 0 to 255 are bytes.
const END: u32 = 256;
const SLOT: u32 = 257;
const SPECIALS: [&str; 4] = ["<end>", "<slot>", "<img>", "</img>"];
const VOCABULARY: u32 = END + SPECIALS.len() as u32;

/// Width and height of a cell.
const CELL: u32 = 16;
const ROWS_MAX: u32 = 256;

/// Colours of first cells.
const NOT_OPENED: [u8; 3] = [1, 1, 1];
const NOT_ENCODED: [u8; 3] = [2, 2, 2];
const PANICS: [u8; 3] = [3, 3, 3];

/// Widths of images that end their media process, never return from it, or fill its memory.
const CRASHES: u32 = 97;
const STOPS: u32 = 101;
const EXHAUSTS: u32 = 103;

pensieve_sdk::export!(Plugin::new("eyes", "reads images").architecture(Eyes));

struct Eyes;

impl Architecture for Eyes {
    fn name(&self) -> &'static str {
        "eyes"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["EyesForCausalLM"]
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        Ok(Card {
            architecture: self.name().into(),
            vocabulary: VOCABULARY,
            context: CONTEXT,
            block_tokens: BLOCK_TOKENS as u32,
            caches: vec![Cache::Tokens { bytes: BLOCK_BYTES as u64 }],
            hidden: 0,
            token_bytes: 0,
            weight_bytes: 0,
            tokenizer: tokenizer(),
            chat_template: Some(
                "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}\
                 {% if part.type == 'text' %}{{ part.text }}{% else %}<image>{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
                    .into(),
            ),
            bos: None,
            add_bos: false,
            eos: vec![END],
            formats: String::new(),
            facts: String::new(),
            fingerprint: format!("eyes {} {}", source.path.display(), source.options),
        })
    }

    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>> {
        services.progress(1, 1, "nothing");
        let blocks = usize::try_from(request.state_bytes).unwrap_or(0) / BLOCK_BYTES;
        if blocks == 0 {
            return Err(Error::out_of_memory(format!("{} bytes hold no block", request.state_bytes)));
        }
        let options = options(&request.source)?;
        let pause = |name: &str| Duration::from_micros(options[name].as_u64().unwrap_or(0));
        Ok(Box::new(Loaded {
            context: if request.context == 0 { CONTEXT } else { request.context.min(CONTEXT) },
            whole: options["whole"] == true,
            step_pause: pause("step_us"),
            token_pause: pause("token_us"),
            encode_pause: pause("encode_us"),
            seen: vec![0; blocks * BLOCK_TOKENS],
            open: BTreeMap::new(),
            placed: BTreeMap::new(),
        }))
    }

    fn media(&self) -> Option<&dyn Prepare> {
        Some(self)
    }
}

impl Prepare for Eyes {
    fn describe(&self, source: &Source) -> Result<String> {
        let whole = options(source)?["whole"] == true;
        let image = json!({
            "placeholder": "<image>", "slot": SLOT, "whole": whole, "rows_max": ROWS_MAX, "row_bytes": 4, "encoder_bytes": 0,
            "processor": {"cell": CELL},
        });
        Ok(json!({ "image": image }).to_string())
    }

    fn measure(&self, processor: &str, size: MediaSize) -> Result<Measured> {
        if size.width == STOPS {
            loop {
                std::thread::park();
            }
        }
        let [across, down] = cells(processor, size)?;
        let rows = across * down;
        let layout = [across.to_le_bytes(), down.to_le_bytes()].concat();
        Ok(Measured { text: format!("<img>{}</img>", "<slot>".repeat(rows as usize)), rows, layout })
    }

    fn prepare(&self, processor: &str, item: &MediaItem<'_>) -> Result<Vec<u8>> {
        match item.size.width {
            CRASHES => std::process::abort(),
            EXHAUSTS => {
                let mut hoard = Vec::new();
                loop {
                    hoard.push(vec![1_u8; 1 << 24]);
                }
            }
            _ => {}
        }
        let [across, down] = cells(processor, item.size)?;
        let (width, height) = (item.size.width, item.size.height);
        let mut colours = Vec::new();
        for (row, column) in (0..down).flat_map(|row| (0..across).map(move |column| (row, column))) {
            let ys = row * CELL..((row + 1) * CELL).min(height);
            let xs = column * CELL..((column + 1) * CELL).min(width);
            let pixels: Vec<u32> = ys.flat_map(|y| xs.clone().map(move |x| 3 * (y * width + x))).collect();
            for channel in 0..3 {
                let sum: u32 = pixels.iter().map(|at| u32::from(item.data[(at + channel) as usize])).sum();
                colours.push((sum / pixels.len() as u32) as u8);
            }
        }
        Ok(colours)
    }
}

/// Number of cells in a row and in a column.
fn cells(processor: &str, size: MediaSize) -> Result<[u32; 2]> {
    if serde_json::from_str::<Value>(processor).ok().and_then(|processor| processor["cell"].as_u64())
        != Some(CELL.into())
    {
        return Err(Error::invalid(format!("a processor of '{processor}'")));
    }
    let cells = [size.width.div_ceil(CELL), size.height.div_ceil(CELL)];
    if size.kind != MediaKind::Image || cells[0].saturating_mul(cells[1]) > ROWS_MAX {
        return Err(Error::invalid(format!("an image of {} by {} is too large", size.width, size.height)));
    }
    Ok(cells)
}

fn options(source: &Source) -> Result<Value> {
    let text = if source.options.is_empty() { "{}" } else { &source.options };
    serde_json::from_str(text).map_err(|error| Error::invalid(format!("options: {error}")))
}

fn tokenizer() -> String {
    let names = (0..256).map(|byte| format!("<0x{byte:02X}>")).chain(SPECIALS.map(String::from));
    let vocab: serde_json::Map<String, Value> = names.zip(0..).map(|(name, id)| (name, json!(id))).collect();
    let added = SPECIALS.iter().zip(END..).map(|(content, id)| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false})
    });
    json!({
        "version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "decoder": {"type": "ByteFallback"},
        "model": {"type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": []},
    })
    .to_string()
}

struct Loaded {
    context: u32,
    whole: bool,
    step_pause: Duration,
    token_pause: Duration,
    encode_pause: Duration,
    /// What stood at each place of each block: a token, or the colour of a row.
    seen: Vec<u32>,
    open: BTreeMap<u64, Opened>,
    placed: BTreeMap<u64, Vec<Item>>,
}

struct Opened {
    colours: Vec<u32>,
    encoded: usize,
}

/// An item of a sequence.
struct Item {
    start: usize,
    tokens: Vec<u32>,
    /// Its longer side in cells: as many positions as it takes.
    side: usize,
    handle: Option<u64>,
}

impl Item {
    fn end(&self) -> usize {
        self.start + self.tokens.len()
    }

    /// The slots among its first `len` tokens.
    fn slots(&self, len: usize) -> usize {
        self.tokens[..len].iter().filter(|token| **token == SLOT).count()
    }
}

impl Loaded {
    fn items(&self, sequence: u64) -> &[Item] {
        self.placed.get(&sequence).map_or(&[], Vec::as_slice)
    }

    /// A token of a sequence as it is seen: itself, or the colour of its row.
    fn symbol(&self, sequence: u64, place: usize, token: u32) -> Result<u32> {
        let item = self.items(sequence).iter().find(|item| (item.start..item.end()).contains(&place));
        let Some(item) = item.filter(|_| token == SLOT) else { return Ok(token) };
        let row = item.slots(place - item.start);
        let opened = item.handle.and_then(|handle| self.open.get(&handle));
        let colour =
            opened.filter(|opened| opened.encoded == opened.colours.len()).and_then(|opened| opened.colours.get(row));
        colour.copied().ok_or_else(|| Error::invalid(format!("the slot at {place} has no row")))
    }

    /// The position of a token: an item takes as many as its longer side.
    fn position(&self, sequence: u64, place: usize) -> usize {
        let before = self.items(sequence).iter().filter(|item| item.end() <= place);
        before.fold(place, |place, item| place + item.side - item.tokens.len())
    }
}

impl Model for Loaded {
    fn resident(&self) -> Resident {
        let blocks = (self.seen.len() / BLOCK_TOKENS) as u32;
        Resident {
            device: "cpu".into(),
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
        sleep(self.step_pause + self.token_pause * batch.tokens.len() as u32);
        let mut symbols = Vec::with_capacity(batch.tokens.len());
        for span in &batch.spans {
            for border in [span.past, span.past + span.len] {
                let divided = |item: &&Item| border > item.start + 1 && border < item.end() - 1;
                if let Some(item) = self.items(span.sequence).iter().find(divided).filter(|_| self.whole) {
                    return Err(Error::invalid(format!(
                        "a step ends at {border}, inside of an image at {}",
                        item.start
                    )));
                }
            }
            for index in 0..span.len {
                symbols.push(self.symbol(span.sequence, span.past + index, batch.tokens[span.start + index])?);
            }
        }
        let mut rows = logits.chunks_exact_mut(VOCABULARY as usize);
        for span in &batch.spans {
            let step = |this: &Self, history, place| {
                mix(mix(history, this.seen[slot(span, place)]), this.position(span.sequence, place) as u32)
            };
            let mut history = (0..span.past).fold(1, |history, place| step(self, history, place));
            let wanted = span.want.rows(span.len);
            for index in 0..span.len {
                let place = span.past + index;
                self.seen[slot(span, place)] = symbols[span.start + index];
                history = step(self, history, place);
                if index + wanted >= span.len
                    && let Some(row) = rows.next()
                {
                    score(history, row);
                }
            }
        }
        Ok(())
    }

    fn release(&mut self, sequence: u64) {
        self.placed.remove(&sequence);
    }

    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        Some(self)
    }

    fn media(&mut self) -> Option<&mut dyn Encode> {
        Some(self)
    }
}

impl Encode for Loaded {
    fn open(&mut self, handle: u64, size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<()> {
        let [across, down] = cells(&json!({ "cell": CELL }).to_string(), size)?;
        if layout != [across.to_le_bytes(), down.to_le_bytes()].concat() {
            return Err(Error::invalid("the layout is another size's"));
        }
        if prepared.len() != 3 * (across * down) as usize {
            return Err(Error::invalid(format!("{} bytes for {} rows", prepared.len(), across * down)));
        }
        if prepared.starts_with(&NOT_OPENED) {
            return Err(Error::invalid("as told, not opened"));
        }
        if self.open.contains_key(&handle) {
            return Err(Error::invalid(format!("handle {handle} is in use")));
        }
        // Colours are told from tokens by their highest byte.
        let colours = prepared.chunks_exact(3).map(|c| u32::from_le_bytes([c[0], c[1], c[2], 1])).collect();
        self.open.insert(handle, Opened { colours, encoded: 0 });
        Ok(())
    }

    fn encode(&mut self, handles: &[u64], budget: u32) -> Result<u32> {
        let (begun, budget) = (Instant::now(), Duration::from_micros(budget.into()));
        let is_told = |colour: [u8; 3]| {
            let colour = u32::from_le_bytes([colour[0], colour[1], colour[2], 1]);
            handles.iter().any(|handle| self.open.get(handle).is_some_and(|opened| opened.colours[0] == colour))
        };
        if is_told(NOT_ENCODED) {
            return Err(Error::invalid("as told, not encoded"));
        }
        assert!(!is_told(PANICS), "as told, in encode");
        let mut left = 0;
        for handle in handles {
            let Some(opened) = self.open.get_mut(handle) else {
                return Err(Error::not_found(format!("no item {handle} is open")));
            };
            while opened.encoded < opened.colours.len() && (left == 0 || begun.elapsed() < budget) {
                sleep(self.encode_pause);
                opened.encoded += 1;
                if begun.elapsed() >= budget {
                    break;
                }
            }
            left += opened.colours.len() - opened.encoded;
        }
        Ok(left as u32)
    }

    fn place(&mut self, sequence: u64, placements: &[Placement<'_>]) -> Result<()> {
        let item = |placement: &Placement<'_>| {
            let [across, down] = cells(&json!({ "cell": CELL }).to_string(), placement.size)?;
            let side = across.max(down) as usize;
            let Placement { start, tokens, handle, .. } = *placement;
            Ok(Item { start, tokens: tokens.to_vec(), side, handle })
        };
        let items = placements.iter().map(item).collect::<Result<Vec<Item>>>()?;
        self.placed.insert(sequence, items);
        Ok(())
    }

    fn close(&mut self, handle: u64) {
        self.open.remove(&handle);
    }
}

impl KvTransfer for Loaded {
    fn bytes(&self, _group: usize) -> usize {
        BLOCK_BYTES
    }

    fn export(&self, _group: usize, block: u32, bytes: &mut [u8]) -> Result<()> {
        let start = block as usize * BLOCK_TOKENS;
        for (symbol, bytes) in self.seen[start..start + BLOCK_TOKENS].iter().zip(bytes.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&symbol.to_le_bytes());
        }
        Ok(())
    }

    fn import(&mut self, _group: usize, block: u32, bytes: &[u8]) -> Result<()> {
        let start = block as usize * BLOCK_TOKENS;
        for (symbol, bytes) in self.seen[start..start + BLOCK_TOKENS].iter_mut().zip(bytes.chunks_exact(4)) {
            *symbol = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }
}

fn slot(span: &Span<'_>, place: usize) -> usize {
    span.blocks(0)[place / BLOCK_TOKENS] as usize * BLOCK_TOKENS + place % BLOCK_TOKENS
}

/// Small letters are likely, other tokens are not.
fn score(history: u32, row: &mut [f32]) {
    row.fill(-20.0);
    for letter in b'a'..=b'z' {
        row[usize::from(letter)] = (mix(history, u32::from(letter)) % 4096) as f32 / 1024.0;
    }
}

fn mix(a: u32, b: u32) -> u32 {
    let mut hash = a.rotate_left(15).wrapping_add(b).wrapping_add(0x9e37_79b9);
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x21f0_aaad);
    hash = (hash ^ (hash >> 15)).wrapping_mul(0x735a_2d97);
    hash ^ (hash >> 15)
}
