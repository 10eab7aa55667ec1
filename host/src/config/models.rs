//! `[[models]]`: named checkpoints, and variants of them with their own adapter or samplers.

use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{
    Config, Source,
    reader::{NamedValue, Section},
    upstream,
};
use pensieve_protocol::{
    job::{AdapterUse, StageSpec},
    outside::Outside,
    wire::{self, Location, ModelSpec},
};
pub use pensieve_server::fleet::Variant;
use pensieve_server::fleet::{self, Handover, Hours, check_adapter_name};

const ID_LEN_MAX: usize = 128;
const SCALE_MAX: f64 = 16.0;
const LOOP_TOKENS_MAX: i64 = 1 << 16;

/// A model that clients can request by its id.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub id: String,
    pub source: Source,
    /// Further names that clients may use; `*` matches any text.
    pub aliases: Vec<String>,
    /// The sampler chain for requests that set no sampling parameters.
    pub samplers: Option<Vec<StageSpec>>,
    pub adapters: BTreeMap<String, Adapter>,
    /// `None` as `[server]` says.
    pub open_schemas: Option<bool>,
    pub efforts: fleet::Efforts,
    /// When requests are handed over to another model.
    pub handover: Option<Handover>,
    pub spec: ModelSpec,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    pub source: Source,
    /// The scale at which it is merged into the weights at load time; `None` for an adapter that requests select.
    pub merged: Option<f32>,
}

/// The kind of file or folder that a source has to resolve to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Artifact<'a> {
    Checkpoint,
    /// The adapter called `name`; `bytes_max` bounds its download.
    Adapter {
        name: &'a str,
        bytes_max: u64,
    },
}

impl Model {
    pub fn new(id: impl Into<String>, source: Source) -> Self {
        let (aliases, adapters) = (Vec::new(), BTreeMap::new());
        let efforts = fleet::AnswerSettings::default().efforts;
        let (samplers, open_schemas, handover, spec) = (None, None, None, ModelSpec::default());
        Self { id: id.into(), source, aliases, samplers, adapters, open_schemas, efforts, handover, spec }
    }

