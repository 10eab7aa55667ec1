//! A plugin that panics in the call that its options name, and works otherwise.
//!
//! Its model keeps a state per sequence: the tokens that it has seen, of which the logits are a checksum.

use pensieve_sdk::{
    AdapterData, AdapterFormat, Architecture, Batch, Cache, Card, Error, LoadRequest, Model, Plugin, Resident, Result,
    SequenceState, Services, Source,
    sampler::{Candidates, History, Sampler, Stage},
};
use std::{collections::HashMap, path::Path};

const VOCABULARY: u32 = 8;

/// What makes `forward` panic when it is asked to.
const BAD_TOKEN: u32 = 7;

pensieve_sdk::export!({
    std::panic::set_hook(Box::new(|_| ()));
    Plugin::new("panics", "panics on demand").architecture(Panics).sampler(Panics).adapter_format(Panics)
});

struct Panics;

/// Panics if the options, a JSON object, name this call.
fn maybe(options: &str, call: &str) {
    assert!(!options.contains(&format!("\"{call}\"")), "as told, in {call}");
}

impl Architecture for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        maybe(&source.options, "describe");
        Ok(Card {
            architecture: "panics".into(),
            vocabulary: VOCABULARY,
            context: 64,
            block_tokens: 16,
            caches: vec![Cache::Opaque { bytes: 256 }],
            hidden: 0,
            token_bytes: 0,
            weight_bytes: 0,
            tokenizer: String::new(),
            chat_template: None,
            bos: None,
            add_bos: false,
            eos: Vec::new(),
            formats: String::new(),
            facts: String::new(),
            fingerprint: "panics".into(),
        })
    }

    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>> {
        let options = request.source.options.clone();
        maybe(&options, "load");
        services.go_on()?;
        services.progress(1, 1, "tensors");
        Ok(Box::new(Loaded { options, sequences: HashMap::new() }))
    }
}

struct Loaded {
    options: String,
    sequences: HashMap<u64, Vec<u32>>,
}

impl Model for Loaded {
    fn resident(&self) -> Resident {
        maybe(&self.options, "resident");
        Resident {
            device: "cpu".into(),
            note: String::new(),
            weight_bytes: 0,
            state_bytes: 0,
            vocabulary: VOCABULARY,
            context: 64,
            hidden: 0,
            block_tokens: 16,
            caches: vec![(Cache::Opaque { bytes: 256 }, 0)],
        }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        if batch.tokens.contains(&BAD_TOKEN) {
            maybe(&self.options, "forward");
        }
        let mut rows = logits.chunks_exact_mut(VOCABULARY as usize);
        for span in &batch.spans {
            let seen = self.sequences.entry(span.sequence).or_default();
            if seen.len() != span.past {
                return Err(Error::invalid(format!("{} tokens seen, not {}", seen.len(), span.past)));
            }
            for (index, &token) in batch.tokens[span.start..span.start + span.len].iter().enumerate() {
                seen.push(token);
                if index + span.want.rows(span.len) >= span.len
                    && let Some(row) = rows.next()
                {
                    row.fill(0.0);
                    let sum: u32 = seen.iter().zip(1..).map(|(token, place)| token * place).sum();
                    row[(sum % VOCABULARY) as usize] = 1.0;
                }
            }
        }
        Ok(())
    }

    fn release(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
        maybe(&self.options, "release");
    }

    fn attach(&mut self, _adapter: &AdapterData) -> Result<u32> {
        maybe(&self.options, "attach");
        Ok(1)
    }

    fn detach(&mut self, _adapter: u32) -> Result<()> {
        maybe(&self.options, "detach");
        Ok(())
    }

    fn sequence_state(&mut self) -> Option<&mut dyn SequenceState> {
        Some(self)
    }
}

impl SequenceState for Loaded {
    fn fork(&mut self, from: u64, to: u64) -> Result<()> {
        maybe(&self.options, "fork");
        let seen = self.sequences.get(&from).ok_or_else(|| Error::not_found(format!("no sequence {from}")))?.clone();
        self.sequences.insert(to, seen);
        Ok(())
    }

    fn snapshot(&self, _sequence: u64) -> Result<Vec<u8>> {
        maybe(&self.options, "snapshot");
        Err(Error::unsupported("no snapshots here"))
    }

    fn restore(&mut self, _sequence: u64, _bytes: &[u8]) -> Result<()> {
        maybe(&self.options, "restore");
        Err(Error::unsupported("no snapshots here"))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        maybe(&self.options, "drop");
    }
}

impl Sampler for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn create(&self, parameters: &str, _vocabulary: u32, _seed: u64) -> Result<Box<dyn Stage>> {
        maybe(parameters, "create");
        Ok(Box::new(First { parameters: parameters.into() }))
    }
}

struct First {
    parameters: String,
}

impl Stage for First {
    fn sample(&mut self, candidates: &mut Candidates<'_>, history: History<'_>) -> Result<Option<u32>> {
        if history.tokens.contains(&BAD_TOKEN) {
            maybe(&self.parameters, "sample");
        }
        Ok(candidates.ids().first().copied())
    }
}

impl Drop for First {
    fn drop(&mut self) {
        maybe(&self.parameters, "drop");
    }
}

impl AdapterFormat for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn claims(&self, path: &Path) -> bool {
        maybe(&format!("{path:?}"), "claims");
        true
    }

    fn open(&self, path: &Path) -> Result<AdapterData> {
        maybe(&format!("{path:?}"), "open");
        Ok(AdapterData { base: String::new(), fingerprint: "none".into(), pairs: Vec::new() })
    }
}
