//! How a sequence picks its next token: a chain of samplers, each a stage with sampling parameters of its own that sees what the
//! ones before left over. A stage is foreign code, so what it leaves is checked before the next one sees it: a chain that grows, that
//! leaves nothing or picks what does not exist fails its own sequence and no other.

use std::{collections::BTreeMap, path::PathBuf};

use pensieve_plugin_api::{Candidates, History, SamplerBox, StageBox};

use super::failures::of_plugin;
use crate::grammar::{is_allowed, keep_allowed};
use crate::plugin::LoadedPlugin;
use pensieve_protocol::job::{Failure, FailureCode, StageSpec};

/// How many stages a chain may have.
const STAGES_MAX: usize = 32;

/// All samplers of the plugins that this worker was given, by name.
#[derive(Default)]
pub struct Samplers {
    samplers: BTreeMap<String, SamplerBox>,
}

/// The stages of one sequence.
pub struct Chain {
    stages: Vec<(String, StageBox)>,
}

/// Room for the candidates of one token; kept from token to token.
#[derive(Default)]
pub struct Room {
    ids: Vec<u32>,
    logits: Vec<f32>,
    len: usize,
    vocabulary: usize,
    mask: Option<Vec<u32>>,
}

impl Samplers {
    /// Opens the plugins. Of two samplers with one name the first plugin's is taken.
    pub fn open(plugins: &[PathBuf]) -> Result<Self, Failure> {
        let mut samplers = BTreeMap::new();
        for path in plugins {
            let plugin =
                LoadedPlugin::open(path).map_err(|error| Failure::new(FailureCode::Plugin, error.to_string()))?;
            for name in &plugin.manifest().samplers {
                if !samplers.contains_key(name) {
                    samplers.insert(name.clone(), plugin.sampler(name).map_err(of_plugin)?);
                }
            }
        }
        Ok(Self { samplers })
    }

    /// Their names.
    pub fn names(&self) -> Vec<String> {
        self.samplers.keys().cloned().collect()
    }

    /// Makes a chain for one sequence.
    pub fn chain(&self, specs: &[StageSpec], vocabulary: u32, seed: u64) -> Result<Chain, Failure> {
        if specs.len() > STAGES_MAX {
            let message =
                format!("{} sampling stages are more than the {STAGES_MAX} that a request may have", specs.len());
            return Err(Failure::new(FailureCode::Invalid, message));
        }
        let stages = specs.iter().map(|StageSpec { sampler: name, parameters, field }| {
            // What no field of the request names, this host's configuration does.
            let asked = !field.is_empty();
            let sampler = self.samplers.get(name).ok_or_else(|| self.unknown(name, asked).at(field))?;
            let stage = sampler.create(parameters.as_str().into(), vocabulary, seed).into_result();
            let stage = stage.map_err(|error| {
                let invalid = asked && error.code == pensieve_plugin_api::ErrorCode::INVALID;
                let failure = of_plugin(error);
                match (invalid, asked) {
                    (true, _) => Failure { code: FailureCode::Invalid, ..failure }.at(field),
                    (false, true) => failure,
                    (false, false) => failure.with_help("this model's samplers are those of the configuration"),
                }
            })?;
            Ok((name.clone(), stage))
        });
        Ok(Chain { stages: stages.collect::<Result<_, _>>()? })
    }

    fn unknown(&self, name: &str, asked: bool) -> Failure {
        let known = self.names().join(", ");
        let known = if known.is_empty() { "none" } else { &known };
        let code = if asked { FailureCode::Invalid } else { FailureCode::Plugin };
        Failure::new(code, format!("no sampler is called '{name}' (installed: {known})"))
            .with_help("drop its plugin into plugins/")
    }
}

impl Chain {
    /// Whether the most likely token is always picked.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Picks a token out of the candidates, for a text of `tokens`, the first `prompt` of which are the prompt.
    pub fn pick(&mut self, room: &mut Room, tokens: &[u32], prompt: usize) -> Result<u32, Failure> {
        let (mut len, mut sorted) = (room.len, false);
        if len == 0 {
            return Err(Failure::new(FailureCode::Internal, "the grammar allows no token of this model"));
        }
        for (name, stage) in &mut self.stages {
            let (ids, logits) = (room.ids[..len].as_mut(), room.logits[..len].as_mut());
            let mut candidates = Candidates { ids: ids.into(), logits: logits.into(), len, sorted };
            let history = History { tokens: tokens.into(), prompt };
            let picked = stage.sample(&mut candidates, history).into_result().map_err(of_plugin)?.into_option();
            let (left, in_order) = (candidates.len, candidates.sorted);
            if let Some(token) = picked {
                return if room.allows(token) { Ok(token) } else { Err(broken(name, "picked what may not be picked")) };
            }
            match left {
                0 => return Err(broken(name, "left no candidate")),
                more if more > len => return Err(broken(name, "added candidates")),
                _ => (len, sorted) = (left, in_order),
            }
        }
        room.best(len).ok_or_else(|| {
            Failure::new(FailureCode::Plugin, "the sampling stages left no candidate that may be picked")
        })
    }
}

impl Room {
    /// Takes in a row of logits, or those of its tokens that a mask allows.
    pub fn fill(&mut self, row: &[f32], mask: Option<&[u32]>) {
        self.vocabulary = row.len();
        self.ids.clear();
        self.ids.extend(0..row.len() as u32);
        self.logits.clear();
        self.logits.extend_from_slice(row);
        self.mask = mask.map(<[u32]>::to_vec);
        self.len = match mask {
            Some(mask) => keep_allowed(mask, &mut self.ids, &mut self.logits),
            None => row.len(),
        };
    }

    fn allows(&self, token: u32) -> bool {
        (token as usize) < self.vocabulary && self.mask.as_ref().is_none_or(|mask| is_allowed(mask, token))
    }

    /// The candidate with the highest logit, the lower id among equals.
    fn best(&self, len: usize) -> Option<u32> {
        let mut best: Option<(u32, f32)> = None;
        for (&id, &logit) in self.ids[..len].iter().zip(&self.logits[..len]) {
            let better = best.is_none_or(|(lowest, top)| logit > top || (logit == top && id < lowest));
            if logit > f32::NEG_INFINITY && self.allows(id) && better {
                best = Some((id, logit));
            }
        }
        best.map(|(id, _)| id)
    }
}

fn broken(stage: &str, what: &str) -> Failure {
    Failure::new(FailureCode::Plugin, format!("sampling stage '{stage}' {what}"))
        .with_help("this is a defect of the plugin; tell its author")
}
