//! The plugin's model as the engine sees it: its description, validated once, and the calls of the contract, with
//! batches built from plans. A plugin is not trusted: inconsistent sizes fail the load, and rows of logits are marked
//! before a step, so that an unwritten row cannot pass for another sequence's.

mod encoder;

use std::{sync::Arc, time::Duration};

use pensieve_plugin_api::{
    self as api, AdapterData, Batch, CacheKind, CacheTable, Card, LoadRequest, ModelBox, NO_ADAPTER, Output, Outputs,
    Resident, Source, VACANT, Want,
    ext::{
        Offered,
        kv_transfer::{self, KvTransfer},
        merge::{Merge, Merged},
        rows::Finish,
        sequence_state::SequenceState,
        timeline::Timeline,
    },
};

use super::{
    adapters::{AdapterHost, SpanAdapter},
    blocks::{CacheLocation, Kind},
    failures::{of_adapter, of_load, of_plugin, text_of},
    formats::Formats,
    identity::Identity,
    logits::{LogitsRow, Row},
    scheduler::{Plan, Scheduler},
};
use crate::plugin::{self, HostServices, LoadedPlugin};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    media::MediaUse,
    rows::RowsUse,
    wire::{Load, Location, MergedAdapter},
};

const VOCABULARY_MAX: u32 = 1 << 22;
const CONTEXT_MAX: u32 = 1 << 28;
const BLOCK_TOKENS_MAX: u32 = 1 << 12;
const BLOCK_BYTES_MAX: u64 = 1 << 32;
/// The block table keeps one bit per group, and may add a primary group.
const GROUPS_MAX: usize = 30;

pub struct Model {
    model: ModelBox,
    pub card: Card,
    pub resident: Resident,
    /// Identifies everything besides the text that an exported block depends on.
    pub identity: String,
    /// Bytes of an exported block or slot of each group; `None` if the model exports none.
    group_bytes: Option<Vec<usize>>,
    /// True if an opaque model can copy a sequence's state.
    pub copies_sequences: bool,
    /// The use of its hidden rows; an error says why they cannot be used.
    pub rows: Result<Option<RowsUse>, String>,
    /// The items that it reads besides text; an error says why they cannot be used.
    pub media: Result<Option<MediaUse>, String>,
    batch: Scratch,
}

/// The adapter and the output of a span.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    pub adapter: Option<SpanAdapter>,
    /// The wanted hidden rows; `None` for a span of a text that is continued, which wants logits at its end.
    pub hidden: Option<Want>,
}

/// The results of a step.
pub struct Computed<'a> {
    /// A row for each span that asks for logits, in order.
    pub rows: Vec<Row<'a>>,
    /// The wanted hidden rows, in the order of their spans.
    pub hidden: Vec<f32>,
}

/// Batch buffers, reused from step to step.
#[derive(Default)]
struct Scratch {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    /// Shared with sampler threads while tokens are picked.
    logits: Arc<Vec<f32>>,
    /// For rows of which only the best token is wanted: tokens, logits, and totals.
    best: (Vec<u32>, Vec<f32>, Vec<f32>),
}

impl Model {
    /// Loads the checkpoint with its architecture's plugin, and merges the configured adapters.
    pub fn load(load: &Load, services: HostServices, formats: &Formats) -> Result<Self, Failure> {
        let plugin = LoadedPlugin::open(&load.architecture.plugin).map_err(|error| of_load(&error))?;
        let architecture = plugin.architecture(&load.architecture.name).map_err(of_plugin)?;
        let options = plugin.options(&load.spec.options);
        let source = Source { path: text_of(&load.source)?.into(), options: options.as_str().into() };
        let card = architecture.describe(&source).into_result().map_err(of_plugin)?;
        let rows = plugin::rows::ask(&architecture, &source, &card);
        let media = plugin::media::ask(&architecture, &source, &card);
        let request = LoadRequest {
            source,
            device: load.spec.device.as_str().into(),
            context: load.spec.context,
            state_bytes: load.spec.kv_budget.unwrap_or_default(),
            threads: load.spec.threads,
        };
        let merged = read_merged(&load.merged, formats)?;
        let model = if merged.is_empty() {
            architecture.load(&request, services.into_abi()).into_result()
        } else {
            let none = || {
                let message = format!("architecture '{}' cannot merge adapters", load.architecture.name);
                Failure::new(FailureCode::Unsupported, message)
                    .with_help("leave out 'merge' where adapters are configured")
            };
            Merge::of(&architecture)
                .ok_or_else(none)?
                .and_then(|able| able.load(&request, services.into_abi(), &merged))
        };
        let model = model.map_err(of_plugin)?;
        let resident = model.resident();
        check(&card, &resident)?;
        let manifest = plugin.manifest();
        let identity = Identity {
            fingerprint: &card.fingerprint,
            architecture: &card.architecture,
            plugin: &manifest.id,
            version: &manifest.version,
            sdk: &manifest.sdk,
            library: load.architecture.plugin.file_name().unwrap_or_default(),
            device: &resident.device,
            context: [load.spec.context, resident.context],
            options: &load.spec.options,
            merged: merged.iter().map(|one| (one.adapter.fingerprint.as_str(), one.strength.to_bits())).collect(),
        };
        let identity = identity.to_string();
        let (group_bytes, batch) = (None, Scratch::default());
        let copies_sequences = false;
        let mut model = Self { model, card, resident, identity, group_bytes, copies_sequences, rows, media, batch };
        model.group_bytes = model.ask_group_bytes()?;
        model.copies_sequences = model.is_opaque() && SequenceState::of(&mut model.model).is_some_and(|of| of.is_ok());
        model.check_finish()?;
        model.check_media();
        Ok(model)
    }

