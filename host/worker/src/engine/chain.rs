//! The sampler chain of a sequence: stages with individual sampling parameters, each of which sees the candidates that
//! the previous ones left. A stage is untrusted code, so its output is checked before the next one sees it: a chain
//! that grows the candidates, leaves none or picks one that does not exist fails only its own sequence. So does one
//! that does not return: stages run on threads beside the engine's, with a deadline. Chains whose samplers all allow it
//! are spread over these threads; the others always run on the first, one after the other.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use pensieve_plugin_api::{Candidates, History, SamplerBox, StageBox, ext::concurrent_stages::ConcurrentStages};

use super::{
    failures::of_plugin,
    logits::SharedRow,
    sampler_thread::{Overdue, SamplerName, SamplerThread},
};
use crate::plugin::LoadedPlugin;
use pensieve_grammar::{is_allowed, keep_allowed};
use pensieve_protocol::job::{Failure, FailureCode, StageSpec};

const STAGES_MAX: usize = 32;

/// Threads that pick tokens; more would compete for memory bandwidth.
const THREADS_MAX: usize = 8;

/// All samplers of this worker's plugins, by name, and the threads that run them.
pub struct Samplers {
    samplers: BTreeMap<String, (Arc<SamplerName>, Arc<SamplerBox>)>,
    /// At least one.
    threads: Vec<SamplerThread>,
    /// Picks in this step that any thread may run.
    shared_picks: usize,
    /// Results of this step.
    picks: Sender<(u64, Picked)>,
    picked: Receiver<(u64, Picked)>,
    /// Buffers reused from step to step.
    rooms: Vec<Room>,
    troubles: Vec<String>,
}

/// The stages of one sequence.
#[derive(Default)]
pub struct Chain {
    stages: Vec<(Arc<SamplerName>, StageBox)>,
}

pub struct Picked {
    pub token: Result<u32, Failure>,
    /// The chain, returned for the next token; without stages if its call was abandoned.
    pub chain: Chain,
    room: Room,
}

/// Buffers for the candidates of one token and for the tokens before it.
#[derive(Default)]
struct Room {
    ids: Vec<u32>,
    logits: Vec<f32>,
    len: usize,
    vocabulary: usize,
    mask: Option<Vec<u32>>,
    tokens: Vec<u32>,
    prompt: usize,
}

impl Samplers {
    /// Opens the plugins; `deadline` bounds a stage's time per token. If two samplers share a name, the first plugin's
    /// wins.
    pub fn open(plugins: &[PathBuf], deadline: Duration) -> Result<Self, Failure> {
        let mut samplers = BTreeMap::new();
        for path in plugins {
            let plugin =
                LoadedPlugin::open(path).map_err(|error| Failure::new(FailureCode::Plugin, error.to_string()))?;
            for name in &plugin.manifest().samplers {
                if !samplers.contains_key(name) {
                    let sampler = Arc::new(plugin.sampler(name).map_err(of_plugin)?);
                    let stages = ConcurrentStages::of(&sampler).transpose().map_err(of_plugin)?;
                    let is_concurrent = stages.is_some_and(|stages| stages.threads == 0);
                    samplers.insert(name.clone(), (SamplerName::new(name, is_concurrent), sampler));
                }
            }
        }
        let (picks, picked) = channel();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let threads = (0..threads).map(|_| SamplerThread::new(deadline)).collect();
        Ok(Self { samplers, threads, shared_picks: 0, picks, picked, rooms: Vec::new(), troubles: Vec::new() })
    }

    pub fn names(&self) -> Vec<String> {
        self.samplers.keys().cloned().collect()
    }

    pub fn chain(&mut self, specs: &[StageSpec], vocabulary: u32, seed: u64) -> Result<Chain, Failure> {
        if specs.len() > STAGES_MAX {
            let message =
                format!("{} sampling stages are more than the {STAGES_MAX} that a request may have", specs.len());
            return Err(Failure::new(FailureCode::Invalid, message));
        }
        let stages = specs.iter().map(|spec| self.stage(spec, vocabulary, seed));
        Ok(Chain { stages: stages.collect::<Result<_, _>>()? })
    }

    /// Starts a chain on the token after `tokens`, the first `prompt` of which are the prompt. Candidates are the row
    /// of logits, or those that the mask allows. The result comes from the next [`Samplers::wait`], under this id.
    pub fn pick(
        &mut self,
        id: u64,
        mut chain: Chain,
        row: SharedRow,
        mask: Option<&[u32]>,
        tokens: &[u32],
        prompt: usize,
    ) {
        let mut room = self.rooms.pop().unwrap_or_default();
        room.note(mask, tokens, prompt);
        let picks = self.picks.clone();
        let is_concurrent = chain.stages.iter().all(|(sampler, _)| sampler.is_concurrent);
        let call = move |enter: &dyn Fn(&Arc<SamplerName>)| {
            room.fill(row.values());
            drop(row);
            let token = chain.pick(&mut room, enter);
            // A step that has abandoned this call does not wait for it.
            let _ = picks.send((id, Picked { token, chain, room }));
        };
        let thread = if is_concurrent { self.shared_picks % self.threads.len() } else { 0 };
        self.shared_picks += usize::from(is_concurrent);
        self.threads[thread].call(id, Box::new(call));
    }

