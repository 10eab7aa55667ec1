//! Wraps a plugin's providers as the contract's objects.

mod media;

use pensieve_plugin_api::{
    self as api, ErrorCode, PluginError,
    abi_stable::{
        sabi_trait::TD_Opaque,
        sabi_types::RRef,
        std_types::{RErr, ROk, ROption, RResult, RSlice, RStr, RString, RVec},
    },
    ext::{
        concurrent_stages::{self, ConcurrentStages},
        media::ID as MEDIA,
        merge::{self, Merge},
        rows::{self, Describe},
        sampler_parameters,
    },
};
use std::path::Path;

use super::{
    Exported, convert, export_model,
    guard::{guard, own},
};
use crate::{
    AdapterFormat, Architecture, Plugin, Services,
    sampler::{Candidates, History, Sampler, Stage, rank},
};

/// Builds the manifest by asking the author's providers.
pub(super) fn manifest(plugin: &Plugin, version: &str) -> api::Manifest {
    let claim = |architecture: &dyn Architecture| api::Claim {
        architecture: architecture.name().into(),
        gguf: convert::names(architecture.gguf().iter().copied()),
        classes: convert::names(architecture.classes().iter().copied()),
    };
    api::Manifest {
        id: plugin.id.into(),
        version: version.into(),
        description: plugin.description.into(),
        architectures: plugin.architectures.iter().map(|architecture| claim(&**architecture)).collect(),
        samplers: convert::names(plugin.samplers.iter().map(|sampler| sampler.name())),
        adapter_formats: convert::names(plugin.adapter_formats.iter().map(|format| format.name())),
        ..nothing()
    }
}

/// The manifest of a library that provides nothing.
pub(super) fn nothing() -> api::Manifest {
    api::Manifest {
        id: RString::new(),
        version: RString::new(),
        description: RString::new(),
        toolchain: env!("PENSIEVE_TOOLCHAIN").into(),
        sdk: concat!("pensieve-sdk ", env!("CARGO_PKG_VERSION")).into(),
        architectures: RVec::new(),
        samplers: RVec::new(),
        adapter_formats: RVec::new(),
    }
}

pub(super) fn architecture(
    exported: Option<&'static Exported>,
    index: u32,
) -> RResult<api::ArchitectureBox, PluginError> {
    pick(exported, index, "architecture", |exported| &exported.plugin.architectures)
        .map(|architecture| export_architecture(&**architecture))
}

/// Wraps an architecture for the host.
pub(crate) fn export_architecture(architecture: &'static dyn Architecture) -> api::ArchitectureBox {
    api::Architecture_TO::from_value(ExportedArchitecture(architecture), TD_Opaque)
}

pub(super) fn sampler(exported: Option<&'static Exported>, index: u32) -> RResult<api::SamplerBox, PluginError> {
    let names = exported.map_or(&[][..], |exported| &exported.manifest.samplers);
    let name = names.get(index as usize).map_or("sampler", RString::as_str);
    pick(exported, index, "sampler", |exported| &exported.plugin.samplers)
        .map(|sampler| export_sampler(name, &**sampler))
}

/// The author's description of a sampler.
pub(super) fn describe_sampler(exported: Option<&'static Exported>, index: u32) -> RResult<RString, PluginError> {
    pick(exported, index, "sampler", |exported| &exported.plugin.samplers).and_then(|sampler| {
        guard("description", || {
            let description = sampler.description();
            convert::bounded(
                "a description of a sampler",
                description.len(),
                sampler_parameters::DESCRIPTION_BYTES_MAX,
            )?;
            Ok(description.into())
        })
    })
}

/// Wraps a sampler for the host.
pub(crate) fn export_sampler(name: &'static str, sampler: &'static dyn Sampler) -> api::SamplerBox {
    api::Sampler_TO::from_value(ExportedSampler { name, sampler }, TD_Opaque)
}

pub(super) fn adapter_format(exported: Option<&'static Exported>, index: u32) -> RResult<api::AdapterBox, PluginError> {
    pick(exported, index, "adapter format", |exported| &exported.plugin.adapter_formats)
        .map(|format| export_format(&**format))
}

/// Wraps an adapter format for the host.
pub(crate) fn export_format(format: &'static dyn AdapterFormat) -> api::AdapterBox {
    api::AdapterFormat_TO::from_value(ExportedFormat(format), TD_Opaque)
}

fn pick<T>(
    exported: Option<&'static Exported>,
    index: u32,
    kind: &str,
    list: impl FnOnce(&'static Exported) -> &'static [T],
) -> RResult<&'static T, PluginError> {
    let list = exported.map_or(&[][..], list);
    match list.get(index as usize) {
        Some(provider) => ROk(provider),
        None => {
            let message = format!("there is no {kind} {index}; the manifest lists {}", list.len());
            RErr(PluginError::new(ErrorCode::NOT_FOUND, message))
        }
    }
}