    /// Length of a row of logits.
    pub fn vocabulary(&self) -> usize {
        self.card.vocabulary as usize
    }

    /// True for an opaque model, which keeps sequences itself, under their ids.
    pub fn is_opaque(&self) -> bool {
        self.card.caches.iter().any(|group| group.kind == CacheKind::OPAQUE)
    }

    /// Maximum number of concurrent sequences of an opaque model; 0 for no limit.
    pub fn sequences(&self) -> u32 {
        self.resident.places.first().copied().filter(|_| self.is_opaque()).unwrap_or(0)
    }

    /// Cache groups with their numbers of blocks or slots; `None` for an opaque model.
    pub fn groups(&self) -> Option<Vec<(Kind, u32)>> {
        let groups = self.card.caches.iter().zip(self.resident.places.iter());
        let kind = |(group, count): (&api::CacheGroup, &u32)| match group.kind {
            CacheKind::TOKENS => Some((Kind::Tokens, *count)),
            CacheKind::WINDOW => Some((Kind::Window(group.window as usize), *count)),
            CacheKind::STATE => Some((Kind::State, *count)),
            _ => None,
        };
        groups.map(kind).collect()
    }

    /// Bytes of an exported block or slot of each group, if the model exports any.
    pub fn group_bytes(&self) -> Option<&[usize]> {
        self.group_bytes.as_deref()
    }

