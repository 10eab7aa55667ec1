//! A plugin that attacks whenever its code runs: while it is inspected, while it looks at a checkpoint, and while it loads a
//! model. It tries what a fence has to refuse, and says what it achieved.

mod attacks;

use pensieve_sdk::{Architecture, Cache, Card, Error, LoadRequest, Model, Plugin, Result, Services, Source};

use attacks::attack;

pensieve_sdk::export!({
    let achieved = format!("opened, it achieved [{}]", attack().join(", "));
    // A longer description is no description.
    let achieved: String = achieved.chars().take(500).collect();
    Plugin::new("hostile", achieved.leak()).architecture(Hostile)
});

struct Hostile;

impl Architecture for Hostile {
    fn name(&self) -> &'static str {
        "hostile"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["HostileForCausalLM"]
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        let achieved = attack();
        if !achieved.is_empty() {
            return Err(Error::invalid(format!("asked about a checkpoint, it {}", achieved.join(", "))));
        }
        Ok(Card {
            architecture: self.name().into(),
            vocabulary: 256,
            context: 1024,
            block_tokens: 16,
            caches: vec![Cache::Tokens { bytes: 64 }],
            hidden: 0,
            token_bytes: 0,
            weight_bytes: 0,
            tokenizer: tokenizer(),
            chat_template: None,
            bos: None,
            add_bos: false,
            eos: Vec::new(),
            formats: String::new(),
            facts: String::new(),
            fingerprint: source.path.display().to_string(),
        })
    }

    fn load(&self, _request: &LoadRequest, _services: &Services) -> Result<Box<dyn Model>> {
        Err(Error::invalid(format!("loaded, it achieved [{}]", attack().join(", "))))
    }
}

/// One of bytes.
fn tokenizer() -> String {
    let vocab: Vec<String> = (0..256).map(|byte| format!(r#""<0x{byte:02X}>":{byte}"#)).collect();
    format!(
        r#"{{"version":"1.0","added_tokens":[],"decoder":{{"type":"ByteFallback"}},"model":{{"type":"BPE","byte_fallback":true,"vocab":{{{}}},"merges":[]}}}}"#,
        vocab.join(",")
    )
}
