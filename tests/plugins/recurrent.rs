//! A per-sequence model whose tokens are bytes: one number per sequence remembers all that it has read, and nothing can be
//! taken back from it. It is strict with its host: a sequence that does not go on where its state stands, and a state
//! more than there is room for, are errors.

use pensieve_sdk::{
    AdapterData, Architecture, Batch, Cache, Card, Error, LoadRequest, Model, Plugin, Resident, Result, Services,
    Source,
};
use std::collections::HashMap;

const VOCABULARY: u32 = 257;
const CONTEXT: u32 = 32_768;
const STATE_BYTES: u64 = 8;

pensieve_sdk::export!(Plugin::new("recurrent", "remembers a sequence in a number").architecture(Recurrent));

struct Recurrent;

impl Architecture for Recurrent {
    fn name(&self) -> &'static str {
        "recurrent"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["RecurrentForCausalLM"]
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        let vocab: Vec<String> = (0..256).map(|byte| format!(r#""<0x{byte:02X}>":{byte}"#)).collect();
        let tokenizer = format!(
            r#"{{"version":"1.0","added_tokens":[],"decoder":{{"type":"ByteFallback"}},"model":{{"type":"BPE","byte_fallback":true,"vocab":{{{},"<end>":256}},"merges":[]}}}}"#,
            vocab.join(",")
        );
        Ok(Card {
            architecture: self.name().into(),
            vocabulary: VOCABULARY,
            context: CONTEXT,
            block_tokens: 16,
            caches: vec![Cache::Opaque { bytes: STATE_BYTES }],
            hidden: 0,
            token_bytes: 0,
            weight_bytes: 0,
            tokenizer,
            chat_template: None,
            bos: None,
            add_bos: false,
            eos: vec![256],
            formats: String::new(),
            facts: String::new(),
            fingerprint: format!("recurrent {}", source.path.display()),
        })
    }

    fn load(&self, request: &LoadRequest, _services: &Services) -> Result<Box<dyn Model>> {
        let states_max = usize::try_from(request.state_bytes / STATE_BYTES).unwrap_or(usize::MAX);
        Ok(Box::new(Loaded { states_max, states: HashMap::new() }))
    }
}

struct Loaded {
    states_max: usize,
    /// How many tokens a sequence has, and what they amount to.
    states: HashMap<u64, (usize, u32)>,
}

impl Model for Loaded {
    fn resident(&self) -> Resident {
        Resident {
            device: "cpu".into(),
            note: "no kernels".into(),
            weight_bytes: 0,
            state_bytes: self.states_max as u64 * STATE_BYTES,
            vocabulary: VOCABULARY,
            context: CONTEXT,
            hidden: 0,
            block_tokens: 16,
            caches: vec![(Cache::Opaque { bytes: STATE_BYTES }, self.states_max as u32)],
        }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        let mut rows = logits.chunks_exact_mut(VOCABULARY as usize);
        for span in &batch.spans {
            let (count, mut history) = self.states.get(&span.sequence).copied().unwrap_or((0, 1));
            if count != span.past {
                return Err(Error::invalid(format!("a state of {count} tokens cannot go on after {}", span.past)));
            }
            for token in &batch.tokens[span.start..span.start + span.len] {
                history = (history ^ token).wrapping_mul(0x9e37_79b1).rotate_left(13);
            }
            self.states.insert(span.sequence, (count + span.len, history));
            if self.states.len() > self.states_max {
                return Err(Error::out_of_memory(format!("there is room for {} states only", self.states_max)));
            }
            if span.want.rows(span.len) > 0
                && let Some(row) = rows.next()
            {
                row.fill(-20.0);
                row[usize::from(b'a') + history as usize % 26] = 1.0;
            }
        }
        Ok(())
    }

    fn attach(&mut self, _adapter: &AdapterData) -> Result<u32> {
        Err(Error::unsupported("no adapters here"))
    }

    fn release(&mut self, sequence: u64) {
        self.states.remove(&sequence);
    }
}