    /// Computes a plan's spans; `asked` has the adapter and the output of each. With `only_best`, a model that offers
    /// candidates finds each row's best token itself.
    pub fn forward(
        &mut self,
        plan: &Plan,
        scheduler: &Scheduler,
        asked: &[Asked],
        only_best: bool,
    ) -> Result<Computed<'_>, Failure> {
        let only_best = only_best && self.card.candidates > 0;
        let Scratch { tokens, positions, logits, best: (ids, scores, totals) } = &mut self.batch;
        tokens.clear();
        positions.clear();
        let mut spans = Vec::with_capacity(plan.spans.len());
        let opaque = [CacheTable::opaque()];
        let tables = |sequence| match self.card.caches.len() {
            1 if scheduler.cache_locations(sequence).next().is_none() => opaque.to_vec(),
            _ => scheduler.cache_locations(sequence).map(cross).collect(),
        };
        let tables: Vec<Vec<CacheTable<'_>>> = plan.spans.iter().map(|span| tables(span.sequence)).collect();
        let (mut rows, mut hidden_rows) = (0, 0);
        for ((span, tables), asked) in plan.spans.iter().zip(&tables).zip(asked) {
            let (start, range) = (tokens.len() as u32, span.tokens.clone());
            tokens.extend_from_slice(scheduler.tokens(span.sequence).get(range.clone()).unwrap_or_default());
            // Lengths are below the context, which is a u32.
            positions.extend(range.start as u32..range.end as u32);
            let (len, past) = (range.len() as u32, range.start as u32);
            let (want, output) = match asked.hidden {
                Some(want) => (want, Output::HIDDEN),
                None if !span.logits => (Want::NONE, Output::LOGITS),
                None => (Want::LAST, if only_best { Output::CANDIDATES } else { Output::LOGITS }),
            };
            let wanted = want.rows(len).unwrap_or(0) as usize;
            *(if asked.hidden.is_some() { &mut hidden_rows } else { &mut rows }) += wanted;
            let adapter = asked.adapter.map_or((NO_ADAPTER, 1.0), |adapter| (adapter.id, adapter.scale));
            let (adapter, adapter_scale) = adapter;
            let (sequence, caches) = (scheduler.state_of(span.sequence), tables.as_slice().into());
            let mask = [][..].into();
            spans.push(api::Span { sequence, start, len, past, want, output, mask, adapter, adapter_scale, caches });
        }
        let width = self.card.vocabulary as usize;
        let (rows, bests) = if only_best { (0, rows) } else { (rows, 0) };
        // Sentinels that reveal outputs the model left unwritten.
        *ids = vec![VACANT; bests];
        *scores = vec![f32::NAN; bests];
        *totals = vec![f32::NAN; 2 * bests];
        // No sampler thread still holds a row of the previous step, so nothing is copied.
        let values = Arc::make_mut(logits);
        values.resize(rows * width, 0.0);
        for row in values.chunks_exact_mut(width) {
            row[0] = f32::NAN;
            row[width - 1] = f32::NAN;
        }
        let mut hidden = vec![f32::NAN; hidden_rows * self.card.hidden as usize];
        let batch = Batch {
            tokens: tokens.as_slice().into(),
            positions: positions.as_slice().into(),
            spans: spans.as_slice().into(),
            top: u32::from(only_best),
        };
        let mut outputs = Outputs {
            logits: values.as_mut_slice().into(),
            ids: ids.as_mut_slice().into(),
            scores: scores.as_mut_slice().into(),
            totals: totals.as_mut_slice().into(),
            hidden: hidden.as_mut_slice().into(),
        };
        self.model.forward(&batch, &mut outputs).into_result().map_err(of_plugin)?;
        if !only_best {
            return Ok(Computed { rows: LogitsRow::all(logits, width).map(Row::Logits).collect(), hidden });
        }
        let found = ids.iter().zip(scores.iter()).zip(totals.chunks_exact(2));
        let is_sound =
            |id: u32, score: f32, total: f32| (id as usize) < width && score.is_finite() && total.is_finite();
        let best = |((id, score), total): ((&u32, &f32), &[f32])| {
            Row::Best(Some(*id).filter(|id| is_sound(*id, *score, total[0])))
        };
        Ok(Computed { rows: found.map(best).collect(), hidden })
    }

    /// Applies what follows pooling, if anything does, to pooled rows. Returns as many rows.
    pub fn finish(&mut self, rows: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>, Failure> {
        let width = self.rows.as_ref().ok().and_then(Option::as_ref).and_then(|rows| rows.finish);
        let Some(width) = width.map(|width| width as usize).filter(|_| !rows.is_empty()) else { return Ok(rows) };
        let (pooled, mut finished) = (rows.concat(), vec![f32::NAN; rows.len() * width]);
        let offered = Finish::of(&mut self.model).ok_or_else(unfinished)?.map_err(of_plugin)?;
        { offered }.finish(&pooled, &mut finished).map_err(of_plugin)?;
        Ok(finished.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }

    /// Checks that a model whose rows need finishing can finish them.
    fn check_finish(&mut self) -> Result<(), Failure> {
        match &self.rows {
            Ok(Some(rows)) if rows.finish.is_some() => {
                Finish::of(&mut self.model).ok_or_else(unfinished)?.map(drop).map_err(of_plugin)
            }
            _ => Ok(()),
        }
    }

    pub fn release(&mut self, sequence: u64) {
        self.model.release(sequence);
    }

    /// The extension that copies blocks out and in; borrowed for a whole series of copies.
    pub fn transfer(&mut self) -> Result<Offered<'_, KvTransfer>, Failure> {
        let none = || Failure::new(FailureCode::Unsupported, "this model does not export blocks");
        KvTransfer::of(&mut self.model).ok_or_else(none)?.map_err(of_plugin)
    }

    /// What records the model's threads.
    pub fn timeline(&mut self) -> Result<Offered<'_, Timeline>, Failure> {
        let device = &self.resident.device;
        let none = || {
            let message = format!("this model records no timeline of its threads on {device}");
            Failure::new(FailureCode::Unsupported, message)
                .with_help("models of the SDK's layers do on the CPU: use --device cpu")
        };
        Timeline::of(&mut self.model).ok_or_else(none)?.map_err(of_plugin)
    }

    /// Copies an opaque model's state `from` to `to`; returns false if the model could not.
    pub fn fork(&mut self, from: u64, to: u64) -> bool {
        let copies = SequenceState::of(&mut self.model).and_then(Result::ok);
        copies.is_some_and(|mut copies| copies.fork(from, to).is_ok())
    }

    /// Asks the model for the bytes of an exported block or slot of each group.
    fn ask_group_bytes(&mut self) -> Result<Option<Vec<usize>>, Failure> {
        if self.is_opaque() || self.model.extension(kv_transfer::ID.into()).is_none() {
            return Ok(None);
        }
        let groups = self.card.caches.len() as u32;
        let mut transfer = self.transfer()?;
        let bytes = (0..groups).map(|group| transfer.bytes(group));
        let bytes = bytes.map(|bytes| usize::try_from(bytes).ok().filter(|_| (1..=BLOCK_BYTES_MAX).contains(&bytes)));
        Ok(bytes.collect())
    }
}

