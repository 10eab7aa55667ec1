//! Total usage of a request in this API's terms: a prompt counts once, however many choices it has.

use serde_json::{Value, json};

use crate::{chat::CacheReport, dialects::usage::add_report};
use pensieve_protocol::job::Usage;

#[derive(Debug)]
pub(super) struct UsageTotal {
    prompts: Vec<Prompt>,
    generated: u64,
    has_thought: bool,
    cache: Option<CacheReport>,
}

#[derive(Debug)]
struct Prompt {
    tokens: u32,
    /// The smallest count among a prompt's choices: the others found in the cache what the first one computed.
    cached: Option<u32>,
}

impl UsageTotal {
    pub(super) fn new(input_tokens: &[u32]) -> Self {
        let prompt = |tokens: &u32| Prompt { tokens: *tokens, cached: None };
        Self { prompts: input_tokens.iter().map(prompt).collect(), generated: 0, has_thought: false, cache: None }
    }

    pub(super) fn add(&mut self, prompt: usize, usage: Usage, has_thought: bool) {
        let prompt = &mut self.prompts[prompt];
        // An upstream counts the prompt with its answer.
        if usage.prompt > 0 {
            prompt.tokens = usage.prompt;
        }
        prompt.cached = Some(prompt.cached.map_or(usage.reused, |cached| cached.min(usage.reused)));
        self.generated += u64::from(usage.generated);
        self.has_thought |= has_thought;
    }

    /// Records where a prompt's tokens came from; the first one is reported.
    pub(super) fn cached(&mut self, report: Option<&CacheReport>) {
        self.cache = self.cache.take().or_else(|| report.cloned());
    }

    pub(super) fn json(&self) -> Value {
        let prompt: u64 = self.prompts.iter().map(|prompt| u64::from(prompt.tokens)).sum();
        let cached: u64 = self.prompts.iter().map(|prompt| u64::from(prompt.cached.unwrap_or(0))).sum();
        let mut usage = json!({
            "prompt_tokens": prompt,
            "completion_tokens": self.generated,
            "total_tokens": prompt + self.generated,
            "prompt_tokens_details": { "cached_tokens": cached },
        });
        // Reasoning tokens are not counted; 0 is reported only if there was no reasoning.
        if !self.has_thought {
            usage["completion_tokens_details"] = json!({ "reasoning_tokens": 0 });
        }
        add_report(&mut usage, self.cache.as_ref());
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_count_once_and_what_choices_share_is_not_called_cached() {
        let mut tally = UsageTotal::new(&[10, 20]);
        let choices = [(0, 4, 3), (0, 8, 5), (1, 16, 7), (1, 16, 1)];
        for (prompt, reused, generated) in choices {
            tally.add(prompt, Usage { prompt: [10, 20][prompt], reused, generated }, false);
        }
        let expect = json!({
            "prompt_tokens": 30, "completion_tokens": 16, "total_tokens": 46,
            "prompt_tokens_details": {"cached_tokens": 20}, "completion_tokens_details": {"reasoning_tokens": 0},
        });
        assert_eq!(tally.json(), expect);
    }

    #[test]
    fn tokens_of_reasoning_are_not_guessed() {
        let mut tally = UsageTotal::new(&[10]);
        tally.add(0, Usage { prompt: 10, reused: 0, generated: 5 }, true);
        assert!(tally.json().get("completion_tokens_details").is_none());
    }
}
