//! Runs a model through the real loader without an engine: enough to compare logits and to generate greedily.
//!
//! It hands out blocks from the highest id down, so that no test passes only because block 0 holds token 0.

use pensieve_laws::MediaSample;
use pensieve_plugin_api::{
    Batch, CacheGroup, CacheTable, Card, ErrorCode, LoadRequest, ModelBox, NO_ADAPTER, Output, Outputs, PluginError,
    Resident, Source, Span, VACANT, Want,
    ext::merge::{Merge, Merged},
};
use pensieve_worker::plugin::{self, HostServices, LoadedPlugin};
use std::path::Path;

/// Options of a load; the defaults suit small models.
#[derive(Clone, Debug)]
pub struct Options {
    /// The requested device.
    pub device: &'static str,
    /// Longest sequence; 0 for the card's limit.
    pub context: u32,
    /// Room for blocks or sequence states.
    pub state_bytes: u64,
    /// Compute threads; 0 for one per core.
    pub threads: u32,
    /// The architecture's own settings, a JSON object.
    pub settings: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { device: "cpu", context: 0, state_bytes: 64 << 20, threads: 0, settings: String::new() }
    }
}

impl Options {
    /// The defaults with settings for the architecture.
    pub fn with_settings(settings: impl Into<String>) -> Self {
        Self { settings: settings.into(), ..Self::default() }
    }
}

/// A loaded model and its free blocks.
pub struct Driver {
    /// The card of the checkpoint.
    pub card: Card,
    /// Device and memory use.
    pub resident: Resident,
    /// The model, for direct calls.
    pub model: ModelBox,
    /// Images for the laws, if it reads some.
    pub media: Vec<MediaSample>,
    free: Vec<Vec<u32>>,
    next: u64,
}

/// A sequence that a [`Driver`] runs.
#[derive(Debug)]
pub struct Sequence {
    pub id: u64,
    /// Number of tokens that the model has seen.
    pub past: u32,
    /// Its blocks or slot in each cache group.
    pub blocks: Vec<Vec<u32>>,
    /// Adapter for its next tokens, and the scale.
    pub adapter: (u32, f32),
}

impl Driver {
    /// Opens the plugin, asks its architectures in turn to describe the checkpoint, and loads it with the first that
    /// accepts. A library that is not a plugin fails the test.
    pub fn load(plugin: &Path, checkpoint: &Path, options: &Options) -> Result<Self, PluginError> {
        Self::load_with(plugin, checkpoint, options, HostServices::new())
    }

    /// Like [`Driver::load`], with services to observe or cancel the load.
    pub fn load_with(
        plugin: &Path,
        checkpoint: &Path,
        options: &Options,
        services: HostServices,
    ) -> Result<Self, PluginError> {
        Self::load_merged(plugin, checkpoint, options, services, &[])
    }

    /// Like [`Driver::load`], with adapters merged into the weights.
    pub fn load_merged(
        plugin: &Path,
        checkpoint: &Path,
        options: &Options,
        services: HostServices,
        merged: &[Merged],
    ) -> Result<Self, PluginError> {
        let plugin = LoadedPlugin::open(plugin).unwrap_or_else(|error| panic!("{error}"));
        let path = checkpoint.to_str().expect("a path in UTF-8");
        let source = Source { path: path.into(), options: options.settings.as_str().into() };
        let (device, context) = (options.device.into(), options.context);
        let request =
            LoadRequest { source, device, context, state_bytes: options.state_bytes, threads: options.threads };
        let mut refusal = PluginError::new(ErrorCode::DECLINED, "the plugin has no architecture");
        for claim in &plugin.manifest().architectures {
            let architecture = plugin.architecture(&claim.architecture)?;
            match architecture.describe(&source).into_result() {
                Ok(card) => {
                    let services = services.into_abi();
                    let media = plugin::media::ask(&architecture, &source, &card).expect("a description of media");
                    let media = media.and_then(|media| media.image).map_or(Ok(Vec::new()), |image| {
                        MediaSample::images(&architecture, image.slot, image.whole, &image.processor)
                    })?;
                    let model = if merged.is_empty() {
                        architecture.load(&request, services).into_result()?
                    } else {
                        let ability = Merge::of(&architecture).expect("an architecture that merges adapters");
                        ability?.load(&request, services, merged)?
                    };
                    let resident = model.resident();
                    let free = resident.places.iter().map(|&count| (0..count).collect()).collect();
                    return Ok(Self { card, resident, model, media, free, next: 1 });
                }
                Err(error) if error.code == ErrorCode::DECLINED => refusal = error,
                Err(error) => return Err(error),
            }
        }
        Err(refusal)
    }

