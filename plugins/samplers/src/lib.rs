//! The samplers that every host needs, as one plugin.
//!
//! A chain is a list of stages, each named here. Most narrow the candidates (`top_k`, `top_p`, `min_p`, `typical`,
//! `xtc`) or change their logits (`temperature`, `penalties`, `dry`, `bias`); the last stage of a chain picks
//! (`greedy`, `seeded`, `mirostat`). All of them follow three rules: ties go to the lower id; NaN counts as −inf and is
//! never picked; and the exponential and the random generator are our own, so that a seed gives the same tokens on
//! every platform.

mod dry;
mod narrow;
mod nucleus;
mod parameters;
mod pick;
mod random;
mod reweigh;
mod softmax;
mod tally;
mod wide;
#[cfg(all(test, target_arch = "x86_64"))]
mod wide_tests;
mod xtc;

use parameters::Parameters;
use pensieve_sdk::sampler::{Sampler, Stage};
use pensieve_sdk::{Plugin, Result, export};

export!(Plugin::new("samplers", "top-k, top-p, min-p, penalties and the other usual stages").samplers(samplers()));

/// All stages of this plugin.
pub fn samplers() -> Vec<Box<dyn Sampler>> {
    let kinds: [(&'static str, Make); 12] = [
        ("bias", reweigh::bias),
        ("penalties", reweigh::penalties),
        ("dry", dry::dry),
        ("temperature", reweigh::temperature),
        ("top_k", narrow::top_k),
        ("typical", narrow::typical),
        ("top_p", narrow::top_p),
        ("min_p", narrow::min_p),
        ("xtc", xtc::xtc),
        ("greedy", pick::greedy),
        ("mirostat", pick::mirostat),
        ("seeded", pick::seeded),
    ];
    kinds.into_iter().map(|(name, make)| Box::new(Kind { name, make }) as Box<dyn Sampler>).collect()
}

type Make = fn(&mut Parameters, &Sequence) -> Result<Box<dyn Stage>>;

/// The sequence that a stage is created for.
struct Sequence {
    vocabulary: u32,
    seed: u64,
}

/// A stage's name, and its constructor from parameters.
struct Kind {
    name: &'static str,
    make: Make,
}

impl Sampler for Kind {
    fn name(&self) -> &'static str {
        self.name
    }

    fn create(&self, parameters: &str, vocabulary: u32, seed: u64) -> Result<Box<dyn Stage>> {
        let mut parameters = Parameters::parse(self.name, parameters)?;
        let stage = (self.make)(&mut parameters, &Sequence { vocabulary, seed })?;
        parameters.finish()?;
        Ok(stage)
    }
}