impl AdapterHost for Model {
    fn attach(&mut self, adapter: &AdapterData) -> Result<(u32, u64), Failure> {
        let before = self.model.resident().weight_bytes;
        let id = self.model.attach(adapter).into_result().map_err(of_adapter)?;
        if id == NO_ADAPTER {
            return Err(Failure::new(FailureCode::Plugin, "the model gave an adapter the id that means none"));
        }
        let grown = self.model.resident().weight_bytes.saturating_sub(before);
        // If the model's memory does not grow, it is assumed to keep the factors as they came.
        let values = adapter.pairs.iter().fold(0, |sum: u64, pair| sum + (pair.a.len() + pair.b.len()) as u64);
        Ok((id, if grown > 0 { grown } else { values.saturating_mul(4) }))
    }

    fn detach(&mut self, adapter: u32) {
        // A model that cannot drop an adapter keeps it until the worker exits; no job can name it any more.
        let _ = self.model.detach(adapter);
    }
}

fn unfinished() -> Failure {
    let message = "the model does not offer what follows the pooling of its rows, which its description has";
    Failure::new(FailureCode::Plugin, message).with_help("this is a defect of the plugin; tell its author")
}

fn read_merged(merged: &[MergedAdapter], formats: &Formats) -> Result<Vec<Merged>, Failure> {
    let read = |one: &MergedAdapter| {
        let read = formats.read(&Location::trusted(&one.path), u64::MAX).map_err(|mut failure| {
            failure.message = format!("adapter '{}', which is to be merged: {}", one.name, failure.message);
            failure
        });
        Ok(Merged { adapter: read?.data, strength: one.scale })
    };
    merged.iter().map(read).collect()
}

pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn check(card: &Card, resident: &Resident) -> Result<(), Failure> {
    let wrong = |what: String| {
        let message = format!("architecture '{}' contradicts itself: {what}", card.architecture);
        Err(Failure::new(FailureCode::Plugin, message).with_help("this is a defect of the plugin; tell its author"))
    };
    if !(1..=VOCABULARY_MAX).contains(&card.vocabulary) {
        return wrong(format!("a vocabulary of {} tokens", card.vocabulary));
    }
    if !(1..=CONTEXT_MAX).contains(&resident.context) {
        return wrong(format!("a context of {} tokens", resident.context));
    }
    if !(1..=BLOCK_TOKENS_MAX).contains(&card.block_tokens) {
        return wrong(format!("blocks of {} tokens", card.block_tokens));
    }
    let (groups, counts) = (&card.caches, &resident.places);
    if !(1..=GROUPS_MAX).contains(&groups.len()) || groups.len() != counts.len() {
        return wrong(format!("{} groups of caches on its card, and {} in memory", groups.len(), counts.len()));
    }
    for (group, &count) in groups.iter().zip(counts.iter()) {
        match group.kind {
            CacheKind::OPAQUE if groups.len() > 1 => return wrong("an opaque group of caches beside others".into()),
            CacheKind::OPAQUE => {}
            CacheKind::TOKENS | CacheKind::WINDOW | CacheKind::STATE if count == 0 || count == VACANT => {
                return wrong(format!("a group of caches with {count} blocks or slots"));
            }
            CacheKind::WINDOW if group.window == 0 => return wrong("a window of no tokens".into()),
            CacheKind::TOKENS | CacheKind::WINDOW | CacheKind::STATE => {}
            CacheKind(other) => {
                let message = format!("architecture '{}' has caches of unknown kind {other}", card.architecture);
                return Err(Failure::new(FailureCode::Unsupported, message).with_help("update this host"));
            }
        }
    }
    Ok(())
}

/// Converts a group's storage for a sequence to the contract's form.
fn cross(location: CacheLocation<'_>) -> CacheTable<'_> {
    match location {
        CacheLocation::Blocks(blocks) => CacheTable { blocks: blocks.into(), ..CacheTable::opaque() },
        CacheLocation::Slots { read, write, checkpoints } => {
            CacheTable { read, write, checkpoints: checkpoints.into(), ..CacheTable::opaque() }
        }
    }
}