    /// The logits after every token, computed in one forward pass.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, PluginError> {
        self.in_sequence(|driver, sequence| driver.feed(sequence, tokens, Want::ALL))
    }

    /// The logits after every token, computed in passes of at most `chunk` tokens.
    pub fn logits_in_chunks(&mut self, tokens: &[u32], chunk: usize) -> Result<Vec<Vec<f32>>, PluginError> {
        self.in_sequence(|driver, sequence| {
            let mut rows = Vec::with_capacity(tokens.len());
            for chunk in tokens.chunks(chunk) {
                rows.extend(driver.feed(sequence, chunk, Want::ALL)?);
            }
            Ok(rows)
        })
    }

    /// The `count` most likely tokens after a prompt, one by one, including end-of-turn tokens.
    pub fn generate(&mut self, prompt: &[u32], count: usize) -> Result<Vec<u32>, PluginError> {
        self.in_sequence(|driver, sequence| {
            let mut logits = driver.feed(sequence, prompt, Want::LAST)?;
            let mut tokens = Vec::with_capacity(count);
            while tokens.len() < count {
                let token = best(logits.last().expect("the logits of the last token"));
                tokens.push(token);
                if tokens.len() < count {
                    logits = driver.feed(sequence, &[token], Want::LAST)?;
                }
            }
            Ok(tokens)
        })
    }

    /// A new sequence without adapter.
    pub fn begin(&mut self) -> Sequence {
        let id = self.next;
        self.next += 1;
        Sequence { id, past: 0, blocks: Vec::new(), adapter: (NO_ADAPTER, 1.0) }
    }

    /// Appends tokens to a sequence in one forward pass and returns the requested logits. After an error the sequence
    /// keeps its length.
    pub fn feed(&mut self, sequence: &mut Sequence, tokens: &[u32], want: Want) -> Result<Vec<Vec<f32>>, PluginError> {
        let len = u32::try_from(tokens.len()).expect("a batch of 32-bit length");
        self.reserve(sequence, len)?;
        let positions: Vec<u32> = (sequence.past..sequence.past + len).collect();
        let (adapter, adapter_scale) = sequence.adapter;
        let tables = self.tables(sequence);
        let spans = [Span {
            sequence: sequence.id,
            start: 0,
            len,
            past: sequence.past,
            want,
            output: Output::LOGITS,
            mask: [][..].into(),
            adapter,
            adapter_scale,
            caches: tables.as_slice().into(),
        }];
        let batch = Batch {
            tokens: tokens.into(),
            positions: positions.as_slice().into(),
            spans: spans.as_slice().into(),
            top: 0,
        };
        let width = self.card.vocabulary as usize;
        let rows = want.rows(len).unwrap_or(0) as usize;
        let mut logits = vec![f32::NAN; rows * width];
        self.model.forward(&batch, &mut outputs(&mut logits)).into_result()?;
        sequence.past += len;
        Ok(logits.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }

    /// Ends a sequence and reclaims its blocks.
    pub fn release(&mut self, sequence: Sequence) {
        self.model.release(sequence.id);
        self.free.iter_mut().zip(sequence.blocks).for_each(|(free, ids)| free.extend(ids));
    }

    fn in_sequence<T>(
        &mut self,
        run: impl FnOnce(&mut Self, &mut Sequence) -> Result<T, PluginError>,
    ) -> Result<T, PluginError> {
        let mut sequence = self.begin();
        let result = run(self, &mut sequence);
        self.release(sequence);
        result
    }

    /// The cache tables of a sequence, one per group.
    pub fn tables<'a>(&self, sequence: &'a Sequence) -> Vec<CacheTable<'a>> {
        let groups = self.card.caches.iter().zip(&sequence.blocks);
        let table = |(group, ids): (&CacheGroup, &'a Vec<u32>)| match ids.first() {
            Some(&slot) if group.has_slots() => {
                let read = if sequence.past == 0 { VACANT } else { slot };
                CacheTable { read, write: slot, ..CacheTable::opaque() }
            }
            _ => CacheTable { blocks: ids.as_slice().into(), ..CacheTable::opaque() },
        };
        groups.map(table).collect()
    }

    /// Allocates the blocks or slots for `len` more tokens of a sequence.
    pub fn reserve(&mut self, sequence: &mut Sequence, len: u32) -> Result<(), PluginError> {
        sequence.blocks.resize(self.card.caches.len(), Vec::new());
        let blocks = (sequence.past + len).div_ceil(self.card.block_tokens) as usize;
        for ((group, ids), free) in self.card.caches.iter().zip(&mut sequence.blocks).zip(&mut self.free) {
            let needed = match () {
                () if group.has_blocks() => blocks,
                () => usize::from(group.has_slots()),
            };
            while ids.len() < needed {
                let none = || PluginError::new(ErrorCode::OUT_OF_MEMORY, "the driver has no block left");
                ids.push(free.pop().ok_or_else(none)?);
            }
        }
        Ok(())
    }
}

/// Outputs with room for logits only.
pub fn outputs(logits: &mut [f32]) -> Outputs<'_> {
    Outputs {
        logits: logits.into(),
        ids: (&mut [][..]).into(),
        scores: (&mut [][..]).into(),
        totals: (&mut [][..]).into(),
        hidden: (&mut [][..]).into(),
    }
}

/// The first token with the highest logit. Fails on NaN, which no test model may produce.
pub fn best(logits: &[f32]) -> u32 {
    assert!(logits.iter().all(|logit| !logit.is_nan()), "the logits contain NaN");
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    u32::try_from(best).expect("a vocabulary of 32-bit size")
}
