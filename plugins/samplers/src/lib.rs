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
use serde_json::json;

export!(Plugin::new("samplers", "top-k, top-p, min-p, penalties and the other usual stages").samplers(samplers()));

/// All stages of this plugin.
pub fn samplers() -> Vec<Box<dyn Sampler>> {
    let kinds: [(&'static str, &'static str, Make); 12] = [
        ("bias", "adds to the logits of single tokens", reweigh::bias),
        ("penalties", "makes tokens less likely that have occurred before", reweigh::penalties),
        ("dry", "makes it less likely that a passage is repeated", dry::dry),
        ("temperature", "divides all logits: below 1 likely tokens gain, above 1 unlikely ones", reweigh::temperature),
        ("top_k", "keeps the k most likely tokens", narrow::top_k),
        ("typical", "keeps tokens that are about as surprising as is usual here", narrow::typical),
        ("top_p", "keeps the most likely tokens that together have the probability p", narrow::top_p),
        ("min_p", "keeps tokens at least p times as likely as the best one", narrow::min_p),
        ("xtc", "sometimes leaves out the most likely tokens, but for the last of them", xtc::xtc),
        ("greedy", "picks the most likely token", pick::greedy),
        ("mirostat", "picks so that the surprise stays near tau bits", pick::mirostat),
        ("seeded", "picks at random, by the probabilities that are left", pick::seeded),
    ];
    let kind = |(name, text, make)| Box::new(Kind { name, text, make }) as Box<dyn Sampler>;
    kinds.into_iter().map(kind).collect()
}

/// The stages that pick, and so end a chain.
const PICKING: [&str; 3] = ["greedy", "mirostat", "seeded"];

type Make = fn(&mut Parameters, &Sequence) -> Result<Box<dyn Stage>>;

/// The sequence that a stage is created for.
struct Sequence {
    vocabulary: u32,
    seed: u64,
}

/// A stage's name, and its constructor from parameters.
struct Kind {
    name: &'static str,
    /// A line about what it does.
    text: &'static str,
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

    /// The parameters that a stage reads when it is made without any, so that this cannot differ from what it takes.
    fn description(&self) -> String {
        let described = Parameters::parse(self.name, "").and_then(|mut parameters| {
            (self.make)(&mut parameters, &Sequence { vocabulary: 1, seed: 0 })?;
            Ok(parameters.description())
        });
        let picks = PICKING.contains(&self.name);
        json!({ "text": self.text, "picks": picks, "parameters": described.unwrap_or_default() }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_stage_takes_the_defaults_of_its_own_description() {
        for sampler in samplers() {
            let described: Value = serde_json::from_str(&sampler.description()).unwrap();
            assert_eq!(described["picks"], PICKING.contains(&sampler.name()));
            let mut defaults = serde_json::Map::new();
            for parameter in described["parameters"].as_array().unwrap() {
                let name = parameter["name"].as_str().unwrap();
                for bound in ["minimum", "maximum"].iter().filter_map(|bound| parameter.get(*bound)) {
                    if parameter["type"] == "biases" {
                        continue;
                    }
                    let one = json!({ name: bound }).to_string();
                    assert!(sampler.create(&one, 1000, 0).is_ok(), "{}: {one}", sampler.name());
                }
                if let Some(default) = parameter.get("default") {
                    defaults.insert(name.to_owned(), default.clone());
                }
            }
            assert!(sampler.create(&Value::Object(defaults).to_string(), 1000, 0).is_ok(), "{}", sampler.name());
        }
        let described = |name: &str| {
            let sampler = samplers().into_iter().find(|sampler| sampler.name() == name).unwrap();
            serde_json::from_str::<Value>(&sampler.description()).unwrap()
        };
        let k = json!({"name": "k", "type": "integer", "default": 40, "minimum": 0, "maximum": u32::MAX});
        assert_eq!(described("top_k")["parameters"], json!([k]));
    }
}
