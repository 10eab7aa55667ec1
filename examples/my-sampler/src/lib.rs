//! A stage that keeps the candidates within `n` standard deviations of the best one (top-nσ, arXiv 2411.07641): noise
//! in the logits lies around their mean, and the meaningful tokens stand out above it, at any temperature.
//!
//! A stage narrows the candidates, changes their logits, or picks one of them, which ends the chain. Change this one
//! into yours.

use pensieve_sdk::{
    Error, Plugin, Result, export,
    sampler::{Candidates, History, Sampler, Stage},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

export!(Plugin::new("my-sampler", "keeps what stands out").sampler(TopNSigma));

/// The name that requests use.
const NAME: &str = "my_sampler";
const N_MAX: f32 = 100.0;

/// Creates the stages.
struct TopNSigma;

/// A request's parameters: `{"sampler": "my_sampler", "n": 1.5}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    #[serde(default = "one")]
    n: f32,
}

fn one() -> f32 {
    1.0
}

impl Sampler for TopNSigma {
    fn name(&self) -> &'static str {
        NAME
    }

    fn create(&self, parameters: &str, _vocabulary: u32, _seed: u64) -> Result<Box<dyn Stage>> {
        let parameters = if parameters.is_empty() { "{}" } else { parameters };
        let wrong = |error: serde_json::Error| Error::invalid(format!("{NAME}: {error}"));
        // Parsed as an object first: a struct alone would also accept a list of values.
        let object: Map<String, Value> = serde_json::from_str(parameters).map_err(wrong)?;
        let Parameters { n } = Parameters::deserialize(Value::Object(object)).map_err(wrong)?;
        if !(0.0..=N_MAX).contains(&n) {
            return Err(Error::invalid(format!("{NAME}: parameter 'n' = {n} is not a number from 0 to {N_MAX}")));
        }
        Ok(Box::new(Outstanding { n }))
    }

    fn description(&self) -> String {
        let n = json!({ "name": "n", "type": "number", "default": one(), "minimum": 0, "maximum": N_MAX });
        json!({ "text": "keeps what is within n standard deviations of the best", "parameters": [n] }).to_string()
    }
}

/// The stage of one sequence.
struct Outstanding {
    n: f32,
}

impl Stage for Outstanding {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _history: History<'_>) -> Result<Option<u32>> {
        let best = candidates.maximum();
        if best.is_finite() {
            candidates.keep_from(best - self.n * deviation(candidates.logits()));
        }
        Ok(None)
    }
}

/// Standard deviation of the finite logits; barred tokens are at −inf.
fn deviation(logits: &[f32]) -> f32 {
    let finite = || logits.iter().copied().filter(|logit| logit.is_finite()).map(f64::from);
    let count = finite().count().max(1) as f64;
    let mean = finite().sum::<f64>() / count;
    (finite().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use pensieve_sdk::testing::{SamplerOptions, sampler_conformance};

    const HISTORY: History<'_> = History { tokens: &[], prompt: 0 };

    /// The tokens that remain for these logits.
    fn left(parameters: &str, logits: &[f32]) -> Result<Vec<u32>> {
        let (mut ids, mut logits) = ((0..).take(logits.len()).collect::<Vec<u32>>(), logits.to_vec());
        let mut candidates = Candidates::new(&mut ids, &mut logits, false)?;
        let mut stage = TopNSigma.create(parameters, candidates.len() as u32, 0)?;
        assert_eq!(stage.sample(&mut candidates, HISTORY)?, None);
        Ok(candidates.ids().to_vec())
    }

    #[test]
    fn obeys_the_laws() {
        let report = sampler_conformance(TopNSigma, &SamplerOptions::default());
        assert!(report.passed(), "{report}");
    }

    #[test]
    fn keeps_what_stands_out() -> Result<()> {
        // Mean 2, standard deviation 1.91.
        let logits = [0.0, 1.0, 6.0, 1.0, 2.0, 2.0];
        assert_eq!(left(r#"{"n": 0}"#, &logits)?, [2]);
        assert_eq!(left(r#"{"n": 2}"#, &logits)?, [2]);
        assert_eq!(left(r#"{"n": 2.2}"#, &logits)?, [2, 4, 5]);
        assert_eq!(left(r#"{"n": 100}"#, &logits)?, [0, 1, 2, 3, 4, 5]);
        assert_eq!(left("", &[5.0, 5.0])?, [0, 1]);
        Ok(())
    }

    #[test]
    fn leaves_what_a_grammar_has_barred_aside() -> Result<()> {
        assert_eq!(left("", &[f32::NEG_INFINITY, 1.0, f32::NAN, 1.0])?, [1, 3]);
        assert_eq!(left("", &[f32::NEG_INFINITY; 3])?, [0, 1, 2]);
        assert!(left("", &[])?.is_empty());
        Ok(())
    }

    #[test]
    fn takes_the_defaults_and_bounds_that_it_describes() -> Result<()> {
        let described: Value = serde_json::from_str(&TopNSigma.description()).expect("a JSON object");
        let n = &described["parameters"][0];
        for member in ["default", "minimum", "maximum"] {
            assert!(n[member].is_number(), "{member}: {n}");
            left(&json!({ "n": n[member] }).to_string(), &[1.0])?;
        }
        assert_eq!(left("", &[1.0, 2.0])?, left(&json!({ "n": n["default"] }).to_string(), &[1.0, 2.0])?);
        Ok(())
    }

    #[test]
    fn names_a_wrong_parameter() {
        for (parameters, named) in
            [(r#"{"n": -1}"#, "'n'"), (r#"{"m": 1}"#, "`m`"), (r#"{"n": "x"}"#, "\"x\""), ("[", NAME)]
        {
            let Err(error) = left(parameters, &[1.0]) else { panic!("{parameters} is taken") };
            assert!(error.message.contains(named), "{error}");
        }
    }
}
