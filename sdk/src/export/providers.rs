//! The providers of a plugin as the contract's objects.

use pensieve_plugin_api::{
    self as api, ErrorCode, PluginError,
    abi_stable::{
        sabi_trait::TD_Opaque,
        std_types::{RErr, ROk, ROption, RResult, RStr},
    },
};
use std::path::Path;

use super::{convert, export_model, guard::guard};
use crate::{
    AdapterFormat, Architecture, Plugin, Services,
    sampler::{Candidates, History, Sampler, Stage},
};

type Exported = Option<&'static (Plugin, &'static str)>;

pub(super) fn manifest(exported: Exported) -> api::Manifest {
    let plugin = exported.map(|(plugin, _)| plugin);
    let architectures = plugin.map_or(&[][..], |plugin| &plugin.architectures);
    let claim = |architecture: &dyn Architecture| api::Claim {
        architecture: architecture.name().into(),
        gguf: convert::names(architecture.gguf().iter().copied()),
        classes: convert::names(architecture.classes().iter().copied()),
    };
    api::Manifest {
        id: plugin.map_or("", |plugin| plugin.id).into(),
        version: exported.map_or("", |(_, version)| *version).into(),
        description: plugin.map_or("", |plugin| plugin.description).into(),
        toolchain: env!("PENSIEVE_TOOLCHAIN").into(),
        sdk: concat!("pensieve-sdk ", env!("CARGO_PKG_VERSION")).into(),
        architectures: architectures.iter().map(|architecture| claim(&**architecture)).collect(),
        samplers: convert::names(plugin.iter().flat_map(|plugin| &plugin.samplers).map(|sampler| sampler.name())),
        adapter_formats: convert::names(
            plugin.iter().flat_map(|plugin| &plugin.adapter_formats).map(|format| format.name()),
        ),
    }
}

pub(super) fn architecture(exported: Exported, index: u32) -> RResult<api::ArchitectureBox, PluginError> {
    pick(exported, index, "architecture", |plugin| &plugin.architectures)
        .map(|architecture| api::Architecture_TO::from_value(ExportedArchitecture(&**architecture), TD_Opaque))
}

pub(super) fn sampler(exported: Exported, index: u32) -> RResult<api::SamplerBox, PluginError> {
    pick(exported, index, "sampler", |plugin| &plugin.samplers)
        .map(|sampler| api::Sampler_TO::from_value(ExportedSampler(&**sampler), TD_Opaque))
}

pub(super) fn adapter_format(exported: Exported, index: u32) -> RResult<api::AdapterBox, PluginError> {
    pick(exported, index, "adapter format", |plugin| &plugin.adapter_formats)
        .map(|format| api::AdapterFormat_TO::from_value(ExportedFormat(&**format), TD_Opaque))
}

fn pick<T>(
    exported: Exported,
    index: u32,
    kind: &str,
    list: impl FnOnce(&'static Plugin) -> &'static Vec<T>,
) -> RResult<&'static T, PluginError> {
    let list = exported.map_or(&[][..], |(plugin, _)| list(plugin));
    match list.get(index as usize) {
        Some(provider) => ROk(provider),
        None => {
            let message = format!("there is no {kind} {index}; the manifest lists {}", list.len());
            RErr(PluginError::new(ErrorCode::NOT_FOUND, message))
        }
    }
}

struct ExportedArchitecture(&'static dyn Architecture);

impl api::Architecture for ExportedArchitecture {
    fn describe(&self, source: &api::Source<'_>) -> RResult<api::Card, PluginError> {
        guard("describe", || self.0.describe(&source.into()).map(Into::into))
    }

    fn load(&self, request: &api::LoadRequest<'_>, services: api::ServicesArc) -> RResult<api::ModelBox, PluginError> {
        guard("load", || self.0.load(&request.into(), &Services::from_host(services)).map(export_model))
    }

    fn extension(&self, _id: RStr<'_>) -> ROption<api::Extension> {
        ROption::RNone
    }
}

struct ExportedSampler(&'static dyn Sampler);

impl api::Sampler for ExportedSampler {
    fn create(&self, parameters: RStr<'_>, vocabulary: u32, seed: u64) -> RResult<api::StageBox, PluginError> {
        guard(self.0.name(), || {
            let stage = self.0.create(parameters.as_str(), vocabulary, seed)?;
            Ok(api::Stage_TO::from_value(ExportedStage { name: self.0.name(), stage: Some(stage) }, TD_Opaque))
        })
    }

    fn extension(&self, _id: RStr<'_>) -> ROption<api::Extension> {
        ROption::RNone
    }
}

struct ExportedStage {
    name: &'static str,
    /// Only empty while it is dropped.
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
            let mut ours = Candidates::new(ids, logits, candidates.sorted)?;
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

    fn extension(&self, _id: RStr<'_>) -> ROption<api::Extension> {
        ROption::RNone
    }
}