    pub(super) fn fleet<E>(
        &self,
        disk: Option<wire::DiskTier>,
        open_schemas: bool,
        locate: &mut impl FnMut(&Source, Artifact<'_>) -> Result<PathBuf, E>,
    ) -> Result<fleet::ModelConfig, E> {
        let mut adapters = BTreeMap::new();
        for (name, Adapter { source, merged }) in &self.adapters {
            // A merged adapter takes no adapter memory.
            let bytes_max =
                if merged.is_some() { u64::MAX } else { wire::adapter_file_bytes_max(self.spec.adapter_memory) };
            let location = Location::trusted(locate(source, Artifact::Adapter { name, bytes_max })?);
            adapters.insert(name.clone(), fleet::Adapter { location, source: source.to_string(), merged: *merged });
        }
        let (source, upstream) = match &self.source {
            Source::Upstream(source) => (PathBuf::new(), Some(Arc::new(source.upstream.clone()))),
            source => (locate(source, Artifact::Checkpoint)?, None),
        };
        Ok(fleet::ModelConfig {
            id: self.id.clone(),
            source,
            upstream,
            handover: self.handover.clone(),
            aliases: self.aliases.clone(),
            adapters,
            samplers: self.samplers.clone(),
            removed: false,
            answers: fleet::AnswerSettings {
                open_schemas: self.open_schemas.unwrap_or(open_schemas),
                efforts: self.efforts,
            },
            spec: ModelSpec { disk, ..self.spec.clone() },
        })
    }
}

pub(super) fn read(root: &Section<'_, '_>, folder: &Path) -> (Vec<Model>, Vec<Variant>) {
    let (mut models, mut variants) = (Vec::new(), Vec::new());
    for section in root.sections("models") {
        let (mut id, mut source, mut base) = (String::new(), String::new(), String::new());
        section.text("id", &mut id);
        section.text("source", &mut source);
        section.text("base", &mut base);
        if let Err(what) = check_id(&id) {
            section.note(
                "id",
                format!("the 'id' in [[models]] {what}"),
                "it takes 1 to 128 letters, digits and -_./: signs",
            );
        }
        let upstream = upstream::of(&section, &id, folder);
        if let Some(upstream) = upstream {
            if !source.is_empty() {
                let help = "a model with a 'source' runs here, and one with an 'upstream' on other servers";
                section.note("upstream", format!("'{id}' in [[models]] has both 'source' and 'upstream'"), help);
            }
            models.push(elsewhere(section, Model::new(id, Source::Upstream(Box::new(upstream)))));
        } else if section.has("upstream") {
            // Its mistake is told already.
            section.finish();
        } else if base.is_empty() {
            let source = Source::parse(&source, folder).unwrap_or_else(|what| {
                section.note("source", format!("'source' in [[models]] of '{id}' is wrong"), what);
                Source::Starter
            });
            models.push(model(section, Model::new(id, source), folder));
        } else {
            if !source.is_empty() {
                let help = "a model has a 'source'; another name for a model has the model's id as its 'base'";
                section.note("base", format!("'{id}' in [[models]] has both 'source' and 'base'"), help);
            }
            variants.push(variant(section, id, base));
        }
    }
    (models, variants)
}

fn model(section: Section<'_, '_>, mut model: Model, folder: &Path) -> Model {
    section.texts("aliases", &mut model.aliases);
    section.integer("context", 1..=1 << 30, &mut model.spec.context);
    section.some_bytes("kv_budget", 1 << 16..=1 << 50, &mut model.spec.kv_budget);
    section.text("device", &mut model.spec.device);
    section.integer("threads", 0..=1024, &mut model.spec.threads);
    model.samplers = samplers(&section);
    let options: Map<String, Value> = section.json("options").unwrap_or_default();
    model.spec.options = if options.is_empty() { String::new() } else { Value::Object(options).to_string() };
    section.integer("sequences_max", 1..=4096, &mut model.spec.limits.sequences_max);
    section.integer("waiting_max", 0..=100_000, &mut model.spec.limits.waiting_max);
    section.integer("step_tokens_max", 16..=1 << 20, &mut model.spec.limits.step_tokens_max);
    let range = Duration::from_secs(1)..=Duration::from_secs(3600);
    section.duration("step_timeout", range, &mut model.spec.limits.step_timeout);
    section.integer("loop_tokens", 0..=LOOP_TOKENS_MAX, &mut model.spec.limits.loop_tokens);
    section.integer("thought_loop_tokens", 0..=LOOP_TOKENS_MAX, &mut model.spec.limits.thought_loop_tokens);
    if section.has("open_schemas") {
        let mut open = false;
        section.flag("open_schemas", &mut open);
        model.open_schemas = Some(open);
    }
    efforts(section.section("efforts"), &mut model.efforts);
    model.handover = handover(section.section("handover"));
    section.bytes("adapter_memory", 1 << 20..=1 << 50, &mut model.spec.adapter_memory);
    adapters(&section, &mut model, folder);
    if let Err(what) = check_device(&model.spec.device) {
        section.note("device", format!("'device' in [[models]] of '{}' is \"{}\"", model.id, model.spec.device), what);
    }
    section.finish();
    model
}

/// `to = "big"`, and when.
fn handover(section: Section<'_, '_>) -> Option<Handover> {
    let (mut to, mut too_long, mut streams, mut memory) = (String::new(), true, 0, false);
    section.text("to", &mut to);
    section.flag("too_long", &mut too_long);
    section.integer("streams", 0..=100_000, &mut streams);
    section.flag("memory", &mut memory);
    let mut hours = None;
    section.some_text("hours", &mut hours);
    let hours = hours.and_then(|text| {
        let hours = Hours::parse(&text).map_err(|what| {
            section.note("hours", format!("'hours' in [models.handover] {what}"), "write \"22:00-07:00\"");
        });
        hours.ok()
    });
    section.finish();
    let streams = Some(streams).filter(|streams| *streams > 0);
    (!to.is_empty()).then_some(Handover { to, too_long, streams, memory, hours })
}

/// A model that other servers compute: keys of workers are mistakes here.
fn elsewhere(section: Section<'_, '_>, mut model: Model) -> Model {
    section.texts("aliases", &mut model.aliases);
    section.finish();
    model
}

/// `low = 0.1`.
fn efforts(section: Section<'_, '_>, efforts: &mut fleet::Efforts) {
    for (share, name) in efforts.iter_mut().zip(["minimal", "low", "medium", "high", "xhigh", "max"]) {
        section.number(name, 0.0..=1.0, share);
    }
    section.finish();
}

/// `poet = "adapters/poet"`, `poet = { source = "adapters/poet", merge = true }`.
fn adapters(section: &Section<'_, '_>, model: &mut Model, folder: &Path) {
    for (name, entry, span) in section.named("adapters") {
        let (mut text, mut merge, mut scale) = (String::new(), false, 1.0);
        match entry {
            NamedValue::Text(source) => text = source,
            NamedValue::Table(entry) => {
                entry.text("source", &mut text);
                entry.flag("merge", &mut merge);
                entry.number("scale", -SCALE_MAX..=SCALE_MAX, &mut scale);
                if entry.has("scale") && !merge {
                    let what = format!("the adapter '{name}' in [models.adapters] has a scale but is not merged");
                    entry.note(
                        "scale",
                        what,
                        "requests choose it, or another name for the model has an 'adapter_scale'",
                    );
                }
                entry.finish();
            }
        }
        if let Err(what) = check_adapter_name(&name) {
            section.note_at(
                &span,
                format!("the adapter name '{name}' in [models.adapters] {what}"),
                "choose another name",
            );
        }
        #[allow(clippy::cast_possible_truncation, reason = "scales are within ±16, where f32 is precise enough")]
        let merged = merge.then_some(scale as f32);
        match Source::parse(&text, folder) {
            Ok(Source::Starter) => {
                let what = format!("the adapter '{name}' is 'starter'");
                section.note_at(&span, what, "name a file or folder, or hf:OWNER/REPO");
            }
            Ok(source) => drop(model.adapters.insert(name, Adapter { source, merged })),
            Err(what) => section.note_at(&span, format!("the adapter '{name}' in [models.adapters] is wrong"), what),
        }
    }
}

fn variant(section: Section<'_, '_>, id: String, base: String) -> Variant {
    let (mut aliases, mut adapter, mut scale) = (Vec::new(), None, 1.0);
    section.texts("aliases", &mut aliases);
    section.some_text("adapter", &mut adapter);
    section.number("adapter_scale", -SCALE_MAX..=SCALE_MAX, &mut scale);
    let samplers = samplers(&section);
    if adapter.is_none() && section.has("adapter_scale") {
        section.note("adapter_scale", format!("'{id}' in [[models]] has a scale but no adapter"), "name the 'adapter'");
    }
    section.finish();
    #[allow(clippy::cast_possible_truncation, reason = "scales are within ±16, where f32 is precise enough")]
    let adapter = adapter.map(|name| AdapterUse { name, scale: scale as f32 });
    Variant { id, base, aliases, adapter, samplers }
}

/// `["greedy"]`, `[{ sampler = "temperature", temperature = 0.7 }, "seeded"]`.
fn samplers(section: &Section<'_, '_>) -> Option<Vec<StageSpec>> {
    const HELP: &str = "an entry is a sampler's name, or a table with 'sampler' and its parameters";
    let stage = |(entry, span): (Value, Range<usize>)| {
        let stage = match entry {
            Value::String(sampler) => Some(StageSpec { sampler, ..StageSpec::default() }),
            Value::Object(mut parameters) => match parameters.shift_remove("sampler") {
                Some(Value::String(sampler)) => {
                    let parameters =
                        if parameters.is_empty() { String::new() } else { Value::Object(parameters).to_string() };
                    Some(StageSpec { sampler, parameters, ..StageSpec::default() })
                }
                _ => None,
            },
            _ => None,
        };
        if stage.is_none() {
            section.note_at(&span, "an entry of 'samplers' in [[models]] names no sampler", HELP);
        }
        stage
    };
    section.entries("samplers").map(|entries| entries.into_iter().filter_map(stage).collect())
}

/// Checks across models: ids, aliases, bases and the default model.
pub(super) fn check(config: &Config, root: &Section<'_, '_>) {
    let mut seen = HashSet::new();
    let ids = config.models.iter().map(|model| &model.id).chain(config.variants.iter().map(|variant| &variant.id));
    for id in ids {
        if !seen.insert(id) {
            root.note("models", format!("two [[models]] have the id '{id}'"), "rename one of them");
        }
    }
    for Variant { id, base, adapter, .. } in &config.variants {
        let Some(model) = config.models.iter().find(|model| model.id == *base) else {
            let known: Vec<&str> = config.models.iter().map(|model| model.id.as_str()).collect();
            let help = format!(
                "name a model with a source: {}",
                if known.is_empty() { "none".into() } else { known.join(", ") }
            );
            root.note("models", format!("the 'base' of '{id}' is '{base}', which is not a model"), help);
            continue;
        };
        let Some(name) = adapter.as_ref().map(|adapter| &adapter.name) else { continue };
        match model.adapters.get(name) {
            Some(Adapter { merged: None, .. }) => {}
            Some(_) => {
                let what = format!("'{id}' uses the adapter '{name}', which is merged into '{base}'");
                root.note("models", what, "leave out one of the two");
            }
            None => {
                let what = format!("'{id}' uses the adapter '{name}', which '{base}' does not have");
                root.note("models", what, "add it to the [models.adapters] of the base");
            }
        }
    }
    for (model, to) in config.models.iter().filter_map(|model| Some((model, &model.handover.as_ref()?.to))) {
        let is_known = config.models.iter().any(|other| other.id == *to && other.id != model.id)
            || config.variants.iter().any(|other| other.id == *to && other.base != model.id);
        if !is_known {
            let what = format!("'{}' hands over to '{to}', which is no other model", model.id);
            root.note("models", what, "name the id of another of [[models]]");
        }
    }
    let aliases = config.models.iter().map(|model| (&model.id, &model.aliases));
    let aliases = aliases.chain(config.variants.iter().map(|variant| (&variant.id, &variant.aliases)));
    for (id, alias) in aliases.flat_map(|(id, aliases)| aliases.iter().map(move |alias| (id, alias))) {
        if alias.trim().is_empty() {
            root.note(
                "models",
                format!("an alias of '{id}' is empty"),
                "an alias is a name, or has a '*' for any text",
            );
        } else if !seen.insert(alias) {
            let what = format!("the alias '{alias}' of '{id}' is taken by another model, too");
            root.note("models", what, "leave one of them out");
        }
    }
    if let Some(default) = &config.fleet.default_model
        && !config.models.iter().any(|model| model.id == *default)
        && !config.variants.iter().any(|variant| variant.id == *default)
    {
        root.note(
            "fleet",
            format!("the 'default_model' in [fleet] is '{default}', which is not a model"),
            "name one of [[models]]",
        );
    }
}

/// Validates a model id; the error completes "the id …".
pub fn check_id(id: &str) -> Result<(), String> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte);
    match id {
        "" => Err("is missing".into()),
        _ if id.len() > ID_LEN_MAX => Err(format!("has {} characters", id.len())),
        _ if !id.bytes().all(legal) => Err(format!("is '{}'", Outside::new(id))),
        _ => Ok(()),
    }
}

