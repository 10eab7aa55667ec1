//! Runs chains as a host does, and makes the logits that the tests share.

use pensieve_sdk::Result;
use pensieve_sdk::sampler::{Candidates, History, Stage};

/// A token and its logit.
pub(crate) type Candidate = (u32, f32);

pub(crate) const NO_HISTORY: History<'static> = History { tokens: &[], prompt: 0 };

/// A stage of this plugin.
pub(crate) fn stage(name: &str, parameters: &str, vocabulary: usize, seed: u64) -> Result<Box<dyn Stage>> {
    let samplers = pensieve_samplers::samplers();
    let sampler = samplers.iter().find(|sampler| sampler.name() == name).unwrap();
    sampler.create(parameters, vocabulary as u32, seed)
}

/// Several stages, one after the other.
pub(crate) struct Chain {
    stages: Vec<Box<dyn Stage>>,
}

impl Chain {
    pub(crate) fn new(stages: &[(&str, &str)], vocabulary: usize, seed: u64) -> Self {
        let stages = stages.iter().map(|(name, parameters)| stage(name, parameters, vocabulary, seed).unwrap());
        Self { stages: stages.collect() }
    }

    /// The token that the chain picks, if any, and what it leaves over.
    pub(crate) fn run(&mut self, logits: &[f32], history: History<'_>) -> Result<(Option<u32>, Vec<Candidate>)> {
        let candidates: Vec<Candidate> = (0..).zip(logits.iter().copied()).collect();
        self.run_on(&candidates, history)
    }

    /// The same on candidates that are not the whole vocabulary in order.
    pub(crate) fn run_on(
        &mut self,
        candidates: &[Candidate],
        history: History<'_>,
    ) -> Result<(Option<u32>, Vec<Candidate>)> {
        let (mut ids, mut logits): (Vec<u32>, Vec<f32>) = candidates.iter().copied().unzip();
        let mut candidates = Candidates::new(&mut ids, &mut logits, false)?;
        let mut token = None;
        for stage in &mut self.stages {
            token = stage.sample(&mut candidates, history)?;
            check_order(&candidates);
            if token.is_some() {
                break;
            }
        }
        Ok((token, candidates.ids().iter().copied().zip(candidates.logits().iter().copied()).collect()))
    }

    /// Candidates left by a chain without a pick.
    pub(crate) fn narrow(&mut self, logits: &[f32]) -> Vec<Candidate> {
        let (token, left) = self.run(logits, NO_HISTORY).unwrap();
        assert_eq!(token, None);
        left
    }

    /// The token that a chain picks.
    pub(crate) fn pick(&mut self, logits: &[f32]) -> u32 {
        self.run(logits, NO_HISTORY).unwrap().0.unwrap()
    }
}

/// A stage may not call candidates sorted that are not.
fn check_order(candidates: &Candidates<'_>) {
    let pairs = candidates.ids().windows(2).zip(candidates.logits().windows(2));
    let descends = pairs.into_iter().all(|(id, logit)| logit[0] > logit[1] || logit[0] == logit[1] && id[0] < id[1]);
    assert!(descends || !candidates.is_sorted(), "candidates are called sorted and are not");
}

/// The ids of candidates, ascending.
pub(crate) fn ids(candidates: &[Candidate]) -> Vec<u32> {
    let mut ids: Vec<u32> = candidates.iter().map(|&(id, _)| id).collect();
    ids.sort_unstable();
    ids
}

/// A generator that has nothing in common with the plugin's.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(3_037_000_493))
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((self.0 >> 33) * u64::from(limit)) >> 31) as u32
    }

    pub(crate) fn fraction(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 24) as f32
    }

    /// About normal, of this standard deviation.
    pub(crate) fn logit(&mut self, deviation: f32) -> f32 {
        let sum: f32 = (0..12).map(|_| self.fraction()).sum();
        (sum - 6.0) * deviation
    }

    pub(crate) fn logits(&mut self, count: usize, deviation: f32) -> Vec<f32> {
        (0..count).map(|_| self.logit(deviation)).collect()
    }
}

/// Logits of many sizes and shapes: smooth, with ties, and with NaN and −inf among them.
pub(crate) fn assorted_logits() -> impl Iterator<Item = Vec<f32>> {
    (0..240).map(|seed: u32| {
        let mut noise = Noise::new(seed.into());
        let count = [1, 2, 3, 10, 64, 65, 1000, 5000][seed as usize % 8];
        let deviation = [0.3, 1.0, 3.0, 8.0][seed as usize / 8 % 4];
        let mut logits = noise.logits(count, deviation);
        match seed / 32 % 3 {
            0 => {}
            1 => logits.iter_mut().for_each(|logit| *logit = (*logit * 4.0).round() / 4.0),
            _ => {
                for logit in &mut logits {
                    *logit = [*logit, *logit, f32::NAN, f32::NEG_INFINITY][noise.below(4) as usize];
                }
                logits[0] = 0.5;
            }
        }
        logits
    })
}
