//! Mistral's models, as two architectures: `mistral`, dense, and `mixtral`, a mixture of experts.

mod mistral;
mod mixtral;
mod vision;

use pensieve_sdk::{Plugin, export, nn::Paged};

export!(
    Plugin::new("mistral", "Mistral 7B to Ministral 3, and Mixtral")
        .architecture(Paged::<mistral::Mistral>::architecture())
        .architecture(Paged::<mixtral::Mixtral>::architecture())
);