/// Validates a device, or several joined by `+`; the error is a message for the user.
pub fn check_device(device: &str) -> Result<(), String> {
    let known = |device: &str| {
        let (kind, ordinal) = device.split_once(':').unwrap_or((device, "0"));
        let numbered = ordinal.parse::<u16>().is_ok();
        match kind {
            "auto" | "cpu" => device == kind,
            "cuda" => numbered || ordinal == "all",
            "metal" => numbered,
            _ => false,
        }
    };
    if device.contains('+') {
        return check_devices(&device.split('+').collect::<Vec<_>>());
    }
    if known(device) {
        Ok(())
    } else {
        Err("a device is auto, cpu, cuda:N or metal:N, and several are cuda:0+cuda:1 or cuda:all".into())
    }
}

/// Validates the devices that a model is spread over. Several `cpu:N` are allowed: they stand in for GPUs in tests.
fn check_devices(devices: &[&str]) -> Result<(), String> {
    let mut numbers = Vec::with_capacity(devices.len());
    let kind_of = |device: &str| device.split_once(':').map(|(kind, _)| kind.to_owned()).unwrap_or_default();
    let first = kind_of(devices[0]);
    for device in devices {
        let number = device.split_once(':').and_then(|(_, number)| number.parse::<u16>().ok());
        let Some(number) = number.filter(|_| ["cuda", "cpu"].contains(&kind_of(device).as_str())) else {
            return Err(format!("'{device}' cannot be one of several devices; name them like cuda:0+cuda:1"));
        };
        if kind_of(device) != first {
            return Err(format!("{device} is not of the same kind as {}", devices[0]));
        }
        if numbers.contains(&number) {
            return Err(format!("{device} is named twice"));
        }
        numbers.push(number);
    }
    Ok(())
}

