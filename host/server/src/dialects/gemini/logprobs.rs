//! Log-probabilities: the chosen tokens and the most likely ones at each position, and their mean.

use serde_json::{Value, json};

use crate::chat::TokenLogprob;

/// Replaces -∞, which JSON cannot represent.
const NEVER: f32 = -9999.0;

#[derive(Debug, Default)]
pub(super) struct Logprobs {
    chosen: Vec<Value>,
    top: Vec<Value>,
    sum: f64,
}

impl Logprobs {
    pub(super) fn add(&mut self, tokens: &[TokenLogprob]) {
        for token in tokens {
            self.sum += f64::from(finite(token.logprob));
            self.chosen.push(entry(token));
            self.top.push(json!({ "candidates": token.top.iter().map(entry).collect::<Vec<_>>() }));
        }
    }

    /// Adds the fields to a candidate; the alternatives only if some were requested.
    pub(super) fn add_to(self, candidate: &mut Value, alternatives: u8) {
        if self.chosen.is_empty() {
            return;
        }
        candidate["avgLogprobs"] = (self.sum / self.chosen.len() as f64).into();
        let mut result = json!({ "chosenCandidates": self.chosen });
        if alternatives > 0 {
            result["topCandidates"] = self.top.into();
        }
        candidate["logprobsResult"] = result;
    }
}

fn entry(token: &TokenLogprob) -> Value {
    // Converted by way of its decimal text, so that -0.1 does not become -0.10000000149.
    let logprob = finite(token.logprob).to_string().parse::<f64>().unwrap_or(f64::from(NEVER));
    json!({ "token": String::from_utf8_lossy(&token.bytes), "tokenId": token.id, "logProbability": logprob })
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { NEVER }
}