    /// Waits for all chains that were started.
    pub fn wait(&mut self) -> HashMap<u64, Picked> {
        self.shared_picks = 0;
        let overdue: Vec<Overdue> = self.threads.iter_mut().flat_map(SamplerThread::wait).collect();
        let mut picked: HashMap<u64, Picked> = self.picked.try_iter().collect();
        for picked in picked.values_mut() {
            self.rooms.push(std::mem::take(&mut picked.room));
        }
        if !overdue.is_empty() {
            // An abandoned call may still send its token.
            (self.picks, self.picked) = channel();
        }
        for call in overdue {
            let failure = call.failure(self.threads[0].deadline());
            self.troubles.push(failure.message.clone());
            let (chain, room) = (Chain::default(), Room::default());
            picked.insert(call.id, Picked { token: Err(failure), chain, room });
        }
        picked
    }

    /// Returns the log warnings since the last call.
    pub fn take_troubles(&mut self) -> Vec<String> {
        std::mem::take(&mut self.troubles)
    }

    fn stage(&mut self, spec: &StageSpec, vocabulary: u32, seed: u64) -> Result<(Arc<SamplerName>, StageBox), Failure> {
        let StageSpec { sampler: name, parameters, field } = spec;
        // A stage without a request field comes from the configuration.
        let asked = !field.is_empty();
        let (name, sampler) = self.samplers.get(name).cloned().ok_or_else(|| self.unknown(name, asked).at(field))?;
        name.check().map_err(|failure| if asked { failure.at(field) } else { failure })?;
        let (sender, made) = channel();
        let (own_name, parameters) = (name.clone(), parameters.clone());
        let call = move |enter: &dyn Fn(&Arc<SamplerName>)| {
            enter(&own_name);
            let _ = sender.send(sampler.create(parameters.as_str().into(), vocabulary, seed).into_result());
        };
        let thread = &mut self.threads[0];
        thread.call(0, Box::new(call));
        if let Some(call) = thread.wait().first() {
            let failure = call.failure(thread.deadline());
            self.troubles.push(failure.message.clone());
            return Err(failure);
        }
        let lost = || Failure::new(FailureCode::Internal, format!("sampling stage '{}' was not made", name.name));
        let stage = made.try_recv().map_err(|_| lost())?.map_err(|error| {
            let invalid = asked && error.code == pensieve_plugin_api::ErrorCode::INVALID;
            let failure = of_plugin(error);
            match (invalid, asked) {
                (true, _) => Failure { code: FailureCode::Invalid, ..failure }.at(field),
                (false, true) => failure,
                (false, false) => failure.with_help("this model's samplers are those of the configuration"),
            }
        })?;
        Ok((name, stage))
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
    /// An empty chain picks the most likely token.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    fn pick(&mut self, room: &mut Room, enter: &dyn Fn(&Arc<SamplerName>)) -> Result<u32, Failure> {
        let (mut len, mut sorted) = (room.len, false);
        if len == 0 {
            return Err(Failure::new(FailureCode::Internal, "the grammar allows no token of this model"));
        }
        for (sampler, stage) in &mut self.stages {
            sampler.check()?;
            enter(sampler);
            let name = &sampler.name;
            let (ids, logits) = (room.ids[..len].as_mut(), room.logits[..len].as_mut());
            let mut candidates = Candidates { ids: ids.into(), logits: logits.into(), len, sorted };
            let history = History { tokens: room.tokens.as_slice().into(), prompt: room.prompt };
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
    /// Copies everything except the row of logits.
    fn note(&mut self, mask: Option<&[u32]>, tokens: &[u32], prompt: usize) {
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.prompt = prompt;
        self.mask = mask.map(<[u32]>::to_vec);
    }

    fn fill(&mut self, row: &[f32]) {
        self.vocabulary = row.len();
        self.ids.clear();
        self.ids.extend(0..row.len() as u32);
        self.logits.clear();
        self.logits.extend_from_slice(row);
        self.len = match &self.mask {
            Some(mask) => keep_allowed(mask, &mut self.ids, &mut self.logits),
            None => row.len(),
        };
    }

    fn allows(&self, token: u32) -> bool {
        (token as usize) < self.vocabulary && self.mask.as_ref().is_none_or(|mask| is_allowed(mask, token))
    }

    /// Returns the candidate with the highest logit; the lower id wins a tie.
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