#[cfg(test)]
mod device_tests {
    use super::check_device;

    #[test]
    fn devices_are_known_by_name_and_several_are_distinct_and_of_one_kind() {
        for device in ["auto", "cpu", "cuda", "cuda:1", "cuda:all", "metal:0", "cuda:0+cuda:1", "cuda:2+cuda:0+cuda:5"]
        {
            assert_eq!(check_device(device), Ok(()), "{device}");
        }
        for (device, words) in [
            ("gpu", "a device is auto, cpu, cuda:N or metal:N"),
            ("cpu:0", "a device is auto"),
            ("cuda:x", "a device is auto"),
            ("metal:all", "a device is auto"),
            ("cuda:0+cuda:0", "cuda:0 is named twice"),
            ("cuda:0+cuda:00", "cuda:00 is named twice"),
            ("cuda:0+metal:0", "'metal:0' cannot be one of several devices"),
            ("cuda:0+cpu:1", "cpu:1 is not of the same kind as cuda:0"),
            ("cuda:0+", "'' cannot be one of several devices"),
            ("auto+cuda:1", "'auto' cannot be one of several devices"),
            ("cuda:0+cuda:all", "'cuda:all' cannot be one of several devices"),
        ] {
            assert!(check_device(device).unwrap_err().starts_with(words), "{device}: {:?}", check_device(device));
        }
    }
}
