//! Conformance: the laws that every model must obey, tried on an author's model in `cargo test`.
//!
//! The laws are the contract's own (`pensieve plugins check` tries the same ones), and the model is called through the
//! same glue as by a host. Needs the feature `testing`, which is on by default. Load a small checkpoint, and:
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

pub use pensieve_plugin_api::ModelBox;

pub use pensieve_laws::{MediaSample, Options, Outcome, Reference, Report, SamplerOptions, Verdict};

use crate::{
    AdapterData, AdapterFormat, Model, Result,
    export::{adapter_out, export_format, export_model, export_sampler, group},
    sampler::Sampler,
};
use std::path::Path;

#[cfg(feature = "weights")]
pub use {checkpoint::random_checkpoint, media::pictures};

#[cfg(feature = "weights")]
mod checkpoint;
#[cfg(feature = "weights")]
mod media;

/// Runs all laws on a freshly loaded model.
pub fn conformance(model: Box<dyn Model>) -> Report {
    conformance_with(model, &Options::default())
}

/// Runs all laws with other texts, tolerances, or reference logits of another implementation.
pub fn conformance_with(model: Box<dyn Model>, options: &Options) -> Report {
    let resident = model.resident();
    let shape = pensieve_laws::Shape {
        vocabulary: resident.vocabulary,
        block_tokens: resident.block_tokens,
        caches: resident.caches.iter().map(|(cache, _)| group(cache)).collect(),
        candidates: resident.vocabulary,
        hidden: resident.hidden,
    };
    match export_model(model) {
        Ok(mut model) => pensieve_laws::check(&mut model, shape, options, &mut |_| {}),
        Err(error) => {
            let outcome = Outcome::Broken { what: error.message, hint: error.help };
            Report { verdicts: vec![Verdict { law: "resident", says: "a host can take the model in", outcome }] }
        }
    }
}

/// Wraps a model as a host gets it, for tests of an extension of one's own.
pub fn exported(model: Box<dyn Model>) -> Result<ModelBox> {
    export_model(model)
}

/// Adds an adapter that fits the model.
pub fn with_adapter(options: Options, adapter: AdapterData) -> Result<Options> {
    Ok(Options { adapter: Some(adapter_out(adapter)?), ..options })
}

/// Runs all laws of samplers. The sampler lives until the process exits, as a plugin's providers do.
pub fn sampler_conformance(sampler: impl Sampler, options: &SamplerOptions) -> Report {
    let sampler: &'static dyn Sampler = Box::leak(Box::new(sampler));
    pensieve_laws::check_sampler(&export_sampler(sampler.name(), sampler), options, &mut |_| {})
}

/// Runs all laws of adapter formats on an adapter; `scratch` is an empty folder. The format lives until the process
/// exits.
pub fn format_conformance(format: impl AdapterFormat, adapter: &Path, scratch: &Path) -> Report {
    let format = export_format(Box::leak(Box::new(format)));
    pensieve_laws::check_format(&format, adapter, scratch, &mut |_| {})
}
