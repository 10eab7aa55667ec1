//! Conformance: the laws that every model must obey, tried on an author's model in `cargo test`.
//!
//! The laws are the contract's own (`pensieve plugins check` tries the same ones), and the model passes through the glue
//! that a host would meet it behind. Depend on the SDK with the feature `testing` under `[dev-dependencies]`, load a small
//! checkpoint, and:
//!
//! ```
//! # use pensieve_sdk::{Batch, Cache, Model, Resident, Result};
//! # struct Constant;
//! # impl Model for Constant {
//! #     fn resident(&self) -> Resident {
//! #         let (device, note, caches) = ("cpu".into(), String::new(), vec![(Cache::Tokens { bytes: 0 }, 16)]);
//! #         let (weight_bytes, state_bytes, vocabulary, hidden, context, block_tokens) = (0, 0, 3, 0, 64, 8);
//! #         Resident { device, note, weight_bytes, state_bytes, vocabulary, hidden, context, block_tokens, caches }
//! #     }
//! #     fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
//! #         for (row, token) in logits.chunks_exact_mut(3).zip(batch.wanted()) {
//! #             row.copy_from_slice(&[0.0, 1.0, batch.tokens[token as usize] as f32]);
//! #         }
//! #         Ok(())
//! #     }
//! #     fn release(&mut self, _: u64) {}
//! # }
//! # let model = Box::new(Constant);
//! let report = pensieve_sdk::testing::conformance(model);
//! assert!(report.passed(), "{report}");
//! ```

pub use pensieve_plugin_api::laws::{Options, Outcome, Reference, Report, Verdict};

use crate::{
    Model,
    export::{export_model, group},
};
use pensieve_plugin_api::laws;

#[cfg(feature = "weights")]
pub use checkpoint::random_checkpoint;

#[cfg(feature = "weights")]
mod checkpoint;

/// Tries every law on a freshly loaded model.
pub fn conformance(model: Box<dyn Model>) -> Report {
    conformance_with(model, &Options::default())
}

/// Tries every law with other texts, tolerances, or the logits of another implementation.
pub fn conformance_with(model: Box<dyn Model>, options: &Options) -> Report {
    let resident = model.resident();
    let shape = laws::Shape {
        vocabulary: resident.vocabulary,
        block_tokens: resident.block_tokens,
        caches: resident.caches.iter().map(|(cache, _)| group(cache)).collect(),
        candidates: resident.vocabulary,
        hidden: resident.hidden,
    };
    match export_model(model) {
        Ok(mut model) => laws::check(&mut model, shape, options, &mut |_| {}),
        Err(error) => {
            let outcome = Outcome::Broken { what: error.message, hint: error.help };
            Report { verdicts: vec![Verdict { law: "resident", says: "a host can take the model in", outcome }] }
        }
    }
}