pub(super) struct ExportedArchitecture(pub(super) &'static dyn Architecture);

impl api::Architecture for ExportedArchitecture {
    fn describe(&self, source: &api::Source<'_>) -> RResult<api::Card, PluginError> {
        guard("describe", || self.0.describe(&source.into()).map(Into::into))
    }

    fn load(&self, request: &api::LoadRequest<'_>, services: api::ServicesArc) -> RResult<api::ModelBox, PluginError> {
        guard("load", || self.0.load(&request.into(), &Services::from_host(services)).and_then(export_model))
    }

    fn extension(&self, id: RStr<'_>) -> ROption<api::Extension> {
        let merges = || guard("merges", || Ok(self.0.merges())).unwrap_or(false);
        let reads = || guard("media", || Ok(self.0.media().is_some())).unwrap_or(false);
        match id.as_str() {
            merge::ID if merges() => ROption::RSome(api::Extension::offer(&MERGE)),
            MEDIA if reads() => ROption::RSome(api::Extension::offer(&media::PREPARE)),
            rows::ID => ROption::RSome(api::Extension::offer(&DESCRIBE)),
            id => own(|| self.0.extension(id)),
        }
    }
}

/// Returns the author's architecture behind a table's first argument.
///
/// # Safety
///
/// The table is one that only [`ExportedArchitecture::extension`] offers, and `architecture` the object that offered it.
unsafe fn exported_architecture(architecture: RRef<'_, ()>) -> &'static dyn Architecture {
    // SAFETY: the caller's promise.
    unsafe { architecture.transmute_into_ref::<ExportedArchitecture>() }.0
}

static DESCRIBE: Describe = Describe { describe: describe_rows };

unsafe extern "C" fn describe_rows(
    architecture: RRef<'_, ()>,
    source: &api::Source<'_>,
) -> RResult<RString, PluginError> {
    // SAFETY: this function is in a single table, which only `ExportedArchitecture::extension` offers, and the caller
    // passes the object that offered it.
    let architecture = unsafe { exported_architecture(architecture) };
    guard("rows", || architecture.rows(&source.into()).map(RString::from))
}

static MERGE: Merge = Merge { load: load_merged };

unsafe extern "C" fn load_merged(
    architecture: RRef<'_, ()>,
    request: &api::LoadRequest<'_>,
    services: api::ServicesArc,
    merged: RSlice<'_, merge::Merged>,
) -> RResult<api::ModelBox, PluginError> {
    // SAFETY: this function is in a single table, which only `ExportedArchitecture::extension` offers, and the caller
    // passes the object that offered it.
    let architecture = unsafe { exported_architecture(architecture) };
    guard("load", || {
        let merged = merged.iter().map(convert::merged_in).collect::<Result<Vec<_>, _>>()?;
        let model = architecture.load_merged(&request.into(), &Services::from_host(services), &merged)?;
        export_model(model)
    })
}

struct ExportedSampler {
    name: &'static str,
    sampler: &'static dyn Sampler,
}

impl api::Sampler for ExportedSampler {
    fn create(&self, parameters: RStr<'_>, vocabulary: u32, seed: u64) -> RResult<api::StageBox, PluginError> {
        guard(self.name, || {
            let stage = self.sampler.create(parameters.as_str(), vocabulary, seed)?;
            Ok(api::Stage_TO::from_value(ExportedStage { name: self.name, stage: Some(stage) }, TD_Opaque))
        })
    }

    fn extension(&self, id: RStr<'_>) -> ROption<api::Extension> {
        // `Stage` is `Send`, so data that stages share is safe to use on different threads.
        static STAGES: ConcurrentStages = ConcurrentStages { threads: 0 };
        if id.as_str() == concurrent_stages::ID {
            ROption::RSome(api::Extension::offer(&STAGES))
        } else {
            own(|| self.sampler.extension(id.as_str()))
        }
    }
}

struct ExportedStage {
    name: &'static str,
    /// `None` only during drop.
    stage: Option<Box<dyn Stage>>,
}

impl api::Stage for ExportedStage {
    fn sample(
        &mut self,
        candidates: &mut api::Candidates<'_>,
        history: api::History<'_>,
    ) -> RResult<ROption<u32>, PluginError> {
        guard(self.name, || {
            let Some(stage) = &mut self.stage else { return Ok(ROption::RNone) };
            let len = candidates.len.min(candidates.ids.len()).min(candidates.logits.len());
            let (ids, logits) = (&mut candidates.ids[..len], &mut candidates.logits[..len]);
            // The contract leaves the order of equal logits open; the SDK puts the lower id first.
            let ranks = ids.iter().zip(&*logits).map(|(&id, &logit)| rank(id, logit));
            let sorted = candidates.sorted && ranks.is_sorted_by(|a, b| a > b);
            let mut ours = Candidates::new(ids, logits, sorted)?;
            let history = History { tokens: history.tokens.as_slice(), prompt: history.prompt };
            let pick = stage.sample(&mut ours, history);
            let (len, sorted) = (ours.len(), ours.is_sorted());
            (candidates.len, candidates.sorted) = (len, sorted);
            pick.map(convert::option)
        })
    }
}

impl Drop for ExportedStage {
    fn drop(&mut self) {
        super::guard::discard(self.stage.take());
    }
}

struct ExportedFormat(&'static dyn AdapterFormat);

impl api::AdapterFormat for ExportedFormat {
    fn claims(&self, path: RStr<'_>) -> bool {
        guard("claims", || Ok(self.0.claims(Path::new(path.as_str())))).unwrap_or(false)
    }

    fn open(&self, path: RStr<'_>) -> RResult<api::AdapterData, PluginError> {
        guard("open", || self.0.open(Path::new(path.as_str())).and_then(convert::adapter_out))
    }

    fn extension(&self, id: RStr<'_>) -> ROption<api::Extension> {
        own(|| self.0.extension(id.as_str()))
    }
}
